"""Dialects whose calls are JSON objects in a list behind a tag. They differ in tags and in names of
members, so each is a table: what it writes, piece by piece."""

import json
from typing import ClassVar, Final

from corral.backend.chat.dialects.base import Family
from corral.backend.chat.dialects.jsoncalls import JsonMachine
from corral.backend.chat.dialects.lark import Lark
from corral.backend.chat.parser import Machine
from corral.backend.chat.reading import Step
from corral.backend.chat.types import Tool
from corral.backend.engine.messages import Constraint

#: Pieces of a form that stand for a call's name (as JSON), its arguments, and a short number.
NAME, ARGUMENTS, NUMBER = "\0name", "\0arguments", "\0number"
#: A call as most write it.
ITEM: Final = ('{"name": ', NAME, ', "arguments": ', ARGUMENTS, "}")


class ListMachine(JsonMachine):
    """Reads calls in brackets or not, and tags around them."""

    #: What may stand between the tag and the calls.
    BEFORE: tuple[str, ...] = ()

    def calls(self, trigger: str) -> Step[None]:
        """See ``Machine``."""
        yield from self.skip(*self.BEFORE, *self.setup.tags)
        if (yield from self.call_list(is_open=trigger.endswith("["))):
            yield from self.skip(*self.setup.tags)


class Listed(Family, frozen=True, kw_only=True):
    """A dialect given by what it writes: ``before`` the calls, each ``item``, what stands
    ``between`` them, and ``behind``. Texts of ``tags`` in these are tags. ``signs``: what all its
    templates hold, ``others``: what none does."""

    machine: ClassVar[type[Machine]] = ListMachine

    signs: tuple[str, ...]
    others: tuple[str, ...] = ()
    before: tuple[str, ...] = ("[",)
    item: tuple[str, ...] = ITEM
    between: str = ", "
    behind: tuple[str, ...] = ("]",)

    def fits(self, template: str, controls: frozenset[str]) -> bool:
        """The template holds the signs."""
        has_all = all(sign in template for sign in self.signs)
        return has_all and not any(other in template for other in self.others)

    def write(self, lark: Lark) -> Constraint:
        """See ``Family``."""
        lark.one_of("call", (self._sequence(lark, self.item, tool) for tool in lark.wish.tools))
        calls = {trigger: self._calls(lark, trigger) for trigger in self.triggers}
        if lark.wish.choice == "required":
            first = self.triggers[0]
            return lark.build(f"{lark.blanks()} {lark.tag(first)} {calls[first]}")
        text, free = self._text(lark)
        return lark.build(
            " | ".join([text, *(f"{lark.until(t, free)} {c}" for t, c in calls.items())])
        )

    def _calls(self, lark: Lark, trigger: str) -> str:
        """All behind a trigger, which may hold the first bracket already."""
        before, behind = self.before, self.behind
        if trigger.endswith("["):
            before, behind = (), ("]",)
        is_many = self.is_parallel and lark.wish.parallel
        more = f" ({lark.text(self.between)} call)*" if is_many else ""
        return f"{self._sequence(lark, before)} call{more} {self._sequence(lark, behind)}"

    def _text(self, lark: Lark) -> tuple[str, str]:
        """Content, within its tags or not, and what may stand before a call, as parts of rules."""
        free = lark.free()
        opened, closed = (
            " | ".join(map(lark.tag, self.wrappers[half::2])) if self.wrappers else ""
            for half in (0, 1)
        )
        content = lark.content(free)
        return (f"({opened})? {content} ({closed})?" if self.wrappers else content), free

    def _sequence(self, lark: Lark, pieces: tuple[str, ...], tool: Tool | None = None) -> str:
        """Pieces as a part of a rule; neighbouring texts become one."""
        found, text = list[str](), ""
        for piece in pieces:
            if piece == NAME:
                assert tool is not None
                text += json.dumps(tool.name, ensure_ascii=False)
                continue
            other = self._symbol(lark, piece, tool)
            if other is None:
                text += piece
                continue
            found += [lark.text(text), other] if text else [other]
            text = ""
        return " ".join([*found, lark.text(text)] if text else found)

    def _symbol(self, lark: Lark, piece: str, tool: Tool | None) -> str | None:
        if piece == ARGUMENTS:
            assert tool is not None
            return lark.arguments(tool)
        if piece == NUMBER:
            return "/[0-9]{1,3}/"
        return lark.tag(piece) if piece in self.tags else None


