"""JSON Schema: enforced, or refused with its place. Checked with texts of others: the JSON Schema
Test Suite, and ``jsonschema`` on what random answers hold."""

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corral.backend.engine.constraint import BadConstraint
from corral.backend.engine.constraint.ecma import to_rust

SUITE = Path(__file__).parents[2] / "data" / "json-schema-test-suite"

#: Valid instances that the constraint does not let a model write; the answers it does let through
#: are valid all the same. By file, and words of the test's group or name.
NARROWER = {
    ("const.json", "float"): "a constant number is written as in the schema",
    ("enum.json", ".0] is valid"): "a constant number is written as in the schema",
    ("enum.json", "float"): "a constant number is written as in the schema",
    ("type.json", "a float with zero fractional part"): "an integer is written without a fraction",
    ("format.json", "is only an annotation by default"): "formats are enforced",
    ("optional/ecmascript-regex.json", "Line tabulation matches"): "needs \\u000b, see ESCAPES",
    ("optional/ecmascript-regex.json", "Non-whitespace control"): "needs \\u0001, see ESCAPES",
    ("optional/float-overflow.json", "overflow"): "an integer is written without an exponent",
    ("optional/format/date-time.json", "leap second"): "no leap seconds",
    ("optional/format/time.json", "leap second"): "no leap seconds",
    ("optional/format/email.json", "quoted string"): "no quoted local parts",
    ("optional/format/email.json", "IPv6-address-literal"): "no address literals of version 6",
    ("optional/format/ipv6.json", "mixed format"): "no IPv4 notation inside",
    ("optional/format/ipv6.json", "a long valid ipv6"): "no IPv4 notation inside",
}


def spellings(value: Any, n_max: int = 48) -> Iterator[Any]:
    """The value with its properties in every order: a constraint fixes one of them."""
    if isinstance(value, dict):
        made = (
            dict(zip(order, values, strict=True))
            for order in itertools.permutations(value)
            for values in itertools.product(*(list(spellings(value[key], 6)) for key in order))
        )
        yield from itertools.islice(made, n_max)
    elif isinstance(value, list):
        made_lists = itertools.product(*(list(spellings(item, 6)) for item in value))
        yield from itertools.islice(map(list, made_lists), n_max)
    else:
        yield value


def accepts(kit: Any, start: Any, value: Any) -> bool:
    texts = (
        json.dumps(spelled, separators=separators, ensure_ascii=is_ascii)
        for spelled in spellings(value)
        for separators in ((",", ":"), (", ", ": "))
        for is_ascii in (False, True)
    )
    return any(kit.accepts(start, text) for text in texts)


def groups() -> list[tuple[str, dict[str, Any]]]:
    files = sorted(SUITE.rglob("*.json"))
    return [(str(f.relative_to(SUITE)), g) for f in files for g in json.loads(f.read_text())]


def test_the_json_schema_test_suite_finds_no_wrong_answer_accepted(kit: Any) -> None:
    count: Counter[str] = Counter()
    narrower, wrong = Counter[tuple[str, str]](), []
    for file, group in groups():
        try:
            start = kit.compile("json_schema", json.dumps(group["schema"]))
        except BadConstraint:
            count["schemas refused"] += 1
            continue
        count["schemas enforced"] += 1
        for test in group["tests"]:
            count["instances"] += 1
            if accepts(kit, start, test["data"]) == test["valid"]:
                continue
            name = f"{group['description']}: {test['description']}"
            reasons = [k for k in NARROWER if k[0] == file and k[1] in name]
            if test["valid"] and reasons:
                narrower.update(reasons)
            else:
                wrong.append((file, name, test["valid"]))
    assert wrong == []
    assert set(narrower) == set(NARROWER), "a reason that explains nothing"
    assert dict(count) == {"schemas enforced": 195, "schemas refused": 54, "instances": 966}
    assert narrower.total() == 38


# --- random schemas, random answers ------------------------------------------------------------

