"""Why JSON is not what it should be, in words: of whatever msgspec says."""

from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from corral.frontend import words
from corral.frontend.misfits import in_words, misfit


class Shape(Struct, forbid_unknown_fields=True):
    a: int
    b: Annotated[str, Meta(max_length=3)] = ""
    c: Literal["x", "y"] = "x"
    d: list[int] = []
    e: Annotated[int, Meta(ge=-2, le=5000)] = 0
    f: float | None = None
    g: Annotated[float, Meta(gt=0)] = 1
    h: str | list[int] | None = None
    i: Annotated[list[bool], Meta(max_length=1)] = []


@pytest.mark.parametrize(
    ("found", "what", "path"),
    [
        ({"a": "x"}, "a whole number is expected, not a text", "a"),
        ({"a": 1.5}, "a whole number is expected, not a number", "a"),
        ([1], "an object is expected, not a list", ""),
        ({}, "“a” is missing", ""),
        ({"a": 1, "zz": 1}, "“zz” is not known here", ""),
        ({"a": 1, "b": "long"}, "at most 3 characters are allowed", "b"),
        ({"a": 1, "c": "z"}, "'z' is none of the values that there are", "c"),
        ({"a": 1, "d": [1, None]}, "a whole number is expected, not null", "d[1]"),
        ({"a": 1, "e": 9999}, "at most 5,000 is allowed", "e"),
        ({"a": 1, "e": -3}, "at least -2 is expected", "e"),
        ({"a": 1, "f": "x"}, "a number or null is expected, not a text", "f"),
        ({"a": 1, "g": 0}, "more than 0 is expected", "g"),
        ({"a": 1, "h": 3}, "a text or a list or null is expected, not a whole number", "h"),
        ({"a": 1, "i": [True, False]}, "at most 1 entries are allowed", "i"),
        ({"a": 1, "i": [1]}, "true or false is expected, not a whole number", "i[0]"),
    ],
)
def test_what_does_not_fit_is_said_in_words(found: Any, what: str, path: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(found, Shape)
    assert misfit(caught.value) == (what, path)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "the JSON breaks off"),
        ('{"a": [1,', "the JSON breaks off"),
        ('{"a": 1}x', "this is no JSON from byte 9 on"),
        ("not so", "this is no JSON from byte 4 on"),
    ],
)
def test_what_is_no_json_is_said_in_words(text: str, what: str) -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(text)
    assert in_words(str(caught.value)) == what


def test_it_is_said_in_the_readers_language_and_what_is_not_known_as_it_is() -> None:
    with words.speaking("de"):
        said = in_words("Expected `str | null`, got `object`")
        assert said == "ein Text oder null wird erwartet, nicht ein Objekt"
        assert in_words("Something new") == "Something new"
