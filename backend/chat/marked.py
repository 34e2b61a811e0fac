"""Text that knows which of its characters came from the client, through everything a template does.

A ``Marked`` is a str in every respect, and what its methods give carries the marks of the
characters they took. Where these cannot be told, all of the result is marked: text of the client
never passes for the template's own. ``formatting`` has what ``%`` and ``format`` give.
"""

# ruff: noqa: D102  methods of Marked do what those of str do

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from operator import index, itemgetter
from typing import Any, Final, SupportsIndex, TypeAlias

from markupsafe import Markup

#: Ranges ``[start, end)`` of a text's characters, ascending and apart.
Spans: TypeAlias = tuple[tuple[int, int], ...]

#: Most marks that repeating a text may give; beyond it all of the result is marked.
_MAX_REPEATED: Final = 10_000
_END: Final = itemgetter(1)


class Marked(str):
    """A text and the ranges of it that are the client's. Made by ``marked`` and ``foreign``."""

    __slots__ = ("_spans",)
    _spans: Spans

    def __new__(cls, text: str, spans: Spans) -> "Marked":
        made = super().__new__(cls, text)
        made._spans = spans
        return made

    def _cut(self, start: int, end: int) -> str:
        return marked(str.__getitem__(self, slice(start, end)), _within(self._spans, start, end))

    def _recased(self, text: str) -> str:
        """Letters change one by one, or some become several and their places are not known."""
        return marked(text, self._spans) if len(text) == len(self) else coarse(text, self)

    # --- parts of it ------------------------------------------------------------------------------

    def __str__(self) -> str:
        return self

    def __iter__(self) -> Iterator[str]:
        at = 0
        for start, end in (*self._spans, (len(self), len(self))):
            yield from str.__getitem__(self, slice(at, start))
            for char in str.__getitem__(self, slice(start, end)):
                yield Marked(char, ((0, 1),))
            at = end

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        text = str.__getitem__(self, key)
        if not isinstance(key, slice):
            at = index(key) % len(self)
            return marked(text, _within(self._spans, at, at + 1))
        start, _, step = key.indices(len(self))
        if step == 1:
            return marked(text, _within(self._spans, start, start + len(text)))
        if step == -1:
            turned = [(start + 1 - b, start + 1 - a) for a, b in reversed(self._spans)]
            return marked(text, _within(tuple(turned), 0, len(text)))
        return coarse(text, self)

    def lstrip(self, chars: str | None = None, /) -> str:
        return self._cut(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> str:
        return self._cut(0, len(str.rstrip(self, chars)))

    def strip(self, chars: str | None = None, /) -> str:
        return self.lstrip(chars).rstrip(chars)

    def removeprefix(self, prefix: str, /) -> str:
        return self._cut(len(self) - len(str.removeprefix(self, prefix)), len(self))

    def removesuffix(self, suffix: str, /) -> str:
        return self._cut(0, len(str.removesuffix(self, suffix)))

    def _locate(self, parts: list[str], sep: str | None) -> list[str]:
        """Parts that follow each other with ``sep``, or any white space, between them."""
        found, at = [], 0
        for part in parts:
            at = str.find(self, part, at) if sep is None else at
            found.append(self._cut(at, at + len(part)))
            at += len(part) + (0 if sep is None else len(sep))
        return found

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._locate(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._locate(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines = self._locate(str.splitlines(self, True), "")
        return [
            line[: len(text)]
            for line, text in zip(lines, str.splitlines(self, keepends), strict=True)
        ]

    def _around(self, head: str, sep: str, tail: str) -> tuple[str, str, str]:
        n, end = len(head), len(self)
        return self._cut(0, n), self._cut(n, n + len(sep)), self._cut(end - len(tail), end)

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        return self._around(*str.partition(self, sep))

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        return self._around(*str.rpartition(self, sep))

    # --- together with others ---------------------------------------------------------------------

    def __add__(self, other: str, /) -> str:
        # Jinja's safe text escapes what it is added to.
        if not isinstance(other, str) or isinstance(other, Markup):
            return NotImplemented
        return joined((self, other))

    def __radd__(self, other: str, /) -> str:
        return joined((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex, /) -> str:
        text: str = str.__mul__(self, times)
        n = len(text) // max(1, len(self)) if isinstance(text, str) else 0
        if n == 0 or n * len(self._spans) > _MAX_REPEATED or self._spans == ((0, len(self)),):
            return coarse(text, self) if n else text
        return marked(text, _spans([self] * n))

    __rmul__ = __mul__

    def join(self, pieces: Iterable[str], /) -> str:
        pieces = list(pieces)
        text = str.join(self, pieces)  # raises for what is no text
        between = [
            piece for pair in zip([self] * len(pieces), pieces, strict=True) for piece in pair
        ]
        return marked(text, _spans(between[1:]))

    def replace(self, old: str, new: str, /, count: SupportsIndex = -1) -> str:
        text = str.replace(self, old, new, count)
        if not old:
            return coarse(text, self, new)
        pieces, at, left = [], 0, index(count)
        while left and (found := str.find(self, old, at)) >= 0:
            pieces += [self._cut(at, found), new]
            at, left = found + len(old), left - 1
        return marked(text, _spans([*pieces, self._cut(at, len(self))]))

    # --- changed ----------------------------------------------------------------------------------

    def lower(self) -> str:
        return self._recased(str.lower(self))

    def upper(self) -> str:
        return self._recased(str.upper(self))

    def title(self) -> str:
        return self._recased(str.title(self))

    def capitalize(self) -> str:
        return self._recased(str.capitalize(self))

    def casefold(self) -> str:
        return self._recased(str.casefold(self))

    def swapcase(self) -> str:
        return self._recased(str.swapcase(self))

    def center(self, width: SupportsIndex, fill: str = " ", /) -> str:
        return coarse(str.center(self, width, fill), self, fill)

    def ljust(self, width: SupportsIndex, fill: str = " ", /) -> str:
        return coarse(str.ljust(self, width, fill), self, fill)

    def rjust(self, width: SupportsIndex, fill: str = " ", /) -> str:
        return coarse(str.rjust(self, width, fill), self, fill)

    def zfill(self, width: SupportsIndex, /) -> str:
        return coarse(str.zfill(self, width), self)

    def expandtabs(self, tabsize: SupportsIndex = 8) -> str:
        return coarse(str.expandtabs(self, tabsize), self)

    def translate(self, table: Any, /) -> str:
        return coarse(str.translate(self, table), self, table)


class Safe(Markup):
    """What Jinja's filters for HTML give. Whatever is made of it is the client's as a whole."""

    __slots__ = ("spans",)
    spans: Spans

    def __new__(cls, text: Any = "", *, spans: Spans | None = None) -> "Safe":
        made = super().__new__(cls, text)
        made.spans = ((0, len(made)),) if spans is None else spans
        return made


def _within(spans: Spans, start: int, end: int) -> Spans:
    """The part of marks that lies in ``[start, end)``, counted from there."""
    found: list[tuple[int, int]] = []
    if start >= end:
        return ()
    for i in range(bisect_right(spans, start, key=_END), len(spans)):
        a, b = spans[i]
        if a >= end:
            break
        found.append((max(a, start) - start, min(b, end) - start))
    return tuple(found)


def spans_of(text: str) -> Spans:
    """The client's part of a text. Text of another kind than str's own and ours is all of it."""
    if type(text) is str:
        return ()
    if isinstance(text, Marked):
        return text._spans
    if isinstance(text, Safe):
        return text.spans
    return ((0, len(text)),) if text else ()


def _spans(pieces: Iterable[str]) -> Spans:
    """The marks of texts put together."""
    found: list[tuple[int, int]] = []
    at = 0
    for piece in pieces:
        for a, b in spans_of(piece):
            if found and found[-1][1] == at + a:
                found[-1] = (found[-1][0], at + b)
            else:
                found.append((at + a, at + b))
        at += len(piece)
    return tuple(found)


def marked(text: str, spans: Spans) -> str:
    """A text with marks; a plain str when there are none."""
    return Marked(text, spans) if spans else str.__str__(text)


def foreign(value: Any) -> Any:
    """What the client sent, with every text in it marked: values of JSON, keys too."""
    if isinstance(value, str):
        return marked(value, ((0, len(value)),) if value else ())
    if isinstance(value, Mapping):
        return {foreign(key): foreign(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [foreign(item) for item in value]
    return value


def is_foreign(value: Any) -> bool:
    """Whether something of the client's is in a value, or may be."""
    if isinstance(value, str):
        return bool(spans_of(value))
    if isinstance(value, Mapping):
        return any(is_foreign(key) or is_foreign(item) for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(is_foreign, value))
    return not (value is None or isinstance(value, int | float))


def coarse(text: str, *sources: Any) -> str:
    """A text that was made of others in a way that does not tell which character is whose."""
    return foreign(text) if any(map(is_foreign, sources)) else text


def written(value: Any) -> str:
    """``str(value)``. How Python shows an object with texts in it is the client's as a whole."""
    if isinstance(value, Safe):
        return marked(value, value.spans)
    if type(value) is str or isinstance(value, Marked):
        return value
    text = str(value)
    return text if value is None or isinstance(value, int | float) else foreign(text)


def joined(pieces: Iterable[str]) -> str:
    """``"".join(pieces)``"""
    pieces = list(pieces)
    return marked("".join(pieces), _spans(pieces))
