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

from corral.backend.engine.constraint import schema, texts
from corral.backend.engine.constraint.errors import BadConstraint


def translate(source: str, ids: Mapping[str, int]) -> str:
    """llguidance's grammars. ``ids`` are the control tokens by their text. Raises
    ``BadConstraint`` with the place of a schema that cannot be enforced."""
    given = json.loads(source)
    rules = [given["lark"]]
    for i, tag in enumerate(given["tags"]):
        rules.append(f"tag_{i}: {' '.join(_pieces(tag, ids))}")
    for i, until in enumerate(given["untils"]):
        rules += _until(i, until, given["tags"][int(until["tag"].removeprefix("tag_"))], ids)
    grammars: list[dict[str, Any]] = [{"lark_grammar": "\n".join(rules)}]
    for i, one in enumerate(given["schemas"]):
        grammars.append({"name": f"schema_{i}", "json_schema": _schema(one)})
    return json.dumps({"grammars": grammars}, ensure_ascii=False)


def _until(i: int, until: dict[str, Any], tag: str, ids: Mapping[str, int]) -> list[str]:
    """The rules of an ``until``."""
    before, rules = until["before"], list[str]()
    if isinstance(before, dict):
        # With a least length the end could be run over.
        rules.append(f"TEXT_{i}: {_text(before)} & ~/(?s:.*){_escaped(tag)}(?s:.*)/")
        before = f"TEXT_{i}"
    first, *others = _pieces(tag, ids)
    rest = " ".join(others)
    spelled = f"spelled_{i}[lazy]: {before} {_literal(tag)}"
    if not rest and first == _literal(tag):
        return [*rules, f"until_{i}: spelled_{i}", spelled]
    if rest and first.startswith('"'):
        # Text before a token is all one piece: the tag's first letters end it.
        rules.append(f"HEAD_{i}: {before} & /(?s:.*){_escaped(json.loads(first))}/")
        whole = f"HEAD_{i} {rest}"
    else:
        whole = f"{before} {first} {rest}"
    if until["spelled"]:
        return [*rules, f"until_{i}: {whole} | spelled_{i}", spelled]
    return [*rules, f"until_{i}: {whole}"]


def _text(given: dict[str, Any]) -> str:
    """A terminal for a text under a schema."""
    end = "\\n" if given["is_padded"] else ""
    found = texts.regexes(given["schema"], given["place"], no_json=given["no_json"])
    return " & ".join(
        f"~/(?:{one[1:]}){end}/" if one.startswith("~") else f"/(?:{one}){end}/"
        for one in (one.replace("/", "\\/") for one in found)
    )


def _escaped(text: str) -> str:
    return "".join(f"\\x{{{ord(letter):X}}}" for letter in text)


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


def _pieces(tag: str, ids: Mapping[str, int]) -> list[str]:
    """A tag that is one token, or several, some of which may be text."""
    if not (within := [text for text in ids if text in tag]):
        return [_literal(tag)]
    longest = sorted(within, key=len, reverse=True)
    pieces = re.split("(" + "|".join(map(re.escape, longest)) + ")", tag)
    return [_token(piece, ids) or _literal(piece) for piece in pieces if piece]


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
