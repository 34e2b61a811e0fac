"""A prompt in stretches: the template's markup and control tokens, and the client's text. Pure."""

import re
from collections.abc import Collection, Iterator
from typing import Literal, TypeAlias

from msgspec import Struct

from corral.backend.chat.types import Written

Kind: TypeAlias = Literal["markup", "control", "foreign"]


class Segment(Struct, frozen=True):
    """A stretch of a prompt. ``foreign``: it came from the client and is never markup."""

    kind: Kind
    text: str


def segments(prompt: Written, names: Collection[str]) -> tuple[Segment, ...]:
    """The whole prompt in order. ``names``: the texts of control tokens, which count only where
    none of their characters is foreign."""
    found: list[Segment] = []
    pattern = _pattern(names)
    at = 0
    for start, end in (*prompt.foreign, (len(prompt.text), len(prompt.text))):
        found += _markup(prompt.text[at:start], pattern)
        if end > start:
            found.append(Segment("foreign", prompt.text[start:end]))
        at = end
    return tuple(found)


def _pattern(names: Collection[str]) -> re.Pattern[str] | None:
    # White space is text whatever a vocabulary calls it, and the longest name wins.
    words = sorted((n for n in names if n.strip(" \t\n\r▁")), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, words))) if words else None


def _markup(text: str, pattern: re.Pattern[str] | None) -> Iterator[Segment]:
    at = 0
    for token in pattern.finditer(text) if pattern is not None else ():
        if token.start() > at:
            yield Segment("markup", text[at : token.start()])
        yield Segment("control", token.group())
        at = token.end()
    if at < len(text):
        yield Segment("markup", text[at:])
