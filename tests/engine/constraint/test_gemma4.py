"""Gemma 4's notation of arguments, under all that a schema can say and is enforced there."""

import json
import re
import zlib
from typing import Any

import jsonschema
import numpy as np
import pytest

from corral.backend.chat.dialects.gemma4 import Gemma4
from corral.backend.chat.dialects.lark import Wish
from corral.backend.chat.types import CallArguments, Tool
from corral.backend.errors import Refused

FAMILY = Gemma4()
HEAD, END = "<|tool_call>call:f", "<tool_call|>"
Q = '<|"|>'
TREE = {
    "type": "object",
    "properties": {
        "v": {"type": "integer"},
        "sub": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
    },
    "required": ["v"],
}
#: Schemas of ``x``, and what may and may not be written for it; "Q" stands for the quote tag.
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    "text": (
        {"type": "string", "minLength": 1, "maxLength": 8},
        ("Qa,{b:1}Q", 'Q"Q'),
        ("QQ", "a", '"a"', "1"),
    ),
    "pattern": ({"type": "string", "pattern": "^[a-c]+$"}, ("QabcQ",), ("QabxQ",)),
    "date": ({"type": "string", "format": "date"}, ("Q2026-01-02Q",), ("Q2026-13-02Q",)),
    "integer": ({"type": "integer"}, ("0", "-12"), ("01", "1.5", "Q1Q", "true")),
    "range": ({"type": "integer", "minimum": 1, "maximum": 14}, ("3",), ("0", "15")),
    "number": ({"type": "number"}, ("0.5", "-2e-7", "3"), (".5", "1.", "+1")),
    "boolean": ({"type": "boolean"}, ("true", "false"), ("True", "1", "QtrueQ")),
    "null": ({"type": ["integer", "null"]}, ("null", "7"), ("None", "QQ")),
    "enum": (
        {"enum": ["a b", "", 2, None, ["x", {"k": True, "l m?": 1, "b:c": []}]]},
        ("Qa bQ", "QQ", "2", "null", "[QxQ,{Qb:cQ:[],k:true,l m?:1}]"),
        ("Qa cQ", "3", "Q2Q", "[QxQ]"),
    ),
    "typed enum": ({"type": "string", "enum": ["a", 1]}, ("QaQ",), ("1",)),
    "const": ({"const": "{}"}, ("Q{}Q",), ("{}",)),
    "list": (
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        ("[true]", "[true,false,true]"),
        ("[]", "[true,]", "[true,true,true,true]", "[1]", "true"),
    ),
    "least": (
        {"type": "array", "items": {"type": "null"}, "minItems": 2, "uniqueItems": False},
        ("[null,null]", "[null,null,null]"),
        ("[null]", "[]"),
    ),
    "no items": ({"type": "array", "maxItems": 0}, ("[]",), ("[1]",)),
    "any list": ({"type": "array"}, ("[]", "[1,QaQ,{b:[null]}]"), ("[a]",)),
    "object": (
        {"properties": {"b": {"type": "null"}, "A": True, "c": False}, "required": ["b"]},
        ("{b:null}", "{A:1,b:null}", "{A:{q:[]},b:null}"),
        ("{}", "{A:1}", "{b:null,A:1}", "{,b:null}", "{A:1,}", "{b:null,c:1}"),
    ),
    "more behind": (
        {"properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["a"]},
        ("{a:1}", "{a:1,b:2}"),
        ("{b:2}", "{}", "{b:2,a:1}"),
    ),
    "all optional": (
        {"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}},
        ("{}", "{a:1}", "{b:2}", "{c:3}", "{a:1,c:3}", "{b:2,c:3}", "{a:1,b:2,c:3}"),
        ("{a:1,}", "{c:3,a:1}", "{a:1c:3}", "{a:1,a:1}"),
    ),
    "map": (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        ("{}", "{São Paulo:1,b-c:2}"),
        ("{a:QxQ}", "{:1}", "{ :1}"),
    ),
    "empty": ({"type": "object", "additionalProperties": False}, ("{}",), ("{a:1}",)),
    "undeclared": ({"type": "object", "required": ["z"]}, ("{z:[QaQ]}",), ("{}",)),
    "either": (
        {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"const": "a"}}]},
        ("1", "[QaQ]"),
        ("QaQ", "[1]"),
    ),
    "one of": ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ("1", "QaQ"), ("1.5",)),
    "single": ({"allOf": [{"$ref": "#/$defs/tree"}], "default": 1}, ("{v:1}",), ("1",)),
    "tree": (
        {"$ref": "#/$defs/tree"},
        ("{v:1}", "{sub:[{v:2},{sub:[],v:3}],v:1}"),
        ("{sub:[{}],v:1}", "{sub:[]}"),
    ),
    "anything": ({}, ("{a:[1,QxQ,{}],b:null}", "true", "-1e3", "QQ"), ("x", "{a}", "[,]")),
}


@pytest.fixture(params=[False, True], ids=["letters", "tokens"])
def controls(request: Any) -> tuple[str, ...]:
    """The tags that are tokens of the vocabulary."""
    return FAMILY.marks if request.param else ()


