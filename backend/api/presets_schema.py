"""Presets on the wire: what one says, and how it is shown and sent."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from corral.backend.api.generation import AnswerSettings, GenerationBody
from corral.backend.chat.types import Params
from corral.backend.errors import Refused

MAX_NAME = 64
PresetVersion = Annotated[int, Meta(ge=0, le=2**53)]


class PresetSettings(AnswerSettings, kw_only=True, omit_defaults=True):
    """What a preset says; ``null`` is as good as absent. ``system`` and ``prefix`` are of use in
    chats only."""

    system: Annotated[
        Annotated[str, Meta(max_length=2**18)] | None,
        Meta(description="a system message, where the conversation has none"),
    ] = None
    prefix: Annotated[
        Annotated[str, Meta(max_length=2**14)] | None,
        Meta(description="how the answer begins; it is not repeated in the reply"),
    ] = None

    def params(self, n_vocab: int) -> Params:
        """The settings it stands for. Raises ``Refused`` naming the member."""
        shared = {name: getattr(self, name) for name in AnswerSettings.__struct_fields__}
        return GenerationBody(**shared).params(n_vocab)


class PresetObject(PresetSettings, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A preset with its name: a reply, and what ``PUT /presets/{name}`` takes, so that one can be
    sent back changed. The name in the path counts, also for a copy of another."""

    name: str | None = None
    version: Annotated[
        PresetVersion | None,
        Meta(description="the one this was made from; 0: there must be none yet"),
    ] = None
    is_builtin: bool | None = None
    updated: Annotated[int | None, Meta(description="Unix seconds")] = None

    def settings(self) -> PresetSettings:
        """What is kept of it."""
        names = PresetSettings.__struct_fields__
        return PresetSettings(**{name: getattr(self, name) for name in names})


class PresetList(Struct, frozen=True, kw_only=True):
    """``GET /presets``: those that come with the server first."""

    object: str = "list"
    data: list[PresetObject]


class PresetDeleted(Struct, frozen=True, kw_only=True):
    """What is gone."""

    name: str
    deleted: bool = True


preset_decoder = msgspec.json.Decoder(PresetObject)
_kept_decoder = msgspec.json.Decoder(PresetSettings)


def kept(body: bytes) -> PresetSettings:
    """A preset as it was stored; members of another version of Corral are left out."""
    return _kept_decoder.decode(body)


def check_name(name: str) -> None:
    """Raises ``Refused`` for what cannot be the name of a preset."""
    is_fit = 0 < len(name) <= MAX_NAME and name.isprintable() and name == name.strip()
    if not is_fit or "/" in name or not name.strip("."):
        message = f"expected 1 to {MAX_NAME} printable characters without / and spaces around them"
        raise Refused(f"name: {message}", param="name")
