"""How a notebook's text goes on: where, and with what settings. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from corral.backend.chat.types import Params
from corral.backend.engine.messages import Constraint
from corral.backend.errors import Refused
from corral.frontend.numbers import real, whole
from corral.frontend.words import _

T = TypeVar("T")

#: Where the text goes on, when not at its end.
MARKER: Final = "{predict}"
FIELDS: Final = ("max_tokens", "temperature", "top_p", "seed", "stop", "grammar")
#: The settings of a new notebook.
NEW: Final[Mapping[str, str]] = {"max_tokens": "200"}
MAX_STOPS: Final = 16
_MAX_TOKENS: Final = 1_000_000
_MAX_SEED: Final = 2**32 - 2


def halves(text: str) -> tuple[str, str]:
    """What stands before and behind the place where the text goes on. Raises Refused when there is
    nothing before it."""
    before, _marker, after = text.partition(MARKER)
    if not before:
        raise Refused(_("Write the beginning first."))
    return before, after


def params(settings: Mapping[str, str]) -> Params:
    """The settings as they were typed; what is empty is as the server has it. Raises Refused,
    naming the field."""
    return Params(
        max_tokens=_number(settings, "max_tokens", _("Most tokens"), whole, 1, _MAX_TOKENS),
        temperature=_number(settings, "temperature", _("Temperature"), real, 0.0, 100.0),
        top_p=_number(settings, "top_p", _("Top P"), real, 0.0, 1.0),
        seed=_number(settings, "seed", _("Seed"), whole, 0, _MAX_SEED),
        stop=stops(settings.get("stop", "")) or None,
        constraint=constraint(settings.get("grammar", "")),
    )


def constraint(source: str) -> Constraint | None:
    """What the text must match: JSON is a schema, Lark begins with ``%llguidance`` as in requests,
    and the rest is GBNF. Empty: nothing."""
    if not source.strip():
        return None
    if source.lstrip().startswith("{"):
        return Constraint("json_schema", source)
    return Constraint("lark" if source.startswith("%llguidance") else "gbnf", source)


def stops(text: str) -> tuple[str, ...]:
    r"""Texts that end the writing, one a line; ``\n`` in one is a line break. Raises Refused."""
    found = tuple(line.replace("\\n", "\n") for line in text.split("\n") if line)
    if len(found) > MAX_STOPS:
        raise Refused(_("Stop: at most {n} texts").format(n=MAX_STOPS))
    return found


def _number(
    settings: Mapping[str, str],
    field: str,
    name: str,
    read: Callable[[str, Any, Any], T],
    low: float,
    high: float,
) -> T | None:
    text = settings.get(field, "")
    try:
        return read(text, low, high) if text.strip() else None
    except ValueError as error:
        raise Refused(f"{name}: {error}") from None
