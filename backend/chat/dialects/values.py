"""Arguments that models write as text between tags: what a text means under its parameter's schema.

A parameter that is a string has its text as it stands. Of others the text is JSON if it is JSON of
a type that the schema allows, and a string otherwise.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from corral.backend.chat.types import Tool

Schema: TypeAlias = Mapping[str, Any]
#: Types that a schema allows; None: any.
Types: TypeAlias = frozenset[str] | None

STRING: Final[Types] = frozenset(("string",))
#: What says nothing of a value.
NOTES: Final = frozenset(
    (
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "nullable", "example"),
    )
)
_PYTHON: Final = {"True": "true", "False": "false", "None": "null"}
_MAX_REFS: Final = 8


def parameter(tool: Tool, name: str) -> Schema:
    """The schema of a parameter, references followed; empty: nothing is said of it."""
    properties = tool.parameters.get("properties")
    given = properties.get(name) if isinstance(properties, dict) else None
    return resolved(given, tool.parameters)


def resolved(schema: Any, root: Schema) -> Schema:
    """A schema, references inside the root followed."""
    for _ in range(_MAX_REFS):
        ref = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(ref, str) or not ref.startswith("#/"):
            break
        schema = root
        for part in ref[2:].split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            schema = schema.get(key) if isinstance(schema, dict) else None
    return schema if isinstance(schema, dict) else {}


def types(schema: Schema, root: Schema, depth: int = _MAX_REFS) -> Types:
    """The types a schema allows, as far as it says so plainly."""
    found: Types = None
    given = schema.get("type")
    if isinstance(given, str):
        found = frozenset((given,))
    elif isinstance(given, list):
        found = frozenset(name for name in given if isinstance(name, str))
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        found = _both(found, frozenset(map(_type, values)))
    for key in ("anyOf", "oneOf", "allOf"):
        options = schema.get(key)
        if isinstance(options, list) and depth:
            each = [types(resolved(option, root), root, depth - 1) for option in options]
            if key == "allOf":
                for one in each:
                    found = _both(found, one)
            elif None not in each:
                found = _both(found, frozenset().union(*(one or () for one in each)))
    return found


def _both(a: Types, b: Types) -> Types:
    if a is None or b is None:
        return b if a is None else a
    return (a | {"integer"} if "number" in a else a) & (b | {"integer"} if "number" in b else b)


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    names: tuple[tuple[type, str], ...] = (
        (str, "string"),
        (int, "integer"),
        (float, "number"),
        (dict, "object"),
        (list, "array"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), "null")


def as_json(text: str, allowed: Types) -> str:
    """A text as JSON: itself if it is JSON of a type that is allowed, else a string."""
    stripped = text.strip()
    source = _PYTHON.get(stripped, stripped)  # as templates in Python write them
    try:
        value = json.loads(source, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    kind = _type(value)
    is_whole = kind == "number" and value.is_integer()
    kinds = {kind, "number"} if kind == "integer" else {kind, "integer"} if is_whole else {kind}
    fits = allowed is None or (kind != "string" and kinds & allowed) or "string" not in allowed
    return source if fits else json.dumps(text, ensure_ascii=False)


def _refuse(constant: str) -> None:
    raise ValueError(constant)
