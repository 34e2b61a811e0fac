"""Readers of settings that are handed on to llama.cpp; see ``values``. What they let through does
not make it abort."""

import math
import re
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

from corral.backend.values import between

CacheType: TypeAlias = Literal[
    "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"
]
SplitMode: TypeAlias = Literal["none", "layer", "row"]
LoadMode: TypeAlias = Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]
RopeScaling: TypeAlias = Literal["none", "linear", "yarn"]
Numa: TypeAlias = Literal["distribute", "isolate", "numactl"]
#: A key of the file's metadata and the value in its place.
Override: TypeAlias = tuple[str, bool | int | float | str]

#: llama.cpp's limits: devices, layers, and bytes of a metadata key or text with its end.
MAX_DEVICES, MAX_LAYERS, MAX_TEXT = 16, 512, 127
_RULES = 64
_OVERRIDE = re.compile(r"([^=]+)=(int|float|bool|str):(.*)", re.DOTALL)
#: A comma belongs to the value unless another override follows it.
_NEXT_OVERRIDE = re.compile(r",(?=[^,=]+=(?:int|float|bool|str):)")


def choice(kinds: Any) -> Callable[[str], str]:
    """One of the words of a ``Literal``."""
    words = get_args(kinds)

    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"must be {', '.join(words[:-1])} or {words[-1]}")
        return text.lower()

    return parse


def gpu_layers(text: str) -> int:
    """A number of layers; ``auto`` and ``all``, as -1 and -2, are -1."""
    if text in ("auto", "all", "-1", "-2"):
        return -1
    return int(between(0, 10_000)(text))


def or_default(default: float, low: float, high: float) -> Callable[[str], float]:
    """A number from ``low`` to ``high``, or the one that leaves it to the model."""

    def parse(text: str) -> float:
        value = float(text)
        if value != default and not low <= value <= high:
            raise ValueError(f"must be between {low:.10g} and {high:.10g}, or {default:.10g}")
        return value

    return parse


def n_tokens(text: str) -> int:
    """A number of tokens; -1 leaves it to the model."""
    return -1 if text == "-1" else int(between(1, 2**20)(text))


def shares(text: str) -> tuple[float, ...]:
    """Shares of devices, separated by commas or slashes."""
    try:
        found = tuple(float(part) for part in re.split("[,/]", text))
    except ValueError:
        found = ()
    are_fine = all(math.isfinite(share) and 0 <= share <= 1e9 for share in found)
    if not (0 < len(found) <= MAX_DEVICES and are_fine and any(found)):
        raise ValueError(f"must be 1 to {MAX_DEVICES} numbers from 0 up, not all of them 0")
    return found


def devices(text: str) -> tuple[str, ...]:
    """Names, separated by commas; ``none`` for none."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or len(names) > MAX_DEVICES or len(set(names)) < len(names):
        raise ValueError("must name devices, each once, or be none")
    return () if names == ("none",) else names


def overrides(text: str) -> tuple[Override, ...]:
    """``KEY=TYPE:VALUE``, separated by commas."""
    return tuple(_override(part) for part in _NEXT_OVERRIDE.split(text))


def _override(text: str) -> Override:
    match = _OVERRIDE.fullmatch(text)
    if match is None:
        raise ValueError("must be KEY=TYPE:VALUE, the type one of int, float, bool and str")
    key, kind, value = match.groups()
    if not 0 < len(key.encode("utf-8", "replace")) <= MAX_TEXT or "\0" in key:
        raise ValueError(f"must have a key of at most {MAX_TEXT} bytes")
    return key, _READERS[kind](value)


def _whole(text: str) -> int:
    try:
        return int(between(-(2**63), 2**63 - 1)(text))
    except ValueError:
        raise ValueError("must have a whole number of 64 bits behind int:") from None


def _finite(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("must have a finite number behind float:")
    return value


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("must have true or false behind bool:")
    return text == "true"


def _short(text: str) -> str:
    if len(text.encode("utf-8", "replace")) > MAX_TEXT or "\0" in text:
        raise ValueError(f"must have at most {MAX_TEXT} bytes behind str:")
    return text


_READERS: dict[str, Callable[[str], bool | int | float | str]] = {
    "int": _whole,
    "float": _finite,
    "bool": _truth,
    "str": _short,
}


def tensor_buffers(text: str) -> tuple[tuple[str, str], ...]:
    """``PATTERN=BUFFER``, separated by commas; patterns are regular expressions."""
    found = []
    for part in text.split(","):
        pattern, equals, buffer = part.partition("=")
        if not (pattern and equals and buffer):
            raise ValueError("must be PATTERN=BUFFER")
        try:
            re.compile(pattern)
        except (re.error, RecursionError):
            raise ValueError("must have a regular expression in front of the =") from None
        if len(pattern) > MAX_TEXT or "\0" in part:
            raise ValueError(f"must have a pattern of at most {MAX_TEXT} characters")
        found.append((pattern, buffer))
    if len(found) > _RULES:
        raise ValueError(f"must be at most {_RULES} patterns")
    return tuple(found)
