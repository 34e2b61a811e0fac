"""Dialects whose calls have their arguments one by one between tags, as text and not as JSON:
Qwen3-Coder and Nemotron 3 Nano, Seed-OSS, MiniMax M2, GLM 4.6 and Laguna, DeepSeek V4.

They differ in tags, so each is a table; see ``Form``. What a text means is in ``values``.
"""

import json
from collections.abc import Sequence
from typing import Final

from corral.backend.chat.dialects.base import Family
from corral.backend.chat.dialects.lark import Lark, Wish
from corral.backend.chat.dialects.taggedgrammar import Form, write
from corral.backend.chat.dialects.values import STRING, Types, as_json, parameter, types
from corral.backend.chat.parser import Machine, Parser, Setup
from corral.backend.chat.reading import Step
from corral.backend.chat.types import Part, Tool
from corral.backend.engine.messages import Constraint

_NAME: Final = r"\w.:/-"
_BAR: Final = "\uff5c"  # fullwidth
_DSML: Final = f"{_BAR}DSML{_BAR}"


class _Text:
    """Passes a text on as pieces of a JSON string, but for one line break at its end."""

    def __init__(self, machine: Machine, *, is_padded: bool) -> None:
        self._machine = machine
        self._is_padded = is_padded
        self._held = ""

    def __call__(self, text: str) -> None:
        text = self._held + text
        self._held = "\n" if self._is_padded and text.endswith("\n") else ""
        body = text[: len(text) - len(self._held)]
        self._machine.argue(json.dumps(body, ensure_ascii=False)[1:-1])


class TaggedMachine(Machine):
    """Reads calls of a ``form``."""

    def __init__(self, setup: Setup, form: Form) -> None:
        self.form = form
        self._is_closed = False
        super().__init__(setup)

    def feed(self, text: str, marks: Sequence[tuple[int, str]] = ()) -> list[Part]:
        """See ``Parser``. A token that is part of tags is put back among their letters."""
        inline = self.form.inline
        if not inline or not any(tag == inline for _, tag in marks):
            return super().feed(text, marks)
        pieces, others, start, n_put = list[str](), list[tuple[int, str]](), 0, 0
        for at, tag in marks:
            if tag == inline:
                pieces += [text[start:at], inline]
                start, n_put = at, n_put + len(inline)
            else:
                others.append((at + n_put, tag))
        return super().feed("".join([*pieces, text[start:]]), others)

    def calls(self, trigger: str) -> Step[None]:
        """See ``Machine``."""
        form = self.form
        self._is_closed = False
        yield from self.blanks()
        is_open = trigger == form.call[0]
        while not self._is_closed and (yield from self._call(is_open=is_open)):
            is_open = False
            self.hold("")
            yield from self.blanks()
            if (yield from self.next_is(form.end)):
                self._is_closed = True
        if self._is_closed:
            self.drop()

    def _call(self, *, is_open: bool) -> Step[bool]:
        form = self.form
        if form.call[0] and not is_open and not (yield from self.next_is(form.call[0])):
            return False
        name = yield from self.word(_NAME)
        if not name:
            return False
        if form.call[1] and not (yield from self.next_is(form.call[1])):
            return False
        tool = next((tool for tool in self.setup.tools if tool.name == name), Tool(name=name))
        if not form.call[1]:  # nothing shows yet that the name is whole
            yield from self.blanks()
            ahead = yield from self.next_is(form.end, form.key[0])
            if ahead is None:
                return False
            self.begin(name)
            if ahead == form.end:
                self._is_closed = True
                return self._finish(0)
            return (yield from self._arguments(tool, is_open=True))
        self.begin(name)
        return (yield from self._arguments(tool, is_open=False))

    def _finish(self, n: int) -> bool:
        self.argue("}" if n else "{}")
        self.complete()
        return True

    def _arguments(self, tool: Tool, *, is_open: bool) -> Step[bool]:
        form, n = self.form, 0
        ends = tuple(end for end in (form.call_end, form.end) if end)
        while True:
            if not is_open:
                yield from self.blanks()
                if end := (yield from self.next_is(*ends)):
                    self._is_closed = end == form.end
                    return self._finish(n)
                if not (yield from self.next_is(form.key[0])):
                    return False
            is_open = False
            key = yield from self.word(form.key_letters)
            if not key or not (yield from self.next_is(form.key[1])):
                return False
            allowed = types(parameter(tool, key), tool.parameters)
            if form.value:
                yield from self.blanks()
                told = yield from self.next_is(*form.value)
                if told is None:
                    return False
                if len(form.value) > 1:  # it says itself whether it is a string
                    allowed = STRING if told == form.value[0] else None
            self.argue(f"{', ' if n else '{'}{json.dumps(key, ensure_ascii=False)}: ")
            if not (yield from self._value(allowed)):
                return False
            n += 1

    def _value(self, allowed: Types) -> Step[bool]:
        form = self.form
        if form.is_padded:
            yield from self.next_is("\n")
        if allowed == STRING:
            self.argue('"')
            if (
                yield from self.until((form.close,), _Text(self, is_padded=form.is_padded))
            ) is None:
                return False
            self.argue('"')
            return True
        read: list[str] = []
        if (yield from self.peek()) in ("{", "["):
            yield from self.json(read.append)  # which may hold what looks like the closing tag
        if (yield from self.until((form.close,), read.append)) is None:
            return False
        text = "".join(read)
        if form.is_padded:
            text = text.removesuffix("\n")
        self.argue(as_json(text, allowed))
        return True


