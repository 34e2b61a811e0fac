"""How a notebook's text goes on: where, and with what settings. Pure."""

import math
from collections.abc import Mapping
from typing import Final

from corral.backend.chat.types import Params
from corral.backend.engine.messages import Constraint
from corral.backend.errors import Refused
from corral.frontend.words import _

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
        max_tokens=_whole(settings, "max_tokens", _("Most tokens"), 1, _MAX_TOKENS),
        temperature=_real(settings, "temperature", _("Temperature"), 100.0),
        top_p=_real(settings, "top_p", _("Top P"), 1.0),
        seed=_whole(settings, "seed", _("Seed"), 0, _MAX_SEED),
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


def _whole(settings: Mapping[str, str], field: str, name: str, least: int, most: int) -> int | None:
    text = settings.get(field, "").strip()
    if not text:
        return None
    is_number = text.isascii() and text.isdecimal() and len(text) < 12
    if not is_number or not least <= int(text) <= most:
        words = _("{name}: expected a whole number from {least} to {most}, or nothing")
        raise Refused(words.format(name=name, least=least, most=most))
    return int(text)


def _real(settings: Mapping[str, str], field: str, name: str, most: float) -> float | None:
    text = settings.get(field, "").strip().replace(",", ".")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= most:
        words = _("{name}: expected a number from 0 to {most}, or nothing")
        raise Refused(words.format(name=name, most=f"{most:g}"))
    return value
