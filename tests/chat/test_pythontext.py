"""Python's literals are read as the JSON that means the same, however they were cut."""

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.backend.chat.pythontext import PythonScanner

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # No halves of characters: Python writes them as they are read, and JSON joins two.
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("a'\"\\é\n"), inner),
    max_leaves=8,
)


def read(text: str, size: int) -> tuple[bool, str, str]:
    """Whether it was a whole literal, its JSON, and what was left of the text."""
    scanner, found, rest = PythonScanner(), list[str](), ""
    for start in range(0, len(text), size):
        piece = text[start : start + size]
        at, json_text = scanner.scan(piece, 0, len(piece))
        found.append(json_text)
        if scanner.is_done or scanner.is_broken:
            rest = text[start + at :]
            break
    else:
        found.append(scanner.end())
    return scanner.is_done, "".join(found), rest


@given(VALUES, st.integers(1, 9))
def test_what_python_writes_is_read_back(value: Any, size: int) -> None:
    is_done, text, rest = read(repr(value), size)
    assert is_done and not rest and json.loads(text) == value


@given(VALUES, st.integers(1, 9))
def test_what_json_writes_is_read_back_but_for_escapes_that_python_lacks(
    value: Any, size: int
) -> None:
    is_done, text, rest = read(json.dumps(value, ensure_ascii=False), size)
    assert is_done and not rest and json.loads(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *("''", '""', "''''''", "'''a'b''c\n'''", '"""x"y\\""""', '"it\'s"', "'say \"x\"'"),
        *(r"'\x41\u00e9\U0001F600\101\0 \377'", r"'\\d\a\v\'\"'", "'a\\\nb'", "'日\t'"),
        *("1_000", "0x1f", "0b1", ".5", "1.", "+3", "-0.5e-3", "-7"),
        *("[1,2,]", "[[], {}, '', ]", "{'a': [None, True], \"b\": {'c': False,},}"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 99])
def test_each_form_means_what_python_takes_it_for(text: str, size: int) -> None:
    is_done, found, rest = read(text, size)
    assert is_done and not rest and json.loads(found) == ast.literal_eval(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"'\d+\.'", r"\d+\."),
        (r"'\x4'", r"\x4"),
        (r"'\u12g'", r"\u12g"),
        (r"'\U00110000'", r"\U00110000"),
        (r"'\ud83d\ude00'", "😀"),
        ("'two\nlines'", "two\nlines"),
        ("[true, false, null]", [True, False, None]),
        ("{1: 'a', True: 2}", {"1": "a", "true": 2}),
        ("007", 7),
    ],
)
@pytest.mark.parametrize("size", [1, 99])
def test_what_models_write_and_python_does_not_take_so_is_read_too(
    text: str, value: Any, size: int
) -> None:
    is_done, found, rest = read(text, size)
    assert is_done and not rest and json.loads(found) == value


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        *(("nan", ""), ("-inf", ""), ("name", "")),
        *(("(1, 2)", "(1, 2)"), ("{1, 2}", ", 2}"), ("[1 2]", "2]"), ("[1}", "}"), ("[,]", ",]")),
        *(("{'a': }", "}"), ("{'a'}", "}"), ("{,}", ",}")),
        *((",", ","), ("1+" * 4_000, None), ("['a'", ""), ("'a", ""), ("'''a''", ""), ("{'a'", "")),
    ],
)
@pytest.mark.parametrize("size", [1, 99])
def test_what_is_no_literal_is_not_one(text: str, rest: str | None, size: int) -> None:
    is_done, found, left = read(text, size)
    assert not is_done and rest in (None, left)
    with pytest.raises(ValueError):
        json.loads(found)


def test_a_literal_ends_where_another_begins() -> None:
    assert read("7)", 1) == (True, "7", ")")
    assert read("'', 1", 1) == (True, '""', ", 1")
    assert read("[1], 2", 9) == (True, "[1]", ", 2")
