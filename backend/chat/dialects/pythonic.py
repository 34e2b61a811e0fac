"""LFM2 and LFM2.5: calls as Python has them in a list, ``[f(a="x", n=3), g()]``, between tags.

Arguments are literals of Python's, which are read as JSON. Asked for it in words these models write
a list of JSON objects instead; that is read too.
"""

from typing import ClassVar, Final

from corral.backend.chat.dialects.base import Family
from corral.backend.chat.dialects.jsoncalls import JsonMachine
from corral.backend.chat.dialects.lark import Lark
from corral.backend.chat.dialects.pythoncalls import NAME, PythonCalls, call
from corral.backend.chat.parser import Machine
from corral.backend.chat.reading import Step
from corral.backend.engine.messages import Constraint

_BEGIN, _END = "<|tool_call_start|>", "<|tool_call_end|>"
#: How their templates show the tools; not all write calls.
_LISTS: Final = "<|tool_list_start|>"


class _Machine(PythonCalls, JsonMachine):
    def calls(self, trigger: str) -> Step[None]:
        yield from self.blanks()
        if (yield from self.call_list()):
            yield from self.skip(_END)

    def call_item(self) -> Step[bool]:
        if (yield from self.peek()) == "{":
            return (yield from self.call_object())
        name = yield from self.word(NAME)
        return bool(name and (yield from self.call_of(name)))


class Pythonic(Family, frozen=True, kw_only=True):
    """See the module."""

    machine: ClassVar[type[Machine]] = _Machine

    name: str = "lfm2"
    triggers: tuple[str, ...] = (_BEGIN,)
    tags: tuple[str, ...] = (_END,)
    think: tuple[str, str] | None = ("<think>", "</think>")

    def fits(self, template: str, controls: frozenset[str]) -> bool:
        """The template writes calls in this form, or shows tools as only these models have them, or
        the model has the tag and the template says nothing of calls."""
        return _BEGIN in template or _LISTS in template or _BEGIN in controls

    def write(self, lark: Lark) -> Constraint:
        """See ``Family``."""
        tools = enumerate(lark.wish.tools)
        lark.one_of("call", [call(lark, tool, i, tool.name) for i, tool in tools])
        more = ' (", " call)*' if lark.wish.parallel else ""
        return lark.answer(_BEGIN, f'"[" call{more} "]" {lark.tag(_END)}')
