"""Conversations on disk."""

from corral.backend.store.records import Conversation, Figures, Message, Outcome, Role, Status
from corral.backend.store.store import Store

__all__ = ["Conversation", "Figures", "Message", "Outcome", "Role", "Status", "Store"]
