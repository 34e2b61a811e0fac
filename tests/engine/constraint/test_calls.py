"""Every dialect's grammar: whatever is drawn from it, its own parser finds valid calls in it."""

import json
import re
import zlib
from typing import Any

import jsonschema
import numpy as np
import pytest
from msgspec.structs import replace

from corral.backend.chat.dialects import DIALECTS
from corral.backend.chat.dialects.base import Family
from corral.backend.chat.dialects.lark import Form, Wish
from corral.backend.chat.types import (
    CallArguments,
    CallBegin,
    Content,
    Part,
    Thought,
    Tool,
    ToolChoice,
)
from corral.backend.engine.constraint import BadConstraint
from corral.backend.errors import Refused

SHORT = {"type": "string", "maxLength": 6}
SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": SHORT, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "größe": {"properties": {"unit": {"enum": ["cm", "日本", '"}']}}, "required": ["unit"]},
    "nested": {
        "type": "object",
        "properties": {
            "list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
            "inner": {"type": "object", "properties": {"a": SHORT, "b": {"type": "number"}}},
        },
        "required": ["list", "inner"],
        "additionalProperties": False,
    },
}
TOOLS = tuple(Tool(name=name, parameters=schema) for name, schema in SCHEMAS.items())
FAMILIES = {dialect.name: dialect for dialect in DIALECTS if isinstance(dialect, Family)}


@pytest.fixture(params=[False, True], ids=["letters", "tokens"])
def are_tokens(request: Any) -> bool:
    """Whether the dialect's tags are tokens of the vocabulary."""
    return bool(request.param)


def _setup(new_kit: Any, name: str, are_tokens: bool) -> tuple[Any, Family, frozenset[str]]:
    family = FAMILIES[name]
    controls = tuple(dict.fromkeys(family.marks)) if are_tokens else ()
    return new_kit(controls), family, frozenset(controls)


def _start(kit: Any, family: Family, controls: frozenset[str], wish: Wish) -> Any:
    constraint = family.grammar(wish, controls)
    assert constraint is not None and constraint.kind == "calls"
    return kit.compile(constraint.kind, constraint.source)


def _read(kit: Any, family: Family, controls: frozenset[str], wish: Wish, tokens: Any) -> Any:
    """The parts of an answer, and its calls, all complete and valid."""
    parser = family.parser(wish, controls)
    parts: list[Part] = [*parser.feed(*kit.said(tokens)), *parser.finish()]
    names = [part.name for part in parts if isinstance(part, CallBegin)]
    texts = [""] * len(names)
    for part in parts:
        if isinstance(part, CallArguments):
            texts[part.index] += part.text
    assert parser.n_calls == len(names), kit.said(tokens)
    for name, text in zip(names, texts, strict=True):
        jsonschema.validate(json.loads(text), {"type": "object", **SCHEMAS[name]})
    return parts, names


def _walks(kit: Any, start: Any, seed: str, n: int) -> list[list[int]]:
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    found = [walk for _ in range(3 * n) if (walk := kit.walk(start, rng, 1200)) is not None]
    assert len(found) >= n
    return found[:n]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("thinks", ["no", "may", "open"])
def test_what_is_required_is_nothing_but_valid_calls(
    new_kit: Any, name: str, are_tokens: bool, thinks: Any
) -> None:
    kit, family, controls = _setup(new_kit, name, are_tokens)
    wish = Wish(tools=TOOLS, choice="required", thinks=thinks if family.think else "no")
    start = _start(kit, family, controls, wish)
    assert not start.may_stop and start.allows(kit.tokens("Z")[0]) == (wish.thinks == "open")
    if wish.thinks == "open":
        assert family.think is not None
        start = kit.after(start, _closing(kit, "Hm.", family.think[1], controls))
    most = 0
    for walk in _walks(kit, start, name, 12):
        read = replace(wish, thinks="may" if wish.thinks != "no" else "no")
        parts, names = _read(kit, family, controls, read, walk)
        assert names and not any(isinstance(p, Content) and p.text.strip() for p in parts)
        most = max(most, len(names))
    assert most > 1 or not family.is_parallel


