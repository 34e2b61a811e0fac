"""Hermes, Qwen 2.5 and 3, Granite 4, and the many that follow them: each call is
``<tool_call>\\n{"name": …, "arguments": …}\\n</tool_call>``, one behind another.

The example of a dialect. Its machine says what follows a trigger, step by step; text that makes no
call becomes content by itself. Its grammar is exactly the form that the template writes, so that
what was generated is found again in the next prompt.
"""

import json
import re
from typing import ClassVar, Final

from corral.backend.chat.dialects.base import Family
from corral.backend.chat.dialects.jsoncalls import JsonMachine
from corral.backend.chat.dialects.lark import Lark
from corral.backend.chat.parser import Machine
from corral.backend.chat.reading import Step
from corral.backend.engine.messages import Constraint

_BEGIN, _END = "<tool_call>", "</tool_call>"
#: The form in a template, where it may be in pieces of one string, or in two.
_FORM: Final = re.compile(
    _BEGIN + r"""(?:\\n|\s)*(?:["']\s*-?\}\}\s*\{\{-?\s*["'])?\{\\?"name\\?":"""
)


class _Machine(JsonMachine):
    def calls(self, trigger: str) -> Step[None]:
        yield from self.blanks()
        if (yield from self.call_object()):
            yield from self.blanks()
            yield from self.next_is(_END)


class Hermes(Family, frozen=True, kw_only=True):
    """See the module."""

    machine: ClassVar[type[Machine]] = _Machine

    name: str = "hermes"
    triggers: tuple[str, ...] = (_BEGIN,)
    tags: tuple[str, ...] = (_END,)
    think: tuple[str, str] | None = ("<think>", "</think>")

    def fits(self, template: str, controls: frozenset[str]) -> bool:
        """The template writes calls in this form."""
        return _FORM.search(template) is not None

    def write(self, lark: Lark) -> Constraint:
        """See ``Family``."""
        close = lark.text("}\n")
        lark.one_of(
            "call",
            (
                f"{lark.text(_head(tool.name))} {lark.arguments(tool)} {close}"
                for tool in lark.wish.tools
            ),
        )
        begin, end = lark.tag(_BEGIN), lark.tag(_END)
        more = f" (/\\n{{1,2}}/? {begin} call {end})*" if lark.wish.parallel else ""
        return lark.answer(_BEGIN, f"call {end}{more}")


def _head(name: str) -> str:
    return f'\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
