"""The machine under every dialect: any split of an answer reads the same, in linear work."""

import sys
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.backend.chat.dialects.hermes import Hermes
from corral.backend.chat.dialects.lark import Wish
from corral.backend.chat.jsontext import JsonScanner
from corral.backend.chat.parser import Machine, Parser, Thinks
from corral.backend.chat.parts import joined
from corral.backend.chat.types import CallArguments, CallBegin, Content, Part, Thought, Tool

HERMES = replace(Hermes(), new_id=lambda i, name: f"id_{i}")
TOOLS = (Tool(name="f"), Tool(name="weather"))
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": [1, "é<"]}}\n</tool_call>'
THINK = frozenset({"<think>", "</think>"})
Marks = Sequence[tuple[int, str]]

ANSWERS: dict[str, tuple[str, Marks, frozenset[str]]] = {
    "text, two calls, text": (f"Well.\n{CALL}\n{CALL} Done <tool_ca", (), frozenset()),
    "a thought in letters": (f"<think>\na < b\n</think>\n\nSo: {CALL}", (), frozenset()),
    "a thought in marks": (
        "\na <think> b\n\n\n So </think>",
        ((0, "<think>"), (13, "</think>")),
        THINK,
    ),
    "calls in marks": (
        'Hi\n{"name": "f", "arguments": {}}\n\n{"name": "f", "arguments": {"a": "b"}}',
        ((2, "<tool_call>"), (34, "</tool_call>"), (34, "<tool_call>"), (74, "</tool_call>")),
        frozenset({"<tool_call>", "</tool_call>"}),
    ),
    "white space only": (" \n\t ", (), frozenset()),
}


def parser(thinks: Thinks = "may", controls: frozenset[str] = frozenset()) -> Parser:
    return HERMES.parser(Wish(tools=TOOLS, thinks=thinks), controls)


def pieces(text: str, marks: Marks, cuts: Sequence[int], *, late: bool = False) -> list[Any]:
    """An answer in pieces; a mark at a cut comes with the text before it, or after it (late)."""
    ends = [*sorted(cuts), len(text)]
    found, start, left = [], 0, list(marks)
    for i, end in enumerate(ends):
        is_last = i == len(ends) - 1
        mine = [m for m in left if m[0] < end or (m[0] == end and (is_last or not late))]
        left = left[len(mine) :]
        found.append((text[start:end], [(at - start, tag) for at, tag in mine]))
        start = end
    return found


def read(reader: Parser, fed: Sequence[Any]) -> tuple[list[Part], int]:
    parts = [part for text, marks in fed for part in reader.feed(text, marks)]
    return joined([*parts, *reader.finish()]), reader.n_calls


@pytest.mark.parametrize("answer", ANSWERS)
def test_every_split_in_two_or_three_reads_as_the_whole(answer: str) -> None:
    text, marks, controls = ANSWERS[answer]
    whole = read(parser("may", controls), pieces(text, marks, ()))
    for n_cuts in (1, 2):
        for cuts in combinations(range(0, len(text) + 1, n_cuts), n_cuts):
            for late in (False, True):
                split = pieces(text, marks, cuts, late=late)
                assert read(parser("may", controls), split) == whole, split


@pytest.mark.parametrize("answer", ANSWERS)
def test_letter_by_letter_reads_as_the_whole(answer: str) -> None:
    text, marks, controls = ANSWERS[answer]
    whole = read(parser("may", controls), pieces(text, marks, ()))
    assert read(parser("may", controls), pieces(text, marks, range(len(text)))) == whole


