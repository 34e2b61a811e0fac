"""Arguments in Gemma 4's notation, under their JSON Schema: names stand bare, texts between quote
tags, all else as in JSON, without white space. Members come sorted, as its template shows them."""

import json
import re
from collections.abc import Sequence
from itertools import combinations
from typing import Any, Final

from corral.backend.chat.dialects.lark import Lark
from corral.backend.chat.dialects.values import NOTES, Schema, resolved, types
from corral.backend.chat.types import Tool
from corral.backend.errors import Refused

QUOTE: Final = '<|"|>'
#: What a name that stands bare may not hold, as the inside of a class.
NO_KEY: Final = r':,{}\[\]<>|"\n'
_BARE: Final = rf"[^\s{NO_KEY}](?:[^{NO_KEY}]{{0,98}}[^\s{NO_KEY}])?"
_IDLE: Final = NOTES | {"$schema", "$id", "$defs", "definitions", "strict", "type"}
_TEXT: Final = frozenset(("minLength", "maxLength", "pattern", "format"))
_NUMBER: Final = frozenset(
    ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
)
#: What can be said of each type.
_SAYS: Final[dict[str, frozenset[str]]] = {
    "string": _TEXT,
    "number": _NUMBER,
    "integer": _NUMBER,
    "object": frozenset(("properties", "required", "additionalProperties")),
    "array": frozenset(("items", "minItems", "maxItems")),
    "boolean": frozenset(),
    "null": frozenset(),
}
_KNOWN: Final = _IDLE.union(*_SAYS.values())
_PLAIN: Final = {
    "integer": r"/-?(?:0|[1-9][0-9]{0,17})/",
    "number": r"/-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?(?:[eE][-+]?[0-9]{1,2})?/",
    "boolean": '("true" | "false")',
    "null": '"null"',
}
_MAX_DEPTH: Final = 60
_MAX_ITEMS: Final = 10_000