names = st.sampled_from(["a", "b", "é", "x y", "a/b", "~"])
patterns = st.sampled_from(
    ["^a", "b$", "[0-9]{2,3}", "^x*$", "a.c", "é|b", r"^\S\s\w\d$", "^[^a-c]{1,4}$", "^$", "[&&-]"]
)


def drop(**parts: Any) -> dict[str, Any]:
    return {key: value for key, value in parts.items() if value is not None}


maybe = st.none()
leaves = st.one_of(
    st.sampled_from([{}, {"type": "boolean"}, {"type": ["string", "null"]}, {"const": "é\n"}]),
    st.sampled_from([{"enum": ["a", 1, None, True, {"k": [1]}]}, {"minimum": 3}]),
    st.builds(
        drop,
        type=st.just("string"),
        minLength=maybe | st.integers(0, 3),
        maxLength=maybe | st.integers(3, 12),
        pattern=maybe | patterns,
    ),
    st.builds(
        drop,
        type=st.just("string"),
        format=st.sampled_from(["date", "time", "date-time", "uuid", "ipv4", "ipv6", "email"]),
    ),
    st.builds(
        drop,
        type=st.sampled_from(["integer", "number"]),
        minimum=maybe | st.sampled_from([-20, -1.5, 0, 0.25, 5]),
        maximum=maybe | st.sampled_from([5, 6.5, 199]),
        exclusiveMinimum=maybe | st.sampled_from([-5, 0, 3]),
        exclusiveMaximum=maybe | st.sampled_from([7, 10.5, 100]),
        multipleOf=maybe | st.sampled_from([2, 3, 0.5]),
    ),
)


def compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.builds(
        drop,
        type=st.just("object"),
        properties=st.dictionaries(names, inner, max_size=4),
        required=st.lists(names, max_size=2, unique=True),
        additionalProperties=maybe | st.just(False) | inner,
        patternProperties=maybe | st.dictionaries(st.sampled_from(["^a", "z$"]), inner, max_size=1),
        minProperties=maybe | st.integers(0, 2),
        maxProperties=maybe | st.integers(2, 4),
    )
    arrays = st.builds(
        drop,
        type=st.just("array"),
        items=maybe | inner,
        prefixItems=maybe | st.lists(inner, min_size=1, max_size=3),
        minItems=maybe | st.integers(0, 2),
        maxItems=maybe | st.integers(2, 4),
    )
    some = st.lists(inner, min_size=1, max_size=3)
    keys = st.sampled_from(["anyOf", "allOf", "oneOf"])
    joined = st.builds(lambda key, schemas: {key: schemas}, keys, some)
    both = st.builds(lambda a, b: {**a, **b}, objects, joined)
    return objects | arrays | joined | both


formats = jsonschema.FormatChecker(["date", "ipv4", "ipv6", "email", "uuid"])


@formats.checks("time", ValueError)
def is_time(value: object) -> bool:
    return not isinstance(value, str) or bool(datetime.fromisoformat(f"2024-02-29T{value.upper()}"))


@formats.checks("date-time", ValueError)
def is_date_time(value: object) -> bool:
    return not isinstance(value, str) or bool(datetime.fromisoformat(value.upper()))


seen: Counter[str] = Counter()


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.recursive(leaves, compound, max_leaves=6), st.integers(0, 2**32))
def check_random_answers(kit: Any, schema: Any, seed: int) -> None:
    try:
        start = kit.compile("json_schema", json.dumps(schema))
    except BadConstraint:
        seen["refused"] += 1
        return
    text = kit.draw(start, np.random.default_rng(seed), 200)
    seen["drawn" if text is not None else "too long"] += 1
    if text is not None:
        validator = jsonschema.Draft202012Validator(schema, format_checker=formats)
        validator.validate(json.loads(text))


def test_any_answer_a_schema_lets_through_parses_and_validates(kit: Any) -> None:
    seen.clear()
    check_random_answers(kit)
    assert seen["drawn"] > 100, seen