BITS = st.sampled_from(
    [
        *(
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            CALL,
            "<",
            "<tool",
            "</",
            "\n",
            " ",
        ),
        *('{"name": "f"', ', "arguments": {', '"a": 1', "}", "}}", '"', "\\", "[", ",", "é", "x"),
        *('{"name": "nobody", "arguments": {}}', '"parameters":', "null", "-0.5e3", "\\u00e9"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    bits=st.lists(st.tuples(BITS, st.booleans()), max_size=12),
    thinks=st.sampled_from(["no", "may", "open"]),
    data=st.data(),
)
def test_any_split_of_any_answer_reads_the_same(bits: Any, thinks: Thinks, data: Any) -> None:
    text, marks = "", list[tuple[int, str]]()
    for bit, is_mark in bits:
        if is_mark and bit in HERMES.marks:
            marks.append((len(text), bit))
        else:
            text += bit
    controls = data.draw(st.sampled_from([frozenset(), THINK, frozenset(HERMES.marks)]))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    whole = read(parser(thinks, controls), pieces(text, marks, ()))
    split = pieces(text, marks, cuts, late=data.draw(st.booleans()))
    assert read(parser(thinks, controls), split) == whole
    assert whole[1] <= sum(isinstance(part, CallBegin) for part in whole[0])


@settings(max_examples=200, deadline=None)
@given(bits=st.lists(BITS.filter(lambda bit: "tool" not in bit and "think" not in bit)))
def test_an_answer_without_tags_is_content_to_the_letter(bits: list[str]) -> None:
    text = "".join(bits)
    found, n_calls = read(parser(), [(text, ())])
    assert (found, n_calls) == ([Content(text)] if text else [], 0)


def test_only_what_may_become_a_tag_is_held_back() -> None:
    reader = parser()
    assert reader.feed("ab <tool") == [Content("ab")]
    assert reader.feed("box> c") == [Content(" <toolbox> c")]
    assert reader.feed("<") == []
    assert reader.finish() == [Content("<")]


def test_the_letters_of_a_tag_are_text_where_the_tag_is_a_token() -> None:
    text = "I write <think> and </think> here."
    assert read(parser("may", THINK), [(text, ())])[0] == [Content(text)]
    marks = [(0, "<think>"), (len(text), "</think>")]
    found = read(parser("may", THINK), [(text + "\n\nYes </think>", marks)])[0]
    assert found == [Thought(text), Content("Yes </think>")]


def test_without_reasoning_its_tags_are_text() -> None:
    text = "<think>\nno\n</think> yes"
    assert read(parser("no"), [(text, ())])[0] == [Content(text)]
    marked = read(parser("no", THINK), [("no yes", [(0, "<think>"), (2, "</think>")])])[0]
    assert marked == [Content("<think>no</think> yes")]


def test_an_answer_that_begins_inside_reasoning_is_thought_up_to_its_end() -> None:
    assert read(parser("open"), [("\nhm </think>\n\nYes", ())])[0] == [
        Thought("hm"),
        Content("Yes"),
    ]
    assert read(parser("open"), [("<think>\nhm</think>Yes", ())])[0] == [
        *(Thought("hm"), Content("Yes")),
    ]
    assert read(parser("open"), [("hm ", ())])[0] == [Thought("hm ")]


def test_reasoning_between_calls_is_reasoning() -> None:
    found, n_calls = read(parser(), [(f"<think>a</think>{CALL}<think>b</think>{CALL}", ())])
    assert n_calls == 2
    kinds = [type(part) for part in found]
    assert kinds == [Thought, CallBegin, CallArguments, Thought, CallBegin, CallArguments]


def test_without_tools_calls_are_text() -> None:
    reader = HERMES.parser(Wish(tools=TOOLS, choice="none"), frozenset())
    assert read(reader, [(CALL, ())]) == ([Content(CALL)], 0)


def test_arguments_come_as_they_are_written() -> None:
    reader = parser()
    reader.feed('<tool_call>\n{"name": "f", "arguments": {"city": "')
    assert reader.feed("Os") == [CallArguments(0, "Os")]
    assert reader.feed('lo"') == [CallArguments(0, 'lo"')]


def _n_operations(text: str, size: int) -> int:
    """Functions called, C's included, to read a text in pieces of one size."""
    reader, count = parser(), 0

    def tally(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(tally)
    try:
        for at in range(0, len(text), size):
            reader.feed(text[at : at + size])
            assert isinstance(reader, Machine)
            held = len(reader._text) - reader._at
            assert held < len("</tool_call>") + size
        reader.finish()
    finally:
        sys.setprofile(before)
    return count


LONG = {
    "prose": lambda n: "word " * n,
    "white space": lambda n: "\n" * n,
    "a tag begun over and over": lambda n: "<tool_cal" * n,
    "a long argument": lambda n: f'<tool_call>{{"name": "f", "arguments": {{"a": "{"b " * n}"}}}}',
    "deep arguments": lambda n: '<tool_call>{"name": "f", "arguments": ' + '{"a":[' * n,
    "many calls": lambda n: CALL * n,
    "a long number": lambda n: '<tool_call>{"name": "f", "arguments": {"a": ' + "1" * n,
    "a thought without an end": lambda n: "<think>" + "a < b </thin " * n,
    "a name without an end": lambda n: '<tool_call>{"name": "' + "f" * n,
}


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("size", [1, 7])
def test_the_work_grows_with_the_answer_and_no_faster(kind: str, size: int) -> None:
    small, large = (_n_operations(LONG[kind](n), size) for n in (100, 400))
    assert large < 4.2 * small + 500


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ('{"a": [1, {"b": "}"}], "c": null} x', -2),
        ('"a\\"b" x', -2),
        ("[ ] ]", -2),
        ("{} {}", 2),
        ("true,", -1),
        ("-1.5e+3}", -1),
        ('"\\u00e9\\n"', None),
    ],
)
def test_a_json_value_ends_where_it_ends(text: str, end: int | None) -> None:
    for size in (1, 2, len(text)):
        scanner, read = JsonScanner(), ""
        for at in range(0, len(text), size):
            piece = text[at : at + size]
            read += scanner.scan(piece, 0, len(piece))[1]
        assert scanner.is_done and read == text[:end]


@pytest.mark.parametrize(
    "text",
    ["{'a': 1}", "{a: 1}", '{"a" 1}', "[1,]", "{,}", "nul]", "01 ", "[1 2]", '"\\x"', '{"a": }'],
)
def test_what_is_no_json_is_broken_where_it_stops_being_json(text: str) -> None:
    scanner = JsonScanner()
    scanner.scan(text, 0, len(text))
    scanner.end()
    assert scanner.is_broken and not scanner.is_done


def test_line_breaks_in_strings_become_escapes() -> None:
    scanner = JsonScanner()
    assert scanner.scan('"a\nb\x01"', 0, 6)[1] == '"a\\nb\\u0001"'
