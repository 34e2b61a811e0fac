"""Conversations, answers of the Responses API, and presets, on disk."""

from corral.backend.store.batches import Batch, BatchRow, Counts
from corral.backend.store.bundles import Bundle
from corral.backend.store.columns import MAX_COLUMNS
from corral.backend.store.drafts import Draft
from corral.backend.store.listing import PAGE_SIZE, Place
from corral.backend.store.notebooks import Notebook, Notebooks
from corral.backend.store.presets import Preset, Presets
from corral.backend.store.queue import Queued
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
from corral.backend.store.search import Found, Hit, Part
from corral.backend.store.store import Store
from corral.backend.store.traces import Trace
from corral.backend.store.tunings import Tuned

__all__ = [
    "MAX_COLUMNS",
    "PAGE_SIZE",
    "Batch",
    "BatchRow",
    "Bundle",
    "Call",
    "Conversation",
    "Counts",
    "Draft",
    "Figures",
    "Found",
    "Hit",
    "Item",
    "Message",
    "Notebook",
    "Notebooks",
    "Outcome",
    "Part",
    "Picture",
    "Place",
    "Preset",
    "Presets",
    "Queued",
    "Responses",
    "Role",
    "Status",
    "Store",
    "Trace",
    "Tuned",
    "Turn",
    "Upload",
]
