"""What calls with tagged arguments must match, so that the arguments read from them are valid."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from corral.backend.chat.dialects.lark import Lark
from corral.backend.chat.dialects.values import NOTES, STRING, Schema, resolved, types
from corral.backend.chat.types import Tool
from corral.backend.engine.messages import Constraint
from corral.backend.errors import Refused

#: What an object of arguments may say of itself here: its members are written one by one.
_OBJECT: Final = NOTES | frozenset(
    (
        *("type", "properties", "required", "additionalProperties", "$schema", "$id"),
        *("$defs", "definitions", "strict"),
    )
)
_DEFINITIONS: Final = ("$defs", "definitions", "$schema")
#: What can be said of a text.
_TEXT: Final = ("enum", "const", "minLength", "maxLength", "pattern", "format")


class Form(Struct, frozen=True, kw_only=True):
    """How calls are written. ``end`` stands behind them. A ``call`` has its name between two texts,
    both empty when it stands alone, and ``call_end`` behind its arguments. An argument has its
    name between the texts of ``key``, then ``value`` (two of them: for a string, for anything
    else), its text, and ``close``. ``is_padded``: a line break before and behind that text is not
    part of it. ``is_block``: several calls stand before one ``end``. ``inline``: what in these tags
    may be a token."""

    end: str
    call: tuple[str, str]
    call_end: str
    key: tuple[str, str]
    close: str
    value: tuple[str, ...] = ()
    is_padded: bool = False
    is_block: bool = False
    inline: str = ""

    @property
    def key_letters(self) -> str:
        """What a parameter's name may be made of, as the inside of a class."""
        return r'^"<>\n'


def write(lark: Lark, form: Form, triggers: tuple[str, ...]) -> Constraint:
    """The grammar of an answer. Raises Refused for arguments that cannot be written so."""
    gap, end = '"\\n"?', lark.tag(form.end)
    lark.one_of("call", (_call(lark, form, tool, i) for i, tool in enumerate(lark.wish.tools)))
    first = triggers[0]
    begin, several = lark.tag(first), lark.wish.parallel
    if form.is_block:
        more = f" ({gap} call)*" if several else ""
        calls = f"{gap} call{more} {gap} {end}"
    else:
        more = f" ({gap} {begin} {gap} call {gap} {end})*" if several else ""
        calls = f"{gap} call {gap} {end}{more}"
    if lark.wish.choice == "required" or len(triggers) == 1:
        return lark.answer(first, calls)
    # Some models forget the outer tag.
    free = lark.free()
    lark.one_of(
        "bare", (_call(lark, form, tool, i, at=1) for i, tool in enumerate(lark.wish.tools))
    )
    other = f"{lark.until(triggers[1], free)} bare ({gap} {end})?"
    return lark.build(f"{lark.content(free)} | {lark.until(first, free)} {calls} | {other}")


def _call(lark: Lark, form: Form, tool: Tool, i: int, at: int = 0) -> str:
    """The name of a rule for calls of a tool; ``at`` 1: behind the text before its name."""
    place = tool.at
    pieces = [lark.tag(form.call[0])] if form.call[0] and not at else []
    pieces.append(lark.text(tool.name + form.call[1]))
    pieces += [_argument(lark, form, *one) for one in parameters(tool, place)]
    pieces.append('"\\n"?')
    if form.call_end:
        pieces.append(lark.tag(form.call_end))
    return lark.rule(f"call_{i}_{at}", " ".join(pieces))


def parameters(
    tool: Tool, place: str, unwritable: str = '"<>\n'
) -> Iterator[tuple[str, Schema, Schema, str, bool]]:
    """Name, schema, root, place, and whether it must be there, in the order declared. Raises
    Refused for what cannot be enforced one by one, and for names with ``unwritable`` letters."""
    root = tool.parameters
    properties, required = root.get("properties", {}), root.get("required", ())
    if tool.strict is not False:
        for key in root:
            if key not in _OBJECT:
                raise _refused(f"{place}.{key}")
    if not isinstance(properties, dict) or not isinstance(required, list | tuple):
        raise _refused(place)
    for name in (*properties, *(name for name in required if name not in properties)):
        at = f"{place}.properties.{name}"
        if not isinstance(name, str) or not name or set(name) & set(unwritable):
            raise _refused(at)
        must = name in required and tool.strict is not False
        schema = {} if tool.strict is False else properties.get(name, {})
        if schema is False:
            continue
        yield name, resolved(schema, root), root, at, must


