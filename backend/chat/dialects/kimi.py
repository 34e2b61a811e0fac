"""Kimi K2: calls stand between tags, each as an id, ``functions.name:number``, and its arguments.
The id goes to the client, since the model is shown it again beside what came of the call."""

import re
from typing import ClassVar, Final

from corral.backend.chat.dialects.base import Family
from corral.backend.chat.dialects.jsoncalls import JsonMachine
from corral.backend.chat.dialects.lark import Lark
from corral.backend.chat.parser import Machine, Step
from corral.backend.engine.messages import Constraint

_ALL, _ALL_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_ONE, _ONE_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS: Final = "<|tool_call_argument_begin|>"
_SPACE: Final = "functions."
#: The number counts all calls of a conversation.
_ID: Final = re.compile(r"(?:functions\.)?(?P<name>.+?)(?P<number>:\d+)?")


class _Machine(JsonMachine):
    def calls(self, trigger: str) -> Step[None]:
        yield from self.blanks()
        while (yield from self.next_is(_ONE)):
            if not (yield from self._call()):
                return
            yield from self.blanks()
            yield from self.next_is(_ONE_END)
            yield from self.blanks()
            self.hold("")
        if (yield from self.next_is(_ALL_END)):
            self.drop()

    def _call(self) -> Step[bool]:
        yield from self.blanks()
        written = yield from self.word(r"\w.:/-")
        yield from self.blanks()
        found = _ID.fullmatch(written)
        if found is None or not (yield from self.next_is(_ARGUMENTS)):
            return False
        yield from self.blanks()
        if (yield from self.peek()) != "{":
            return False
        return (yield from self.arguments(found["name"], written if found["number"] else ""))


class Kimi(Family, frozen=True, kw_only=True):
    """See the module."""

    machine: ClassVar[type[Machine]] = _Machine

    name: str = "kimi-k2"
    triggers: tuple[str, ...] = (_ALL,)
    tags: tuple[str, ...] = (_ALL_END, _ONE, _ONE_END, _ARGUMENTS)
    think: tuple[str, str] | None = ("<think>", "</think>")

    def fits(self, template: str, controls: frozenset[str]) -> bool:
        """The template writes calls in this form."""
        return _ALL in template and _ARGUMENTS in template

    def write(self, lark: Lark) -> Constraint:
        """See ``Family``."""
        number = f"/:[0-9]{{1,3}}/ {lark.tag(_ARGUMENTS)}"
        lark.one_of(
            "call",
            (
                f"{lark.text(_SPACE + tool.name)} {number} {lark.arguments(tool)}"
                for tool in lark.wish.tools
            ),
        )
        one = f"{lark.tag(_ONE)} call {lark.tag(_ONE_END)}"
        more = f" ({one})*" if lark.wish.parallel else ""
        return lark.answer(_ALL, f"{one}{more} {lark.tag(_ALL_END)}")
