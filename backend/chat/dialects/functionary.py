"""Functionary 3.1: each call is ``<function=name>{…}</function>``, one behind another."""

import re
from typing import ClassVar, Final

from corral.backend.chat.dialects.base import Family
from corral.backend.chat.dialects.jsoncalls import JsonMachine
from corral.backend.chat.dialects.lark import Lark
from corral.backend.chat.parser import Machine, Step
from corral.backend.engine.messages import Constraint

_BEGIN, _END = "<function=", "</function>"
#: Others have parameters as XML behind the same tag.
_FORM: Final = re.compile(_BEGIN + r"\w+>\{")
_NAME: Final = r"\w.:/-"


class _Machine(JsonMachine):
    def calls(self, trigger: str) -> Step[None]:
        name = yield from self.word(_NAME)
        if not name or not (yield from self.next_is(">")):
            return
        yield from self.blanks()
        if (yield from self.peek()) == "{" and (yield from self.arguments(name)):
            yield from self.blanks()
            yield from self.next_is(_END)


class Functionary(Family, frozen=True, kw_only=True):
    """See the module."""

    machine: ClassVar[type[Machine]] = _Machine

    name: str = "functionary-v3.1"
    triggers: tuple[str, ...] = (_BEGIN,)
    tags: tuple[str, ...] = (_END,)

    def fits(self, template: str, controls: frozenset[str]) -> bool:
        """The template asks for calls in this form."""
        return _FORM.search(template) is not None

    def write(self, lark: Lark) -> Constraint:
        """See ``Family``."""
        end = lark.tag(_END)
        lark.one_of(
            "call",
            (
                f"{lark.text(tool.name + '>')} {lark.arguments(tool)} {end}"
                for tool in lark.wish.tools
            ),
        )
        more = f" ({lark.tag(_BEGIN)} call)*" if lark.wish.parallel else ""
        return lark.answer(_BEGIN, f"call{more}")
