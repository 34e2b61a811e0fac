"""The settings of conversations. What is in them is JSON that the store does not read.

On the store's thread.
"""

import sqlite3

from msgspec import Struct

from corral.backend.errors import Refused
from corral.backend.store import rows
from corral.backend.store.database import transaction


class Tuned(Struct, frozen=True, kw_only=True):
    """The settings of a conversation: ``version`` counts their changes, 0 when there was none."""

    version: int = 0
    body: bytes = b"{}"


def read(db: sqlite3.Connection, conversation_id: str) -> Tuned:
    """The settings of a conversation. Raises Refused not_found."""
    rows.conversation(db, conversation_id)
    return _read(db, conversation_id)


def _read(db: sqlite3.Connection, conversation_id: str) -> Tuned:
    found = db.execute(
        "SELECT version, body FROM tuning WHERE conversation_id = ?", (conversation_id,)
    ).fetchone()
    return Tuned() if found is None else Tuned(**found)


def write(db: sqlite3.Connection, conversation_id: str, version: int, body: bytes) -> Tuned:
    """Keeps other settings, made from those of ``version``. Raises Refused not_found, or conflict
    when they are not at that version."""
    with transaction(db):
        old = read(db, conversation_id)
        if old.version != version:
            message = "These settings were changed elsewhere meanwhile"
            raise Refused(f"version: {message}", kind="conflict", param="version")
        if old.body == body:
            return old
        db.execute(
            "INSERT INTO tuning(conversation_id, version, body) VALUES (?, 1, ?)"
            " ON CONFLICT(conversation_id) DO UPDATE SET"
            " version = version + 1, body = excluded.body",
            (conversation_id, body),
        )
        return _read(db, conversation_id)


def copy(db: sqlite3.Connection, from_id: str, to_id: str) -> None:
    """Gives a new conversation the settings of another; part of a transaction."""
    db.execute(
        "INSERT INTO tuning(conversation_id, version, body)"
        " SELECT ?, 1, body FROM tuning WHERE conversation_id = ?",
        (to_id, from_id),
    )
