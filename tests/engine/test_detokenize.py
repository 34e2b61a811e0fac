import itertools
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from corral.backend.engine.detokenize import Detokenizer, StopMatcher

# Few letters, so that stop strings overlap each other and themselves.
LETTERS = st.text("ab\né😀", max_size=40)
STOPS = st.lists(st.text("ab\né😀", min_size=1, max_size=6), max_size=4)


def _cut(data: Any, at: list[int]) -> list[Any]:
    """``data`` in pieces, cut at the given places."""
    places = [0, *sorted(i % (len(data) + 1) for i in at), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


def _expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that ends first (the longest of those), and it."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            word = max(found, key=len)
            return text[: end - len(word)], word
    return text, None


@given(LETTERS, STOPS, st.lists(st.integers(0, 200), max_size=30))
@example("aab", ["aab"], [1, 2])
@example("aaab", ["aab"], [1, 2, 3])
@example("abc", ["abcd", "bc"], [2])
def test_any_split_of_the_bytes_gives_the_same_text_and_stop(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    detokenizer = Detokenizer(stops)
    shown = [detokenizer.feed(piece) for piece in _cut(text.encode(), cuts)]
    shown.append(detokenizer.flush())
    assert ("".join(shown), detokenizer.stop) == _expected(text, stops)


@given(LETTERS, STOPS, st.lists(st.integers(0, 200), max_size=30))
def test_nothing_that_may_become_a_stop_string_is_shown(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    detokenizer = Detokenizer(stops)
    shown, fed = "", b""
    for piece in _cut(text.encode(), cuts):
        shown += detokenizer.feed(piece)
        fed += piece
        if detokenizer.stop is None:
            known = fed.decode("utf-8", "ignore")
            assert known.startswith(shown)
            # Whatever comes next, what is shown stays right.
            for stop in stops:
                for rest in (stop[i:] for i in range(len(stop))):
                    assert _expected(known + rest, stops)[0].startswith(shown)


@given(LETTERS, STOPS, st.lists(st.integers(0, 200), max_size=30))
def test_no_more_is_held_back_than_may_become_a_stop_string(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    matcher, shown, fed = StopMatcher(stops), "", ""
    for piece in _cut(text, cuts):
        shown += matcher.feed(piece)
        fed += piece
        if matcher.stop is None:
            held = fed[len(shown) :]
            assert held == "" or any(stop.startswith(held) for stop in stops)


@given(st.binary(max_size=60), st.lists(st.integers(0, 200), max_size=30))
@example(b"\xed\xa0\x80", [1, 2])
@example(b"\xf0\x9f\x98", [1])
@example(b"\xff\xc3", [1])
def test_invalid_bytes_become_replacement_characters_however_they_are_split(
    data: bytes, cuts: list[int]
) -> None:
    detokenizer = Detokenizer([])
    shown = [detokenizer.feed(piece) for piece in _cut(data, cuts)]
    shown.append(detokenizer.flush())
    assert "".join(shown) == data.decode("utf-8", "replace")


def test_a_code_point_is_shown_with_its_last_byte() -> None:
    detokenizer = Detokenizer([])
    assert [detokenizer.feed(bytes([b])) for b in "😀".encode()] == ["", "", "", "😀"]


def test_a_code_point_cut_short_by_the_end_is_shown_as_a_replacement() -> None:
    detokenizer = Detokenizer(["x"])
    assert detokenizer.feed(b"a\xf0\x9f") == "a"
    assert detokenizer.flush() == "\ufffd"


def test_text_held_for_a_stop_string_is_shown_when_no_more_comes() -> None:
    detokenizer = Detokenizer(["STOP"])
    assert detokenizer.feed(b"a STO") == "a "
    assert detokenizer.flush() == "STO"
    assert detokenizer.stop is None


def test_after_a_stop_string_nothing_more_is_shown() -> None:
    detokenizer = Detokenizer(["\n"])
    assert detokenizer.feed(b"one\ntwo") == "one"
    assert detokenizer.stop == "\n"
    assert detokenizer.feed(b"three") == ""
    assert detokenizer.flush() == ""


def test_an_empty_stop_string_is_none() -> None:
    detokenizer = Detokenizer([""])
    assert detokenizer.feed(b"abc") == "abc"
    assert detokenizer.stop is None


class _Counting(str):
    """A stop string that counts how often a letter of it is looked at."""

    looks = 0

    def __getitem__(self, key: Any) -> str:
        _Counting.looks += 1
        return super().__getitem__(key)


def test_the_cost_of_a_token_does_not_grow_with_the_output() -> None:
    # The worst case of naive search: nearly all of the stop string matches at every place.
    matcher = StopMatcher([_Counting("a" * 50 + "b")])
    counts = []
    for _ in range(4):
        before = _Counting.looks
        for _ in range(1000):
            matcher.feed("a")
        counts.append(_Counting.looks - before)
    assert counts[3] <= counts[1]
    assert sum(counts) <= 4 * 4000
    assert len(matcher.flush()) == 50
