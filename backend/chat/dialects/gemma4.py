"""Gemma 4: each call stands between tags of its own as ``call:name{…}``, its arguments in their own
notation (names bare, texts between quote tags and without escapes), which is read into JSON.

Reasoning is a channel, ``thought``. Behind its calls the model opens the block for their results.
"""

import json
from typing import ClassVar, Final

from corral.backend.chat.dialects.base import Family
from corral.backend.chat.dialects.gemma4grammar import NO_KEY, QUOTE, Notation
from corral.backend.chat.dialects.lark import Lark
from corral.backend.chat.parser import Machine
from corral.backend.chat.reading import Step
from corral.backend.engine.messages import Constraint

_CALL, _CALL_END = "<|tool_call>", "<tool_call|>"
_RESULT: Final = "<|tool_response>"
_HEAD: Final = "call:"
_NAME: Final = r"\w.:/-"


class _Machine(Machine):
    LABEL: ClassVar[str] = "thought\n"

    def calls(self, trigger: str) -> Step[None]:
        yield from self.blanks()
        if not (yield from self.next_is(_HEAD)):
            return
        name = yield from self.word(_NAME)
        yield from self.blanks()
        if not name or not (yield from self.next_is("{")):
            return
        self.begin(name)
        if not (yield from self._arguments()):
            return
        self.complete()
        yield from self.skip()
        yield from self.next_is(_CALL_END)
        yield from self.skip()
        yield from self.next_is(_RESULT)

    def _arguments(self) -> Step[bool]:
        """Reads on behind the opening brace, with no recursion: a model can nest without end."""
        self.argue("{")
        ends, is_first = ["}"], True
        while ends:
            yield from self.blanks()
            if (yield from self.next_is(ends[-1])):
                self.argue(ends.pop())
                is_first = False
                continue
            if not is_first:
                if not (yield from self.next_is(",")):
                    return False
                self.argue(", ")
            if ends[-1] == "}" and not (yield from self._key()):
                return False
            yield from self.blanks()
            opening = yield from self.next_is("{", "[")
            if opening:
                self.argue(opening)
                ends.append("}" if opening == "{" else "]")
            elif not (yield from self._plain()):
                return False
            is_first = opening is not None
        return True

    def _key(self) -> Step[bool]:
        yield from self.blanks()
        read: list[str] = []
        if (yield from self.next_is(QUOTE)):
            if (yield from self.until((QUOTE,), read.append)) is None:
                return False
        else:
            read.append((yield from self.word(f"^{NO_KEY}")).strip())
            if not read[0]:
                return False
        yield from self.blanks()
        if not (yield from self.next_is(":")):
            return False
        self.argue(f"{json.dumps(''.join(read), ensure_ascii=False)}: ")
        return True

    def _plain(self) -> Step[bool]:
        """A value without others in it; one that is null is ``None`` in the history shown."""
        if (yield from self.next_is(QUOTE)):
            self.argue('"')
            if (yield from self.until((QUOTE,), self._quote)) is None:
                return False
            self.argue('"')
            return True
        if (yield from self.next_is("None")):
            self.argue("null")
            return True
        read: list[str] = []
        is_whole = yield from self.json(read.append)
        if is_whole:
            self.argue("".join(read))
        return is_whole

    def _quote(self, text: str) -> None:
        self.argue(json.dumps(text, ensure_ascii=False)[1:-1])


class Gemma4(Family, frozen=True, kw_only=True):
    """See the module."""

    machine: ClassVar[type[Machine]] = _Machine

    name: str = "gemma4"
    triggers: tuple[str, ...] = (_CALL,)
    tags: tuple[str, ...] = (_CALL_END, QUOTE, _RESULT)
    think: tuple[str, str] | None = ("<|channel>", "<channel|>")

    def fits(self, template: str, controls: frozenset[str]) -> bool:
        """The template writes calls in this form."""
        return _CALL in template and QUOTE in template

    def write(self, lark: Lark) -> Constraint:
        """See ``Family``. Raises Refused for arguments that cannot be enforced."""
        notation, end = Notation(lark), lark.tag(_CALL_END)
        lark.one_of(
            "call",
            [
                f"{lark.text(_HEAD + tool.name)} {notation.arguments(tool, i)} {end}"
                for i, tool in enumerate(lark.wish.tools)
            ],
        )
        more = f" ({lark.tag(_CALL)} call)*" if lark.wish.parallel else ""
        return lark.answer(_CALL, f"call{more}")
