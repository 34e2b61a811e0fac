"""What APIs with names of their own for things share: settings, and variables for the template."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from msgspec.structs import replace

from corral.backend.api.generation import GenerationBody
from corral.backend.chat.types import Params
from corral.backend.errors import Refused

Renames: TypeAlias = Sequence[tuple[str, str]]


def renamed(body: GenerationBody, n_vocab: int, names: Renames) -> Params:
    """The settings of a body that took some of its members from others. ``names`` are those a
    member has in ``body`` and in the request, the first that fits counts. Raises ``Refused``."""

    def told(words: str) -> str:
        for inner, outer in names:
            if inner in words:
                return words.replace(inner, outer)
        return words

    try:
        params = GenerationBody.params(body, n_vocab)
    except Refused as error:
        error.param = error.param and told(error.param)
        error.message = told(error.message)
        raise
    return replace(params, constraint_at=params.constraint_at and told(params.constraint_at))


def effort_variables(effort: str | None) -> dict[str, Any]:
    """What a reasoning effort means to templates."""
    if effort is None:
        return {}
    if effort == "none":
        return {"enable_thinking": False}
    return {"enable_thinking": True, "reasoning_effort": effort}


def variables(named: dict[str, Any] | None, meant: dict[str, Any]) -> dict[str, Any]:
    """Variables for the template: those ``meant`` by other members, and those ``named`` outright,
    which win. Raises ``Refused``."""
    if not isinstance((named or {}).get("enable_thinking", False), bool):
        name = "chat_template_kwargs.enable_thinking"
        raise Refused(f"{name}: expected true or false", param=name)
    return meant | (named or {})
