"""Titles and other short names: one line, short, and nothing in it that cannot be seen. Pure."""

import unicodedata
from typing import Final

from corral.frontend.words import _

#: Characters of a title that somebody typed or that came with a file, at most.
MAX_CHARS: Final = 200
#: The same of one that is made from what was said.
MAX_MADE_CHARS: Final = 60
#: Take up room and show nothing, though they count as letters and signs.
_BLANK: Final = "\u115f\u1160\u2800\u3164\uffa0"
#: Joiners belong to the spelling of some scripts and hold emoji together; elsewhere they hide.
_JOINED: Final = ("Lo", "Mn", "Mc", "So", "Sk", "Cn")


def plain(text: str) -> str:
    """A text on one line, without control characters, marks that turn the direction of what
    follows, and others that have no shape."""
    seen = "".join(_seen(text, at) for at in range(len(text)))
    return " ".join(seen.split())


def short(text: str, most: int = MAX_CHARS) -> str:
    """The same, and a text that is longer than that is cut, at a word where there is one."""
    line = plain(text.lstrip()[: most * 8])
    if len(line) <= most:
        return line
    cut = line[: most - 1].rstrip("\u200c\u200d ")
    return f"{cut.rsplit(' ', 1)[0] if ' ' in cut[most // 3 :] else cut}…"


def made(text: str) -> str:
    """The title of what begins with a text: its first line that says something."""
    most = MAX_MADE_CHARS * 8  # of a line; what is hidden takes its share
    lines = (plain(line.lstrip()[:most]).strip("#*`> ") for line in text.splitlines())
    return short(next(filter(None, lines), ""), MAX_MADE_CHARS) or _("New chat")


def _seen(text: str, at: int) -> str:
    char = text[at]
    if char in "\u200c\u200d":
        beside = (text[at - 1 : at], text[at + 1 : at + 2])
        is_joined = all(c and unicodedata.category(c) in _JOINED for c in beside)
        return char if is_joined else ""
    kind = unicodedata.category(char)
    if kind in ("Cf", "Cs"):
        return ""
    return " " if kind == "Cc" or char in _BLANK else char
