"""Whose each character is, held against texts that tell: the client writes capitals and ``-``, the
template the other letters and ``_``."""

import operator
import string
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.backend.chat.formatting import percent
from corral.backend.chat.marked import Marked, foreign, joined, spans_of

OURS = "abcxyz_ \n"
THEIRS = "ABCXYZ-\t"


def whose(text: str) -> str:
    """A text's characters as marks: ``#`` for the client's."""
    marks = ["."] * len(text)
    last = -1
    for start, end in spans_of(text):
        assert last < start < end <= len(text), spans_of(text)
        last = end
        marks[start:end] = "#" * (end - start)
    return "".join(marks)


def right(text: str) -> str:
    return "".join("#" if char in THEIRS else "." for char in text)


def told(text: str) -> str:
    """A text of both alphabets, its capitals marked."""
    return joined(foreign(char) if char in THEIRS else char for char in text)


both = st.text(OURS + THEIRS, max_size=12).map(told)
counts = st.integers(-3, 14)
separators = st.one_of(st.none(), st.text(OURS + THEIRS, min_size=1, max_size=2).map(told))


def agree(ours: Any, theirs: Any) -> None:
    """The same result as str's, and every character whose it looks like."""
    assert ours == theirs
    if isinstance(ours, str):
        assert whose(ours) == right(ours), ours
    elif isinstance(ours, list | tuple):
        assert type(ours) is type(theirs)
        for mine, yours in zip(ours, theirs, strict=True):
            agree(mine, yours)


@given(both, counts, counts)
def test_slices_and_characters_keep_their_marks(text: str, i: int, j: int) -> None:
    plain = str.__str__(text)
    for step in (None, 1, -1):
        agree(text[i:j:step], plain[i:j:step])
    agree(list(text), list(plain))
    agree(text[::-1][::-1], plain)
    if text:
        agree(text[i % len(text)], plain[i % len(text)])
        agree(text[-1], plain[-1])
        agree(next(iter(reversed(text))), plain[-1])


@given(both, separators, counts)
def test_splitting_and_stripping_keeps_marks(text: str, sep: str | None, n: int) -> None:
    plain = str.__str__(text)
    for name in ("split", "rsplit"):
        agree(getattr(text, name)(sep, n), getattr(plain, name)(sep, n))
        agree(getattr(text, name)(sep=sep, maxsplit=n), getattr(plain, name)(sep, n))
    for name in ("strip", "lstrip", "rstrip"):
        agree(getattr(text, name)(sep), getattr(plain, name)(sep))
        agree(getattr(text, name)(), getattr(plain, name)())
    for keep in (True, False):
        agree(text.splitlines(keep), plain.splitlines(keep))
    if sep is not None:
        for name in ("partition", "rpartition", "removeprefix", "removesuffix"):
            agree(getattr(text, name)(sep), getattr(plain, name)(sep))


@given(both, both, st.integers(-1, 3))
def test_putting_together_keeps_marks(one: str, other: str, n: int) -> None:
    a, b = str.__str__(one), str.__str__(other)
    agree(one + other, a + b)
    agree(one * n, a * n)
    agree(n * one, n * a)
    agree(as_marked(one).join([other, "x", one]), a.join([b, "x", a]))
    agree(percent("%s_%s%%", (one, other)), f"{a}_{b}%")
    agree(percent("%(y)s_%(x)s", {"x": one, "y": other}), f"{b}_{a}")


def as_marked(text: str) -> str:
    """What a template's sandbox makes of a plain text whose method is to take others."""
    return text if isinstance(text, Marked) else Marked(text, ())


@given(both, both, both, st.integers(-1, 3))
def test_replacing_keeps_marks(text: str, old: str, new: str, n: int) -> None:
    plain = str.__str__(text).replace(old, new, n)
    done = as_marked(text).replace(old, new, n)
    if old:
        agree(done, plain)
    else:
        assert done == plain
        assert covers(done)


def covers(text: str) -> bool:
    """Nothing of the client's is unmarked."""
    return all(mark == "#" for char, mark in zip(text, whose(text), strict=True) if char in THEIRS)


@pytest.mark.parametrize("name", ["lower", "upper", "title", "capitalize", "casefold", "swapcase"])
@given(both)
def test_letters_in_another_case_keep_their_marks(name: str, text: str) -> None:
    changed = getattr(text, name)()
    assert changed == getattr(str.__str__(text), name)()
    assert whose(changed) == right(text)


