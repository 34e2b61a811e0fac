"""From what was typed in the fields of settings to values, and back. Pure.

What a field may hold is what the API takes: the ranges are read from ``AnswerSettings``.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.inspect import FloatType, IntType, Type, UnionType

from corral.backend.answer_settings import ANY_VOCABULARY, FORMS, LIMITS, MAX_STOPS, agreed
from corral.backend.errors import Refused
from corral.backend.presets import PresetSettings
from corral.backend.samplers import samplers
from corral.frontend import numbers
from corral.frontend.knobs import KNOBS, MAY_BE_NONE, SHAPES, WITH_SOURCE, Kind
from corral.frontend.misfits import misfit
from corral.frontend.reasons import sentence
from corral.frontend.tuning import Own
from corral.frontend.words import _, later

_BESIDE = later("Write what the reply must fit")


class Typed(Struct, frozen=True, kw_only=True):
    """What came of a form: the settings, and what is wrong, by field, in words. ``texts`` are the
    fields as they were typed, ``nones`` those that are said to be none. ``wants``: what is still
    to be typed, by field; until then these are as they were."""

    own: Own
    texts: Mapping[str, str]
    nones: frozenset[str] = frozenset()
    errors: Mapping[str, str] = {}
    wants: Mapping[str, str] = {}


# --- from values to texts -------------------------------------------------------------------------


def texts(own: Own) -> dict[str, str]:
    """The fields of settings as they would be typed."""
    shown = {name: text(knob.kind, value_of(own, name)) for name, knob in KNOBS.items()}
    shown["form"], shown["source"] = shape(own)
    return shown | {"preset": own.preset or ""}


def nones(own: Own) -> frozenset[str]:
    """The fields that are said to be none."""
    return frozenset(n for n in MAY_BE_NONE if getattr(own, n) is not None and not getattr(own, n))


def value_of(own: Struct, name: str) -> Any:
    """What settings say of a field; of one with several names, under whichever it has."""
    if name == "max_tokens":
        return agreed(own, *LIMITS)
    return getattr(own, name, None)


def text(kind: Kind, value: Any) -> str:
    """A value as it would be typed."""
    match kind:
        case _ if value is None:
            return ""
        case "switch":
            return "on" if value else "off"
        case "lines":
            stops = [value] if isinstance(value, str) else value
            return "\n".join(s.replace("\\", "\\\\").replace("\n", "\\n") for s in stops)
        case "names":
            return ";".join(samplers(value))
        case "json":
            return json.dumps(value, ensure_ascii=False)
        case "number":
            return f"{value:.10g}"
        case _:
            return str(value)


def shape(own: PresetSettings) -> tuple[str, str]:
    """What the reply must look like, as its name and the text beside it."""
    if own.response_format is not None:
        kind = own.response_format.get("type")
        inner = own.response_format.get("json_schema", own.response_format)
        schema = inner.get("schema") if isinstance(inner, dict) else None
        if kind == "json_schema" or schema is not None:
            return "json_schema", _laid_out({"type": "object"} if schema is None else schema)
        return str(kind), ""
    if own.json_schema is not None:
        return "json_schema", _laid_out(own.json_schema)
    for name in ("grammar", "regex", "lark"):
        source = getattr(own, name)
        if source is not None:
            return (name, source) if source else ("text", "")
    return "", ""


def _laid_out(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


# --- from texts to values -------------------------------------------------------------------------


def parse(
    typed: Mapping[str, str], said_none: frozenset[str], old: Own, *, is_begun: bool = False
) -> Typed:
    """Settings from the fields of a form. What is typed as ``old`` shows it stays as it is there,
    whatever way it was said. ``is_begun``: somebody is still at the form, and what takes two fields
    may have one so far."""
    before, errors = texts(old), dict[str, str]()
    own = Own(preset=typed.get("preset", "") or None)
    for name, knob in KNOBS.items():
        if knob.kind == "form":
            continue
        given = typed.get(name, "")
        names = LIMITS if name == "max_tokens" else (name,)
        if name in said_none and not given.strip():
            setattr(own, name, [] if name == "stop" else "")
        elif given == before[name]:
            for each in names:
                setattr(own, each, getattr(old, each))
            if name in MAY_BE_NONE and not getattr(own, name):
                setattr(own, name, None)
        elif given.strip():
            try:
                setattr(own, name, _READERS[knob.kind](name, given))
            except ValueError as error:
                errors[name] = str(error)
    wants = _form(own, typed, before, old, errors, is_begun=is_begun)
    if not errors:
        _check(own, errors)
    return Typed(own=own, texts=typed, nones=said_none, errors=errors, wants=wants)


def _form(
    own: Own,
    typed: Mapping[str, str],
    before: Mapping[str, str],
    old: Own,
    errors: dict[str, str],
    *,
    is_begun: bool,
) -> dict[str, str]:
    """What the reply must look like, from the two fields that say so. Returns what is wanted."""
    kind, source = typed.get("form", ""), typed.get("source", "")
    is_only_chosen = (
        is_begun
        and kind in WITH_SOURCE
        and kind != before["form"]
        and source.strip() in ("", before["source"].strip())
    )
    if is_only_chosen or (kind, source) == (before["form"], before["source"]):
        for name in FORMS:
            setattr(own, name, getattr(old, name))
    elif kind in WITH_SOURCE and not source.strip():
        errors["form"] = _(_BESIDE)
    elif kind == "json_schema":
        try:
            own.json_schema = json.loads(source)
        except (ValueError, RecursionError) as error:
            errors["form"] = _("The schema is not JSON: {reason}").format(reason=error)
    elif kind in WITH_SOURCE:
        setattr(own, kind, source)
    elif kind in SHAPES:
        own.response_format = {"type": kind}
    return {"form": _(_BESIDE)} if is_only_chosen else {}


def _check(own: Own, errors: dict[str, str]) -> None:
    """What no field alone can tell."""
    try:
        msgspec.convert(msgspec.to_builtins(own), Own)
        own.params(ANY_VOCABULARY)
    except Refused as error:
        errors[field_of(error.param)] = sentence(error.message.partition(": ")[2] or error.message)
    except msgspec.ValidationError as error:
        what, path = misfit(error)
        errors[field_of(path)] = sentence(what)


def field_of(param: str | None) -> str:
    """The field that an error's ``param`` is about; empty when it is about none."""
    param = (param or "").removeprefix("preset.")
    head = param.replace("[", ".").partition(".")[0]
    return "form" if head in FORMS else head if head in KNOBS or head == "preset" else ""