# --- single rules --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"a": {"not": {}}}}, "json_schema.properties.a.not"),
        ({"items": {"anyOf": [{}, {"if": {}}]}}, "json_schema.items.anyOf[1].if"),
        ({"properties": {"a": {"pattern": "(?=a)b"}}}, "json_schema.properties.a"),
        ({"properties": {"a": {"pattern": "(?i)b"}}}, "json_schema.properties.a.pattern"),
        ({"properties": {"a": {"format": "regex", "type": "string"}}}, "json_schema.properties.a"),
        ({"$defs": {"x": {"uniqueItems": True}}, "$ref": "#/$defs/x"}, "json_schema.$defs.x"),
        ({"$ref": "http://example.com/x"}, "json_schema.$ref"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "json_schema.properties.a.$ref"),
        ({"properties": {"a": {"minProperties": 2}}}, "json_schema.properties.a.minProperties"),
        ({"properties": {"a": {"maxLength": -1}}}, "json_schema.properties.a"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "json_schema"),
        ({"type": "strin"}, "json_schema"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "json_schema"),
        ({"const": "\u007f"}, "json_schema.const"),
        (False, "json_schema"),
        ([], "json_schema"),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_place(
    kit: Any, schema: Any, path: str
) -> None:
    with pytest.raises(BadConstraint) as caught:
        kit.compile("json_schema", json.dumps(schema))
    assert caught.value.path.startswith(path)
    assert str(caught.value).startswith(path)


def test_definitions_that_nothing_refers_to_need_not_be_enforceable(kit: Any) -> None:
    schema = {"$defs": {"x": {"not": {}}}, "type": "integer"}
    assert kit.accepts(kit.compile("json_schema", json.dumps(schema)), "5")


def test_white_space_is_a_space_or_an_indented_line_and_no_more(kit: Any) -> None:
    start = kit.compile("json_schema", '{"type": "object"}')
    value = {"a": [1, {"b": None}], "c": "x"}
    for text in (
        json.dumps(value),
        json.dumps(value, separators=(",", ":")),
        json.dumps(value, indent=4),
        json.dumps(value, indent="\t"),
    ):
        assert kit.accepts(start, text), text
    for text in ("{  }", "{\n\n}", " {}", "{} ", "{" + "\n" + " " * 41 + "}"):
        assert not kit.accepts(start, text), text


def test_true_and_the_empty_schema_are_any_value(kit: Any) -> None:
    for source in ("true", "{}"):
        start = kit.compile("json_schema", source)
        for value in (1.5e3, "é", None, True, [], [{}], {"a": {"b": [1, "x"]}}):
            assert kit.accepts(start, json.dumps(value, ensure_ascii=False)), value
        assert not kit.accepts(start, "{a: 1}")


def test_another_spelling_of_a_name_does_not_get_past_its_schema(kit: Any) -> None:
    schema = {"properties": {"a": {"type": "integer"}}}
    start = kit.compile("json_schema", json.dumps(schema))
    assert kit.accepts(start, '{"a": 1}')
    assert kit.accepts(start, '{"b": "x"}')
    assert not kit.accepts(start, '{"\\u0061": "x"}')


def test_properties_come_as_declared(kit: Any) -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}, "required": ["b", "a"]}
    start = kit.compile("json_schema", json.dumps(schema))
    assert kit.accepts(start, '{"b": 1, "a": 2, "c": 3}')
    assert not kit.accepts(start, '{"a": 1, "b": 2}')


def test_options_told_apart_by_a_tag_are_enforced_through_references(kit: Any) -> None:
    def kind(name: str) -> dict[str, Any]:
        child = {"oneOf": [{"$ref": "#/$defs/Leaf"}, {"$ref": "#/$defs/Node"}]}
        properties = {"kind": {"const": name}, **({"child": child} if name == "node" else {})}
        required = list(properties)
        return {"type": "object", "properties": properties, "required": required}

    schema = {
        "oneOf": [{"$ref": "#/$defs/Leaf"}, {"$ref": "#/$defs/Node"}],
        "$defs": {"Leaf": kind("leaf"), "Node": kind("node")},
    }
    start = kit.compile("json_schema", json.dumps(schema))
    assert kit.accepts(start, '{"kind": "node", "child": {"kind": "leaf"}}')
    assert not kit.accepts(start, '{"kind": "node"}')
    assert not kit.accepts(start, '{"kind": "other"}')


