"""Mistral's models: Nemo and older ones write ``[TOOL_CALLS][{"name": …, "arguments": …}, …]``,
newer ones ``[TOOL_CALLS]name[ARGS]{…}`` for each call. Their ids are nine letters and digits, which
the templates demand.
"""

import json
from collections.abc import Callable
from typing import ClassVar, Final

from corral.backend.chat.dialects.base import Family, random_letters
from corral.backend.chat.dialects.jsoncalls import JsonMachine
from corral.backend.chat.dialects.lark import Lark
from corral.backend.chat.parser import Machine, Step
from corral.backend.engine.messages import Constraint

_BEGIN, _ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NAME: Final = r"\w.:/-"


def short_id(index: int, name: str) -> str:
    """Nine random letters and digits."""
    return random_letters(9)


class _Lists(JsonMachine):
    def calls(self, trigger: str) -> Step[None]:
        yield from self.blanks()
        yield from self.call_list()


class MistralNemo(Family, frozen=True, kw_only=True):
    """Calls as one list; see the module."""

    machine: ClassVar[type[Machine]] = _Lists

    name: str = "mistral-nemo"
    triggers: tuple[str, ...] = (_BEGIN,)
    new_id: Callable[[int, str], str] = short_id

    def fits(self, template: str, controls: frozenset[str]) -> bool:
        """The template writes calls in this form."""
        return _BEGIN in template and _ARGS not in template

    def write(self, lark: Lark) -> Constraint:
        """See ``Family``."""
        head, quote = lark.text(', "id": "'), lark.text('"')
        id, close = f"({head} /[a-zA-Z0-9]{{9}}/ {quote})?", lark.text("}")
        lark.one_of(
            "call",
            (
                f"{lark.text(_head(tool.name))} {lark.arguments(tool)} {id} {close}"
                for tool in lark.wish.tools
            ),
        )
        more = f" ({lark.text(', ')} call)*" if lark.wish.parallel else ""
        return lark.answer(_BEGIN, f"{lark.text('[')} call{more} {lark.text(']')}")


class _Named(JsonMachine):
    def calls(self, trigger: str) -> Step[None]:
        yield from self.blanks()
        name = yield from self.word(_NAME)
        if name and (yield from self.next_is(_ID)):
            yield from self.word(_NAME)
        if name and (yield from self.next_is(_ARGS)):
            yield from self.blanks()
            if (yield from self.peek()) == "{":
                yield from self.arguments(name)


class Mistral(Family, frozen=True, kw_only=True):
    """Calls one by one; see the module."""

    machine: ClassVar[type[Machine]] = _Named

    name: str = "mistral"
    triggers: tuple[str, ...] = (_BEGIN,)
    tags: tuple[str, ...] = (_ID, _ARGS)
    think: tuple[str, str] | None = ("[THINK]", "[/THINK]")
    new_id: Callable[[int, str], str] = short_id

    def fits(self, template: str, controls: frozenset[str]) -> bool:
        """The template writes calls in this form."""
        return _BEGIN in template and _ARGS in template

    def write(self, lark: Lark) -> Constraint:
        """See ``Family``."""
        begin, args = lark.tag(_BEGIN), lark.tag(_ARGS)
        id = f"({lark.tag(_ID)} /[a-zA-Z0-9]{{9}}/)?"
        lark.one_of(
            "call",
            (
                f"{lark.text(tool.name)} {id} {args} {lark.arguments(tool)}"
                for tool in lark.wish.tools
            ),
        )
        return lark.answer(_BEGIN, f"call ({begin} call)*" if lark.wish.parallel else "call")


def _head(name: str) -> str:
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
