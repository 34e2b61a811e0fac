"""Gemma 4's calls, beyond what every dialect is tried on: when their arguments come, and how deep
they may go."""

import json
from pathlib import Path
from typing import Any

import pytest

from corral.backend.chat.dialects.gemma4 import Gemma4
from corral.backend.chat.dialects.lark import Wish
from corral.backend.chat.template import ChatTemplate
from corral.backend.chat.types import CallArguments, CallBegin, Content, Message, Part, Tool

TEMPLATE = Path(__file__).parent.parent / "data/chat-templates/google-gemma-4-31B-it.jinja"
WISH = Wish(tools=(Tool(name="f"),))


def _arguments(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, CallArguments))


def test_arguments_come_as_they_are_written_as_json() -> None:
    parser = Gemma4().parser(WISH, frozenset())
    said = [
        ("<|tool_call>call:f{", "{"),
        ("te", ""),
        ("xt:", '"text": '),
        ('<|"|>a "b"', '"a \\"b\\"'),
        ("\nc <", "\\nc "),
        ('|"', ""),
        ("|x", '<|\\"|x'),
        ('<|"|>', '"'),
        (",n:[1", ', "n": ['),
        ("2,tr", "12, "),
        ("ue]", "true]"),
        ("}", "}"),
    ]
    parts: list[Part] = []
    for text, expected in said:
        more = parser.feed(text)
        assert _arguments(more) == expected, text
        parts += more
    assert isinstance(parts[0], CallBegin) and parser.n_calls == 1
    assert json.loads(_arguments(parts)) == {"text": 'a "b"\nc <|"|x', "n": [12, True]}


@pytest.mark.parametrize("opening", ["[", "{a:"])
def test_a_value_may_be_nested_without_end(opening: str) -> None:
    n, closing = 50_000, {"[": "]", "{a:": "}"}[opening]
    parser = Gemma4().parser(WISH, frozenset())
    value = opening * n + ("" if opening == "[" else "1") + closing * n
    parts = [*parser.feed(f"<|tool_call>call:f{{x:{value}}}<tool_call|>"), *parser.finish()]
    assert parser.n_calls == 1 and _arguments(parts).count(closing) == n + (closing == "}")


@pytest.mark.parametrize(
    "body",
    ["a", "a:", "a:1 2", "a:[1,]", "a:[1", ":1", "a:Oslo", 'a:<|"|>x', "a:1,,b:2", "a:01", "a:]"],
)
def test_arguments_that_break_off_or_are_none_are_no_complete_call(body: str) -> None:
    parser = Gemma4().parser(WISH, frozenset())
    parts = [*parser.feed(f"<|tool_call>call:f{{{body}}}<tool_call|>"), *parser.finish()]
    assert parser.n_calls == 0 and isinstance(parts[0], CallBegin)
    with pytest.raises(ValueError):
        json.loads(_arguments(parts))


def test_letters_of_the_reasoning_s_tags_are_text_where_those_are_tokens() -> None:
    family = Gemma4()
    parser = family.parser(WISH, frozenset(family.marks))
    text = "<|channel>thought\nNo.<channel|>"
    assert [*parser.feed(text), *parser.finish()] == [Content(text)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"s": 'q"\n\\ {}', "n": None, "f": -1.5e-7, "t": True, "a": [[], {}, [{"k l": ["é"]}]]},
        {"Zeta": {"größe": {"b": "", "A": "1"}}, "alpha": [False, "x,y]", 0]},
        {},
    ],
)
def test_all_values_that_its_template_writes_are_read_back(arguments: dict[str, Any]) -> None:
    template = ChatTemplate(TEMPLATE.read_text("utf-8"), bos_token="", eos_token="")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    fields = {"tool_calls": [call], "reasoning_content": "Hm."}
    messages = [
        Message(role="user", content="x"),
        Message(role="assistant", content="", fields=fields),
    ]
    text = template.render(messages, add_generation_prompt=False, kwargs={}).text
    parser = Gemma4().parser(WISH, frozenset())
    parts = [*parser.feed(text.split("<|turn>model\n")[1]), *parser.finish()]
    assert json.loads(_arguments(parts)) == arguments and parser.n_calls == 1
    assert not any(isinstance(part, Content) for part in parts)