def test_days_that_do_not_exist_are_not_dates(kit: Any) -> None:
    start = kit.compile("json_schema", '{"type": "string", "format": "date"}')
    rng = random.Random(0)
    for _ in range(400):
        text = f"{rng.randint(1, 9999):04}-{rng.randint(0, 13):02}-{rng.randint(27, 32)}"
        try:
            datetime.fromisoformat(text)
            is_date = True
        except ValueError:
            is_date = False
        assert kit.accepts(start, f'"{text}"') == is_date, text


def test_integer_formats_are_ranges(kit: Any) -> None:
    start = kit.compile("json_schema", '{"type": "integer", "format": "int32"}')
    assert kit.accepts(start, str(2**31 - 1)) and kit.accepts(start, str(-(2**31)))
    assert not kit.accepts(start, str(2**31))


def test_openai_strict_schemas_with_definitions_and_null_work(kit: Any) -> None:
    schema = {
        "type": "object",
        "properties": {
            "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}},
            "final": {"anyOf": [{"enum": ["yes", "no"]}, {"type": "null"}]},
            "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        },
        "required": ["steps", "final", "next"],
        "additionalProperties": False,
        "$defs": {
            "step": {
                "type": "object",
                "properties": {"text": {"type": "string", "description": "what to do"}},
                "required": ["text"],
                "additionalProperties": False,
            }
        },
    }
    start = kit.compile("json_schema", json.dumps(schema))
    inner = {"steps": [], "final": "no", "next": None}
    value = {"steps": [{"text": "a"}, {"text": "b"}], "final": None, "next": inner}
    assert kit.accepts(start, json.dumps(value))
    assert not kit.accepts(start, json.dumps({**value, "final": "maybe"}))
    assert not kit.accepts(start, json.dumps({"steps": [], "final": "no"}))


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^[[a]]$", ["[]", "a]"], ["a", "["]),
        (r"^[a&&b]$", ["a", "&", "b"], [""]),
        (r"^[a~~b-]$", ["~", "-"], ["c"]),
        (r"^[+--]$", ["+", ",", "-"], ["."]),
        (r"^[\w-.]$", ["a", "-", "."], [","]),
        (r"^[^-a^]$", ["b"], ["-", "a", "^"]),
        (r"^.$", ["a", "é"], ["\n", "\r", "\u2028"]),
        (r"^\s$", [" ", "\ufeff", "\u00a0"], ["a"]),
        (r"^[\S]$", ["a"], [" "]),
        (r"^\cJ$", ["\n"], ["J"]),
        (r"^[^]$", ["\n", "a"], [""]),
        (r"^\ud83d\udc32$", ["🐲"], ["x"]),
        (r"^a\/b$", ["a/b"], ["a\\/b"]),
        (r"^[\b]$", ["\b"], ["b"]),
        (r"^\d\w$", ["1a"], ["\u0661a", "1é"]),
        (r"^(?<y>a|b)+$", ["ab"], ["c"]),
        (r"a|^b", ["xa", "b"], ["xb"]),
    ],
)
def test_patterns_mean_what_they_mean_in_ecmascript(
    kit: Any, pattern: str, good: list[str], bad: list[str]
) -> None:
    start = kit.compile("json_schema", json.dumps({"type": "string", "pattern": pattern}))
    assert [t for t in good if not kit.accepts(start, json.dumps(t, ensure_ascii=False))] == []
    assert [t for t in bad if kit.accepts(start, json.dumps(t, ensure_ascii=False))] == []


@pytest.mark.parametrize("pattern", [r"(?i)a", r"\Aa", r"a\z", r"(?x: a)", r"(?P<n>a)"])
def test_patterns_that_only_rust_knows_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="ECMAScript"):
        to_rust(pattern)