def _closing(kit: Any, text: str, tag: str, controls: frozenset[str]) -> list[int]:
    tokens: list[int] = kit.tokens(text)
    for piece in (
        re.split("(" + "|".join(map(re.escape, controls)) + ")", tag) if controls else [tag]
    ):
        is_token = piece in controls
        tokens += [kit.letters.pieces.index(piece.encode())] if is_token else kit.tokens(piece)
    return tokens


@pytest.mark.parametrize("name", FAMILIES)
def test_without_parallel_calls_there_is_one(new_kit: Any, name: str, are_tokens: bool) -> None:
    kit, family, controls = _setup(new_kit, name, are_tokens)
    wish = Wish(tools=TOOLS, choice="required", parallel=False, thinks="no")
    for walk in _walks(kit, _start(kit, family, controls, wish), name, 4):
        assert len(_read(kit, family, controls, wish, walk)[1]) == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_what_may_call_may_say_anything_but_once_begun_a_call_is_valid(
    new_kit: Any, name: str, are_tokens: bool
) -> None:
    kit, family, controls = _setup(new_kit, name, are_tokens)
    required = Wish(tools=TOOLS, choice="required", thinks="no")
    wish = replace(required, choice="auto")
    start = _start(kit, family, controls, wish)
    for text in ("", "Hello, <b>you</b>.\n", "a < b, [1] {x}", "<", "日本"):
        state = kit.after(start, kit.tokens(text))
        assert state is not None and state.may_stop, text
    rng = np.random.default_rng(7)
    n_called = 0
    for walk in _walks(kit, _start(kit, family, controls, required), name, 5):
        assert kit.after(start, walk) is not None, kit.said(walk)
        for at in rng.integers(1, len(walk), 4):
            state = kit.after(start, walk[:at])
            if state.may_stop:
                continue  # not begun, or complete
            rest = kit.walk(state, rng, 900)
            if rest is not None:
                n_called += len(_read(kit, family, controls, wish, walk[:at] + rest)[1])
    assert n_called > 3


@pytest.mark.parametrize("name", FAMILIES)
def test_reasoning_comes_first_where_there_may_be_some(
    new_kit: Any, name: str, are_tokens: bool
) -> None:
    kit, family, controls = _setup(new_kit, name, are_tokens)
    if family.think is None:
        return
    wish = Wish(tools=TOOLS, choice="required", thinks="may")
    start = _start(kit, family, controls, wish)
    thought = [
        *_closing(kit, "", family.think[0], controls),
        *_closing(kit, "I { <x", family.think[1], controls),
    ]
    for walk in _walks(kit, kit.after(start, thought), name, 2):
        parts, names = _read(kit, family, controls, wish, [*thought, *walk])
        assert names and parts[0] == Thought("I { <x")
    auto = replace(wish, choice="auto")
    assert kit.after(_start(kit, family, controls, auto), [*thought, *walk]) is not None


@pytest.mark.parametrize("name", FAMILIES)
def test_an_answer_of_a_form_has_it_or_is_calls(new_kit: Any, name: str, are_tokens: bool) -> None:
    kit, family, controls = _setup(new_kit, name, are_tokens)
    required = Wish(tools=TOOLS, choice="required", thinks="no")
    form = Form(
        {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}, "f"
    )
    start = _start(kit, family, controls, replace(required, choice="auto", form=form))
    assert not start.may_stop
    assert kit.after(start, kit.tokens("Hello")) is None
    said = kit.after(start, kit.tokens('{"x": 12'))
    assert said is not None and not said.may_stop
    assert kit.after(said, kit.tokens("}")).may_stop
    for walk in _walks(kit, _start(kit, family, controls, required), name, 3):
        assert kit.after(start, walk) is not None, kit.said(walk)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_schema_that_cannot_be_enforced_is_named_by_its_place(kit: Any, name: str) -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "string", "format": "no-such"}}}
    at = "tools[3].input_schema"
    tools = (TOOLS[0], Tool(name="bad", parameters=parameters, at=at))
    choices: tuple[ToolChoice, ...] = ("auto", "required")
    for choice in choices:
        constraint = FAMILIES[name].grammar(Wish(tools=tools, choice=choice), frozenset())
        assert constraint is not None
        with pytest.raises(BadConstraint) as caught:
            kit.compile(constraint.kind, constraint.source)
        assert caught.value.path.startswith(f"{at}.properties.x")


