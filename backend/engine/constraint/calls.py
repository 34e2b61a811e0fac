"""Answers that hold tool calls: a Lark grammar with schemas in it, and tags of which only the
vocabulary knows whether they are control tokens or text.

The source is JSON: ``lark``, in which ``tag_i`` is one of the ``tags``, ``until_i`` one of the
``untils`` (text ``before`` the first such ``tag``, and the tag, with ``spelled`` also when it is
written in letters), and ``@schema_i`` one of the ``schemas``, each with its ``place`` for messages.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from corral.backend.engine.constraint import schema
from corral.backend.engine.constraint.errors import BadConstraint


def translate(source: str, ids: Mapping[str, int]) -> str:
    """llguidance's grammars. ``ids`` are the control tokens by their text. Raises
    ``BadConstraint`` with the place of a schema that cannot be enforced."""
    given = json.loads(source)
    rules = [given["lark"]]
    for i, tag in enumerate(given["tags"]):
        rules.append(f"tag_{i}: {_pieces(tag, ids)}")
    for i, until in enumerate(given["untils"]):
        tag = given["tags"][int(until["tag"].removeprefix("tag_"))]
        token = _token(tag, ids)
        spelled = f"spelled_{i}[lazy]: {until['before']} {_literal(tag)}"
        if token is None:
            rules += [f"until_{i}: spelled_{i}", spelled]
        elif until["spelled"]:
            rules += [f"until_{i}: {until['before']} {token} | spelled_{i}", spelled]
        else:
            rules.append(f"until_{i}: {until['before']} {token}")
    grammars: list[dict[str, Any]] = [{"lark_grammar": "\n".join(rules)}]
    for i, one in enumerate(given["schemas"]):
        grammars.append({"name": f"schema_{i}", "json_schema": _schema(one)})
    return json.dumps({"grammars": grammars}, ensure_ascii=False)


def _schema(given: dict[str, Any]) -> Any:
    try:
        translated = schema.translate(json.dumps(given["schema"], ensure_ascii=False))
    except BadConstraint as error:
        raise moved(error.message, error.path, given["place"]) from None
    return json.loads(translated)["grammars"][0]["json_schema"]


def moved(message: str, path: str, place: str) -> BadConstraint:
    """An error of a schema, with the place it has for the client."""
    return BadConstraint(message, place + path.removeprefix("json_schema"))


def locate(source: str, message: str) -> BadConstraint:
    """An error that llguidance finds in all of it, with the schema it comes from if it comes from
    one alone."""
    for one in json.loads(source)["schemas"]:
        text = json.dumps(one["schema"], ensure_ascii=False)
        if schema.fault(text) == message:
            return moved(message, schema.place(schema.locate(text, message)), one["place"])
    return BadConstraint(message, "tools")


def _token(tag: str, ids: Mapping[str, int]) -> str | None:
    return f"<[{ids[tag]}]>" if tag in ids else None


def _pieces(tag: str, ids: Mapping[str, int]) -> str:
    """A tag that is one token, or several, some of which may be text."""
    if not (within := [text for text in ids if text in tag]):
        return _literal(tag)
    longest = sorted(within, key=len, reverse=True)
    pieces = re.split("(" + "|".join(map(re.escape, longest)) + ")", tag)
    return " ".join(_token(piece, ids) or _literal(piece) for piece in pieces if piece)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
