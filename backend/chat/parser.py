"""What a model writes, as parts: content, thoughts, calls. Incremental, linear, pure.

``Machine`` is what every dialect's parser is made of. A dialect writes one generator, ``calls``,
out of the steps below; it reads as if the whole answer were there, and sleeps wherever more text is
needed. Nothing in it depends on how the text was cut.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, Protocol, TypeAlias

from msgspec import Struct

from corral.backend.chat.jsontext import BLANKS
from corral.backend.chat.parts import joined
from corral.backend.chat.reading import Reader, Sink, Step
from corral.backend.chat.types import CallArguments, CallBegin, Content, Part, Thought, Tool

__all__ = ["Machine", "Parser", "Setup", "Sink", "Step", "Thinks", "joined"]

Thinks: TypeAlias = Literal["no", "may", "open"]


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

    ``triggers``: tags where calls begin; they count as marks and in the text. ``tags``: the others
    around calls. ``wrappers``: tags around content, which are dropped. ``think``: the tags around
    reasoning. Those of these two that are ``controls`` (what the engine reports as marks) count
    only as marks, so that the same letters in an answer stay letters. ``thinks`` "no": the tags of
    reasoning are text; "open": the answer begins inside. ``names``, ``tools``: the tools there are.
    ``new_id`` makes the id of call number i from i and its name.
    """

    triggers: tuple[str, ...]
    tags: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()
    think: tuple[str, str] | None
    thinks: Thinks
    controls: frozenset[str]
    names: frozenset[str]
    tools: tuple[Tool, ...] = ()
    new_id: Callable[[int, str], str]


class Machine(Reader):
    """The parser of a dialect, which gives ``calls``, and ``begins`` if it has calls without a tag.

    White space next to a tag belongs to the tag and is dropped. An undeclared name is a call where
    a tag announces one (the client can tell the model that there is no such tool), and content
    where nothing does. ``LABEL``: what else stands behind the opening tag of reasoning.
    """

    LABEL: ClassVar[str] = ""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup.controls.intersection((*(setup.think or ()), *setup.wrappers)))
        self.n_calls = 0
        self.setup = setup
        self._think = setup.think if setup.thinks != "no" else None
        self._parts: list[Part] = []
        self._blanks: list[str] = []  # white space that may turn out to stand before a tag
        self._n_begun = 0
        self._is_called = False  # and nothing but markup, or reasoning, stands behind it
        self._run: Step[None] = self._answer()
        next(self._run)

    def feed(self, text: str, marks: Sequence[tuple[int, str]] = ()) -> list[Part]:
        """See ``Parser``."""
        self.add(text, marks)
        next(self._run)
        return self._take_parts()

    def finish(self) -> list[Part]:
        """See ``Parser``."""
        self.close()
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

    # --- what is read -------------------------------------------------------------------------

    def give_up(self) -> None:
        """It makes no call: all that was read since ``hold`` is content."""
        text = "".join(self._held or ())
        self._held = None
        self.say(text)

    def say(self, text: str) -> None:
        """Content; but what waits for more behind a call, when there is no more, is the beginning
        of a tag or of another call, and says nothing."""
        if not (self._is_over and self._is_called):
            self._tell(Content, text)

    def think(self, text: str) -> None:
        """A thought."""
        self._tell(Thought, text)

    def begin(self, name: str, id: str = "") -> None:
        """A call begins; white space before it is dropped. The model may give it an ``id``."""
        self._held = None
        self._blanks.clear()
        id = id or self.setup.new_id(self._n_begun, name)
        self._parts.append(CallBegin(self._n_begun, id, name))
        self._is_called = True
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
        tags = (*self.setup.triggers, *self.setup.wrappers, *opening)
        while tag := (yield from self.until(tags, self.say)):
            if tag in opening:
                yield from self._thought()
            elif tag in self.setup.wrappers:
                self._blanks.clear()
                yield from self.blanks()
            else:
                self.hold(tag)
                yield from self.calls(tag)
                if not self._settle():
                    yield from self.blanks()
        self._flush(Content)

    def _settle(self) -> bool:
        """Gives up what is still held, unless it is white space behind a call; whether there was
        something."""
        if self._held is None:
            return False
        if self._n_begun and not "".join(self._held).strip(BLANKS):
            self.drop()
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
        if self.LABEL and (yield from self.next_is(self.LABEL)):
            yield from self.blanks()
        if (yield from self.until(self._think[1:], self.think)) is None:
            self._flush(Thought)
        self._blanks.clear()
        yield from self.blanks()

    def _tell(self, kind: type[Content] | type[Thought], text: str) -> None:
        body = text.rstrip(BLANKS)
        if body:
            self._is_called &= kind is Thought
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
