"""DeepSeek V3.1, R1 and its distillates: calls stand between tags of their own, each as a name, a
separator and its arguments; before V3.1 as ``function``, a separator, a name, and a block of JSON.

Most of their templates write calls and show no tools, so that the system message has to.
"""

from typing import ClassVar, Final

from corral.backend.chat.dialects.base import Family, signatures
from corral.backend.chat.dialects.jsoncalls import JsonMachine
from corral.backend.chat.dialects.lark import Lark
from corral.backend.chat.parser import Machine, Step
from corral.backend.chat.types import Tool
from corral.backend.engine.messages import Constraint

_BAR: Final = "\uff5c"  # fullwidth
_ALL, _ALL_END = f"<{_BAR}tool▁calls▁begin{_BAR}>", f"<{_BAR}tool▁calls▁end{_BAR}>"
_ONE, _ONE_END = f"<{_BAR}tool▁call▁begin{_BAR}>", f"<{_BAR}tool▁call▁end{_BAR}>"
_SEPARATOR: Final = f"<{_BAR}tool▁sep{_BAR}>"
_BLOCK, _BLOCK_END = "```json", "```"
_NAME: Final = r"\w.:/-"
_ABOUT: Final = """You can call functions. Their signatures, as JSON Schema:
{signatures}

To call one, write its name and its arguments, a JSON object, like this and nothing after it:
{call}"""
#: What stands for a call's name and arguments in that.
_SOME_NAME, _SOME_ARGUMENTS = "NAME", "{}"


class _Machine(JsonMachine):
    """Reads both forms."""

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
            self._held = None

    def _call(self) -> Step[bool]:
        name = yield from self.word(_NAME)
        if not name or not (yield from self.next_is(_SEPARATOR)):
            return False
        yield from self.blanks()
        if (yield from self.peek()) == "{":
            return (yield from self.arguments(name))
        name = yield from self.word(_NAME)
        yield from self.blanks()
        if not name or not (yield from self.next_is(_BLOCK)):
            return False
        yield from self.blanks()
        if (yield from self.peek()) != "{" or not (yield from self.arguments(name)):
            return False
        yield from self.blanks()
        yield from self.next_is(_BLOCK_END)
        return True


class DeepSeek(Family, frozen=True, kw_only=True):
    """V3.1; see the module."""

    machine: ClassVar[type[Machine]] = _Machine

    name: str = "deepseek-v3.1"
    triggers: tuple[str, ...] = (_ALL,)
    tags: tuple[str, ...] = (_ALL_END, _ONE, _ONE_END, _SEPARATOR)
    think: tuple[str, str] | None = ("<think>", "</think>")

    def fits(self, template: str, controls: frozenset[str]) -> bool:
        """The template writes calls in this form."""
        return _ALL in template and _BLOCK not in template

    def preamble(self, tools: tuple[Tool, ...]) -> str:
        """See ``Dialect``."""
        call = "".join((_ALL, _ONE, *self.pieces(), _ONE_END, _ALL_END))
        return _ABOUT.format(signatures=signatures(tools), call=call)

    def pieces(self) -> tuple[str, ...]:
        """A call as it is written between its tags."""
        return _SOME_NAME, _SEPARATOR, _SOME_ARGUMENTS

    def form(self, lark: Lark, name: str, arguments: str) -> str:
        """A call, behind its opening tag and before its closing one."""
        return f"{lark.text(name)} {lark.tag(_SEPARATOR)} {arguments}"

    def between(self) -> str:
        """What stands between calls, as a part of a rule."""
        return ""

    def write(self, lark: Lark) -> Constraint:
        """See ``Family``."""
        one, end = lark.tag(_ONE), lark.tag(_ONE_END)
        lark.one_of(
            "call",
            (
                f"{one} {self.form(lark, tool.name, lark.arguments(tool))} {end}"
                for tool in lark.wish.tools
            ),
        )
        more = f" ({self.between()}call)*" if lark.wish.parallel else ""
        return lark.answer(_ALL, f"call{more} {lark.tag(_ALL_END)}")


class DeepSeekR1(DeepSeek, frozen=True, kw_only=True):
    """V3, R1; see the module."""

    name: str = "deepseek-r1"

    def fits(self, template: str, controls: frozenset[str]) -> bool:
        """The template writes calls in this form."""
        return _ALL in template and _BLOCK in template

    def pieces(self) -> tuple[str, ...]:
        """See ``DeepSeek``."""
        block = f"{_SOME_NAME}\n{_BLOCK}\n{_SOME_ARGUMENTS}\n{_BLOCK_END}"
        return "function", _SEPARATOR, block

    def form(self, lark: Lark, name: str, arguments: str) -> str:
        """See ``DeepSeek``."""
        function, block = lark.text("function"), lark.text(f"{name}\n{_BLOCK}\n")
        end = lark.text(f"\n{_BLOCK_END}")
        return f"{function} {lark.tag(_SEPARATOR)} {block} {arguments} {end}"

    def between(self) -> str:
        """See ``DeepSeek``."""
        return '"\\n" '
