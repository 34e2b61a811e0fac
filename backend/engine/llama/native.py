"""What all of the door shares: the library, its log, functions that keep the GIL, errors."""

import collections
import ctypes
import functools
import sys
from typing import Any

import llama_cpp.llama_cpp as lib
from llama_cpp import mtmd_cpp as mtmd

__all__ = [
    "DecodeFailed",
    "KvFull",
    "LoadError",
    "NotFinite",
    "keep_gil",
    "lib",
    "log",
    "mtmd",
]


class LoadError(Exception):
    """The model cannot be served; the message says why and is meant for people."""


class KvFull(Exception):
    """No cells for the batch. Nothing has changed."""


class DecodeFailed(Exception):
    """llama_decode refused the batch (``rc`` -1: nothing changed) or broke (below: fatal)."""

    def __init__(self, rc: int) -> None:
        super().__init__(f"llama_decode returned {rc}")
        self.rc = rc


class NotFinite(Exception):
    """The logits hold no number to choose by."""


class Log:
    """llama.cpp's log: warnings and errors to stderr, the last errors kept for messages."""

    def __init__(self) -> None:
        self.errors: collections.deque[str] = collections.deque(maxlen=20)
        self._level = 0
        # A ctypes callback that is collected while C still holds it crashes: keep it.
        self.callback = lib.llama_log_callback(self._on_log)
        lib.llama_log_set(self.callback, ctypes.c_void_p(0))

    def _on_log(self, level: int, text: bytes, _data: Any) -> None:
        line = text.decode("utf-8", "replace").strip()
        if level != 5:  # 5 continues the line before
            self._level = level
        if not line.strip("."):
            return
        if self._level >= 4:
            self.errors.append(line)
        if self._level >= 3:
            print(line, file=sys.stderr, flush=True)  # noqa: T201

    def reason(self) -> str:
        """The errors seen last, innermost first, without llama.cpp's function names."""
        lines = [e.split(": ", 1)[1] if ": " in e else e for e in self.errors]
        return "; ".join(dict.fromkeys(lines)) or "no reason given"


@functools.cache
def log() -> Log:
    """The process's log: llama.cpp has one callback for all models."""
    return Log()


def keep_gil(name: str) -> Any:
    """A C function called without giving up the GIL. For calls of a few microseconds: winning the
    GIL back from a busy thread costs up to a switch interval each time."""
    source = getattr(lib, name)
    function = getattr(_gil_lib, name)
    function.argtypes, function.restype = source.argtypes, source.restype
    return function


_gil_lib = ctypes.PyDLL(lib._lib._name)
