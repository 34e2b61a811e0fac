"""GBNF, llama.cpp's grammar language: text to a tree of rules. No recursion, so nothing in a text
can exhaust a stack; errors name the line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from corral.backend.engine.constraint.errors import BadConstraint

#: Groups inside groups.
MAX_NESTING: Final = 100
#: How often a repetition may repeat; llama.cpp's own limit.
MAX_REPEAT: Final = 2_000
#: Repetitions in a grammar.
MAX_REPEATS: Final = 2_000
MAX_CODE_POINT: Final = 0x10FFFF


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of inclusive ranges of code points, sorted and apart."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Ref:
    """A rule by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Token:
    """A token as llguidance writes it: ``<[7]>``, ``<[^7]>`` or ``<name>``."""

    text: str


@dataclass(frozen=True, slots=True)
class Repeat:
    """``item`` from ``low`` to ``high`` times, None without end."""

    item: "Item"
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several sequences."""

    options: tuple[tuple["Item", ...], ...]


Item: TypeAlias = Chars | Ref | Token | Repeat | Choice
#: Items that stand together.
Run: TypeAlias = tuple[Item, ...]
Grammar: TypeAlias = dict[str, Choice]


@dataclass(slots=True)
class _Open:
    """A group, or a rule's body, that is being read."""

    start: int
    done: list[tuple[Item, ...]] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)

    def choice(self) -> Choice:
        return Choice((*self.done, tuple(self.items)))


_BLANK: Final = re.compile(r"(?:[ \t]|#[^\r\n]*)+")
_BLANKS: Final = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)+")
_HEAD: Final = re.compile(r"([A-Za-z0-9_-]+)[ \t]*::=")
_PIECE: Final = re.compile(
    r'(?P<text>"(?:[^"\\\r\n]|\\.)*")|(?P<chars>\[(?:[^\]\\]|\\.)*\])|(?P<any>\.)'
    r"|(?P<token>!?<(?:\[[0-9]+\]|[^<>\[\]\s]+)>)|(?P<open>\()|(?P<close>\))|(?P<or>\|)"
    r"|(?P<name>[A-Za-z0-9_-]+)"
    r"|(?P<times>[*+?]|\{[ \t]*[0-9]+[ \t]*(?:,[ \t]*[0-9]*[ \t]*)?\})"
)
_CHAR: Final = re.compile(
    r'\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([nrt\\"\[\]^-]))|[^\\]', re.DOTALL
)
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t"}
_ANY: Final = Chars(((0, MAX_CODE_POINT),))


def parse(source: str) -> Grammar:
    """The rules by name, ``root`` among them, every reference defined. Raises ``BadConstraint``."""
    reader = _Reader(source)
    reader.read()
    if "root" not in reader.rules:
        raise BadConstraint("has no rule named root", "grammar")
    for name, position in reader.used.items():
        if name not in reader.rules:
            raise reader.bad(f"rule {name} is not defined", position)
    return reader.rules


