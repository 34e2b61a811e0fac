"""Members of a body that nobody knows: taken, and named in the reply's ``X-Corral-Ignored``."""

import functools
import types
import typing
from collections.abc import Sequence
from typing import Any

import msgspec
from litestar.types import Message, Scope
from msgspec import Raw, Struct

HEADER = "X-Corral-Ignored"
#: What was done to a conversation that its template objected to; see ``--fold-messages``.
FOLDED = "X-Corral-Folded"
_NOTES = "corral_notes"
#: Longest name shown, and most characters of the header.
MAX_NAME, MAX_HEADER = 64, 1000

_members = msgspec.json.Decoder(dict[str, Raw])


def unknown(body: bytes | Raw, kind: type[Struct], at: str = "") -> list[str]:
    """Paths of a JSON object's members, and of those of objects in it, that ``kind`` lacks.

    ``body`` must decode as ``kind``. Nothing but the keys is looked at.
    """
    known = _known(kind)
    names = []
    for key, value in _members.decode(body).items():
        if key not in known:
            names.append(at + key)
        elif (inner := known[key]) is not None and bytes(value).startswith(b"{"):
            names += unknown(value, inner, f"{at}{key}.")
    return names


@functools.cache
def _known(kind: type[Struct]) -> dict[str, type[Struct] | None]:
    """A struct's members, and for those that are structs which."""
    return {f.encode_name: _struct_in(f.type) for f in msgspec.structs.fields(kind)}


def _struct_in(kind: Any) -> type[Struct] | None:
    """The struct that an annotation allows, directly or as one of several; not those in lists."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        return kind
    if typing.get_origin(kind) in (typing.Union, types.UnionType, typing.Annotated):
        return next((s for part in typing.get_args(kind) if (s := _struct_in(part))), None)
    return None


def header(names: Sequence[str]) -> str:
    """Names as a header's value: printable ASCII, bounded; what is left out is shown as ``...``."""
    shown, length = [], 0
    for name in names:
        plain = "".join(c if " " <= c <= "~" and c != "," else "?" for c in name[:MAX_NAME])
        length += len(plain) + 2
        if length > MAX_HEADER:
            shown.append("...")
            break
        shown.append(plain)
    return ", ".join(shown)


def note(scope: Scope, names: Sequence[str], of: str = HEADER) -> None:
    """Remembers what was ignored, or what another header is to name, until the reply begins."""
    if names:
        scope["state"].setdefault(_NOTES, {})[of] = names


async def name_ignored(message: Message, scope: Scope) -> None:
    """Puts the headers on a reply whose request had members nobody knows, or was folded."""
    notes = scope.get("state", {}).get(_NOTES)
    if notes and message["type"] == "http.response.start":
        pairs = [(of.lower().encode(), header(names).encode()) for of, names in notes.items()]
        message["headers"] = [*message["headers"], *pairs]