class Notation:
    """Writes rules for the arguments of tools, one after the other. What cannot be enforced is
    Refused, with its place."""

    def __init__(self, lark: Lark) -> None:
        self._lark = lark
        self._root: Schema = {}
        self._refs: dict[str, str] = {}
        self._anything = ""
        self._depth = 0
        self._n = 0

    def arguments(self, tool: Tool, i: int) -> str:
        """The arguments of tool number ``i``; with ``"strict": false`` any."""
        if tool.strict is False:
            return self._map(self._any())
        self._root, self._refs = tool.parameters, {}
        place = tool.at
        if tool.parameters.get("type", "object") != "object":
            raise _refused(f"{place}.type")
        for key in tool.parameters:
            if key not in _IDLE | _SAYS["object"]:
                raise _refused(f"{place}.{key}")
        return self._object(tool.parameters, place)

    def _rule(self, body: str, name: str = "") -> str:
        return self._lark.rule(name or self._name(), body)

    def _name(self) -> str:
        self._n += 1
        return f"v_{self._n}"

    def _any(self) -> str:
        """Any value."""
        if not self._anything:
            self._anything = self._name()
            plain = (_PLAIN[name] for name in ("number", "boolean", "null"))
            one = self._anything
            many = (self._map(one), f'"[" ({one} ("," {one})*)? "]"')
            self._rule(" | ".join((self._text({}, ""), *plain, *many)), one)
        return self._anything

    def _map(self, value: str) -> str:
        pair = self._rule(f'/{_BARE}/ ":" {value}')
        return f'"{{" ({pair} ("," {pair})*)? "}}"'

    def _text(self, schema: Schema, at: str) -> str:
        value = self._lark.value(schema, at, QUOTE, is_padded=False, no_json=False)
        return f"{self._lark.tag(QUOTE)} {value}"

    def _quoted(self, text: str, at: str) -> str:
        if QUOTE in text:
            raise _refused(at)
        tag = self._lark.tag(QUOTE)
        return f"{tag} {self._lark.text(text)} {tag}" if text else f"{tag} {tag}"

    # --- values -------------------------------------------------------------------------------

    def _value(self, schema: Any, at: str) -> str:
        """What a value must match, as a part of a rule."""
        if schema is True:
            return self._any()
        if not isinstance(schema, dict) or self._depth > _MAX_DEPTH:
            raise _refused(at)
        self._depth += 1
        try:
            return self._of(schema, at)
        finally:
            self._depth -= 1

    def _of(self, schema: Schema, at: str) -> str:
        asks = schema.keys() - _IDLE
        if "$ref" in asks:
            self._alone("$ref", asks, at)
            return self._ref(schema["$ref"], at)
        if asks & {"enum", "const"}:
            return self._literals(schema, asks, at)
        for key in ("anyOf", "oneOf", "allOf"):
            if key in asks:
                self._alone(key, asks if "type" not in schema else asks | {"type"}, at)
                return self._options(key, schema[key], at)
        for key in sorted(asks):
            if key not in _KNOWN and (key, schema[key]) != ("uniqueItems", False):
                raise _refused(f"{at}.{key}")
        kinds = self._kinds(schema, asks, at)
        if kinds is None:
            return self._any()
        return self._rule(" | ".join(self._typed(kind, schema, at) for kind in kinds))

    def _alone(self, key: str, asks: Any, at: str) -> None:
        for other in sorted(asks - {key}):
            raise _refused(f"{at}.{other}")

    def _kinds(self, schema: Schema, asks: Any, at: str) -> Sequence[str] | None:
        """The types of a schema; None: any. One that names none has those that it speaks of."""
        given = schema.get("type")
        if given is None:
            if not asks:
                return None
            return [kind for kind, says in _SAYS.items() if says & asks and kind != "integer"]
        kinds = [given] if isinstance(given, str) else given
        if not isinstance(kinds, list) or not kinds or not all(k in _SAYS for k in kinds):
            raise _refused(f"{at}.type")
        return kinds

    def _typed(self, kind: str, schema: Schema, at: str) -> str:
        if kind == "object":
            return self._object(schema, at)
        if kind == "array":
            return self._array(schema, at)
        says = {key: schema[key] for key in schema.keys() & _SAYS[kind]}
        if kind == "string":
            return self._text(says, at)
        return self._lark.schema({"type": kind, **says}, at) if says else _PLAIN[kind]

    def _ref(self, ref: Any, at: str) -> str:
        target = self._target(ref, at)
        if ref not in self._refs:
            self._refs[ref] = self._name()
            self._rule(self._value(target, at), self._refs[ref])
        return self._refs[ref]

    def _target(self, ref: Any, at: str) -> Any:
        """What a reference leads to at last, inside the root."""
        seen, target = set[str](), None
        while ref not in seen:
            if not isinstance(ref, str) or not ref.startswith("#"):
                break
            seen.add(ref)
            target = self._root
            for part in ref.split("/")[1:]:
                key = part.replace("~1", "/").replace("~0", "~")
                target = target.get(key) if isinstance(target, dict) else None
            if not isinstance(target, dict) or "$ref" not in target:
                break
            self._alone("$ref", target.keys() - _IDLE, at)
            ref, target = target["$ref"], None
        if target is None:
            raise _refused(f"{at}.$ref")
        return target

    def _literals(self, schema: Schema, asks: Any, at: str) -> str:
        key = "const" if "const" in schema else "enum"
        self._alone(key, asks, at)
        given = [schema["const"]] if key == "const" else schema["enum"]
        if not isinstance(given, list):
            raise _refused(f"{at}.{key}")
        if "type" in schema:
            kind = {"type": schema["type"]}
            given = [value for value in given if types({**kind, "const": value}, {})]
        if not given:
            raise _refused(f"{at}.{key}")
        return self._rule(" | ".join(self._literal(value, f"{at}.{key}") for value in given))

    def _literal(self, value: Any, at: str) -> str:
        if isinstance(value, str):
            return self._quoted(value, at)
        if isinstance(value, list):
            items = ' "," '.join(self._literal(one, at) for one in value)
            return f'"[" {items} "]"'
        if isinstance(value, dict):
            pairs = ' "," '.join(
                f'{self._key(name, at)} ":" {self._literal(value[name], at)}'
                for name in sorted(value, key=str.lower)
            )
            return f'"{{" {pairs} "}}"'
        return self._lark.text(json.dumps(value))

    def _options(self, key: str, options: Any, at: str) -> str:
        if not isinstance(options, list) or not options or (key == "allOf" and len(options) > 1):
            raise _refused(f"{at}.{key}")
        if key == "oneOf":
            for pair in combinations(options, 2):
                both = [resolved(one, self._root) for one in pair]
                if types({"allOf": both}, self._root) != frozenset():
                    raise _refused(f"{at}.{key}")  # a value could match two
        each = [self._value(option, f"{at}.{key}[{i}]") for i, option in enumerate(options)]
        return self._rule(" | ".join(each))

    def _array(self, schema: Schema, at: str) -> str:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        for key, n in (("minItems", least), ("maxItems", most)):
            if n is not None and (type(n) is not int or not 0 <= n <= _MAX_ITEMS):
                raise _refused(f"{at}.{key}")
        if most is not None and most < least:
            raise _refused(f"{at}.maxItems")
        if most == 0:
            return '"[" "]"'
        one = self._value(schema.get("items", True), f"{at}.items")
        times = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        some = f'{one} ("," {one}){times}'
        return f'"[" {some} "]"' if least else f'"[" ({some})? "]"'

    # --- objects ------------------------------------------------------------------------------

    def _object(self, schema: Schema, at: str) -> str:
        given, required = schema.get("properties", {}), schema.get("required", ())
        others = schema.get("additionalProperties", True)
        if not isinstance(given, dict) or not isinstance(required, list | tuple):
            raise _refused(at)
        if not all(isinstance(name, str) for name in required):
            raise _refused(f"{at}.required")
        names = sorted({*given, *required}, key=lambda name: (name.lower(), name))
        members = list[tuple[str, bool]]()
        for name in names:
            one, place = given.get(name, others), f"{at}.properties.{name}"
            if one is not False or name in required:
                rule = self._rule(f'{self._key(name, place)} ":" {self._value(one, place)}')
                members.append((rule, name in required))
        if members:
            return self._members(members)
        if others is False or given:
            return '"{" "}"'
        return self._map(self._value(others, f"{at}.additionalProperties"))

    def _members(self, members: list[tuple[str, bool]]) -> str:
        """Members in their order, with commas between those that are there."""
        behind, firsts = "", list[str]()
        for rule, must in reversed(members):
            # Whatever comes first, the rest follows with commas; nothing before a must is skipped.
            firsts = [f"{rule} {behind}", *([] if must else firsts)]
            more = f'"," {rule}' if must else f'("," {rule})?'
            behind = self._rule(f"{more} {behind}")
        some = " | ".join(firsts)
        is_needed = any(must for _, must in members)
        return f'"{{" ({some}) "}}"' if is_needed else f'"{{" ({some})? "}}"'

    def _key(self, name: str, at: str) -> str:
        return self._lark.text(name) if re.fullmatch(_BARE, name) else self._quoted(name, at)


def _refused(at: str) -> Refused:
    message = "cannot be enforced in the form in which this model writes calls"
    return Refused(f"{at}: {message}", param=at)
