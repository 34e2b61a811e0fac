"""What a model writes, as parts: content, thoughts, calls. Incremental, linear, pure.

``Machine`` is what every dialect's parser is made of. A dialect writes one generator, ``calls``,
out of the steps below; it reads as if the whole answer were there, and sleeps wherever more text is
needed. Nothing in it depends on how the text was cut.
"""

import functools
import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final, Literal, Protocol, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from corral.backend.chat.jsontext import BLANKS, JsonScanner
from corral.backend.chat.types import CallArguments, CallBegin, Content, Part, Thought

T = TypeVar("T")
#: A step of a machine: sleeps at each ``yield`` until there is more text or none will come.
Step: TypeAlias = Generator[None, None, T]
#: Where text goes.
Sink: TypeAlias = Callable[[str], object]
Thinks: TypeAlias = Literal["no", "may", "open"]

_BLANK: Final = re.compile(f"[{BLANKS}]+")


class Parser(Protocol):
    """Reads one answer. ``n_calls``: complete calls so far."""

    n_calls: int

    def feed(self, text: str, marks: Sequence[tuple[int, str]] = ()) -> list[Part]:
        """The parts that more text makes certain. ``marks`` are tags that were generated as one
        token and are not in the text, each with the number of characters before it."""
        ...

    def finish(self) -> list[Part]:
        """The rest, when the answer is over. Never raises: what cannot be read is content."""
        ...


class Setup(Struct, frozen=True, kw_only=True):
    """What a machine is told.

    ``triggers``: tags where calls begin; they count as marks and in the text. ``think``: the tags
    around reasoning; those of ``controls`` (what the engine reports as marks) count only as marks,
    so that the same letters in an answer stay letters. ``thinks`` "no": they are text; "open": the
    answer begins inside. ``names``: the tools there are. ``new_id`` makes the id of call number i
    from i and its name.
    """

    triggers: tuple[str, ...]
    think: tuple[str, str] | None
    thinks: Thinks
    controls: frozenset[str]
    names: frozenset[str]
    new_id: Callable[[int, str], str]


