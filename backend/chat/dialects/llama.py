"""Llama 3.1 and 3.2: an answer that is one call, ``{"name": …, "parameters": …}``, without any tag
or behind ``<|python_tag|>``. What begins like that but names no tool there is, is an answer.

Behind the tag there may stand ``brave_search.call(query="…")`` too, as for the tools that these
models know by name, or Python as it is, which calls the tool that runs it, if there is one.
"""

import contextlib
import json
from typing import ClassVar, Final

from corral.backend.chat.dialects.base import Family
from corral.backend.chat.dialects.jsoncalls import JsonMachine
from corral.backend.chat.dialects.lark import Lark, letters
from corral.backend.chat.dialects.pythoncalls import NAME, PythonCalls, call
from corral.backend.chat.dialects.values import NOTES, parameter
from corral.backend.chat.parser import Machine, Setup, Step
from corral.backend.chat.types import Tool
from corral.backend.engine.messages import Constraint
from corral.backend.errors import Refused

_TAG: Final = "<|python_tag|>"
_END: Final = "<|eom_id|>"
_CALL: Final = ".call"
#: Tools that the models know by name, and those that run code.
_BUILTIN: Final = ("brave_search", "web_search", "wolfram_alpha")
_RUNNERS: Final = ("python", "ipython", "code_interpreter")
_CODE: Final = "code"
_ASKED: Final = 'Respond in the format {"name": function name, "parameters":'


class _Machine(PythonCalls, JsonMachine):
    def __init__(self, setup: Setup) -> None:
        self._runner = _runner(setup.tools)
        super().__init__(setup)

    def begins(self) -> Step[None]:
        self.hold("")
        yield from self.blanks()
        if (yield from self.peek()) == "{":
            yield from self.call_object(self.setup.names.__contains__)

    def calls(self, trigger: str) -> Step[None]:
        yield from self.blanks()
        if (yield from self.peek()) == "{":
            is_whole = yield from self.call_object()
        else:
            is_whole = yield from self._python()
        if is_whole:
            yield from self.skip(_END)

    def _python(self) -> Step[bool]:
        word = yield from self.word(NAME)
        name = word.removesuffix(_CALL)
        is_called = name in self.setup.names or name in _BUILTIN or self._runner is None
        if name and name != word and is_called:
            return (yield from self.call_of(name))
        if self._runner is None or not (word or (yield from self.peek())):
            return False
        self.begin(self._runner.name)
        self.argue(f'{{"{_CODE}": "')
        self._quoted(word)
        tag = yield from self.until((_END,), self._quoted)
        self.argue('"}')
        self.complete()
        return tag is not None

    def _quoted(self, text: str) -> None:
        self.argue(json.dumps(text, ensure_ascii=False)[1:-1])


class Llama3(Family, frozen=True, kw_only=True):
    """See the module."""

    machine: ClassVar[type[Machine]] = _Machine

    name: str = "llama3"
    triggers: tuple[str, ...] = (_TAG,)
    tags: tuple[str, ...] = (_END,)
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
        python = _python(lark)
        if lark.wish.choice == "required":
            return lark.build(" | ".join(["call", *(f"{lark.tag(_TAG)} {p}" for p in python)]))
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
        tagged, calls = lark.until(_TAG, free), " | ".join(["call", *python])
        return lark.build(f"{lark.content(free)} | {bare} | {tagged} ({calls})")


def _python(lark: Lark) -> list[str]:
    """What may stand behind the tag but for JSON, as names of rules."""
    found = list[str]()
    for i, tool in enumerate(lark.wish.tools):
        if tool.name in _BUILTIN:
            with contextlib.suppress(Refused):  # JSON can say more
                found.append(call(lark, tool, i, tool.name + _CALL))
    if _runner(lark.wish.tools) is not None:
        names = {*(tool.name for tool in lark.wish.tools), *_BUILTIN}
        calls = "|".join(letters(name + _CALL) for name in sorted(names))
        # What the machine takes for another call.
        other = rf"[ \t\r\n]*(?:\{{|(?:{calls})[^{NAME}])".replace("/", r"\/")
        blank = rf"[ \t\r\n]*(?:{calls})?"
        found.append(lark.rule("CODE", f"/(?s:.+)/ & ~/{other}(?s:.*)/ & ~/{blank}/"))
    return found


def _runner(tools: tuple[Tool, ...]) -> Tool | None:
    """The tool that code as it is calls: one that takes code, and asks nothing else of it."""
    for tool in tools:
        if tool.name in _RUNNERS:
            schema = parameter(tool, _CODE)
            is_text = set(schema) <= NOTES | {"type"} and schema.get("type", "string") == "string"
            if is_text and set(tool.parameters.get("required", ())) <= {_CODE}:
                return tool
    return None


def _begun(name: str) -> str:
    """How a call begins, as a regular expression."""
    return f'[ \\n]{{0,4}}\\{{\\s{{0,4}}"name"\\s{{0,2}}:\\s{{0,2}}{letters(name)}'


def _head(name: str) -> str:
    return f'{{"name": {name}, "parameters": '
