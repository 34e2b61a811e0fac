"""The spellings of flags: which setting each means, and what llama-server's others come to."""

import dataclasses
import difflib
import functools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeAlias

from corral.backend.errors import Refused
from corral.backend.llama_flags import ALWAYS, REFUSED, LlamaFlag
from corral.backend.settings import fields

#: What asks for help, the version, the devices; the caller looks for them.
HELP = ("-h", "--help", "--usage")
VERSION = ("--version",)
DEVICES = ("--list-devices",)


class Spelling(NamedTuple):
    """A flag's setting. ``meaning``: a text that it stands for, or what makes the setting's text
    out of the value given."""

    field: "dataclasses.Field[Any]"
    meaning: str | Callable[[str], str] | None


class Given(NamedTuple):
    """A value as it was written, and where."""

    source: str
    spelling: Spelling
    text: str


#: What one source gives, by the setting's name.
Source: TypeAlias = dict[str, list[Given]]


@functools.cache
def spellings() -> dict[str, Spelling]:
    """Every spelling of every setting."""
    found: dict[str, Spelling] = {}
    for field in fields():
        found |= dict.fromkeys(field.metadata["flags"], Spelling(field, None))
        found |= {f: Spelling(field, meaning) for f, meaning in field.metadata["also"].items()}
    return found


@functools.cache
def always() -> dict[str, LlamaFlag]:
    """Spellings of what is always so."""
    return {name: flag for flag in ALWAYS for name in flag.flags}


@functools.cache
def refused() -> dict[str, LlamaFlag]:
    """Spellings of what is not done."""
    return {name: flag for flag in REFUSED for name in flag.flags}


def is_flag(name: str) -> bool:
    """Whether a word is a flag, be it one that is refused."""
    return name in spellings() or name in always() or name in refused()


def nearest(name: str, names: Collection[str]) -> str:
    """The end of a message about a name that does not exist: one that does. Names that begin alike
    come first."""
    near = [n for n in names if n.startswith(name)] if len(name) > 2 else []
    near = near or difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def unsupported(name: str) -> str:
    """Why a flag is refused."""
    return f"llama-server's {name} is not supported by Corral: {refused()[name].why}"


def note(name: str) -> str:
    """Why a flag that is taken changes nothing."""
    return f"{name} changes nothing: {always()[name].why}"


def contradiction(given: list[Given]) -> Refused:
    """Two values for one setting, of which neither comes before the other."""
    first, second = given[0], given[1]
    message = f"{second.source} and {first.source} exclude each other; set one"
    return Refused(message, param=first.spelling.field.name)