@pytest.mark.parametrize("name", FAMILIES)
def test_arguments_of_a_tool_that_is_not_strict_are_any_object(kit: Any, name: str) -> None:
    tool = Tool(name="f", parameters={"properties": {"x": {"format": "no-such"}}}, strict=False)
    wish = Wish(tools=(tool,), choice="required", thinks="no")
    constraint = FAMILIES[name].grammar(wish, frozenset())
    assert constraint is not None
    assert not kit.compile(constraint.kind, constraint.source).may_stop


#: A call as the model's own template writes it, in front of and behind a tool's arguments.
_SECTION = "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
WRITTEN = {
    "kimi-k2": (
        f"{_SECTION}<|tool_call_argument_begin|>",
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "harmony": ("<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>", ""),
    "harmony's template": (
        " to=functions.get_weather<|channel|>commentary json<|message|>",
        "",
    ),
    "functionary-v3.2": ("get_weather\n", ""),
    "gemma4": ("<|tool_call>call:get_weather", "<tool_call|>"),
}
GOOD, BAD = '{"city":"Oslo","days":3}', '{"city":"Oslo","days":"three"}'
#: The same where arguments are not written as JSON.
OTHERS = {"gemma4": ('{city:<|"|>Oslo<|"|>,days:3}', '{city:<|"|>Oslo<|"|>,days:<|"|>three<|"|>}')}


@pytest.mark.parametrize("which", WRITTEN)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_call_as_the_template_writes_it_matches_and_another_name_or_type_does_not(
    new_kit: Any, which: str, are_tokens: bool, choice: ToolChoice
) -> None:
    kit, family, controls = _setup(new_kit, which.split("'")[0], are_tokens)
    start = _start(kit, family, controls, Wish(tools=TOOLS, choice=choice, thinks="no"))
    front, behind = WRITTEN[which]
    good, bad = OTHERS.get(which, (GOOD, BAD))
    whole = kit.after(start, _closing(kit, "", front + good + behind, controls))
    assert whole is not None and whole.may_stop
    assert kit.after(start, _closing(kit, "", front + bad, controls)) is None
    other = front.replace("get_weather", "get_wether") + "{"
    assert kit.after(start, _closing(kit, "", other, controls)) is None


def test_harmony_reasons_and_speaks_between_its_messages_before_it_calls(
    new_kit: Any, are_tokens: bool
) -> None:
    kit, family, controls = _setup(new_kit, "harmony", are_tokens)
    role, front = "<|start|>assistant", WRITTEN["harmony"][0]
    thought = f"<|channel|>analysis<|message|>Hm, to=functions.f.<|end|>{role}"
    said = f"<|channel|>commentary<|message|>I look.<|end|>{role}"
    final = "<|channel|>final<|message|>Yes."
    auto, required = (
        _start(kit, family, controls, Wish(tools=TOOLS, choice=choice, thinks="may"))
        for choice in ("auto", "required")
    )
    for start, text, may in (
        (auto, thought + said + thought + front + GOOD, True),
        (auto, thought + thought + final, True),
        (required, thought + thought + front + GOOD, True),
        (required, thought + said, False),
        (required, thought + final, False),
    ):
        state = kit.after(start, _closing(kit, "", text, controls))
        assert (state is not None and state.may_stop) == may, text


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_a_token_inside_a_tag_is_a_token_in_the_grammar_too(new_kit: Any, choice: Any) -> None:
    family, inline = FAMILIES["deepseek-v4"], "\uff5cDSML\uff5c"
    kit, controls = new_kit((inline,)), frozenset((inline,))
    token = kit.letters.pieces.index(inline.encode())

    def tokens(text: str) -> list[int]:
        first, *others = text.split(inline)
        found: list[int] = kit.tokens(first)
        for other in others:
            found += [token, *kit.tokens(other)]
        return found

    wish = Wish(tools=TOOLS, choice=choice, thinks="no")
    start = _start(kit, family, controls, wish)
    before = "" if choice == "required" else "I look < it up.\n\n"
    city = f'<{inline}parameter name="city" string="true">Oslo</{inline}parameter>\n'
    head = f'{before}<{inline}tool_calls>\n<{inline}invoke name="get_weather">\n'
    end = f"</{inline}invoke>\n</{inline}tool_calls>"
    walk = tokens(head + city + end)
    state = kit.after(start, walk)
    assert state is not None and state.may_stop
    assert kit.after(start, tokens(head + end)) is None  # city is required
    assert kit.after(start, tokens(head + city.replace("Oslo", "Trondheim"))) is None  # too long
    _, names = _read(kit, family, controls, wish, walk)
    assert names == ["get_weather"]


PYTHON = Tool(
    name="f",
    parameters={
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "short": {"type": "string", "minLength": 1, "maxLength": 3},
            "unit": {"enum": ["it's", "\\", 5]},
            "date": {"type": "string", "format": "date"},
            "on": {"type": "boolean"},
            "maybe": {"type": ["string", "null"]},
            "yes": {"type": "boolean", "const": True},
            "n": {"type": "integer", "maximum": 9},
            "list": {"type": "array", "items": {"$ref": "#/$defs/one"}},
        },
        "required": ["text"],
        "$defs": {"one": {"type": "string", "maxLength": 1}},
    },
)


