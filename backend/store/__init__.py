"""Conversations, answers of the Responses API, and presets, on disk."""

from corral.backend.store.presets import Preset, Presets
from corral.backend.store.records import (
    Call,
    Conversation,
    Figures,
    Message,
    Outcome,
    Picture,
    Role,
    Status,
    Upload,
)
from corral.backend.store.responses import Item, Responses, Turn
from corral.backend.store.store import Store

__all__ = [
    "Call",
    "Conversation",
    "Figures",
    "Item",
    "Message",
    "Outcome",
    "Picture",
    "Preset",
    "Presets",
    "Responses",
    "Role",
    "Status",
    "Store",
    "Turn",
    "Upload",
]
