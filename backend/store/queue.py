"""Messages that wait for the reply that is being written before they are sent.

They are sent in the order in which they were queued. When the reply did not end well, and after a
restart, all of a conversation are paused until somebody says so.
"""

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from corral.backend.errors import Refused
from corral.backend.store import pictures, rows
from corral.backend.store.database import Database, transaction
from corral.backend.store.records import Picture, Upload

#: How many may wait in one conversation.
MAX_QUEUED = 20


class Queued(Struct, frozen=True, kw_only=True):
    """A message that waits. ``is_paused``: until somebody sends it."""

    id: int
    conversation_id: str
    content: str
    is_paused: bool
    created_s: float
    pictures: tuple[Picture, ...] = ()


class Queue:
    """What waits in a data folder, for callers that await it. ``n_changes`` of all conversations
    are counted, for those that look."""

    def __init__(self, database: Database, pictures_folder: Path) -> None:
        self._run = database.run
        self._folder = pictures_folder
        self.n_changes = 0

    async def add(
        self, conversation_id: str, content: str, uploads: Sequence[Upload] = ()
    ) -> Queued:
        """Queues a message. Raises Refused not_found, or conflict when there are too many."""
        added = await self._run(add, conversation_id, content, folder=self._folder, uploads=uploads)
        self.n_changes += 1
        return added

    async def list(self, conversation_id: str) -> Sequence[Queued]:
        """What waits in a conversation, in order."""
        return await self._run(of_conversation, conversation_id)

    async def get(self, queued_id: int) -> Queued:
        """One that waits. Raises Refused conflict when it does not, any more."""
        return await self._run(get, queued_id)

    async def take(self, queued_id: int) -> Queued:
        """Takes one out. Raises Refused conflict when it does not wait any more."""
        taken = await self._run(take, queued_id)
        self.n_changes += 1
        return taken

    async def pause(self, conversation_id: str, *, is_paused: bool) -> None:
        """Pauses all of a conversation, or lets them go on."""
        await self._run(pause, conversation_id, is_paused)
        self.n_changes += 1


# --- on the store's thread ------------------------------------------------------------------------


def add(
    db: sqlite3.Connection,
    conversation_id: str,
    content: str,
    *,
    folder: Path,
    uploads: Sequence[Upload],
) -> Queued:
    """Queues a message. Raises Refused not_found, or conflict when it is full."""
    with transaction(db):
        id = rows.conversation(db, conversation_id).id
        query = "SELECT count(*) FROM queued WHERE conversation_id = ?"
        if db.execute(query, (id,)).fetchone()[0] >= MAX_QUEUED:
            message = f"There are {MAX_QUEUED} messages waiting here already; your text is kept"
            raise Refused(message, kind="conflict")
        row = db.execute(
            "INSERT INTO queued(conversation_id, content, created_s) VALUES (?, ?, ?) RETURNING *",
            (id, content, time.time()),
        ).fetchone()
        shown = pictures.keep(db, folder, row["id"], uploads, table="queued_picture")
        return _queued(row, shown)


def of_conversation(db: sqlite3.Connection, conversation_id: str) -> list[Queued]:
    """What waits in a conversation, in order."""
    shown = pictures.of_queued(db, conversation_id)
    return [
        _queued(row, shown.get(row["id"], ()))
        for row in db.execute(
            "SELECT * FROM queued WHERE conversation_id = ? ORDER BY id", (conversation_id,)
        )
    ]


def get(db: sqlite3.Connection, queued_id: int) -> Queued:
    """One that waits. Raises Refused conflict when it does not, any more."""
    row = None
    if abs(queued_id) <= rows.MAX_ID:
        row = db.execute("SELECT * FROM queued WHERE id = ?", (queued_id,)).fetchone()
    if row is None:
        message = "This message is not waiting any more: it was sent, edited or removed meanwhile"
        raise Refused(message, kind="conflict")
    shown = pictures.of_queued(db, row["conversation_id"])
    return _queued(row, shown.get(row["id"], ()))


def take(db: sqlite3.Connection, queued_id: int) -> Queued:
    """Takes one out. Raises Refused conflict when it does not wait any more."""
    with transaction(db):
        taken = get(db, queued_id)
        db.execute("DELETE FROM queued WHERE id = ?", (queued_id,))
        return taken


def pause(db: sqlite3.Connection, conversation_id: str, is_paused: bool) -> None:
    """Pauses all of a conversation, or lets them go on."""
    db.execute(
        "UPDATE queued SET is_paused = ? WHERE conversation_id = ?", (is_paused, conversation_id)
    )


def hand_over(db: sqlite3.Connection, queued_id: int, message_id: int) -> None:
    """Makes of one that waits a message that was sent: that gets its pictures. To be called inside
    a transaction. Raises Refused conflict when it does not wait any more."""
    get(db, queued_id)
    db.execute(
        "INSERT INTO message_picture(message_id, position, key, name)"
        " SELECT ?, position, key, name FROM queued_picture WHERE message_id = ?",
        (message_id, queued_id),
    )
    db.execute("DELETE FROM queued WHERE id = ?", (queued_id,))


def _queued(row: sqlite3.Row, shown: tuple[Picture, ...]) -> Queued:
    return Queued(**{**dict(row), "is_paused": bool(row["is_paused"])}, pictures=shown)
