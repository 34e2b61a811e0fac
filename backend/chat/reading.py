"""Text and marks that arrive in pieces, read in steps that sleep until there is enough of them.

A step reads as if the whole answer were there. What it reads does not depend on how the answer was
cut, and no step looks at more than a tag's length of text again.
"""

import re
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Final, TypeAlias, TypeVar

from corral.backend.chat.jsontext import BLANKS, JsonScanner
from corral.backend.chat.pythontext import PythonScanner
from corral.backend.chat.tags import finder

T = TypeVar("T")
#: Part of a reader's work: sleeps at each ``yield`` until there is more text or none will come.
Step: TypeAlias = Generator[None, None, T]
#: Where text goes.
Sink: TypeAlias = Callable[[str], object]

_BLANK: Final = re.compile(f"[{BLANKS}]+")


class Reader:
    """What of an answer is not read yet. ``only_marks``: tags whose letters are text."""

    def __init__(self, only_marks: frozenset[str]) -> None:
        self._only_marks = only_marks
        self._text = ""  # read up to ``_at``
        self._at = 0
        self._marks: deque[tuple[int, str]] = deque()  # by place in ``_text``
        self._is_over = False
        self._held: list[str] | None = None  # read since ``hold``

    def add(self, text: str, marks: Sequence[tuple[int, str]]) -> None:
        """More of the answer; see ``Parser.feed``."""
        left = len(self._text) - self._at
        self._marks = deque((at - self._at, tag) for at, tag in self._marks)
        self._text, self._at = self._text[self._at :] + text, 0
        self._marks.extend((left + at, tag) for at, tag in marks)

    def close(self) -> None:
        """The answer is over."""
        self._is_over = True

    def hold(self, text: str) -> None:
        """From here on what is read is kept, to be content in case it makes no call."""
        self._held = [text]

    def drop(self) -> None:
        """What was read since ``hold`` belongs to a call, and says nothing."""
        self._held = None

    def more(self) -> Step[bool]:
        """Waits for text; False: there is no more."""
        if not self._is_over:
            yield
            return True
        return False

    def until(self, tags: tuple[str, ...], sink: Sink) -> Step[str | None]:
        """Passes text on up to the first of some tags, and reads that; None: to the end. Tags that
        are not among them are text like any other."""
        find = finder(tuple(tag for tag in tags if tag not in self._only_marks))
        while True:
            limit = self._limit()
            found = find.search(self._text, self._at, limit)
            if found is not None and found["tag"]:
                sink(self._read(found.start()))
                return self._read(found.end())
            if found is not None and not self._marks and not self._is_over:
                sink(self._read(found.start()))  # the rest may become a tag
            else:
                sink(self._read(limit))
                if self._marks and self._marks[0][0] == limit:
                    if (tag := self._read_mark()) in tags:
                        return tag
                    sink(tag)
                    continue
            if not (yield from self.more()):
                sink(self._read(self._limit()))
                return None

    def blanks(self) -> Step[None]:
        """Reads white space, if there is any."""
        while True:
            limit = self._limit()
            if found := _BLANK.match(self._text, self._at, limit):
                self._read(found.end())
            if self._at < len(self._text) or self._marks:
                return
            if not (yield from self.more()):
                return

    def skip(self, *texts: str) -> Step[None]:
        """Reads white space, and any of some texts, as often as they come."""
        yield from self.blanks()
        while texts and (yield from self.next_is(*texts)):
            yield from self.blanks()

    def next_is(self, *options: str) -> Step[str | None]:
        """Reads the one of some texts that comes next; None: none of them does. A mark counts as
        its text."""
        spelled = tuple(option for option in options if option not in self._only_marks)
        while True:
            limit = self._limit()
            for option in spelled:
                if self._text.startswith(option, self._at, limit):
                    return self._read(self._at + len(option))
            if self._marks:
                is_next = limit == self._at and self._marks[0][1] in options
                return self._read_mark() if is_next else None
            rest = self._text[self._at :]
            if rest and not any(option.startswith(rest) for option in spelled):
                return None
            if not (yield from self.more()):
                return None

    def peek(self) -> Step[str]:
        """The next character, which is not read; a mark's whole tag; empty: the answer is over."""
        while self._at == len(self._text) and not self._marks:
            if not (yield from self.more()):
                return ""
        if self._limit() == self._at:
            return self._marks[0][1]
        return self._text[self._at]

    def word(self, letters: str) -> Step[str]:
        """Reads characters of a class, given as in a regular expression; maybe none."""
        run, read = re.compile(f"[{letters}]+"), list[str]()
        while True:
            if found := run.match(self._text, self._at, self._limit()):
                read.append(self._read(found.end()))
            if self._at < len(self._text) or self._marks:
                break
            if not (yield from self.more()):
                break
        return "".join(read)

    def json(self, sink: Sink) -> Step[bool]:
        """Reads one JSON value as far as it is one; False: it broke off, or is none. A mark inside
        it counts as its text."""
        return (yield from self._scan(JsonScanner(), sink))

    def literal(self, sink: Sink) -> Step[bool]:
        """Reads one literal of Python's as ``json`` does, and passes it on as JSON."""
        return (yield from self._scan(PythonScanner(), sink))

    def _scan(self, scanner: JsonScanner | PythonScanner, sink: Sink) -> Step[bool]:
        while True:
            limit = self._limit()
            end, piece = scanner.scan(self._text, self._at, limit)
            self._read(end)
            if piece:
                sink(piece)
            if not (scanner.is_done or scanner.is_broken) and end == limit:
                if self._marks and self._marks[0][0] == limit:
                    end, piece = scanner.scan(tag := self._marks[0][1], 0, len(tag))
                    if not scanner.is_broken:
                        sink(piece)
                        if end:  # else the mark is what ended a number
                            self._read_mark()
                elif not (yield from self.more()):
                    sink(scanner.end())
                    return scanner.is_done
            if scanner.is_done or scanner.is_broken:
                return scanner.is_done

    def _limit(self) -> int:
        """How far the text goes without a mark."""
        return self._marks[0][0] if self._marks else len(self._text)

    def _read(self, end: int) -> str:
        text, self._at = self._text[self._at : end], end
        if self._held is not None:
            self._held.append(text)
        return text

    def _read_mark(self) -> str:
        _, tag = self._marks.popleft()
        if self._held is not None:
            self._held.append(tag)
        return tag
