"""One answer under a constraint: what may come next, when it ends, and what is never compiled."""

import json
import threading
import time
from typing import Any

import numpy as np
import pytest

from corral.backend.engine.constraint import BadConstraint, ConstraintFailed, Vocabulary
from corral.backend.engine.fake import FakeLlama

PERSON = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)


def test_an_answer_ends_at_its_closing_brace(kit: Any) -> None:
    state = kit.follow(kit.compile("json_schema", PERSON), '{"name": "Jo", "age": 12')
    assert not state.must_stop and not state.may_stop
    state.accept(kit.tokens("}")[0])
    assert state.must_stop and state.may_stop
    assert not state.allows(kit.tokens("\n")[0])


def test_an_answer_ends_where_only_empty_rules_are_left(kit: Any) -> None:
    start = kit.compile("gbnf", 'root ::= [^a]{2} "" | "(" root ")"')
    assert [kit.follow(start, t).must_stop for t in ("", "b", "bc", "(bc", "(bc)")] == [
        *(False, False, True, False, True),
    ]


def test_an_end_is_allowed_exactly_where_the_answer_is_complete(kit: Any) -> None:
    (end,) = kit.letters.eog_tokens
    start = kit.compile("regex", "[0-9]{2,3}")
    assert [kit.follow(start, t).allows(end) for t in ("", "1", "12", "123")] == [
        *(False, False, True, True),
    ]
    state = kit.follow(start, "12")
    state.accept(end)
    assert state.must_stop


def test_all_logits_but_those_allowed_become_minus_infinity(kit: Any) -> None:
    start = kit.compile("regex", "ab+|c")
    logits = np.ones(kit.letters.n_vocab, np.float32)
    start.apply(logits)
    left = {kit.letters.pieces[t] for t in np.flatnonzero(np.isfinite(logits))}
    assert left == {b"a", b"ab", b"c"}
    assert [t for t in range(kit.letters.n_vocab) if start.allows(t)] == [
        *np.flatnonzero(np.isfinite(logits))
    ]


def test_what_has_no_choice_is_forced_in_the_tokenizers_own_tokens(kit: Any) -> None:
    start = kit.compile("json_schema", PERSON)
    state = kit.follow(start, '{"')
    assert state.forced() == kit.tokens("name")
    whole = kit.compile("regex", "the name is \u65e5\u672c, \u00fcnd")
    assert whole.forced() == kit.tokens("the name is \u65e5\u672c, \u00fcnd")


def test_a_copy_goes_its_own_way(kit: Any) -> None:
    start = kit.compile("regex", "ab|cd")
    one, two = start.copy(), start.copy()
    one.accept(kit.tokens("a")[0])
    assert two.allows(kit.tokens("c")[0]) and not one.allows(kit.tokens("c")[0])
    assert start.allows(kit.tokens("a")[0])


def test_a_token_that_does_not_fit_is_an_error_and_not_a_crash(kit: Any) -> None:
    for token in (kit.tokens("x")[0], kit.letters.n_vocab + 5):
        state = kit.compile("regex", "abc")
        with pytest.raises(ConstraintFailed):
            state.accept(token)
        with pytest.raises(ConstraintFailed):
            state.mask()


def test_special_tokens_are_no_text_but_a_grammar_may_name_them(kit: Any) -> None:
    anything = kit.compile("regex", r"[\s\S]*")
    assert not anything.allows(1) and anything.allows(kit.tokens("<")[0])
    named = kit.compile("lark", 'start: <|bos|> "x"')
    assert named.forced() == [1, *kit.tokens("x")]
    by_number = kit.compile("gbnf", 'root ::= <[1]> "x" | "y"')
    assert by_number.allows(1) and by_number.allows(kit.tokens("y")[0])


@pytest.mark.parametrize("prefix", [" ", "  ", "\u2581"])
def test_a_tokenizer_that_changes_a_texts_beginning_still_gives_that_text(prefix: str) -> None:
    class Prefixing(FakeLlama):
        def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
            return super().tokenize(prefix + text, add_special=False, parse_special=False)

    from corral.backend.engine.constraint import compile_constraint
    from corral.backend.engine.messages import Constraint

    start = compile_constraint(Constraint("regex", "h\u00e9llo"), Vocabulary(Prefixing()))
    assert bytes(start.forced()) == "h\u00e9llo".encode()