class _Apertus(ListMachine):
    """Calls as ``{"name": {…}}``."""

    def call_item(self) -> Step[bool]:
        if not (yield from self.next_is("{")):
            return False
        yield from self.blanks()
        name = yield from self.string()
        yield from self.blanks()
        if not name or not (yield from self.next_is(":")):
            return False
        yield from self.blanks()
        if (yield from self.peek()) != "{" or not (yield from self.arguments(name)):
            return False
        yield from self.blanks()
        yield from self.next_is("}")
        return True


class Apertus(Listed, frozen=True, kw_only=True):
    """``<|tools_prefix|>[{"f": {…}}, …]<|tools_suffix|>``."""

    machine: ClassVar[type[Machine]] = _Apertus

    name: str = "apertus"
    triggers: tuple[str, ...] = ("<|tools_prefix|>",)
    tags: tuple[str, ...] = ("<|tools_suffix|>",)
    think: tuple[str, str] | None = ("<|inner_prefix|>", "<|inner_suffix|>")
    signs: tuple[str, ...] = ("<|tools_prefix|>",)
    item: tuple[str, ...] = ("{", NAME, ": ", ARGUMENTS, "}")
    behind: tuple[str, ...] = ("]", "<|tools_suffix|>")


class _GigaChat(ListMachine):
    BEFORE = ("function call",)

    def calls(self, trigger: str) -> Step[None]:
        yield from self.blanks()
        if (yield from self.peek()) == "f":
            yield from super().calls(trigger)
        else:
            self.drop()  # the end of a message


class GigaChat(Listed, frozen=True, kw_only=True):
    """A message of its own, ``function call``, behind the answer."""

    machine: ClassVar[type[Machine]] = _GigaChat

    name: str = "gigachat"
    triggers: tuple[str, ...] = ("<|message_sep|>",)
    tags: tuple[str, ...] = ("<|role_sep|>",)
    is_parallel: bool = False
    signs: tuple[str, ...] = ("<|role_sep|>", "<|message_sep|>", "function call")
    before: tuple[str, ...] = ("\n\nfunction call", "<|role_sep|>", "\n")
    behind: tuple[str, ...] = ()


APRIEL: Final = Listed(
    name="apriel",
    triggers=("<tool_calls>",),
    tags=("</tool_calls>",),
    think=("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    signs=("<tool_calls>[",),
    behind=("]", "</tool_calls>"),
)
COHERE: Final = Listed(
    name="cohere",
    triggers=("<|START_ACTION|>",),
    tags=("<|END_ACTION|>",),
    wrappers=(
        *("<|START_TEXT|>", "<|END_TEXT|>"),
        *("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    think=("<|START_THINKING|>", "<|END_THINKING|>"),
    signs=("<|START_ACTION|>",),
    item=(
        *('\n    {"tool_call_id": "', NUMBER, '", "tool_name": ', NAME),
        *(', "parameters": ', ARGUMENTS, "}"),
    ),
    between=",",
    behind=("\n]", "<|END_ACTION|>"),
)
COMMAND_R: Final = Listed(
    name="command-r",
    triggers=("Action:\n```json",),
    tags=("```",),
    signs=("Action:", '"tool_name"'),
    others=("<|START_ACTION|>",),
    before=("\n[",),
    item=(
        '\n    {\n        "tool_name": ',
        NAME,
        ',\n        "parameters": ',
        ARGUMENTS,
        "\n    }",
    ),
    between=",",
    behind=("\n]", "```"),
)
FIREFUNCTION: Final = Listed(
    name="firefunction",
    triggers=("functools[",),
    signs=("functools[",),
)
GRANITE: Final = Listed(
    name="granite",
    triggers=("<|tool_call|>", "<tool_call>"),
    tags=("</tool_call>",),
    wrappers=("<response>", "</response>"),
    think=("<think>", "</think>"),
    signs=("<|tool_call|>",),
    others=("<|/tool_call|>",),
)
MINIMAX_M1: Final = Listed(
    name="minimax-m1",
    triggers=("<tool_calls>",),
    tags=("</tool_calls>",),
    think=("<think>", "</think>"),
    signs=('<tool_calls>\\n{"name"',),
    before=("\n",),
    between="\n",
    behind=("\n", "</tool_calls>"),
)
PHI: Final = Listed(
    name="phi-4",
    triggers=("<|tool_call|>", "functools["),
    tags=("<|/tool_call|>",),
    signs=("<|tool|>",),
    behind=("]", "<|/tool_call|>"),
)
LISTS: Final = (
    *(APRIEL, Apertus(), COHERE, COMMAND_R, FIREFUNCTION, GigaChat(), GRANITE, MINIMAX_M1, PHI),
)
