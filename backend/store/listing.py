"""Conversations as a list: in pages, with pins, titles, and deletion that can be undone.

On the store's thread.
"""

import sqlite3
import time

from msgspec import Struct

from corral.backend.errors import Refused
from corral.backend.store import rows
from corral.backend.store.database import transaction
from corral.backend.store.records import Conversation

#: How long what was deleted can be brought back.
UNDO_S = 30 * 24 * 3600.0
PAGE_SIZE = 50


class Place(Struct, frozen=True):
    """A place in the order of the list. What comes after one is the same whatever is written
    meanwhile, so no conversation is left out or shown twice."""

    is_pinned: int
    updated_s: float
    id: str


def page(db: sqlite3.Connection, after: Place | None, limit: int) -> list[Conversation]:
    """Up to ``limit`` conversations: pinned ones first, then by the time last written to."""
    place = after or Place(2, 0.0, "")
    found = db.execute(
        "SELECT * FROM conversation WHERE deleted_s IS NULL"
        " AND (is_pinned, updated_s, id) < (?, ?, ?)"
        " ORDER BY is_pinned DESC, updated_s DESC, id DESC LIMIT ?",
        (place.is_pinned, place.updated_s, place.id, limit),
    )
    return [Conversation(**row) for row in found]


def rename(
    db: sqlite3.Connection, conversation_id: str, title: str, version: int | None
) -> Conversation:
    """Another title. Raises Refused not_found, or conflict when it is not at ``version``."""
    with transaction(db):
        now = rows.conversation(db, conversation_id)
        if version is not None and version != now.version:
            message = "This conversation was renamed elsewhere meanwhile; load the page again"
            raise Refused(message, kind="conflict", param="version")
        if now.title == title:
            return now
        db.execute(
            "UPDATE conversation SET title = ?, version = version + 1 WHERE id = ?",
            (title, conversation_id),
        )
        return rows.conversation(db, conversation_id)


def pin(db: sqlite3.Connection, conversation_id: str, is_pinned: bool) -> Conversation:
    """Pins it or not. Raises Refused not_found."""
    with transaction(db):
        rows.conversation(db, conversation_id)
        db.execute(
            "UPDATE conversation SET is_pinned = ? WHERE id = ?", (is_pinned, conversation_id)
        )
        return rows.conversation(db, conversation_id)


def delete(db: sqlite3.Connection, conversation_id: str) -> None:
    """Takes it out of the list. One that is not there is no error."""
    db.execute(
        "UPDATE conversation SET deleted_s = ? WHERE id = ? AND deleted_s IS NULL",
        (time.time(), conversation_id),
    )


def restore(db: sqlite3.Connection, conversation_id: str) -> Conversation:
    """Brings back what was deleted. Raises Refused not_found."""
    db.execute("UPDATE conversation SET deleted_s = NULL WHERE id = ?", (conversation_id,))
    return rows.conversation(db, conversation_id)


def deleted(db: sqlite3.Connection) -> list[Conversation]:
    """Those that can be brought back, the one deleted last first."""
    found = db.execute(
        "SELECT * FROM conversation WHERE deleted_s IS NOT NULL ORDER BY deleted_s DESC, id"
    )
    return [Conversation(**row) for row in found]


def forget(db: sqlite3.Connection, conversation_id: str) -> None:
    """Deletes for good one that is deleted. One that is not is left alone."""
    db.execute(
        "DELETE FROM conversation WHERE id = ? AND deleted_s IS NOT NULL", (conversation_id,)
    )


def purge(db: sqlite3.Connection) -> None:
    """Deletes for good what nobody has brought back in time."""
    db.execute("DELETE FROM conversation WHERE deleted_s < ?", (time.time() - UNDO_S,))