@pytest.mark.parametrize("name", ["lower", "upper", "title", "capitalize", "casefold"])
def test_a_letter_that_becomes_several_marks_everything(name: str) -> None:
    text = "ab" + foreign("İß")
    changed = getattr(text, name)()
    assert changed == getattr(str.__str__(text), name)()
    if len(changed) != len(text):
        assert whose(changed) == "#" * len(changed)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.center(40, "*"),
        lambda t: t.ljust(40, "A"),
        lambda t: t.rjust(40),
        lambda t: t.zfill(40),
        lambda t: t.expandtabs(3),
        lambda t: t.translate({97: "Q"}),
        lambda t: t[::2],
        lambda t: t[::-3],
        lambda t: t.replace("", "_"),
    ],
)
@given(both)
def test_what_cannot_be_told_is_marked_as_a_whole(change: Callable[[str], str], text: str) -> None:
    changed = change(as_marked(text))
    assert changed == change(str.__str__(text))
    assert whose(changed) == ("#" if spans_of(text) else ".") * len(changed)


def test_a_text_repeated_very_often_is_marked_as_a_whole() -> None:
    text = told("aA") * 100_000
    assert text == "aA" * 100_000
    assert spans_of(text) == ((0, 200_000),)
    assert spans_of(foreign("AB") * 100_000) == ((0, 200_000),)


@pytest.mark.parametrize(
    ("form", "values"),
    [
        ("%s", (foreign("A"),)),
        ("%5s|%-5s", (foreign("A"), "b")),
        ("%r", (foreign("A"),)),
        ("%d%%%c", (5, foreign("A"))),
        ("%*s", (5, foreign("A"))),
        ("%.1s", foreign("AB")),
        ("%s", ([foreign("A")],)),
        ("%(a)5s", {"a": foreign("A")}),
        (foreign("%s"), ("b",)),
    ],
)
def test_a_format_gives_what_str_gives_and_hides_nothing(form: str, values: Any) -> None:
    text = percent(form, values)
    assert text == str.__mod__(form, values)
    assert covers(text)
    assert spans_of(text)


@pytest.mark.parametrize("bad", [1, None, ["A"]])
def test_what_is_no_text_is_refused_as_str_refuses_it(bad: Any) -> None:
    text = foreign("A")
    for refused in (
        lambda: text + bad,
        lambda: bad + text,
        lambda: text.join([bad]),
        lambda: text.replace(bad, "a"),
        lambda: text.split(3.5),
        lambda: text["a"],
        lambda: text * "a",
    ):
        with pytest.raises(TypeError):
            refused()


def test_a_marked_text_is_the_text_for_everybody_else() -> None:
    text = foreign("AB")
    assert type(text) is Marked
    assert text == "AB"
    assert {"AB": 1}[text] == 1
    assert {text: 1}["AB"] == 1
    assert "B" in text
    assert str(text) is text
    assert repr(text) == "'AB'"
    assert sorted([text, "AA"]) == ["AA", "AB"]


def test_nothing_is_marked_that_has_no_characters() -> None:
    assert type(foreign("")) is str
    assert type(foreign("AB")[5:]) is str
    assert type("ab" + foreign("A")[:0]) is str


def test_everything_the_client_sent_is_marked_at_any_depth() -> None:
    sent = {"A": ["B", {"C": ("X", 1, None, True, 2.5)}]}
    made = foreign(sent)
    assert made == {"A": ["B", {"C": ["X", 1, None, True, 2.5]}]}
    (key,) = made
    (below,) = made["A"][1]
    for text in (key, made["A"][0], below, made["A"][1]["C"][0]):
        assert type(text) is Marked


@given(st.lists(st.sampled_from(["split", "strip", "replace", "slice", "add", "mul"]), max_size=6))
def test_any_row_of_changes_keeps_marks(changes: list[str]) -> None:
    text = told(string.ascii_uppercase[:3] + " ab-" + "X_y\tZ")
    plain = str.__str__(text)
    apply: dict[str, Callable[[str], str]] = {
        "split": lambda t: (
            "_".join(t.split()) if type(t) is str else as_marked("_").join(t.split())
        ),
        "strip": lambda t: t.strip("Aa"),
        "replace": lambda t: as_marked(t).replace("b", told("xY")),
        "slice": operator.itemgetter(slice(1, 9)),
        "add": lambda t: "xx" + t + told("Z"),
        "mul": lambda t: t * 2,
    }
    for change in changes:
        text = apply[change](text)
        plain = str.__str__(apply[change](plain))
    agree(text, plain)
