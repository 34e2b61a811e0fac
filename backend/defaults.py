"""The settings in force for a request: its own, then its preset's, the server's, the model's,
llama-server's."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from corral.backend.chat.types import Effective, Params
from corral.backend.engine.messages import Constraint, Sampling
from corral.backend.settings import Settings

# llama-server's default of every setting, by the name it has everywhere.
_DEFAULTS: dict[str, Any] = msgspec.structs.asdict(Sampling()) | msgspec.structs.asdict(Effective())
_SAMPLING = Sampling.__struct_fields__
#: ``server``: a flag, or llama-server's default; ``model``: recommended by the model's file.
Origin: TypeAlias = Literal["server", "model"]
_REST = tuple(name for name in Effective.__struct_fields__ if name != "sampling")
# What only a request can ask for; a flag of that name means another thing.
_NO_FLAG = ("constraint", "id_slot", "lora", "prompt_probs")


def settled(params: Params, preset: Params) -> Params:
    """A request's settings, and where it says nothing those of its preset."""
    said = {
        name: value
        for name, value in msgspec.structs.asdict(params).items()
        if value is not None and name != "constraint_at"
    }
    if "constraint" in said:  # the place goes with what is there
        said["constraint_at"] = params.constraint_at
    return msgspec.structs.replace(preset, **said)


def effective(params: Params, settings: Settings, recommended: Mapping[str, float]) -> Effective:
    """What a request's settings come to. ``recommended`` are those that the model's file brings;
    they count where neither request nor flag says otherwise."""
    picked = {name: _pick(name, params, settings, recommended) for name in _SAMPLING}
    if picked["seed"] is not None and picked["seed"] < 0:
        picked["seed"] = None
    rest = {name: _pick(name, params, settings, recommended) for name in _REST}
    if rest["constraint"] is None:
        rest["constraint"] = constraint(settings)
    return Effective(sampling=Sampling(**picked), **rest)


def _pick(name: str, params: Params, settings: Settings, recommended: Mapping[str, float]) -> Any:
    asked = getattr(params, name)
    return default(name, settings, recommended)[0] if asked is None else asked


def default(name: str, settings: Settings, recommended: Mapping[str, float]) -> tuple[Any, Origin]:
    """What counts for a setting that no request says, and where it comes from."""
    theirs = _DEFAULTS[name]
    flag = None if name in _NO_FLAG else getattr(settings, name, None)
    # One that was given counts, be it the default: the model's own must not take its place.
    if flag is not None and (flag != theirs or name in settings.given):
        return flag, "server"
    value = recommended.get(name)
    return (theirs, "server") if value is None else (type(theirs)(value), "model")


def constraint(settings: Settings) -> Constraint | None:
    """The constraint that a flag puts on every answer."""
    if settings.json_schema:
        return Constraint("json_schema", settings.json_schema)
    return from_grammar(settings.grammar) if settings.grammar else None


def from_grammar(source: str) -> Constraint:
    """A grammar that begins with ``%llguidance`` is Lark, as on llama-server; others are GBNF."""
    return Constraint("lark" if source.startswith("%llguidance") else "gbnf", source)
