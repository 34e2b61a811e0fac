"""From command line, environment and a file to ``Settings``. The only reader of the three.

The strongest comes first: flag, ``CORRAL_X``, llama-server's ``LLAMA_ARG_X``, file, default.
"""

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from corral.backend.configfile import from_file
from corral.backend.errors import Refused
from corral.backend.llama_flags import ALWAYS, REFUSED
from corral.backend.settings import Settings, fields, own_names
from corral.backend.spellings import (
    DEVICES,
    HELP,
    VERSION,
    Given,
    Source,
    Spelling,
    always,
    contradiction,
    is_flag,
    nearest,
    note,
    refused,
    spellings,
    unsupported,
)
from corral.backend.values import unescaped


class Loaded(NamedTuple):
    """Settings, and what the user is to be told about how they were given."""

    settings: Settings
    notes: tuple[str, ...]


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Settings from command-line arguments and an environment; see ``load``."""
    return load(argv, environ).settings


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Loaded:
    """Settings from command-line arguments, an environment and the file that these may name.
    Raises ``Refused`` naming the flag, the variable or the file's key."""
    notes: list[str] = []
    flags = _from_arguments(argv, notes)
    own = _from_own_variables(environ, notes)
    path = flags.get("config") or own.get("config")
    sources = [flags, own, _from_llama_variables(environ, notes)]
    if path:
        sources.append(from_file(Path(path[-1].text), notes))
    values = {}
    for field in fields():
        given = next((source[field.name] for source in sources if field.name in source), None)
        if given is not None:
            values[field.name] = _value(field, given)
    settings = Settings(**values, given=frozenset(values))
    return Loaded(_without_escapes(settings), tuple(dict.fromkeys(notes)))


def _value(field: "dataclasses.Field[Any]", given: list[Given]) -> Any:
    if not field.metadata["many"]:
        return _parsed(given[-1])
    return tuple(value for one in given for value in _parsed(one))


def _parsed(given: Given) -> Any:
    meaning, text = given.spelling.meaning, given.text
    try:
        text = meaning(text) if callable(meaning) else text
        return given.spelling.field.metadata["parse"](text)
    except ValueError as error:
        reason = str(error) if str(error).startswith("must") else "is not a valid value"
        message = f"{given.source} {reason}: {given.text!r:.200}"
        raise Refused(message, param=given.spelling.field.name) from None


def _without_escapes(settings: Settings) -> Settings:
    if not settings.escape:
        return settings
    breakers = settings.dry_sequence_breakers
    return dataclasses.replace(
        settings,
        stop=tuple(map(unescaped, settings.stop)),
        dry_sequence_breakers=None if breakers is None else tuple(map(unescaped, breakers)),
    )


# --- arguments ------------------------------------------------------------------------------------


def _from_arguments(argv: Sequence[str], notes: list[str]) -> Source:
    """What flags give. A flag is a whole word (``-ngl`` is not ``-n gl``); its value is the next
    word, or what follows ``=``. Of a flag given twice the last one counts, or all where the setting
    is a list."""
    found: Source = {}
    words = deque(argv)
    while words:
        word = words.popleft()
        name, equals, value = word.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        spelling = spellings().get(name)
        if spelling is not None:
            text = _text(name, spelling, value if equals else None, words)
            found.setdefault(spelling.field.name, []).append(Given(name, spelling, text))
        elif name in always():
            notes.append(note(name))
            for _ in range(0 if equals else always()[name].n_values):
                _required(name, words)
        else:
            raise _no_flag(name, word)
    return found


def _text(name: str, spelling: Spelling, value: str | None, words: deque[str]) -> str:
    """The value of a flag: behind its ``=``, the next word, or what it stands for."""
    if isinstance(spelling.meaning, str):
        if value is not None:
            raise Refused(f"{name} takes no value: {value!r:.200}", param=spelling.field.name)
        return spelling.meaning
    if value is not None:
        return value
    alone: str = spelling.field.metadata["alone"]
    if alone and spelling.meaning is None:
        return words.popleft() if words and not words[0].startswith("-") else alone
    return _required(name, words)


def _required(name: str, words: deque[str]) -> str:
    if not words or is_flag(words[0].partition("=")[0]):
        raise Refused(f"{name} needs a value")
    return words.popleft()


def _no_flag(name: str, word: str) -> Refused:
    if name in refused():
        return Refused(unsupported(name))
    if not word.startswith("-"):
        return Refused(f"{word!r:.200} is no flag, and belongs to none")
    return Refused(
        f"{name[:200]} is no flag{nearest(name, [*spellings(), *HELP, *VERSION, *DEVICES])}"
    )


# --- environment ----------------------------------------------------------------------------------


def _from_own_variables(environ: Mapping[str, str], notes: list[str]) -> Source:
    """What ``CORRAL_*`` gives. A variable that is set to nothing counts as not set; one that no
    setting has is named."""
    environ = _without_links(environ)
    found: Source = {}
    unknown = {name for name in environ if name.startswith("CORRAL_")}
    for field in fields():
        unknown -= own_names(field).keys()
        given = [
            Given(name, spellings()[flag], text)
            for name, flag in own_names(field).items()
            if (text := environ.get(name))
        ]
        if len(given) > 1:
            raise contradiction(given)
        if given:
            found[field.name] = given
    names = [name for field in fields() for name in own_names(field)]
    notes += [f"{name} is no setting{nearest(name, names)}" for name in sorted(unknown)]
    return found


def _without_links(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Without what Kubernetes sets in every container beside a service that is called corral:
    ``CORRAL_PORT=tcp://10.0.0.1:80`` and more."""
    if "CORRAL_SERVICE_HOST" not in environ:
        return environ
    links = ("CORRAL_SERVICE_", "CORRAL_PORT_")
    return {
        name: text
        for name, text in environ.items()
        if not name.startswith(links)
        and not (name == "CORRAL_PORT" and text.startswith(("tcp://", "udp://")))
    }


def _from_llama_variables(environ: Mapping[str, str], notes: list[str]) -> Source:
    """What llama-server's variables give. ``LLAMA_ARG_NO_X`` switches X off by being there, as it
    does for llama-server. Those of flags that are not supported are named in ``notes``: other
    programs may use the environment too."""
    found: Source = {}
    for field in fields():
        name = field.metadata["env"]
        opposite = name.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1)
        spelling = Spelling(field, None)
        if opposite in environ and opposite != name and "off" in field.metadata["also"].values():
            found[field.name] = [Given(opposite, spelling, "off")]
        elif name and environ.get(name):
            found[field.name] = [Given(name, spelling, environ[name])]
    notes += _unheard(environ)
    return found


def _unheard(environ: Mapping[str, str]) -> Iterator[str]:
    """Names llama-server's variables that ask for what is not done here. Those with names unlike
    the others are read by more programs, and left alone."""
    for flag in REFUSED:
        is_there = flag.env in environ if "_NO_" in flag.env else environ.get(flag.env)
        if flag.env.startswith("LLAMA_ARG_") and is_there:
            yield f"{flag.env} is set, but {unsupported(flag.flags[-1])}"
    for flag in ALWAYS:
        if environ.get(flag.env, "").lower() in ("0", "off", "false", "disabled"):
            yield f"{flag.env} is off, but {flag.why}"
