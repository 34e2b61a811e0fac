"""Calls as Python has them, ``f(a="x", n=3)``: how they are read, and what they must match.

An argument that must match a schema is JSON of that schema; a text may stand in Python's quotes
too, and ``True``, ``False`` and ``None`` for JSON's words, where nothing but the type is asked.
"""

import json
from collections.abc import Sequence
from typing import Final

from corral.backend.chat.dialects.lark import Lark, letters
from corral.backend.chat.dialects.taggedgrammar import parameters, split
from corral.backend.chat.dialects.values import NOTES, Schema
from corral.backend.chat.parser import Machine
from corral.backend.chat.reading import Step
from corral.backend.chat.types import Tool
from corral.backend.errors import Refused

#: Letters of names of functions, and of arguments, as the inside of a class.
NAME: Final = r"\w.:/-"
_NO_KEY: Final = "\\s=(),'\"\\[\\]{}"
_UNWRITABLE: Final = " \t\r\n=(),'\"[]{}"
#: A character in single quotes, as a regular expression of Rust's.
_LETTER: Final = r"""[^'\\\x00-\x08\x0B-\x1F\x7F]|\\["'\\nrtbf]"""
_SHARED: Final = ("$defs", "definitions", "$schema")
_WORDS: Final = {"boolean": '"True" | "False"', "null": '"None"'}


class PythonCalls(Machine):
    """A machine with a step for such calls."""

    def call_of(self, name: str) -> Step[bool]:
        """A call of ``name`` begins with the bracket that comes next; whether it is whole. It is
        none if arguments have no names."""
        if not (yield from self.next_is("(")):
            return False
        n = 0
        while True:
            yield from self.blanks()
            if (yield from self.next_is(")")):
                if not n:
                    self.begin(name)
                self.argue("}" if n else "{}")
                self.complete()
                return True
            key = yield from self.word("^" + _NO_KEY)
            yield from self.blanks()
            if not key or not (yield from self.next_is("=")):
                return False
            if not n:
                self.begin(name)
            self.argue(f"{', ' if n else '{'}{json.dumps(key, ensure_ascii=False)}: ")
            n += 1
            if not (yield from self.literal(self.argue)):
                return False
            yield from self.blanks()
            if not (yield from self.next_is(",")) and (yield from self.peek()) != ")":
                return False


def call(lark: Lark, tool: Tool, i: int, head: str) -> str:
    """The name of a rule for calls of tool number ``i``, which begin with ``head``. Raises Refused
    for arguments that cannot be enforced in this form."""
    place = tool.at
    found = []
    for j, (name, schema, root, at, must) in enumerate(parameters(tool, place, _UNWRITABLE)):
        value = _value(lark, f"{i}_{j}", schema, root, at)
        found.append((lark.rule(f"argument_{i}_{j}", f"{lark.text(name + '=')} {value}"), must))
    arguments = _in_order(lark, i, found) if found else _any(lark, i, tool, place)
    return lark.rule(f"call_{i}", f'{lark.text(head + "(")} {arguments} ")"')


def _in_order(lark: Lark, i: int, found: Sequence[tuple[str, bool]]) -> str:
    """Arguments with commas between them; those that need not be there may be left out."""
    # Rule j is all from argument j on; behind another, and as the first.
    more = first = lark.rule(f"more_{i}_{len(found)}", '""')
    for j, (argument, must) in reversed(list(enumerate(found))):
        here = f"{argument} {more}"
        more = lark.rule(f"more_{i}_{j}", f'", " {here}' + ("" if must else f" | {more}"))
        first = lark.rule(f"first_{i}_{j}", here + ("" if must else f" | {first}"))
    return first


def _any(lark: Lark, i: int, tool: Tool, place: str) -> str:
    """Arguments of which nothing is declared, or none where no others may be."""
    schema = tool.parameters.get("additionalProperties", True)
    if schema is False and tool.strict is not False:
        return '""'
    schema = schema if isinstance(schema, dict) and tool.strict is not False else {}
    value = _value(lark, f"{i}", schema, tool.parameters, f"{place}.additionalProperties")
    one = lark.rule(f"argument_{i}", f"/[A-Za-z_][A-Za-z0-9_]{{0,63}}=/ {value}")
    return f'({one} (", " {one})*)?'


def _value(lark: Lark, at: str, schema: Schema, root: Schema, place: str) -> str:
    """A value under a schema, in any of its forms."""
    shared = {key: root[key] for key in _SHARED if key in root}
    forms = [lark.schema({**shared, **schema}, place)]
    try:
        texts, _ = split(schema, root, place)
    except Refused:  # only JSON can say that
        texts = []
    for k, text in enumerate(texts):
        if (terminal := _quoted(text)) is not None:
            forms.append(lark.rule(f"QUOTED_{at}_{k}", terminal))
    kinds = schema.get("type") if set(schema) <= NOTES | {"type"} else None
    forms += [words for kind, words in _WORDS.items() if kind == kinds or kind in (kinds or ())]
    return f"({' | '.join(forms)})"


def _quoted(schema: Schema) -> str | None:
    """A terminal for a text of Python's in single quotes; None: it can only be JSON."""
    asks = set(schema)
    if asks & {"const", "enum"}:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if len(asks) > 1 or not all(isinstance(value, str) for value in values):
            return None
        each = (value.replace("\\", "\\\\").replace("'", "\\'") for value in values)
        return "/'(?:" + "|".join(map(letters, each)) + ")'/"
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    counts = [n for n in (least, most) if n is not None]
    if asks - {"minLength", "maxLength"} or not all(type(n) is int and n >= 0 for n in counts):
        return None
    if most is not None and most < least:
        return None
    return f"/'(?:{_LETTER}){{{least},{'' if most is None else most}}}'/"