@pytest.mark.parametrize(
    ("arguments", "may"),
    [
        ("text='Oslo'", True),
        ('text="Oslo"', True),
        (r"text='it\'s \"\n\\', short='日\'b'", True),
        ('text="it\'s"', True),
        ("text='two\nlines', on=True, n=3", True),
        ("text='', on=false, maybe=None, yes=true, list=[\"a\"]", True),
        (r"text='', unit='it\'s'", True),
        (r"text='', unit='\\', maybe='a'", True),
        ('text="", unit=5, date="2024-02-03", maybe="a", n=-1', True),
        ("text='', maybe=null", True),
        ("short='abc'", False),  # text is required
        ("", False),
        ("text=Oslo", False),
        ("text=1", False),
        ("text=None", False),
        (r"text='\d'", False),  # what a backslash means there is not certain
        ("text='', short=''", False),
        ("text='', short='abcd'", False),
        ("text='', unit='its'", False),
        ('text="", date="2024-02-33"', False),
        ("text='', yes=False", False),
        ("text='', on=None", False),
        ("text='', n=10", False),
        ('text="", list=["ab"]', False),
        ("text='', text=''", False),
        ("text='', other=1", False),
        ("text='' n=1", False),
        ("text='',", False),
    ],
)
def test_python_s_arguments_match_their_schemas(
    new_kit: Any, arguments: str, may: bool, are_tokens: bool
) -> None:
    kit, family, controls = _setup(new_kit, "lfm2", are_tokens)
    wish = Wish(tools=(PYTHON,), thinks="no")
    answer = f"<|tool_call_start|>[f({arguments})]<|tool_call_end|>"
    tokens = _closing(kit, "", answer, controls)
    for choice in ("auto", "required"):
        state = kit.after(_start(kit, family, controls, replace(wish, choice=choice)), tokens)
        assert (state is not None and state.may_stop) == may
    if may:
        parser = family.parser(wish, controls)
        parts = [*parser.feed(*kit.said(tokens)), *parser.finish()]
        text = "".join(part.text for part in parts if isinstance(part, CallArguments))
        jsonschema.validate(json.loads(text), PYTHON.parameters)
        assert parser.n_calls == 1


