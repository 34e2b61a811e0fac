"""The page that shows a text's tokens, and tokens' text."""

import re
from typing import Any, TypeAlias

import pytest

from corral.backend.errors import Refused
from corral.frontend.tools import tokens
from corral.frontend.tools.visible import Part, parts

#: See ``conftest``.
Client: TypeAlias = Any
HTMX = {"hx-request": "true"}


def test_what_cannot_be_seen_is_written_out() -> None:
    assert parts("a b") == (Part("a"), Part("·", True), Part("b"))
    assert parts("\n\t\r") == (Part("↵→␍", True),)
    assert parts("x\u202e\u200by") == (Part("x"), Part("U+202EU+200B", True), Part("y"))
    assert parts("") == ()


def test_a_piece_that_is_no_character_is_shown_in_hex() -> None:
    whole, half = tokens.chips([5, 6], ["é".encode(), "é".encode()[:1]], set())
    assert (whole.kind, whole.parts, whole.hex) == ("text", (Part("é"),), "C3 A9")
    assert (half.kind, half.parts) == ("bytes", (Part("C3"),))


def test_control_tokens_are_told_from_text_and_lines_end_where_they_end() -> None:
    control, line = tokens.chips([1, 2], [b"<|im_end|>", b"}\n"], {"<|im_end|>"})
    assert (control.kind, control.ends_line) == ("control", False)
    assert (line.kind, line.ends_line) == ("text", True)


@pytest.mark.parametrize("text", ["1, 2,3", "[1,2,3]", "1 2\n3", "(1; 2; 3)", " 1,,2 3 "])
def test_numbers_are_read_however_they_are_separated(text: str) -> None:
    assert tokens.numbers(text) == [1, 2, 3]


@pytest.mark.parametrize("text", ["1, x", "-1", "1.5", "0x1f", "²", "1" * 10])
def test_what_is_no_number_is_named(text: str) -> None:
    with pytest.raises(Refused, match="is not the number of a token"):
        tokens.numbers(text)


async def test_a_text_is_taken_apart_with_its_counts(client: Client) -> None:
    answer = await client.post("/tokens", data={"text": "hé\r\n"}, headers=HTMX)
    assert answer.status_code == 200 and "<html" not in answer.text
    assert re.sub(r"<.*?>", "", answer.text).count("C3") == 2  # the chip and the table
    assert "4 tokens · 3 characters · 4 bytes" in answer.text


async def test_control_tokens_are_read_only_when_that_is_on(client: Client) -> None:
    for on, n in (({"parse_special": "on"}, "1 token "), ({}, "10 tokens")):
        answer = await client.post("/tokens", data={"text": "<|im_end|>"} | on, headers=HTMX)
        assert n in answer.text
        assert ('<li class="control">' in answer.text) == bool(on)


async def test_blanks_at_the_ends_are_tokens_too(client: Client) -> None:
    answer = await client.post("/tokens", data={"text": " a\n"}, headers=HTMX)
    assert "3 tokens" in answer.text


async def test_all_tokens_are_counted_and_some_are_drawn(client: Client) -> None:
    answer = await client.post("/tokens", data={"text": "a" * 2_500}, headers=HTMX)
    assert "2,500 tokens" in answer.text and "500 more tokens are counted" in answer.text
    assert answer.text.count('<li class="text">') == tokens.MAX_SHOWN


async def test_a_text_that_is_too_long_is_refused_in_words(client: Client) -> None:
    answer = await client.post("/tokens", data={"text": "a" * 100_001}, headers=HTMX)
    assert "These are 100,001 characters; the page takes 100,000 at a time." in answer.text
    assert "<li" not in answer.text


async def test_without_script_the_page_comes_back_with_what_was_set(client: Client) -> None:
    answer = await client.post("/tokens", data={"text": "<b>", "add_special": "on"})
    assert "<html" in answer.text and "3 tokens" in answer.text
    assert "\n&lt;b&gt;</textarea>" in answer.text
    assert '<input type="checkbox" name="add_special" checked>' in answer.text
    assert '<input type="checkbox" name="parse_special">' in answer.text


async def test_tokens_become_text(client: Client) -> None:
    answer = await client.post("/tokens/text", data={"ids": "104, 105, 258"}, headers=HTMX)
    assert "hi&lt;|endoftext|&gt;</pre>" in answer.text


@pytest.mark.parametrize("ids", ["104, 99999", "x"])
async def test_a_number_outside_the_vocabulary_is_said(client: Client, ids: str) -> None:
    answer = await client.post("/tokens/text", data={"ids": ids})
    assert 'role="alert"' in answer.text and "<html" in answer.text
    assert f"\n{ids}</textarea>" in answer.text


async def test_a_link_can_bring_a_text(client: Client) -> None:
    answer = await client.get("/tokens?text=abc")
    assert "3 tokens" in answer.text