def _number(name: str, given: str) -> float:
    low, high, is_open = _range(name)
    return numbers.real(given, low, high, is_open=is_open)


def _whole(name: str, given: str) -> int:
    low, high, _is_open = _range(name)
    return numbers.whole(given, low, high)


def _range(name: str) -> tuple[Any, Any, bool]:
    """Least and most of a number's field, and whether it must be more than the least."""
    kind = _TYPES[name]
    if kind.gt is not None:
        return kind.gt, kind.le, True
    return kind.ge, kind.le, False


def _bare(kind: Type) -> Type:
    """A type without what is beside it: null, or a remark."""
    while isinstance(kind, msgspec.inspect.Metadata):
        kind = kind.type
    if isinstance(kind, UnionType):
        found = [_bare(each) for each in kind.types]
        return next((t for t in found if isinstance(t, FloatType | IntType)), found[0])
    return kind


_TYPES: dict[str, Any] = {
    field.name: _bare(field.type)
    for field in msgspec.inspect.type_info(Own).fields  # type: ignore[attr-defined]
}


def _text(name: str, given: str) -> str:
    most = {"system": 2**18, "prefix": 2**14}[name]
    if len(given) > most:
        raise ValueError(_("At most {n} characters").format(n=most))
    return given


def _lines(_name: str, given: str) -> list[str]:
    stops = [_unescaped(line) for line in given.split("\n") if line]
    if len(stops) > MAX_STOPS or any(len(stop) > 1024 for stop in stops):
        raise ValueError(_("At most {n} texts of 1024 characters").format(n=MAX_STOPS))
    return stops


def _unescaped(line: str) -> str:
    halves = (half.replace("\\n", "\n").replace("\\t", "\t") for half in line.split("\\\\"))
    return "\\".join(halves)


def _switch(_name: str, given: str) -> bool:
    return given == "on"


def _names(_name: str, given: str) -> list[str]:
    return [name.strip() for name in given.replace(",", ";").split(";") if name.strip()]


def _json(_name: str, given: str) -> Any:
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as error:
        raise ValueError(_("This is not JSON: {reason}").format(reason=error)) from None


_READERS: Mapping[Kind, Callable[[str, str], Any]] = {
    "text": _text,
    "lines": _lines,
    "number": _number,
    "whole": _whole,
    "switch": _switch,
    "names": _names,
    "json": _json,
}
