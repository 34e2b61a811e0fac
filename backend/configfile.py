"""A TOML file of settings."""

import tomllib
from pathlib import Path
from typing import Any

from corral.backend.errors import Refused
from corral.backend.spellings import (
    Given,
    Source,
    Spelling,
    always,
    contradiction,
    nearest,
    note,
    refused,
    spellings,
    unsupported,
)


def from_file(path: Path, notes: list[str]) -> Source:
    """What a TOML file gives. Its keys are long flags without their dashes in front."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Refused(f"--config: {path}: {reason}", param="config") from None
    found: Source = {}
    for key, value in table.items():
        name, source = "--" + key.replace("_", "-"), f"{path}: {key}"
        spelling = spellings().get(name)
        if name in always() and value is True:
            notes.append(f"{source}: {note(name)}")
        elif spelling is None:
            raise _no_key(source, name)
        elif spelling.field.name == "config":
            raise Refused(f"{source}: a file cannot name another", param="config")
        else:
            given = [Given(source, spelling, text) for text in _texts(source, spelling, value)]
            if spelling.field.name in found:
                raise contradiction([*found[spelling.field.name], *given])
            found[spelling.field.name] = given
    return found


def _no_key(source: str, name: str) -> Refused:
    if name in refused():
        return Refused(f"{source}: {unsupported(name)}")
    if name in always():
        return Refused(f"{source}: must be true, or not be there: {always()[name].why}")
    keys = [name[2:] for name in spellings() if name.startswith("--")]
    return Refused(f"{source} is no setting{nearest(name[2:], keys)}")


def _texts(source: str, spelling: Spelling, value: Any) -> list[str]:
    """A value of the file as flags would have it; a list has one for each entry."""
    if isinstance(spelling.meaning, str):
        if value is not True:
            raise Refused(f"{source} must be true, or not be there", param=spelling.field.name)
        return [spelling.meaning]
    if isinstance(value, list) and spelling.field.metadata["many"]:
        if not value:  # keys that somebody took out must not open the server
            raise Refused(
                f"{source} must hold something, or not be there", param=spelling.field.name
            )
        return [_scalar(source, spelling, entry) for entry in value]
    return [_scalar(source, spelling, value)]


def _scalar(source: str, spelling: Spelling, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int | float | str):
        return str(value)
    kinds = "a text, a number, true or false"
    if spelling.field.metadata["many"]:
        kinds += ", or a list of those"
    raise Refused(f"{source} must be {kinds}", param=spelling.field.name)
