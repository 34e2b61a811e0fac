"""Conversations, and answers of the Responses API, on disk."""

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
    "Responses",
    "Role",
    "Status",
    "Store",
    "Turn",
    "Upload",
]
