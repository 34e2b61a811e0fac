"""The text of ``corral serve --help``."""

import dataclasses
import textwrap
from typing import Any

from corral.backend.settings import Knob, fields, knobs

_HEAD = """\
usage: corral serve [FLAG ...]

Serve a GGUF model: web UI, OpenAI-compatible, Anthropic's and llama-server's API.

A flag beats the environment, and that the file given with --config. CORRAL_X beats LLAMA_ARG_X.
Flags and variables of llama-server that are not listed are either taken, since what they ask for
is always so (such as --jinja), or refused with the reason.
"""


def usage(width: int) -> str:
    """Every setting, grouped, with its default and its variables; lines of ``width`` columns."""
    lines = [_HEAD]
    group = ""
    for knob, field in zip(knobs(), fields(), strict=True):
        if knob.group != group:
            group = knob.group
            lines.append(f"{'' if len(lines) == 1 else chr(10)}{group}:")
        lines += _entry(knob, _spelled(field), width)
    lines += ["", "Other:", "  -h, --help, --usage", "      show this and exit"]
    lines += ["  --version", "      show the version and exit"]
    lines += ["  --list-devices", "      show what --device takes and exit"]
    return "\n".join(lines) + "\n"


def _spelled(field: dataclasses.Field[Any]) -> str:
    """A setting's flags, and whether a value follows: ``-np, --parallel VALUE``."""
    flags, also, alone = (field.metadata[name] for name in ("flags", "also", "alone"))
    value = "" if isinstance(field.default, bool) else " [VALUE]" if alone else " VALUE"
    groups = [", ".join(flags) + value]
    stands_alone = [name for name, meaning in also.items() if isinstance(meaning, str)]
    converted = [name for name in also if name not in stands_alone]
    groups += [f"{', '.join(converted)} VALUE"] if converted else []
    return ", ".join(groups + stands_alone)


def _entry(knob: Knob, flags: str, width: int) -> list[str]:
    default = f" (default: {knob.default})" if knob.default else ""
    text = f"{knob.help}{default} [{', '.join(knob.env)}]"
    indent = " " * 6
    return [
        *textwrap.wrap(
            flags,
            width,
            initial_indent="  ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        ),
        *textwrap.wrap(
            text,
            width,
            initial_indent=indent,
            subsequent_indent=indent,
            break_on_hyphens=False,
            break_long_words=False,
        ),
    ]
