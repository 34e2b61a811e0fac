"""Why JSON is not what it should be, in words for people.

`msgspec <https://jcristharif.com/msgspec/>`_ says it in its own, with the names that types have in
Python.
"""

import re

import msgspec

from corral.frontend.words import _, later, number

#: The types of JSON as msgspec calls them.
_TYPES = {
    "str": later("a text"),
    "int": later("a whole number"),
    "float": later("a number"),
    "bool": later("true or false"),
    "null": later("null"),
    "array": later("a list"),
    "object": later("an object"),
}
_WORDS = (
    (
        r"Expected `(?P<wanted>[^`]+)`, got `(?P<found>[^`]+)`",
        later("{wanted} is expected, not {found}"),
    ),
    (r"Expected `str` of length <= (?P<n>\d+)", later("at most {n} characters are allowed")),
    (r"Expected `array` of length <= (?P<n>\d+)", later("at most {n} entries are allowed")),
    (r"Expected `\w+` <= (?P<limit>[\d.e+-]+)", later("at most {limit} is allowed")),
    (r"Expected `\w+` >= (?P<limit>[\d.e+-]+)", later("at least {limit} is expected")),
    (r"Expected `\w+` > (?P<limit>[\d.e+-]+)", later("more than {limit} is expected")),
    (r"Object missing required field `(?P<name>.+)`", later("“{name}” is missing")),
    (r"Object contains unknown field `(?P<name>.+)`", later("“{name}” is not known here")),
    (r"Invalid enum value (?P<value>.+)", later("{value} is none of the values that there are")),
    (r"Input data was truncated", later("the JSON breaks off")),
    (r"JSON is malformed: .*\(byte (?P<n>\d+)\)", later("this is no JSON from byte {n} on")),
)
_PATTERNS = tuple((re.compile(pattern, re.S), words) for pattern, words in _WORDS)


def misfit(error: msgspec.ValidationError) -> tuple[str, str]:
    """What is wrong, and at which member, as in ``messages[0].role``; empty for all of it."""
    what, _sign, path = str(error).partition(" - at `$")
    return in_words(what), path.removesuffix("`").lstrip(".")


def in_words(message: str) -> str:
    """A message of msgspec's; one that is not known as it is."""
    for pattern, words in _PATTERNS:
        if found := pattern.fullmatch(message):
            values = {name: _value(name, text) for name, text in found.groupdict().items()}
            return _(words).format(**values)
    return message


def _value(name: str, text: str) -> str:
    if name in ("wanted", "found"):
        types = [_(_TYPES.get(each, each)) for each in text.split(" | ")]
        return _(" or ").join(types)
    if name == "limit":
        return number(int(float(text))) if float(text).is_integer() else text
    return number(int(text)) if name == "n" else text