def _argument(
    lark: Lark, form: Form, name: str, schema: Schema, root: Schema, at: str, must: bool
) -> str:
    head = f'"\\n"? {lark.tag(form.key[0])} {lark.text(name)} {lark.tag(form.key[1])}'
    if len(form.value) == 1:
        head += f' "\\n"? {lark.tag(form.value[0])}'
    texts, other = split(schema, root, at)
    is_told = len(form.value) > 1
    told = [f"{lark.tag(tag)} " for tag in form.value] if is_told else ["", ""]
    pad, close = ('"\\n" ' if form.is_padded else ""), lark.tag(form.close)
    is_mixed = bool(texts) and other is not None and not is_told
    bodies = []
    for text in texts:
        value = lark.value(text, at, form.close, is_padded=form.is_padded, no_json=is_mixed)
        bodies.append(f"{told[0]}{pad}{value}")
    if other is not None:
        shared = {key: root[key] for key in _DEFINITIONS if key in root}
        json = lark.schema({**shared, **other}, at)
        bodies.append(f"{told[1]}{pad}{json} {pad}{close}")
    body = f"{head} ({' | '.join(bodies)})"
    return body if must else f"({body})?"


def split(schema: Schema, root: Schema, at: str) -> tuple[list[Schema], Schema | None]:
    """A parameter's schema as those of its texts, any of which will do, and of its other values.
    Raises Refused."""
    found = types(schema, root)
    asks = [key for key in schema if key not in NOTES]
    if found is None:
        return ([{}], None) if not asks else ([], schema)
    if "string" not in found:
        return [], schema
    if found == STRING:
        return _texts(schema, root, at), None
    if set(asks) <= {"type"} | set(_TEXT) or not {"anyOf", "oneOf", "allOf", "$ref"} & set(asks):
        return _split_plain(schema, sorted(found - {"string"}))
    options = schema.get("anyOf", schema.get("oneOf"))
    if not isinstance(options, list) or set(asks) - {"anyOf", "oneOf"}:
        raise _refused(at)
    texts, others = list[Schema](), list[Schema]()
    for option in options:
        more, other = split(resolved(option, root), root, at)
        texts += more
        others += [other] if other is not None else []
    return texts, {"anyOf": others} if others else None


def _split_plain(schema: Schema, others: list[str]) -> tuple[list[Schema], Schema | None]:
    text = {key: schema[key] for key in _TEXT if key in schema}
    rest = {key: value for key, value in schema.items() if key not in ("type", "enum", "const")}
    if "const" in schema:
        return ([text], None) if isinstance(schema["const"], str) else ([], schema)
    if "enum" in schema:
        text["enum"] = [value for value in schema["enum"] if isinstance(value, str)]
        values = [value for value in schema["enum"] if not isinstance(value, str)]
        return ([text] if text["enum"] else []), ({**rest, "enum": values} if values else None)
    return [text], {**rest, "type": others}


def _texts(schema: Schema, root: Schema, at: str) -> list[Schema]:
    """What a text must be, as plain schemas of which one must hold."""
    plain = {key: schema[key] for key in _TEXT if key in schema}
    for key in schema:
        if key not in _TEXT and key not in NOTES and key not in ("type", "anyOf", "oneOf"):
            raise _refused(f"{at}.{key}")
    options = schema.get("anyOf", schema.get("oneOf"))
    if options is None:
        return [plain]
    each = [one for option in options for one in _texts(resolved(option, root), root, at)]
    if any(set(plain) & set(one) for one in each):
        raise _refused(at)
    return [{**plain, **one} for one in each]


def _refused(at: str) -> Refused:
    message = "cannot be enforced in the form in which this model writes calls"
    return Refused(f"{at}: {message}", param=at)