class Tagged(Family, frozen=True, kw_only=True):
    """A dialect of a ``form``. ``signs``: what its templates hold, ``others``: what none does."""

    form: Form
    signs: tuple[str, ...]
    others: tuple[str, ...] = ()
    think: tuple[str, str] | None = ("<think>", "</think>")

    def fits(self, template: str, controls: frozenset[str]) -> bool:
        """The template holds the signs."""
        has_all = all(sign in template for sign in self.signs)
        return has_all and not any(other in template for other in self.others)

    def write(self, lark: Lark) -> Constraint:
        """See ``Family``."""
        return write(lark, self.form, self.triggers)

    def parser(self, wish: Wish, controls: frozenset[str]) -> Parser:
        """See ``Dialect``."""
        return TaggedMachine(self.setup(wish, controls), self.form)


_XML: Final = Form(
    end="</tool_call>",
    call=("<function=", ">"),
    call_end="</function>",
    key=("<parameter=", ">"),
    close="</parameter>",
    is_padded=True,
)
QWEN_CODER: Final = Tagged(
    name="qwen3-coder",
    triggers=("<tool_call>", "<function="),
    tags=("</tool_call>",),
    form=_XML,
    signs=("<function=", "<parameter=", "<tool_call>"),
    others=("<seed:",),
)
SEED: Final = Tagged(
    name="seed-oss",
    triggers=("<seed:tool_call>",),
    tags=("</seed:tool_call>",),
    think=("<seed:think>", "</seed:think>"),
    form=Form(
        end="</seed:tool_call>",
        call=("<function=", ">"),
        call_end="</function>",
        key=("<parameter=", ">"),
        close="</parameter>",
    ),
    signs=("<seed:tool_call>", "<function="),
)
MINIMAX_M2: Final = Tagged(
    name="minimax-m2",
    triggers=("<minimax:tool_call>",),
    tags=("</minimax:tool_call>",),
    form=Form(
        end="</minimax:tool_call>",
        call=('<invoke name="', '">'),
        call_end="</invoke>",
        is_block=True,
        key=('<parameter name="', '">'),
        close="</parameter>",
    ),
    signs=("<minimax:tool_call>", "<invoke name="),
)
GLM: Final = Tagged(
    name="glm",
    triggers=("<tool_call>",),
    tags=("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    form=Form(
        end="</tool_call>",
        call=("", ""),
        call_end="",
        key=("<arg_key>", "</arg_key>"),
        value=("<arg_value>",),
        close="</arg_value>",
    ),
    signs=("<arg_key>", "<tool_call>"),
)
DEEPSEEK_V4: Final = Tagged(
    name="deepseek-v4",
    triggers=(f"<{_DSML}tool_calls>",),
    tags=(_DSML,),
    form=Form(
        end=f"</{_DSML}tool_calls>",
        call=(f'<{_DSML}invoke name="', '">'),
        call_end=f"</{_DSML}invoke>",
        is_block=True,
        key=(f'<{_DSML}parameter name="', '" string="'),
        value=('true">', 'false">'),
        close=f"</{_DSML}parameter>",
        inline=_DSML,
    ),
    signs=(_DSML,),
)
TAGGED: Final = (QWEN_CODER, SEED, MINIMAX_M2, GLM, DEEPSEEK_V4)