# --- what is never compiled ----------------------------------------------------------------------

CHAIN = "root ::= r0\n" + "\n".join(f'r{i} ::= "a" r{i + 1}' for i in range(5000))
CHAIN += '\nr5000 ::= "b"'
REFS = {f"a{i}": {"properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(3000)}

HOSTILE = {
    "60,000 parentheses in gbnf": ("gbnf", "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000),
    "60,000 parentheses in lark": ("lark", "start: " + "(" * 60_000 + '"a"' + ")" * 60_000),
    "60,000 parentheses in a regex": ("regex", "(" * 60_000),
    "2,000 parentheses in a pattern": (
        *("json_schema", json.dumps({"pattern": "(" * 2_000 + "a" + ")" * 2_000})),
    ),
    "a megabyte of gbnf": ("gbnf", 'root ::= "' + "x" * 1_000_000 + '"'),
    "open repetitions in a row": ("regex", "x*" * 20_000),
    "open repetitions in lark": ("lark", "start: X\nX: " + '"x"* ' * 20_000),
    "open repetitions in gbnf": ("gbnf", "root ::= " + '"x"* ' * 20_000),
    "rules that double": (
        "lark",
        "start: R0\n" + "\n".join(f"R{i}: R{i + 1} R{i + 1}" for i in range(60)) + '\nR60: "b"',
    ),
    "a schema of itself": ("json_schema", '{"$ref": "#"}'),
    "a rule of itself": ("gbnf", "root ::= root"),
    "everything of everything": (
        "json_schema",
        json.dumps(
            {
                "allOf": [
                    {"anyOf": [{"properties": {f"{c}{i}": {"const": 1}}} for c in "ab"]}
                    for i in range(20)
                ]
            }
        ),
    ),
    "deep json": ("json_schema", '{"items":' * 50_000 + "{}" + "}" * 50_000),
    "deep json that ends nowhere": ("json_schema", "[" * 200_000),
    "10^12 letters": ("json_schema", '{"type": "string", "maxLength": 1000000000000}'),
    "a large divisor": ("json_schema", '{"type": "integer", "multipleOf": 982451653}'),
    "NaN": ("json_schema", '{"minimum": NaN}'),
    "an end of text": ("json_schema", '{"const": "a\\u0000b"}'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_constraint_meant_to_do_harm_is_refused_at_once(kit: Any, name: str) -> None:
    kind, source = HOSTILE[name]
    started = time.process_time()
    with pytest.raises(BadConstraint) as caught:
        kit.compile(kind, source)
    assert time.process_time() - started < 5
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("gbnf", CHAIN),
        ("lark", CHAIN.replace("::=", ":").replace("root", "start")),
        ("json_schema", json.dumps({"$ref": "#/$defs/a0", "$defs": {**REFS, "a3000": {}}})),
        ("gbnf", 'root ::= ("a"? "a"? "b"?){1,300} "z"'),
        ("gbnf", 'root ::= (((("a"{1,2000}){1,2000}){1,2000}){1,2000})'),
        ("regex", "(a?){3000}b"),
        ("regex", "(x+x+)+y"),
        ("regex", "[a-z]{0,100000}"),
        ("json_schema", '{"type": "array", "items": {"type": "object"}, "maxItems": 1000000000}'),
    ],
)
def test_a_large_constraint_works_on_any_thread(kit: Any, kind: str, source: str) -> None:
    # A small stack, such as some systems give their threads: chains of rules must not need more.
    made: list[Any] = []
    before = threading.stack_size(512 << 10)
    try:
        thread = threading.Thread(target=lambda: made.append(kit.compile(kind, source)))
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert made and made[0].copy().mask().any()


def test_a_grammar_that_becomes_too_hard_fails_its_answer_alone(kit: Any) -> None:
    start = kit.compile("regex", "(((((a{0,50}){0,50}){0,50}){0,50}){0,50})b")
    state = start.copy()
    with pytest.raises(ConstraintFailed, match="too many"):
        for _ in range(100):
            state.accept(kit.tokens("a")[0])
            state.mask()
    assert start.allows(kit.tokens("a")[0])