@pytest.mark.parametrize(
    ("answer", "may"),
    [
        ("[get_weather(city='Oslo', days=3), nested(list=[], inner={\"b\": 1})]", True),
        ("[größe(unit='日本')]", True),
        ("[get_wether(city='Oslo')]", False),
        ("[get_weather(days=3)]", False),
        ("[nested(list=[])]", False),
        ("[get_weather(city='Oslo' , days='3')]", False),
        ("get_weather(city='Oslo')", False),
        ("[]", False),
    ],
)
def test_calls_as_lfm_writes_them_match_and_others_do_not(
    new_kit: Any, answer: str, may: bool, are_tokens: bool
) -> None:
    kit, family, controls = _setup(new_kit, "lfm2", are_tokens)
    tokens = _closing(kit, "", f"<|tool_call_start|>{answer}<|tool_call_end|>", controls)
    for choice in ("auto", "required"):
        wish = Wish(tools=TOOLS, choice=choice, thinks="no")
        state = kit.after(_start(kit, family, controls, wish), tokens)
        assert (state is not None and state.may_stop) == may


@pytest.mark.parametrize(
    ("parameters", "given", "may"),
    [
        ({}, "", True),
        ({}, "a=1, b='x', c={\"d\": []}", True),
        ({}, "a=1,", False),
        ({"additionalProperties": False}, "a=1", False),
        ({"additionalProperties": {"type": "integer"}}, "a=1", True),
        ({"additionalProperties": {"type": "integer"}}, "a='x'", False),
    ],
)
def test_arguments_that_are_not_declared_are_any_unless_there_may_be_none(
    kit: Any, parameters: dict[str, Any], given: str, may: bool
) -> None:
    wish = Wish(tools=(Tool(name="f", parameters=parameters),), choice="required", thinks="no")
    start = _start(kit, FAMILIES["lfm2"], frozenset(), wish)
    assert kit.accepts(start, f"<|tool_call_start|>[f({given})]<|tool_call_end|>") == may


def test_a_name_that_python_s_form_cannot_hold_is_refused_by_its_place() -> None:
    tool = Tool(name="f", parameters={"properties": {"a=b": {}}}, at="tools[2].parameters")
    with pytest.raises(Refused) as caught:
        FAMILIES["lfm2"].grammar(Wish(tools=(tool,)), frozenset())
    assert caught.value.param == "tools[2].parameters.properties.a=b"


def _tool(name: str, argument: str) -> Tool:
    schema = {"type": "object", "properties": {argument: {"type": "string"}}}
    return Tool(name=name, parameters={**schema, "required": [argument]})


@pytest.mark.parametrize(
    ("answer", "calls"),
    [
        ('brave_search.call(query="x")', ["brave_search"]),
        ("brave_search.call(query='x')", ["brave_search"]),
        ("import os\nprint(1 / 2)", ["python"]),
        ("brave_searchx.call(1)", ["python"]),
        ('brave_search.call(q="x")', None),
        ("brave_search.call(query=1)", None),
        ("brave_search.call(1)", None),
        ("  {x", None),
        ("", None),
    ],
)
def test_behind_llama_s_tag_is_a_valid_call_or_code(
    new_kit: Any, answer: str, calls: list[str] | None, are_tokens: bool
) -> None:
    kit, family, controls = _setup(new_kit, "llama3", are_tokens)
    tools = (_tool("brave_search", "query"), _tool("python", "code"))
    tokens = _closing(kit, "", f"<|python_tag|>{answer}", controls)
    for choice in ("auto", "required"):
        wish = Wish(tools=tools, choice=choice, thinks="no")
        state = kit.after(_start(kit, family, controls, wish), tokens)
        assert (state is not None and state.may_stop) == (calls is not None)
        parser = family.parser(wish, controls)
        parts = [*parser.feed(*kit.said(tokens)), *parser.finish()]
        if calls:
            assert [part.name for part in parts if isinstance(part, CallBegin)] == calls
            assert parser.n_calls == 1
