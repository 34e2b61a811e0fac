"""Presets on the wire: what one says, and how it is shown and sent."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from corral.backend.presets import PresetSettings

PresetVersion = Annotated[int, Meta(ge=0, le=2**53)]


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