def _parameters(schema: Any) -> dict[str, Any]:
    root = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    return {**root, "$defs": {"tree": TREE}}


def _start(kit: Any, parameters: dict[str, Any], controls: tuple[str, ...]) -> Any:
    tools = (Tool(name="f", parameters=parameters),)
    wish = Wish(tools=tools, choice="required", parallel=False, thinks="no")
    constraint = FAMILY.grammar(wish, frozenset(controls))
    assert constraint is not None
    return kit.compile(constraint.kind, constraint.source)


def _tokens(kit: Any, text: str, controls: tuple[str, ...]) -> list[int]:
    tokens = list[int]()
    pieces = re.split("(" + "|".join(map(re.escape, controls)) + ")", text) if controls else [text]
    for piece in pieces:
        is_token = piece in controls
        tokens += [kit.letters.pieces.index(piece.encode())] if is_token else kit.tokens(piece)
    return tokens


def _read(kit: Any, parameters: dict[str, Any], controls: tuple[str, ...], tokens: Any) -> Any:
    wish = Wish(tools=(Tool(name="f", parameters=parameters),), thinks="no")
    parser = FAMILY.parser(wish, frozenset(controls))
    parts = [*parser.feed(*kit.said(tokens)), *parser.finish()]
    assert parser.n_calls == 1
    return json.loads("".join(part.text for part in parts if isinstance(part, CallArguments)))


@pytest.mark.parametrize("case", CASES)
def test_what_a_schema_allows_can_be_written_and_nothing_else(
    new_kit: Any, case: str, controls: tuple[str, ...]
) -> None:
    kit = new_kit(controls)
    schema, good, bad = CASES[case]
    parameters = _parameters(schema)
    start = _start(kit, parameters, controls)
    for text in good:
        tokens = _tokens(kit, f"{HEAD}{{x:{text.replace('Q', Q)}}}{END}", controls)
        state = kit.after(start, tokens)
        assert state is not None and state.must_stop, text
        jsonschema.validate(_read(kit, parameters, controls, tokens), parameters)
    for text in bad:
        tokens = _tokens(kit, f"{HEAD}{{x:{text.replace('Q', Q)}}}{END}", controls)
        assert kit.after(start, tokens) is None, text


@pytest.mark.parametrize("case", CASES)
def test_whatever_is_drawn_under_a_schema_is_read_as_valid_arguments(
    new_kit: Any, case: str, controls: tuple[str, ...]
) -> None:
    kit = new_kit(controls)
    parameters = _parameters(CASES[case][0])
    start = _start(kit, parameters, controls)
    rng, n_read = np.random.default_rng(zlib.crc32(case.encode())), 0
    for _ in range(9):
        walk = kit.walk(start, rng, 500)
        if walk is not None:
            n_read += 1
            jsonschema.validate(_read(kit, parameters, controls, walk), parameters)
    assert n_read > 2


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"type": "string", "contentEncoding": "base64"}, ".contentEncoding"),
        ({"not": {}}, ".not"),
        ({"type": "array", "uniqueItems": True}, ".uniqueItems"),
        ({"type": "array", "minItems": 10**9}, ".minItems"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, ".maxItems"),
        ({"type": "array", "items": False}, ".items"),
        ({"type": "array", "items": {"patternProperties": {}}}, ".items.patternProperties"),
        ({"type": "object", "minProperties": 1}, ".minProperties"),
        ({"type": "object", "properties": []}, ""),
        ({"type": "object", "required": [1]}, ".required"),
        ({"type": "strnig"}, ".type"),
        ({"enum": []}, ".enum"),
        ({"enum": ["a"], "pattern": "a"}, ".pattern"),
        ({"type": "integer", "enum": ["a"]}, ".enum"),
        ({"const": f"a{Q}b"}, ".const"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ".oneOf"),
        ({"allOf": [{"type": "integer"}, {"minimum": 1}]}, ".allOf"),
        ({"anyOf": [{"type": "null"}], "minLength": 1}, ".minLength"),
        ({"anyOf": [{"type": "null"}, {"if": {}}]}, ".anyOf[1].if"),
        ({"properties": {"y": {"if": {}}}}, ".properties.y.if"),
        ({"$ref": "#/$defs/tree", "minLength": 1}, ".minLength"),
        ({"$ref": 3}, ".$ref"),
        ({"$ref": "other.json"}, ".$ref"),
        ({"$ref": "#/properties/x"}, ".$ref"),
        ({"$ref": "#/$defs/none"}, ".$ref"),
        ({"$ref": "#/$defs/tree/required/0"}, ".$ref"),
        (3, ""),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_place(schema: Any, where: str) -> None:
    tools = (Tool(name="f", parameters=_parameters(schema), at="tools[4].input_schema"),)
    with pytest.raises(Refused) as caught:
        FAMILY.grammar(Wish(tools=tools), frozenset())
    assert caught.value.param == f"tools[4].input_schema.properties.x{where}"


def test_a_schema_without_end_is_refused() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(400):
        schema = {"type": "array", "items": schema}
    with pytest.raises(Refused):
        FAMILY.grammar(Wish(tools=(Tool(name="f", parameters=_parameters(schema)),)), frozenset())
