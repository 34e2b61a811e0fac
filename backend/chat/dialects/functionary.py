"""Functionary. 3.1: each call is ``<function=name>{…}</function>``, one behind another. 3.2: an
answer is messages ``>>>recipient\\n…``, of which those to ``all`` are content and others calls; the
first ``>>>`` stands in the prompt.
"""

import json
import re
from typing import ClassVar, Final

from corral.backend.chat.dialects.base import Family
from corral.backend.chat.dialects.jsoncalls import JsonMachine
from corral.backend.chat.dialects.lark import Lark, letters
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


_NEXT, _ALL, _PYTHON = ">>>", "all", "python"
_FORM_32: Final = re.compile(_NEXT + _ALL + r"(?:\\n|\n)")


class _Messages(JsonMachine):
    def begins(self) -> Step[None]:
        self.hold("")
        yield from self.next_is(_NEXT)
        yield from self._message()

    def calls(self, trigger: str) -> Step[None]:
        yield from self._message()

    def _message(self) -> Step[None]:
        name = yield from self.word(_NAME)
        if not name or not (yield from self.next_is("\n")):
            return
        if name == _ALL:
            self.drop()
        elif self.setup.names:
            yield from self.blanks()
            if (first := (yield from self.peek())) == "{":
                yield from self.arguments(name)
                yield from self.blanks()
            elif first and name == _PYTHON and name in self.setup.names:
                yield from self._code()

    def _code(self) -> Step[None]:
        """Code as it is, up to the next message."""
        self.begin(_PYTHON)
        self.argue('{"code": "')
        tag = yield from self.until(self.setup.triggers, self._quoted)
        self.argue('"}')
        self.complete()
        if tag:
            self.hold(tag)
            yield from self._message()

    def _quoted(self, text: str) -> None:
        self.argue(json.dumps(text, ensure_ascii=False)[1:-1])


class Functionary32(Family, frozen=True, kw_only=True):
    """3.2; see the module."""

    machine: ClassVar[type[Machine]] = _Messages

    name: str = "functionary-v3.2"
    triggers: tuple[str, ...] = (_NEXT,)

    def fits(self, template: str, controls: frozenset[str]) -> bool:
        """The template writes messages in this form."""
        return _FORM_32.search(template) is not None

    def write(self, lark: Lark) -> Constraint:
        """See ``Family``. Only a recipient's whole line begins a call: ``>>>`` is Python's too."""
        tools = [(f"{tool.name}\n", lark.arguments(tool)) for tool in lark.wish.tools]
        lark.one_of("call", (f"{lark.text(line)} {arguments}" for line, arguments in tools))
        more = f" (/\\n?/ {lark.text(_NEXT)} call)*" if lark.wish.parallel else ""
        if lark.wish.choice == "required":
            return lark.build(f"call{more}")
        line = rf"[{_NAME}]+\n".replace("/", r"\/")
        any_call = f"(?s:.*){letters(_NEXT)}{line}"
        own = (letters(line) for line, _ in tools)
        free = lark.free(*own, line + r"\s*\{", any_call)
        begun = [f"{lark.until(_NEXT + line, free)} {arguments}{more}" for line, arguments in tools]
        text = lark.content(free)
        if lark.wish.form:
            text = f"({lark.text(f'{_ALL}{chr(10)}')})? {text}"
        return lark.build(" | ".join([text, f"call{more}", *begun]))
