"""JSON Schema for llguidance.

Fails closed: what cannot be enforced is refused with its place. What llguidance takes more widely
than the specification is narrowed here.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from llguidance import LLMatcher

from corral.backend.engine.constraint.ecma import to_rust
from corral.backend.engine.constraint.errors import BadConstraint
from corral.backend.engine.constraint.formats import narrow

Schema: TypeAlias = dict[str, Any]
#: Where a subschema stands: the keys that lead to it.
Path: TypeAlias = tuple[str | int, ...]

#: Between two parts of the JSON: nothing, a space, or a line break and its indentation. A model
#: that is stuck in white space gets out of it.
WHITESPACE: Final = r"( |\n[ \t]{0,40})"
#: Letters after a backslash in strings. Without ``u``: a name spelled ``\\u0061`` would pass for
#: another than ``a``.
ESCAPES: Final = 'nrbtf\\"'
#: Levels of arrays and objects; each schema inside another takes two.
MAX_DEPTH: Final = 100
MAX_SCHEMAS: Final = 50_000
MAX_PATTERN: Final = 4_096

#: Control characters in JSON that Python wrote.
_UNWRITABLE: Final = re.compile(r"(?<!\\)(?:\\\\)*(?:\\u00[01]|\x7f)")
_BY_NAME: Final = ("properties", "patternProperties")
_LISTS: Final = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
_SINGLE: Final = ("items", "additionalItems", "additionalProperties")
_REFUSED: Final = frozenset(
    (
        *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
        *("propertyNames", "dependentRequired", "dependentSchemas", "dependencies"),
        *("unevaluatedItems", "unevaluatedProperties", "$vocabulary"),
        *("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"),
    )
)
#: What may stand there without asking for anything.
_IDLE: Final[dict[str, Any]] = {"uniqueItems": False, "minContains": 0, "$recursiveAnchor": False}


def translate(source: str) -> str:
    """llguidance's grammar for a schema given as JSON text. Raises ``BadConstraint``."""
    schema = _parse(source)
    _prepare(schema)
    text = json.dumps(schema, ensure_ascii=False)
    try:
        return _grammar(text)
    except ValueError as error:
        raise BadConstraint(str(error), place(())) from None


def fault(source: str) -> str:
    """What llguidance has against a schema that was translated; empty: nothing."""
    return LLMatcher.validate_grammar(translate(source)).strip()


def place(path: Path) -> str:
    """A path for people: ``json_schema.properties.a.anyOf[0]``."""
    text = "json_schema"
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}"
    return text


def locate(source: str, message: str) -> Path:
    """The innermost subschema that alone makes llguidance give the same message."""
    root = _parse(source)
    _prepare(root)
    shared = {key: root[key] for key in ("$defs", "definitions", "$schema") if key in root}
    path: Path = ()
    schema, n_left = root, 3_000_000  # characters: about a third of a second
    while True:
        for below, child in _children(schema, path):
            text = json.dumps({**shared, **child}, ensure_ascii=False)
            n_left -= len(text)
            if n_left < 0:
                return path
            if LLMatcher.validate_grammar(_grammar(text)).strip() == message:
                path, schema = below, child
                break
        else:
            return path


def _grammar(text: str) -> str:
    return LLMatcher.grammar_from_json_schema(
        text,
        overrides={
            "whitespace_pattern": WHITESPACE,
            "json_allowed_escapes": ESCAPES,
            "lenient": False,
            "coerce_one_of": False,
        },
    )