class Machine:
    """The parser of a dialect, which gives ``calls``, and ``begins`` if it has calls without a tag.

    White space next to a tag belongs to the tag and is dropped. An undeclared name is a call where
    a tag announces one (the client can tell the model that there is no such tool), and content
    where nothing does.
    """

    def __init__(self, setup: Setup) -> None:
        self.n_calls = 0
        self.setup = setup
        self._think = setup.think if setup.thinks != "no" else None
        self._only_marks = setup.controls.intersection(setup.think or ())
        self._text = ""  # read up to ``_at``
        self._at = 0
        self._marks: deque[tuple[int, str]] = deque()  # by place in ``_text``
        self._is_over = False
        self._parts: list[Part] = []
        self._blanks: list[str] = []  # white space that may turn out to stand before a tag
        self._held: list[str] | None = None  # read since ``hold``
        self._n_begun = 0
        self._run: Step[None] = self._answer()
        next(self._run)

    def feed(self, text: str, marks: Sequence[tuple[int, str]] = ()) -> list[Part]:
        """See ``Parser``."""
        left = len(self._text) - self._at
        self._marks = deque((at - self._at, tag) for at, tag in self._marks)
        self._text, self._at = self._text[self._at :] + text, 0
        self._marks.extend((left + at, tag) for at, tag in marks)
        next(self._run)
        return self._take_parts()

    def finish(self) -> list[Part]:
        """See ``Parser``."""
        self._is_over = True
        for _ in self._run:
            pass
        return self._take_parts()

    # --- what a dialect writes ----------------------------------------------------------------

    def begins(self) -> Step[None]:
        """Reads what may stand at the beginning of an answer, behind the first thought."""
        yield from ()

    def calls(self, trigger: str) -> Step[None]:
        """Reads on behind a trigger, which is held (see ``hold``): begins calls, or gives up."""
        yield from ()
        raise NotImplementedError

    # --- steps --------------------------------------------------------------------------------

    def more(self) -> Step[bool]:
        """Waits for text; False: there is no more."""
        if not self._is_over:
            yield
            return True
        return False

    def until(self, tags: tuple[str, ...], sink: Sink) -> Step[str | None]:
        """Passes text on up to the first of some tags, and reads that; None: to the end. Tags that
        are not among them are text like any other."""
        find = _finder(tuple(tag for tag in tags if tag not in self._only_marks))
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
        scanner = JsonScanner()
        while True:
            limit = self._limit()
            end, piece = scanner.scan(self._text, self._at, limit)
            self._read(end)
            if piece:
                sink(piece)
            if not (scanner.is_done or scanner.is_broken) and end == limit:
                if self._marks and self._marks[0][0] == limit:
                    _, piece = scanner.scan(tag := self._marks[0][1], 0, len(tag))
                    if not scanner.is_broken:
                        sink(piece)
                        self._read_mark()
                elif not (yield from self.more()):
                    scanner.end()
                    return scanner.is_done
            if scanner.is_done or scanner.is_broken:
                return scanner.is_done

    # --- what is read -------------------------------------------------------------------------

    def hold(self, text: str) -> None:
        """From here on what is read is kept, to be content in case it makes no call."""
        self._held = [text]

    def give_up(self) -> None:
        """It makes no call: all that was read since ``hold`` is content."""
        held, self._held = self._held or [], None
        self.say("".join(held))

    def say(self, text: str) -> None:
        """Content."""
        self._tell(Content, text)

    def think(self, text: str) -> None:
        """A thought."""
        self._tell(Thought, text)

    def begin(self, name: str) -> None:
        """A call begins; white space before it is dropped."""
        self._held = None
        self._blanks.clear()
        self._parts.append(CallBegin(self._n_begun, self.setup.new_id(self._n_begun, name), name))
        self._n_begun += 1

    def argue(self, text: str) -> None:
        """More of the arguments of the call that began last."""
        if text:
            self._parts.append(CallArguments(self._n_begun - 1, text))

    def complete(self) -> None:
        """The call that began last has all its arguments."""
        self.n_calls += 1

    # --- inside -------------------------------------------------------------------------------

    def _answer(self) -> Step[None]:
        yield  # made
        opening = self._think[:1] if self._think else ()
        if self._think and self.setup.thinks == "open":
            yield from self._thought()
        elif opening:
            self.hold("")
            yield from self.blanks()
            if (yield from self.next_is(*opening)):
                yield from self._thought()
            else:
                self.give_up()
        yield from self.begins()
        self._settle()
        while tag := (yield from self.until((*self.setup.triggers, *opening), self.say)):
            if tag in opening:
                yield from self._thought()
            else:
                self.hold(tag)
                yield from self.calls(tag)
                if not self._settle():
                    yield from self.blanks()
        self._flush(Content)

    def _settle(self) -> bool:
        """Gives up what is still held; whether there was something."""
        if self._held is None:
            return False
        self.give_up()
        return True

    def _thought(self) -> Step[None]:
        assert self._think is not None
        self._held = None
        self._blanks.clear()
        yield from self.blanks()
        if (yield from self.next_is(self._think[0])):  # in the prompt, and written once more
            yield from self.blanks()
        if (yield from self.until(self._think[1:], self.think)) is None:
            self._flush(Thought)
        self._blanks.clear()
        yield from self.blanks()

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

    def _tell(self, kind: type[Content] | type[Thought], text: str) -> None:
        body = text.rstrip(BLANKS)
        if body:
            self._parts.append(kind("".join((*self._blanks, body))))
            self._blanks.clear()
        if len(body) < len(text):
            self._blanks.append(text[len(body) :])

    def _flush(self, kind: type[Content] | type[Thought]) -> None:
        if text := "".join(self._blanks):
            self._parts.append(kind(text))
        self._blanks.clear()

    def _take_parts(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return joined(parts) if len(parts) > 1 else parts


def joined(parts: Iterable[Part]) -> list[Part]:
    """The same parts, neighbours of one kind as one."""
    out: list[Part] = []
    texts: list[str] = []
    for part in parts:
        last = out[-1] if out else None
        if last is not None and not isinstance(part, CallBegin) and _is_same(last, part):
            texts.append(part.text)
            continue
        _close(out, texts)
        out.append(part)
        texts = [] if isinstance(part, CallBegin) else [part.text]
    _close(out, texts)
    return out


def _is_same(last: Part, part: Part) -> bool:
    if isinstance(last, CallArguments) and isinstance(part, CallArguments):
        return last.index == part.index
    return type(last) is type(part)


def _close(out: list[Part], texts: list[str]) -> None:
    if len(texts) > 1:
        out[-1] = replace(out[-1], text="".join(texts))


@functools.cache
def _finder(tags: tuple[str, ...]) -> re.Pattern[str]:
    """Finds the first tag, as the group ``tag``, or the beginning of one at the end of the text."""
    assert not any(a != b and a.startswith(b) for a in tags for b in tags), tags
    if not tags:
        return re.compile(r"(?!)(?P<tag>)")
    whole = "|".join(map(re.escape, tags))
    begun = "|".join(_begun(tag) for tag in tags)
    return re.compile(f"(?P<tag>{whole})|(?:{begun})\\Z")


def _begun(tag: str) -> str:
    first, *others = map(re.escape, tag)
    return first + "".join(f"(?:{letter}" for letter in others) + ")?" * len(others)
