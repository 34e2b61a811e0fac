"""Replies to one message that are looked at side by side. On the store's thread."""

import sqlite3

from corral.backend.errors import Refused
from corral.backend.store import rows
from corral.backend.store.database import transaction
from corral.backend.store.records import Message

#: As many are shown side by side; of more, the newest.
MAX_COLUMNS = 8

_REPLIES = (
    "SELECT * FROM message WHERE conversation_id = ? AND parent_id = ? AND role = 'assistant'"
    " AND deleted_s IS NULL ORDER BY id DESC LIMIT ?"
)


def add(db: sqlite3.Connection, parent_id: int, n: int, model: str) -> tuple[Message, ...]:
    """``n`` empty replies to a message, side by side with those that run already; the first that
    runs becomes the leaf. Raises Refused not_found."""
    with transaction(db):
        parent = rows.message(db, parent_id)
        id = parent.conversation_id
        made = [rows.insert(db, id, parent.id, "assistant", "", model=model) for _ in range(n)]
        running = "SELECT min(id) FROM message WHERE parent_id = ? AND status = 'generating'"
        (leaf_id,) = db.execute(running, (parent.id,)).fetchone()
        _show(db, id, parent.id, leaf_id)
        return tuple(made)


def label(db: sqlite3.Connection, message_id: int, words: str, settings: bytes) -> Message:
    """Notes what a reply was asked for with. Raises Refused not_found."""
    db.execute(
        "UPDATE message SET label = ?, settings = ? WHERE id = ?", (words, settings, message_id)
    )
    return rows.message(db, message_id)


def show(db: sqlite3.Connection, message_id: int) -> Message:
    """Shows a reply and its alternatives side by side, and nothing below it. Raises Refused."""
    with transaction(db):
        shown = rows.message(db, message_id)
        if shown.role != "assistant" or shown.parent_id is None:
            raise Refused("Only replies are shown side by side")
        rows.conversation(db, shown.conversation_id)
        _show(db, shown.conversation_id, shown.parent_id, shown.id)
        return shown


def read(db: sqlite3.Connection, conversation_id: str) -> tuple[Message, ...]:
    """The replies that are side by side at the end of the branch shown, oldest first; none when
    nothing is. Raises Refused not_found."""
    conversation = rows.conversation(db, conversation_id)
    if conversation.columns_id is None:
        return ()
    query = (conversation_id, conversation.columns_id, MAX_COLUMNS)
    found = [rows.to_message(row) for row in db.execute(_REPLIES, query)]
    is_shown = any(reply.id == conversation.leaf_id for reply in found)
    return tuple(reversed(found)) if is_shown and len(found) > 1 else ()


def _show(db: sqlite3.Connection, conversation_id: str, parent_id: int, leaf_id: int) -> None:
    db.execute(
        "UPDATE conversation SET columns_id = ?, leaf_id = ? WHERE id = ?",
        (parent_id, leaf_id, conversation_id),
    )