def _parse(source: str) -> Schema:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    try:
        schema = json.loads(source, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else f"not JSON: {error}"
        raise BadConstraint(f"is {why}", "json_schema") from None
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise BadConstraint("must be an object", "json_schema")
    return schema


def _prepare(root: Schema) -> None:
    """Checks every schema that is in use, and rewrites what llguidance would take otherwise."""
    _check_depth(root)
    if "x-guidance" in root:
        raise BadConstraint("x-guidance is not for requests to set", "json_schema")
    has_ids = '"$id"' in (text := json.dumps(root)) or '"id"' in text
    pending: list[tuple[Path, Any]] = [((), root)]
    seen: set[int] = set()
    while pending:
        path, schema = pending.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        if len(seen) > MAX_SCHEMAS:
            raise BadConstraint(f"holds more than {MAX_SCHEMAS} schemas", "json_schema")
        _choose_by_tag(schema, root, path)
        _check(schema, path)
        pending += _children(schema, path)
        if "$ref" in schema:
            pending += _target(schema["$ref"], root, path, has_ids)


def _check_depth(root: Schema) -> None:
    level: list[Any] = [root]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for value in level
            if isinstance(value, dict | list)
            for child in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise BadConstraint(f"is nested deeper than {MAX_DEPTH} levels", "json_schema")


def _children(schema: Schema, path: Path) -> Iterator[tuple[Path, Any]]:
    """The schemas directly inside one, but for ``true`` and ``false``."""
    return ((below, child) for below, child in _values(schema, path) if isinstance(child, dict))


def _values(schema: Schema, path: Path) -> Iterator[tuple[Path, Any]]:
    for key in _BY_NAME:
        if isinstance(named := schema.get(key), dict):
            yield from (((*path, key, name), child) for name, child in named.items())
    for key in _LISTS:
        if isinstance(listed := schema.get(key), list):
            yield from (((*path, key, i), child) for i, child in enumerate(listed))
    for key in _SINGLE:
        if key in schema:
            yield (*path, key), schema[key]


def _target(ref: Any, root: Schema, path: Path, has_ids: bool) -> Iterator[tuple[Path, Any]]:
    """The schema a reference points to. Names of schemas are left to llguidance, which knows them
    all, and then all definitions count as used."""
    where = (*path, "$ref")
    if not isinstance(ref, str):
        raise BadConstraint("must be a string", place(where))
    if not ref.startswith("#"):
        if not has_ids:
            message = f"{ref!r} is another document; only references inside the schema are followed"
            raise BadConstraint(message, place(where))
    elif ref == "#" or ref.startswith("#/"):
        keys = _pointer(ref)
        yield tuple(keys), _at(root, keys, where)
        return
    for key in ("$defs", "definitions"):
        if isinstance(named := root.get(key), dict):
            yield from (((key, name), child) for name, child in named.items())


def _pointer(ref: str) -> list[str]:
    parts = unquote(ref).split("/")[1:]
    return [part.replace("~1", "/").replace("~0", "~") for part in parts]


def _at(root: Schema, keys: list[str], where: Path) -> Any:
    value: Any = root
    for key in keys:
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isascii() and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise BadConstraint("points to nothing", place(where))
    return value


def _choose_by_tag(schema: Schema, root: Schema, path: Path) -> None:
    """Turns ``oneOf`` into ``anyOf`` where the options are objects told apart by a required
    property: llguidance looks for that too, but not through references."""
    options = schema.get("oneOf")
    if not isinstance(options, list) or len(options) < 2 or "anyOf" in schema:
        return
    tags = [_tags(_resolve(option, root, (*path, "oneOf"))) for option in options]
    for key in tags[0]:
        if not all(key in tag for tag in tags):
            continue
        values = [value for tag in tags for value in tag[key]]
        if len(set(values)) == len(values):
            schema["anyOf"] = schema.pop("oneOf")
            return


def _resolve(schema: Any, root: Schema, path: Path) -> Any:
    for _ in range(8):
        ref = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(ref, str) or not ref.startswith("#/"):
            break
        schema = _at(root, _pointer(ref), (*path, "$ref"))
    return schema


def _tags(schema: Any) -> dict[str, list[str]]:
    """Required properties of an object that are one of a few strings."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return {}
    named, required = schema.get("properties"), schema.get("required")
    if not isinstance(named, dict) or not isinstance(required, list):
        return {}
    tags = {}
    for key, value in named.items():
        if key in required and isinstance(value, dict):
            values = [value["const"]] if "const" in value else value.get("enum")
            if isinstance(values, list) and all(isinstance(v, str) for v in values):
                tags[key] = list(dict.fromkeys(values))
    return tags


def _check(schema: Schema, path: Path) -> None:
    for key, value in _IDLE.items():
        if schema.get(key, ...) == value:
            del schema[key]
    for key in schema:
        if key in _REFUSED:
            raise BadConstraint("cannot be enforced", place((*path, key)))
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = _pattern(schema["pattern"], (*path, "pattern"))
    if isinstance(named := schema.get("patternProperties"), dict):
        where = (*path, "patternProperties")
        schema["patternProperties"] = {_pattern(p, where): child for p, child in named.items()}
    for key in ("const", "enum"):
        if key in schema and _UNWRITABLE.search(json.dumps(schema[key], ensure_ascii=False)):
            message = "holds a control character that cannot be written without \\u"
            raise BadConstraint(message, place((*path, key)))
    narrow(schema)
    _check_count(schema, path)


def _pattern(pattern: str, path: Path) -> str:
    if len(pattern) > MAX_PATTERN:
        raise BadConstraint(f"is longer than {MAX_PATTERN} characters", place(path))
    try:
        return to_rust(pattern)
    except ValueError as error:
        raise BadConstraint(str(error), place(path)) from None


def _check_count(schema: Schema, path: Path) -> None:
    """Names that are not listed may come twice, and then count once."""
    least = schema.get("minProperties", 0)
    listed = schema.get("required", [])
    if (
        isinstance(least, int)
        and isinstance(listed, list)
        and least - len(set(map(str, listed))) > 1
    ):
        raise BadConstraint(
            "can only be enforced for as many properties as are required and one more",
            place((*path, "minProperties")),
        )
