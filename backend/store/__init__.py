"""Conversations, and answers of the Responses API, on disk."""

from corral.backend.store.records import Conversation, Figures, Message, Outcome, Role, Status
from corral.backend.store.responses import Item, Responses, Turn
from corral.backend.store.store import Store

__all__ = [
    "Conversation",
    "Figures",
    "Item",
    "Message",
    "Outcome",
    "Responses",
    "Role",
    "Status",
    "Store",
    "Turn",
]
