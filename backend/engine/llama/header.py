"""What a GGUF file says of itself before the model is loaded: which kind of model it is.

llama.cpp has no function that tells an embedding model from a generating one; its file does.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import NamedTuple, cast

from corral.backend.engine.llama.loading import check_file
from corral.backend.engine.llama.native import lib
from corral.backend.engine.messages import Pooling

#: ``pooling_type`` in the order of llama.h's enum; -1 and 0 are no pooling.
POOLINGS: tuple[Pooling, ...] = ("none", "mean", "cls", "last", "rank")

# gguf.h: the types of values that are read here.
_UINT32, _INT32, _BOOL, _STRING = 4, 5, 7, 8
#: The last matrix of a classification head; the one tensor that all rankers have.
_HEADS = (b"cls.output.weight", b"cls.weight")


class Header(NamedTuple):
    """``pooling`` None: the file names none. ``has_head``: it can score a pair of texts."""

    architecture: str
    pooling: Pooling | None
    is_causal: bool
    has_head: bool

    @property
    def is_embedding_model(self) -> bool:
        """Whether the model is made for vectors or scores, not for generating text."""
        is_encoder = not self.is_causal or self.architecture == "t5encoder"
        return is_encoder or self.pooling not in (None, "none")


class _Params(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def read_header(path: Path) -> Header:
    """The header of a GGUF file. Raises ``LoadError`` for what is no such file; one that is broken
    further on is left to the loader, which says how."""
    check_file(path)
    file = _File(path)
    try:
        arch = file.text("general.architecture") or ""
        kind = file.number(f"{arch}.pooling_type")
        return Header(
            architecture=arch,
            pooling=POOLINGS[kind] if kind is not None and 0 <= kind < len(POOLINGS) else None,
            is_causal=file.flag(f"{arch}.attention.causal") is not False,
            has_head=any(file.has_tensor(name) for name in _HEADS),
        )
    finally:
        file.close()


class _File:
    """A header in llama.cpp's memory; everything is absent from one that it cannot read."""

    def __init__(self, path: Path) -> None:
        library = lib._lib
        self._library = library
        for name, result, *arguments in (
            ("gguf_init_from_file", ctypes.c_void_p, ctypes.c_char_p, _Params),
            ("gguf_free", None, ctypes.c_void_p),
            ("gguf_find_key", ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p),
            ("gguf_find_tensor", ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p),
            ("gguf_get_kv_type", ctypes.c_int, ctypes.c_void_p, ctypes.c_int64),
            ("gguf_get_val_u32", ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int64),
            ("gguf_get_val_i32", ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64),
            ("gguf_get_val_bool", ctypes.c_bool, ctypes.c_void_p, ctypes.c_int64),
            ("gguf_get_val_str", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._file = library.gguf_init_from_file(os.fsencode(path), _Params(True, None))

    def _find(self, key: str, *types: int) -> tuple[int, int] | None:
        """Where a value of one of these types is, and which it is: a wrong one would abort."""
        if not self._file:
            return None
        index = self._library.gguf_find_key(self._file, key.encode())
        if index < 0:
            return None
        kind = self._library.gguf_get_kv_type(self._file, index)
        return (index, kind) if kind in types else None

    def text(self, key: str) -> str | None:
        found = self._find(key, _STRING)
        if found is None:
            return None
        return cast(bytes, self._library.gguf_get_val_str(self._file, found[0])).decode(
            "utf-8", "replace"
        )

    def number(self, key: str) -> int | None:
        found = self._find(key, _UINT32, _INT32)
        if found is None:
            return None
        read = "gguf_get_val_u32" if found[1] == _UINT32 else "gguf_get_val_i32"
        return int(getattr(self._library, read)(self._file, found[0]))

    def flag(self, key: str) -> bool | None:
        found = self._find(key, _BOOL)
        return (
            None if found is None else bool(self._library.gguf_get_val_bool(self._file, found[0]))
        )

    def has_tensor(self, name: bytes) -> bool:
        return bool(self._file) and self._library.gguf_find_tensor(self._file, name) >= 0

    def close(self) -> None:
        if self._file:
            self._library.gguf_free(self._file)
