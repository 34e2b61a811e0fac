"""Llama 3.1 and 3.2: an answer that is one call, ``{"name": …, "parameters": …}``, without any tag
or behind ``<|python_tag|>``. What begins like that but names no tool there is, is an answer.
"""

import json
from typing import ClassVar, Final

from corral.backend.chat.dialects.base import Family
from corral.backend.chat.dialects.jsoncalls import JsonMachine
from corral.backend.chat.dialects.lark import Lark, letters
from corral.backend.chat.parser import Machine, Step
from corral.backend.engine.messages import Constraint

_TAG: Final = "<|python_tag|>"
_ASKED: Final = 'Respond in the format {"name": function name, "parameters":'


class _Machine(JsonMachine):
    def begins(self) -> Step[None]:
        self.hold("")
        yield from self.blanks()
        if (yield from self.peek()) == "{":
            yield from self.call_object(self.setup.names.__contains__)

    def calls(self, trigger: str) -> Step[None]:
        yield from self.blanks()
        yield from self.call_object()


class Llama3(Family, frozen=True, kw_only=True):
    """See the module."""

    machine: ClassVar[type[Machine]] = _Machine

    name: str = "llama3"
    triggers: tuple[str, ...] = (_TAG,)
    is_parallel: bool = False

    def fits(self, template: str, controls: frozenset[str]) -> bool:
        """The template asks for calls in this form."""
        return _ASKED in template

    def write(self, lark: Lark) -> Constraint:
        """See ``Family``."""
        names = [json.dumps(tool.name, ensure_ascii=False) for tool in lark.wish.tools]
        pairs = list(zip(names, map(lark.arguments, lark.wish.tools), strict=True))
        close = lark.text("}")
        lark.one_of(
            "call", (f"{lark.text(_head(name))} {schema} {close}" for name, schema in pairs)
        )
        if lark.wish.choice == "required":
            return lark.build("call")
        # Without a tag it is the beginning that tells a call from any other answer.
        for i, (name, schema) in enumerate(pairs):
            if lark.wish.form is None:
                lark.rule(
                    f"HEAD_{i}", f'/{_begun(name)}\\s{{0,2}},\\s{{0,2}}"parameters"\\s{{0,2}}:\\s?/'
                )
                lark.rule(f"bare_{i}", f"HEAD_{i} {schema} {close}")
            else:
                # Word by word, since an answer of that form may begin with the same.
                words = map(lark.text, ("{", '"name"', ":", name, ",", '"parameters"', ":"))
                head = f" {lark.blanks()} ".join(words)
                lark.rule(f"bare_{i}", f"{head} {lark.blanks()} {schema} {close}")
        free = lark.free(*(_begun(name) for name in names))
        bare = " | ".join(f"bare_{i}" for i in range(len(pairs)))
        return lark.build(f"{lark.content(free)} | {bare} | {lark.until(_TAG, free)} call")


def _begun(name: str) -> str:
    """How a call begins, as a regular expression."""
    return f'[ \\n]{{0,4}}\\{{\\s{{0,4}}"name"\\s{{0,2}}:\\s{{0,2}}{letters(name)}'


def _head(name: str) -> str:
    return f'{{"name": {name}, "parameters": '
