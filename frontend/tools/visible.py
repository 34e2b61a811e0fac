"""Text as it is looked at piece by piece: what the eye cannot see is written out. Pure."""

import unicodedata
from collections.abc import Iterator

from msgspec import Struct

#: White space and what stands for it.
MARKS = {" ": "·", "\n": "↵", "\t": "→", "\r": "␍"}


class Part(Struct, frozen=True):
    """A stretch of text; with ``is_mark`` it stands for something that cannot be seen."""

    text: str
    is_mark: bool = False


def parts(text: str) -> tuple[Part, ...]:
    """A text with marks for white space, and code points for what shows nothing or would change
    the order of what is around it."""
    found: list[Part] = []
    for word, is_mark in _shown(text):
        if found and found[-1].is_mark == is_mark:
            found[-1] = Part(found[-1].text + word, is_mark)
        else:
            found.append(Part(word, is_mark))
    return tuple(found)


def _shown(text: str) -> Iterator[tuple[str, bool]]:
    for char in text:
        if char in MARKS:
            yield MARKS[char], True
        elif unicodedata.category(char) in ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"):
            yield f"U+{ord(char):04X}", True
        else:
            yield char, False


def hexed(data: bytes) -> str:
    """Bytes as people write them: ``E2 96``."""
    return data.hex(" ").upper()
