"""Where a rendered prompt is cut, so that no special token's text in it is the client's."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.backend.engine.messages import Written
from corral.backend.engine.written import Specials


def cut(specials: list[str], shown: str) -> list[str]:
    """The pieces of a prompt written with the client's part in square brackets."""
    text, foreign = "", list[tuple[int, int]]()
    for part in shown.replace("]", "[").split("["):
        foreign.append((len(text), len(text) + len(part)))
        text += part
    spans = tuple((a, b) for a, b in foreign[1::2] if a < b)
    return Specials(specials).pieces(Written(text, spans))


@pytest.mark.parametrize(
    ("shown", "pieces"),
    [
        ("<a>[hello]<a>", ["<a>hello<a>"]),
        ("<a>[<a>]<a>", ["<a><", "a><a>"]),
        ("[<a><a>]", ["<", "a><", "a>"]),
        ("[<]a>", ["<", "a>"]),
        ("<[a]>", ["<", "a>"]),
        ("<a[>]", ["<a", ">"]),
        ("<a[]>", ["<a>"]),
        ("[<a]>", ["<", "a>"]),
        ("[<a> is <a", ["<", "a> is <a"]),
        ("[]", [""]),
        ("", [""]),
    ],
)
def test_a_special_text_is_cut_where_the_client_has_a_part_in_it(
    shown: str, pieces: list[str]
) -> None:
    assert cut(["<a>"], shown) == pieces


def test_a_special_text_of_the_template_stays_whole_inside_a_longer_one_of_the_clients() -> None:
    assert cut(["<a>", "<a>b", "x<a"], "<a>[b]") == ["<a>", "b"]
    assert cut(["<a>", "x<a"], "[x]<a>") == ["x", "<a>"]
    assert cut(["<a>", "a>b"], "<a>[b]") == ["<a>", "b"]


def test_all_that_begin_at_the_same_place_are_cut() -> None:
    assert cut(["<a", "<a>", "<a>b"], "[<a>b]") == ["<", "a>b"]
    assert cut(["ab", "bc", "cd"], "[abcd]") == ["a", "b", "c", "d"]
    assert cut(["aa"], "[aaaa]") == ["a", "a", "a", "a"]


def test_white_space_and_single_characters_are_text_whatever_they_are_called() -> None:
    assert cut(["\n\n", "  ", "▁▁", "\t", "x"], "[\n\n  ▁▁\tx]") == ["\n\n  ▁▁\tx"]


def test_without_special_texts_nothing_is_cut() -> None:
    assert cut([], "[<a>]") == ["<a>"]


TEXTS = ["ab", "abc", "ba", "b b", "aab", "cc", "cabc"]
runs = st.lists(st.tuples(st.booleans(), st.text("abc ", max_size=4)), max_size=8)


@given(st.sets(st.sampled_from(TEXTS)), runs)
def test_every_special_text_of_the_clients_is_cut_and_none_of_the_templates(
    specials: set[str], parts: list[tuple[bool, str]]
) -> None:
    text = "".join(part for _, part in parts)
    flags = [is_foreign for is_foreign, part in parts for _ in part]
    spans = tuple((i, i + 1) for i, is_foreign in enumerate(flags) if is_foreign)
    pieces = Specials(specials).pieces(Written(text, spans))
    assert "".join(pieces) == text
    edges = {sum(map(len, pieces[:i])) for i in range(1, len(pieces))}
    for special in specials:
        for start in range(len(text)):
            if text.startswith(special, start):
                inside = set(range(start + 1, start + len(special)))
                touched = any(flags[start : start + len(special)])
                assert bool(edges & inside) == touched, (special, start)


@pytest.mark.timeout(20)
def test_a_megabyte_of_beginnings_is_cut_in_little_time() -> None:
    specials = Specials([f"<unused{i}>" for i in range(6000)])
    text = "<unused" * 150_000
    began = time.perf_counter()
    assert specials.pieces(Written(text, ((0, len(text)),))) == [text]
    assert time.perf_counter() - began < 10
