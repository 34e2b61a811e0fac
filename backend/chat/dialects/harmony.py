"""GPT-OSS: an answer is several messages, each with a header that says which channel it is on:
``analysis`` (reasoning), ``commentary`` (calls, and what is said before them) or ``final``. A
recipient, in front of the channel or behind it, makes a call of a message.

The prompt ends behind the first header's role, or within a message that is gone on with. After a
call the model waits for what comes of it, so that an answer has one.
"""

from typing import ClassVar, Final

from corral.backend.chat.dialects.base import Family
from corral.backend.chat.dialects.jsoncalls import JsonMachine
from corral.backend.chat.dialects.lark import ANY, Lark, Wish, letters
from corral.backend.chat.parser import Machine, Step
from corral.backend.chat.types import Content, Thought
from corral.backend.engine.messages import Constraint

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_CONSTRAIN, _END, _CALL, _RETURN = "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"
_ROLE, _TO, _SPACE = "assistant", "to=", "functions."
#: Channels of what comes before an answer or a call.
_BEFORE: Final = ("analysis", "commentary")
_ANALYSIS: Final = f"{_CHANNEL}analysis{_MESSAGE}"
_NAME: Final = r"\w.:/-"
#: Recipients that are no tools.
_PEOPLE: Final = frozenset(("", "all", "user", "assistant"))


class _Machine(JsonMachine):
    _has_said = _has_thought = False

    def say(self, text: str) -> None:
        """Content; that of several messages is paragraphs."""
        self._has_said = self._has_said or bool(text.strip())
        super().say(text)

    def _answer(self) -> Step[None]:
        yield  # made
        self.hold("")
        if self.setup.thinks == "open":
            tag = yield from self._analysis()
        else:
            yield from self.blanks()
            tag = yield from self.next_is(_START, _CHANNEL)
            tag = yield from self._message(tag or "")
        while True:
            if tag not in (_START, _CHANNEL):
                tag = yield from self.until(self.setup.wrappers, self.say)
            if tag is None:
                return self._flush(Content)
            self.hold(tag)
            tag = (yield from self._message(tag)) if tag in (_START, _CHANNEL) else self._skip()

    def _skip(self) -> str:
        self.drop()
        return ""

    def _message(self, tag: str) -> Step[str | None]:
        """Reads a header, which is held from ``tag`` on, and what is not content behind it; the tag
        that it came to, empty: none."""
        if tag == _START:
            yield from self.next_is(_ROLE)
            yield from self.blanks()
        recipient = yield from self._recipient()
        channel = ""
        if tag == _CHANNEL or (yield from self.next_is(_CHANNEL)):
            channel = yield from self.word(r"\w")
            yield from self.blanks()
            recipient = recipient or (yield from self._recipient())
            yield from self.next_is(_CONSTRAIN)
            yield from self.word(r"\w")
            yield from self.blanks()
        if not (tag or channel) or not (yield from self.next_is(_MESSAGE)):
            self.give_up()
            return ""
        yield from self.blanks()
        if recipient not in _PEOPLE and self.setup.names:
            return (yield from self._call(recipient))
        if recipient not in _PEOPLE:
            self.give_up()
        elif channel == "analysis":
            return (yield from self._analysis())
        self.drop()
        self._blanks[:] = ["\n\n"] if self._has_said and self._think else []
        return ""

    def _recipient(self) -> Step[str]:
        if not (yield from self.next_is(_TO)):
            return ""
        recipient = yield from self.word(_NAME)
        yield from self.blanks()
        return recipient

    def _call(self, recipient: str) -> Step[str]:
        name = recipient.removeprefix(_SPACE)
        if (yield from self.peek()) == "{" and name:
            yield from self.arguments(name)
            yield from self.blanks()
        else:
            self.give_up()
        return ""

    def _analysis(self) -> Step[str | None]:
        if self._think is None:  # left in the text
            self.drop()
            self.say(_ANALYSIS)
            tag = yield from self.until(self.setup.wrappers, self.say)
            self.say(tag or "")
            return "" if tag else None
        self.drop()
        self._blanks.clear()
        yield from self.blanks()
        self._blanks[:] = ["\n\n"] if self._has_thought else []
        tag = yield from self.until(self.setup.wrappers, self._reason)
        if tag is None:
            self._flush(Thought)
        self._blanks.clear()
        return tag

    def _reason(self, text: str) -> None:
        self._has_thought = self._has_thought or bool(text)
        self.think(text)


class Harmony(Family, frozen=True, kw_only=True):
    """See the module. All its tags are tokens, and count only as such."""

    machine: ClassVar[type[Machine]] = _Machine

    name: str = "harmony"
    triggers: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = (_START, _CHANNEL, _MESSAGE, _CONSTRAIN, _END, _CALL, _RETURN)
    think: tuple[str, str] | None = (_ANALYSIS, _END)
    then: str = f"{_START}{_ROLE}{_CHANNEL}final{_MESSAGE}"
    is_parallel: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """See ``Family``. The tag that opens reasoning is several of them."""
        return self.wrappers

    def fits(self, template: str, controls: frozenset[str]) -> bool:
        """The template writes messages in this form."""
        return _ANALYSIS in template and _START in template

    def grammar(self, wish: Wish, controls: frozenset[str]) -> Constraint | None:
        """See ``Dialect``. Reasoning is messages like others, so that ``write`` writes it."""
        return self.write(Lark(wish, None)) if wish.calls else None

    def write(self, lark: Lark) -> Constraint:
        """See ``Family``."""
        wish, call = lark.wish, self._calls(lark)
        channel, message = lark.tag(_CHANNEL), lark.tag(_MESSAGE)
        rest = f"{lark.until(_END, is_trigger=False)} {lark.tag(_START)} {lark.text(_ROLE)}"
        before = [f'{channel} "{name}" {message} {rest}' for name in _BEFORE[wish.thinks == "no" :]]
        opened = f"{rest} " if wish.thinks == "open" else ""
        if wish.choice == "required":
            thoughts = f"({before[0]})* " if before[1:] else ""
            return lark.build(f"{opened}{thoughts}{call}")
        free = lark.free(letters(_START), letters(_CHANNEL), " ?" + letters(_TO + _SPACE))
        text, more = lark.content(free), f"({' | '.join(before)})*"
        final = f'{channel} "final" {message} {text if wish.form else ANY}'
        return lark.build(f"{ANY if opened else text} | {opened}{more} ({final} | {call})")

    def _calls(self, lark: Lark) -> str:
        channel, message = lark.tag(_CHANNEL), lark.tag(_MESSAGE)
        kind = f'(" "? {lark.tag(_CONSTRAIN)} "json" | " json")? {message}'
        calls = []
        for tool in lark.wish.tools:
            to = _TO + _SPACE + tool.name
            behind = f"{channel} {lark.text(f'commentary {to}')} {kind}"
            before = f"{lark.text(f' {to}')} {channel} {lark.text('commentary')} {kind}"
            calls.append(f"({behind} | {before}) {lark.arguments(tool)}")
        return lark.one_of("call", calls)
