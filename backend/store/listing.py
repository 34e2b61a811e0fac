"""Conversations as a list: in pages, with pins, titles, and deletion that can be undone.

On the store's thread.
"""

import sqlite3
import time

from msgspec import Struct

from corral.backend.errors import Refused
from corral.backend.store import rows
from corral.backend.store.records import Conversation

#: How long what was deleted can be brought back.
UNDO_S = 30 * 24 * 3600.0
PAGE_SIZE = 50


class Place(Struct, frozen=True):
    """Where a page of the list ends: the order of the list, so that nothing is shown twice or left
    out when conversations are written to meanwhile."""

    is_pinned: int
    updated_s: float
    id: str


def page(
    db: sqlite3.Connection, after: Place | None, size: int
) -> tuple[list[Conversation], Place | None]:
    """Up to ``size`` conversations: the pinned ones first, then by the time last written to; and
    the place to go on from, None at the end."""
    place = after or Place(2, 0.0, "")
    found = db.execute(
        "SELECT * FROM conversation WHERE deleted_s IS NULL"
        " AND (is_pinned, updated_s, id) < (?, ?, ?)"
        " ORDER BY is_pinned DESC, updated_s DESC, id DESC LIMIT ?",
        (place.is_pinned, place.updated_s, place.id, size + 1),
    )
    listed = [Conversation(**row) for row in found]
    if len(listed) <= size:
        return listed, None
    last = listed[size - 1]
    return listed[:size], Place(last.is_pinned, last.updated_s, last.id)


def rename(
    db: sqlite3.Connection, conversation_id: str, title: str, version: int | None
) -> Conversation:
    """Another title. Raises Refused not_found, or conflict when it is not at ``version``."""
    now = rows.conversation(db, conversation_id)
    if version is not None and version != now.version:
        raise Refused(
            "This conversation was renamed or pinned on another page meanwhile; its title is now "
            f"“{now.title}”. This page shows it as it is: try again",
            kind="conflict",
            param="version",
        )
    return _update(db, "title", title, conversation_id)


def pin(db: sqlite3.Connection, conversation_id: str, is_pinned: bool) -> Conversation:
    """Pins it or not. Raises Refused not_found."""
    if bool(rows.conversation(db, conversation_id).is_pinned) is is_pinned:
        return rows.conversation(db, conversation_id)
    return _update(db, "is_pinned", int(is_pinned), conversation_id)


def _update(db: sqlite3.Connection, column: str, value: str | int, id: str) -> Conversation:
    db.execute(
        f"UPDATE conversation SET {column} = ?, version = version + 1 WHERE id = ?", (value, id)
    )
    return rows.conversation(db, id)


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


def deleted(db: sqlite3.Connection, conversation_id: str) -> Conversation | None:
    """One that is deleted and can be brought back."""
    found = db.execute(
        "SELECT * FROM conversation WHERE id = ? AND deleted_s IS NOT NULL", (conversation_id,)
    ).fetchone()
    return None if found is None else Conversation(**found)


def purge(db: sqlite3.Connection) -> None:
    """Deletes for good what nobody has brought back in time."""
    db.execute("DELETE FROM conversation WHERE deleted_s < ?", (time.time() - UNDO_S,))
