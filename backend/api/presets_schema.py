"""Presets on the wire, beside the preset itself."""

from msgspec import Struct

from corral.backend.presets import PresetObject


class PresetList(Struct, frozen=True, kw_only=True):
    """``GET /presets``: those that come with the server first."""

    object: str = "list"
    data: list[PresetObject]


class PresetDeleted(Struct, frozen=True, kw_only=True):
    """What is gone."""

    name: str
    deleted: bool = True