class _Reader:
    """Reads a grammar from its beginning to its end, once."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._n_repeats = 0
        self.rules: Grammar = {}
        self.used: dict[str, int] = {}

    def bad(self, message: str, position: int | None = None) -> BadConstraint:
        """An error at a place in the text, by default here."""
        at = self._at if position is None else position
        line = self._source.count("\n", 0, at) + 1
        return BadConstraint(message, f"grammar line {line}")

    def read(self) -> None:
        """Fills ``rules`` and ``used``."""
        self._skip(_BLANKS)
        while self._at < len(self._source):
            head = _HEAD.match(self._source, self._at)
            if head is None:
                raise self.bad("expected a rule: name ::= ...")
            if head[1] in self.rules:
                raise self.bad(f"rule {head[1]} is defined twice")
            self._at = head.end()
            self.rules[head[1]] = self._body()

    def _skip(self, blank: re.Pattern[str]) -> None:
        if found := blank.match(self._source, self._at):
            self._at = found.end()

    def _body(self) -> Choice:
        groups = [_Open(self._at)]
        self._skip(_BLANKS)
        while True:
            piece = _PIECE.match(self._source, self._at)
            if piece is None:
                break
            self._take(piece, groups)
            self._at = piece.end()
            nested = len(groups) > 1 or piece.lastgroup == "or"
            self._skip(_BLANKS if nested else _BLANK)
            if not nested and self._goes_on():
                self._skip(_BLANKS)
        if len(groups) > 1:
            raise self.bad("this group is not closed", groups[-1].start)
        if self._at < len(self._source) and self._source[self._at] not in "\r\n":
            raise self.bad(f"unexpected {self._source[self._at]!r}")
        self._skip(_BLANKS)
        return groups[0].choice()

    def _goes_on(self) -> bool:
        """Whether the rule continues on another line with ``|``."""
        found = _BLANKS.match(self._source, self._at)
        return found is not None and self._source.startswith("|", found.end())

    def _take(self, piece: re.Match[str], groups: list[_Open]) -> None:
        kind, text = piece.lastgroup, piece[0]
        items = groups[-1].items
        match kind:
            case "text":
                chars = [Chars(((c, c),)) for c in self._chars(text[1:-1])]
                # As one item: a repetition behind it means all of it.
                items.append(chars[0] if len(chars) == 1 else Choice((tuple(chars),)))
            case "chars" | "any":
                items.append(self._class(text[1:-1]) if kind == "chars" else _ANY)
            case "token":
                items.append(Token(text if text[0] != "!" else self._others(text)))
            case "open":
                if len(groups) > MAX_NESTING:
                    raise self.bad(f"groups are nested deeper than {MAX_NESTING}")
                groups.append(_Open(self._at))
            case "close":
                if len(groups) == 1:
                    raise self.bad("unexpected ')'")
                group = groups.pop()
                groups[-1].items.append(group.choice())
            case "or":
                groups[-1].done.append(tuple(items))
                groups[-1].items = []
            case "times":
                self._repeat(text, items)
            case _:
                self.used.setdefault(text, self._at)
                items.append(Ref(text))

    def _others(self, text: str) -> str:
        if not text.startswith("!<["):
            raise self.bad("only a token's number can be excluded: !<[7]>")
        return f"<[^{text[3:-2]}]>"

    def _repeat(self, text: str, items: list[Item]) -> None:
        if not items:
            raise self.bad(f"nothing stands before {text!r}")
        self._n_repeats += 1
        if self._n_repeats > MAX_REPEATS:
            raise self.bad(f"holds more than {MAX_REPEATS} repetitions")
        low: int
        high: int | None
        if text[0] == "{":
            first, comma, last = text[1:-1].partition(",")
            low = self._count(first)
            high = (self._count(last) if last.strip() else None) if comma else low
            if high is not None and high < low:
                raise self.bad(f"the range {text} is empty")
        else:
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[text]
        items.append(Repeat(items.pop(), low, high))

    def _count(self, text: str) -> int:
        digits = text.strip()
        if len(digits) > 9 or int(digits) > MAX_REPEAT:
            raise self.bad(f"more than {MAX_REPEAT} repetitions")
        return int(digits)

    def _chars(self, text: str) -> list[int]:
        """Code points of a literal's or a class's inside, escapes resolved."""
        return [code for code, _ in self._marked(text)]

    def _marked(self, text: str) -> list[tuple[int, bool]]:
        """Code points, and whether each was written as itself."""
        found, at = [], 0
        while at < len(text):
            char = _CHAR.match(text, at)
            if char is None:
                raise self.bad(f"unknown escape {text[at : at + 2]}")
            at = char.end()
            number = char[1] or char[2] or char[3]
            if number:
                code = int(number, 16)
            else:
                code = ord(_LETTERS.get(char[4], char[4]) if char[4] else char[0])
            if code > MAX_CODE_POINT or 0xD800 <= code < 0xE000:
                raise self.bad(f"{char[0]} is no character")
            found.append((code, char[0][0] != "\\"))
        return found

    def _class(self, text: str) -> Chars:
        negated = text.startswith("^")
        marked = self._marked(text[1:] if negated else text)
        ranges, i = [], 0
        while i < len(marked):
            low = high = marked[i][0]
            if i + 2 < len(marked) and marked[i + 1] == (ord("-"), True):
                high = marked[i + 2][0]
                i += 2
            if high < low:
                raise self.bad(f"the range {chr(low)}-{chr(high)} is empty")
            ranges.append((low, high))
            i += 1
        merged = _merged(ranges)
        chars = Chars(_inverse(merged) if negated else merged)
        if not chars.ranges:
            raise self.bad("this class holds no character")
        return chars


def _merged(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _inverse(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    inverse, start = [], 0
    for low, high in ranges:
        if start < low:
            inverse.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        inverse.append((start, MAX_CODE_POINT))
    return tuple(inverse)


def inside(item: Item) -> Iterator[Item]:
    """An item and everything in it, at any depth, but not the rules it refers to."""
    pending: list[Item] = [item]
    while pending:
        item = pending.pop()
        yield item
        if isinstance(item, Repeat):
            pending.append(item.item)
        elif isinstance(item, Choice):
            pending += [inner for option in item.options for inner in option]
