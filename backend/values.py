"""What the text of a setting may be: readers from text to value. Each raises ``ValueError``, with a
message that begins with "must" where the rule can be said in a few words.
"""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

from corral.backend import samplers as known
from corral.backend.errors import Refused
from corral.backend.jsonvalue import value_of

_LEVELS = ("error", "error", "warning", "info", "debug", "debug")
_BIAS = re.compile(r"(\d{1,10})([+-])(inf|\d+\.?\d*|\.\d+)")
#: Where reasoning is shown: left in the text, apart from it, or both.
ReasoningFormat: TypeAlias = Literal["none", "auto", "deepseek", "deepseek-legacy"]


def between(low: float, high: float, kind: Callable[[str], Any] = int) -> Callable[[str], Any]:
    """A number from ``low`` to ``high``."""

    def parse(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            raise ValueError(f"must be between {low:.10g} and {high:.10g}")
        return value

    return parse


# Counts end up in 32-bit integers of C.
count = between(0, 2**31 - 1)
positive = between(1, 2**31 - 1)


def auto(high: int) -> Callable[[str], int]:
    """``auto``, ``0`` or ``-1`` are 0; anything else a number from 1 to ``high``."""

    def parse(text: str) -> int:
        return 0 if text in ("auto", "0", "-1") else int(between(1, high)(text))

    return parse


def flag(text: str) -> bool:
    """On or off, in the words that llama-server takes."""
    if text.lower() in ("1", "on", "true", "yes", "enabled"):
        return True
    if text.lower() in ("0", "off", "false", "no", "disabled"):
        return False
    raise ValueError("must be on or off")


def auto_flag(text: str) -> bool | None:
    """On, off or, as None, ``auto``."""
    return None if text in ("auto", "-1") else flag(text)


def pooling(text: str) -> str:
    """A kind of pooling."""
    if text.lower() not in ("none", "mean", "cls", "last", "rank"):
        raise ValueError("must be none, mean, cls, last or rank")
    return text.lower()


def level(text: str) -> str:
    """A level of messages, by name or by llama-server's number."""
    if text.isdecimal() and len(text) == 1:
        return _LEVELS[min(int(text), len(_LEVELS) - 1)]
    if text.lower() not in ("debug", "info", "warning", "error", "none"):
        raise ValueError("must be debug, info, warning, error or none, or a number from 0 to 5")
    return text.lower()


def keys(text: str) -> tuple[str, ...]:
    """Keys, separated by commas."""
    keys = tuple(k.strip() for k in text.split(",") if k.strip())
    if not keys:
        raise ValueError("must hold at least one key")
    return keys


def adapters(text: str) -> tuple[tuple[Path, float], ...]:
    """``FILE`` or ``FILE:SCALE``, separated by commas."""
    found = []
    for item in filter(None, text.split(",")):
        name, colon, scale = item.rpartition(":")
        try:
            found.append((Path(name), float(scale)) if colon else (Path(item), 1.0))
        except ValueError:  # a colon that belongs to the name
            found.append((Path(item), 1.0))
    if not found or not all(math.isfinite(scale) for _, scale in found):
        raise ValueError("must name files, each with a finite scale or none")
    return tuple(found)


def samplers(text: str) -> tuple[str, ...]:
    """Names of samplers, separated by semicolons."""
    try:
        return known.samplers([name.strip() for name in text.split(";") if name.strip()])
    except Refused as error:
        raise ValueError(f"must name samplers, each once ({error.message})") from None


def letters(text: str) -> str:
    """Letters of samplers, as their names for ``samplers``."""
    try:
        return ";".join(known.samplers(text))
    except Refused as error:
        raise ValueError(f"must be letters of samplers, each once ({error.message})") from None


def logit_bias(text: str) -> tuple[tuple[int, float], ...]:
    """``TOKEN_ID+BIAS`` or ``TOKEN_ID-BIAS``; ``-inf`` bans the token. Requests have the same
    bounds."""
    match = _BIAS.fullmatch(text.strip())
    if match is None or (match[2] == "+" and match[3] == "inf"):
        raise ValueError("must be TOKEN_ID+BIAS or TOKEN_ID-BIAS")
    bias = float(match[2] + match[3])
    if abs(bias) > 100 and math.isfinite(bias):
        raise ValueError("must be a bias from -100 to 100, or -inf to ban the token")
    return ((int(match[1]), bias),)


def text_once(text: str) -> tuple[str, ...]:
    """A text of a list; an empty one would be found everywhere."""
    if not text:
        raise ValueError("must not be empty")
    return (text,)


def breaker(text: str) -> tuple[str, ...]:
    """A text of a list that ``none`` leaves empty."""
    return () if text == "none" else text_once(text)


def json_schema(text: str) -> str:
    """A JSON Schema, which is an object; what is in it is checked before the model loads."""
    try:
        schema = value_of(text)
    except ValueError:
        raise ValueError("must be a JSON Schema: it is not JSON") from None
    if not isinstance(schema, dict):
        raise ValueError("must be a JSON Schema, which is an object")
    # Like a request's: an empty one means any object.
    return text if schema else '{"type":"object"}'


def file_text(text: str) -> str:
    """What a file holds."""
    try:
        return Path(text).read_text("utf-8")
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ValueError(f"must be a file that can be read ({reason})") from None


def unescaped(text: str) -> str:
    """``text`` with llama-server's escapes replaced: a backslash and n, r, t, a quote, another
    backslash, or x and two hexadecimal digits. Others stay as they are."""

    def plain(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if code[0] == "x" else _ESCAPES[code]

    return re.sub(r"\\(x[0-9a-fA-F]{2}|[nrt'\"\\])", plain, text)


_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
