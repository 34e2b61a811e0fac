"""Where in a source the fault is that a compiler names. Pure."""

import json
import re
from typing import NamedTuple

from corral.backend.engine.messages import ConstraintKind, Verdict

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')
#: The compiler's own picture of the place.
_PICTURE = re.compile(r"\n +\d+ \| ")


class Place(NamedTuple):
    """A place in a source, counted from 1; column 0: somewhere in the line, line 0: not known."""

    line: int = 0
    column: int = 0


class Fault(NamedTuple):
    """What is wrong, and where: ``at`` is a path for people, ``text`` the line."""

    words: str
    place: Place
    at: str = ""
    text: str = ""

    @property
    def caret(self) -> str:
        """A line with a mark below the place; empty when the column is not known."""
        before = self.text[: self.place.column - 1]
        return re.sub(r"[^\t]", " ", before) + "^" if self.place.column else ""


def fault(kind: ConstraintKind, source: str, verdict: Verdict) -> Fault:
    """What a compiler says of a source, with the place in it."""
    words = _PICTURE.split(verdict.problem)[0].strip()
    at = ""
    if kind == "json_schema":
        words, place = _json_words(words)
        at = verdict.path.removeprefix("json_schema").lstrip(".")
        if not place.line and at:
            place = json_place(source, at)
    elif kind == "gbnf":
        found = re.search(r"line (\d+)$", verdict.path)
        place = Place(int(found[1])) if found else Place()
    elif kind == "regex":
        words, place = _regex_words(words)
    else:
        found = re.match(r"(?:at )?(\d+)\((\d+)\): ", words)
        place = Place(int(found[1]), int(found[2])) if found else Place()
        words = words[found.end() :] if found else words
    lines = source.splitlines()
    text = lines[place.line - 1] if 0 < place.line <= len(lines) else ""
    return Fault(words=words, place=place, at=at, text=text)


def _json_words(words: str) -> tuple[str, Place]:
    found = re.search(r": line (\d+) column (\d+) \(char \d+\)$", words)
    if found is None:
        return words, Place()
    return words[: found.start()], Place(int(found[1]), int(found[2]))


def _regex_words(words: str) -> tuple[str, Place]:
    """Without the grammar that stands around the expression."""
    words = words.partition("(in regex): ")[2] or words
    shown = re.match(r"regex parse error:\n {4}.*\n {4}( *)\^[^\n]*\nerror: ", words)
    if shown is None:
        return words, Place()
    return words[shown.end() :], Place(1, len(shown[1]) + 1)


def json_place(source: str, path: str) -> Place:
    """Where in JSON text the member of a path such as ``properties.a.anyOf[0]`` begins."""
    stack: list[tuple[str, int]] = []  # of each open value its path, and its index in a list
    here, wants_key = "", False
    for token in _TOKEN.finditer(source):
        mark = token.group()
        if mark in "{[":
            stack.append((here, 0 if mark == "[" else -1))
            here, wants_key = f"{here}[0]" if mark == "[" else here, mark == "{"
        elif mark in "}]" and stack:
            stack.pop()
            wants_key = False
        elif mark == "," and stack:
            outer, index = stack[-1]
            wants_key = index < 0
            if index >= 0:
                stack[-1] = outer, index + 1
                here = f"{outer}[{index + 1}]"
        elif wants_key and mark.startswith('"') and stack:
            here, wants_key = _joined(stack[-1][0], mark), False
            if here == path:
                return _at(source, token.start())
        if mark != "," and here == path and mark not in "}]:":
            return _at(source, token.start())
    return Place()


def _joined(outer: str, key: str) -> str:
    try:
        name = str(json.loads(key))
    except ValueError:
        name = key
    return f"{outer}.{name}" if outer else name


def _at(source: str, offset: int) -> Place:
    return Place(source.count("\n", 0, offset) + 1, offset - source.rfind("\n", 0, offset))
