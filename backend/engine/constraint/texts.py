"""Texts that stand without quotes, under the keywords that JSON Schema has for strings."""

import re
from collections.abc import Mapping
from typing import Any, Final

from corral.backend.engine.constraint.ecma import to_rust
from corral.backend.engine.constraint.errors import BadConstraint

#: Beginnings of texts that could be read as JSON of another type, or as Python has it.
_JSON: Final = r'(?s:[ \t\r\n]*(?:[-0-9\[{"]|true|false|null|True|False|None).*)'
_OCTET: Final = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,20}[a-z0-9])?"
_DATE: Final = r"(?:19|20)[0-9]{2}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
_ZONE: Final = r"(?:Z|[+-](?:0[0-9]|1[0-2]):[0-5][0-9])"
_TIME: Final = rf"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?{_ZONE}"
_HOST: Final = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_MAILBOX: Final = r"[A-Za-z0-9_+-]{1,20}(?:\.[A-Za-z0-9_+-]{1,20}){0,3}"
_PATH: Final = r"(?:/[A-Za-z0-9._~-]{0,60}){0,12}(?:\?[A-Za-z0-9._~=&-]{1,200})?"
#: Some of the texts of each format, none that is not of it: rules for all would fill pages.
_FORMATS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": r"P(?:[0-9]{1,4}D(?:T[0-9]{1,4}[HMS])?|T[0-9]{1,4}[HMS]|[0-9]{1,4}[WMY])",
    "email": rf"{_MAILBOX}@{_HOST}\.[a-z]{{2,12}}",
    "hostname": _HOST,
    "ipv4": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
    "ipv6": r"[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){7}",
    "uri": rf"https?://{_HOST}(?::[0-9]{{1,4}})?{_PATH}",
    "uuid": r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}


def regexes(schema: Mapping[str, Any], place: str, *, no_json: bool) -> list[str]:
    """Regular expressions of Rust's, all of which a text must match as a whole. ``no_json``: it is
    none that would be read as another type. Raises ``BadConstraint``, which names the keyword."""
    found = [r"(?s:.*)"]
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        if not isinstance(values, list) or not values:
            raise BadConstraint("must be a list that is not empty", f"{place}.enum")
        found = ["|".join(_literally(str(value)) for value in values)]
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    for name, n in (("minLength", least), ("maxLength", most)):
        if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 0):
            raise BadConstraint("must be a natural number", f"{place}.{name}")
    if least or most is not None:
        found.append(f"(?s:.{{{least},{'' if most is None else most}}})")
    if "pattern" in schema:
        found.append(_pattern(schema["pattern"], f"{place}.pattern"))
    if "format" in schema:
        if schema["format"] not in _FORMATS:
            raise BadConstraint("this format cannot be enforced", f"{place}.format")
        found.append(_FORMATS[schema["format"]])
    return [*found, f"~{_JSON}"] if no_json else found


def _literally(text: str) -> str:
    return "".join(f"\\x{{{ord(letter):X}}}" for letter in text)


def _pattern(pattern: Any, place: str) -> str:
    """A pattern, which is looked for anywhere in a text, as one for the whole text."""
    if not isinstance(pattern, str) or len(pattern) > 4_096:
        raise BadConstraint("must be a text of at most 4096 characters", place)
    try:
        rust = to_rust(pattern)
    except ValueError as error:
        raise BadConstraint(str(error), place) from None
    outside = re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]", "xx", rust)
    body = outside.removeprefix("^").removesuffix("$")
    anchors = "^" in body or "$" in body
    if anchors or (("|" in _unnested(body)) and body != outside) or r"\b" in rust or "(?=" in rust:
        raise BadConstraint("cannot be enforced in a text without quotes", place)
    start = "" if outside.startswith("^") else "(?s:.*)"
    end = "" if outside.endswith("$") else "(?s:.*)"
    rust = rust[1:] if not start else rust
    rust = rust[:-1] if not end else rust
    return f"{start}(?:{rust}){end}"


def _unnested(pattern: str) -> str:
    """What of a pattern stands outside of all groups."""
    depth, kept = 0, []
    for letter in pattern:
        depth += (letter == "(") - (letter == ")")
        kept += [letter] if depth == 0 else []
    return "".join(kept)
