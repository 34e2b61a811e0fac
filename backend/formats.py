"""What an answer must look like, from any of the fields that say so, as one ``Constraint``."""

import re
from typing import Any, NamedTuple, Protocol

import msgspec

from corral.backend.defaults import from_grammar
from corral.backend.engine.messages import Constraint
from corral.backend.errors import Refused

_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


class Demanded(NamedTuple):
    """A constraint, and the path of the member that it came from."""

    constraint: Constraint
    at: str


class Formatted(Protocol):
    """The members read here; see ``generation.GenerationBody``."""

    response_format: dict[str, Any] | None
    json_schema: Any
    grammar: str | None
    regex: str | None
    lark: str | None


def constraint(body: Formatted) -> Demanded | None:
    """What the answer must match. Raises ``Refused`` for a malformed one, and for two of them."""
    found = [demanded for demanded in _all(body) if demanded is not None]
    if len(found) > 1:
        first, second = found[0].at, found[1].at
        raise Refused(f"{second} and {first} exclude each other; send one", param=second)
    return found[0] if found else None


def _all(body: Formatted) -> list[Demanded | None]:
    return [
        None if body.response_format is None else _response_format(body.response_format),
        None if body.json_schema is None else _schema(body.json_schema, "json_schema"),
        _grammar(body.grammar),
        Demanded(Constraint("regex", body.regex), "regex") if body.regex else None,
        Demanded(Constraint("lark", body.lark), "lark") if body.lark else None,
    ]


def _grammar(source: str | None) -> Demanded | None:
    if not source:
        return None
    return Demanded(from_grammar(source), "grammar")


def _response_format(given: dict[str, Any]) -> Demanded | None:
    at = "response_format"
    match given.get("type"):
        case "text":
            return None
        case "json_object":
            # llama-server's addition: a schema beside the type.
            return _schema(_or_any(given.get("schema")), f"{at}.schema")
        case "json_schema":
            return _json_schema(given, at)
    raise Refused(f"{at}.type: expected text, json_object or json_schema", param=f"{at}.type")


def _json_schema(given: dict[str, Any], at: str) -> Demanded:
    inner = given.get("json_schema")
    if inner is None and "schema" in given:
        inner, inner_at = given, at
    else:
        inner_at = f"{at}.json_schema"
    if not isinstance(inner, dict):
        raise Refused(f"{inner_at}: expected an object with a schema", param=inner_at)
    name, strict = inner.get("name"), inner.get("strict")
    if name is not None and not (isinstance(name, str) and _NAME.match(name)):
        message = f"{inner_at}.name: expected up to 64 letters, digits, dashes or underscores"
        raise Refused(message, param=f"{inner_at}.name")
    if strict is not None and not isinstance(strict, bool):
        raise Refused(f"{inner_at}.strict: expected true or false", param=f"{inner_at}.strict")
    return _schema(_or_any(inner.get("schema")), f"{inner_at}.schema")


def _or_any(schema: Any) -> Any:
    return _ANY_OBJECT if schema is None else schema


def _schema(schema: Any, at: str) -> Demanded:
    """``{}`` allows any JSON; like llama-server, an object is written then."""
    if not isinstance(schema, dict | bool):
        raise Refused(f"{at}: expected a JSON Schema, which is an object", param=at)
    source = msgspec.json.encode(schema if schema != {} else _ANY_OBJECT).decode()
    return Demanded(Constraint("json_schema", source), at)
