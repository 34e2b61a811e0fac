"""Conversations in SQLite. One thread owns the connection; callers await it.

The other rooms see records, never rows. What a user has sent is on disk before anything else
happens with it. Every method raises Broken when the disk does not do its part.
"""

import secrets
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import json
from msgspec.structs import replace

from corral.backend.errors import Refused
from corral.backend.store import pictures
from corral.backend.store.database import Database, transaction
from corral.backend.store.records import (
    Call,
    Conversation,
    Figures,
    Message,
    Outcome,
    Picture,
    Role,
    Upload,
)

#: The largest integer SQLite knows; no id is above it.
_MAX_ID = 2**63 - 1

_PATH_TO_ROOT = """
    WITH RECURSIVE path(id, depth) AS (
        SELECT leaf_id, 0 FROM conversation WHERE id = ? AND leaf_id IS NOT NULL
        UNION ALL
        SELECT parent_id, depth + 1 FROM message JOIN path USING (id) WHERE parent_id IS NOT NULL
    )
    SELECT message.* FROM path JOIN message USING (id) ORDER BY depth DESC
"""


class Store:
    """The conversations of one data folder. ``open`` it before use and ``close`` it after."""

    def __init__(self, folder: Path) -> None:
        self._pictures = folder / pictures.FOLDER_NAME
        self._database = Database(folder, what="conversations")
        self._run = self._database.run

    async def open(self) -> None:
        """Opens or makes the file, marks replies a crash left running as stopped, and deletes
        pictures that no message has.

        Raises Broken when the folder cannot be used.
        """
        await self._database.open(self._prepare)

    async def close(self) -> None:
        """Closes the file."""
        await self._database.close()

    async def create(self, title: str) -> Conversation:
        """A new conversation without messages."""
        return await self._run(_create, title)

    async def get(self, conversation_id: str) -> tuple[Conversation, list[Message]]:
        """A conversation and its messages from the first to the leaf. Raises Refused not_found."""
        return await self._run(_get, conversation_id)

    async def message(self, message_id: int) -> Message:
        """One message. Raises Refused not_found."""
        return await self._run(_message, message_id)

    async def rename(self, conversation_id: str, title: str) -> Conversation:
        """Gives it another title. Raises Refused not_found."""
        return await self._run(_rename, conversation_id, title)

    async def delete(self, conversation_id: str) -> None:
        """Removes it, its messages and pictures that no other has, for good. One that is not there
        is no error."""
        await self._run(_delete, conversation_id)
        await self._run(pictures.sweep, self._pictures)

    async def add_turn(
        self, conversation_id: str, text: str, *, model: str, uploads: Sequence[Upload] = ()
    ) -> tuple[Message, Message]:
        """Adds what the user said after the leaf, with its pictures, and an empty reply that is
        being generated. Returns both. Raises Refused not_found."""
        return await self._run(
            _add_turn, conversation_id, text, model, folder=self._pictures, uploads=uploads
        )

    async def add_reply(self, parent_id: int, *, model: str) -> Message:
        """Adds another empty reply to a user's message and makes it the leaf; those there were stay
        in the tree. Raises Refused not_found."""
        return await self._run(_add_reply, parent_id, model)

    async def update_reply(self, message: Message) -> None:
        """Writes how a reply stands. One that was deleted meanwhile stays deleted."""
        await self._run(_update_reply, message)

    async def picture(self, key: str) -> tuple[str, bytes]:
        """Media type and bytes of a picture. Raises Refused not_found."""
        return await self._run(pictures.read, self._pictures, key)

    async def thumbnail(self, key: str) -> bytes:
        """A picture made small, a WebP. Raises Refused not_found."""
        return await self._run(pictures.small, key)

    async def list(self) -> list[Conversation]:
        """All conversations, the one last written to first."""
        return await self._run(_list)

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute("UPDATE message SET status = 'stopped' WHERE status = 'generating'")
        pictures.sweep(db, self._pictures)


# --- on the store's thread ------------------------------------------------------------------------


def _create(db: sqlite3.Connection, title: str) -> Conversation:
    now = time.time()
    row = db.execute(
        "INSERT INTO conversation(id, title, created_s, updated_s) VALUES (?, ?, ?, ?) RETURNING *",
        (secrets.token_hex(8), title, now, now),
    ).fetchone()
    return Conversation(**row)


def _list(db: sqlite3.Connection) -> list[Conversation]:
    rows = db.execute("SELECT * FROM conversation ORDER BY updated_s DESC, rowid DESC")
    return [Conversation(**row) for row in rows]


def _conversation(db: sqlite3.Connection, conversation_id: str) -> Conversation:
    found = db.execute("SELECT * FROM conversation WHERE id = ?", (conversation_id,)).fetchone()
    if found is None:
        raise Refused("There is no such conversation; it may have been deleted", kind="not_found")
    return Conversation(**found)


def _get(db: sqlite3.Connection, conversation_id: str) -> tuple[Conversation, list[Message]]:
    conversation = _conversation(db, conversation_id)
    rows = db.execute(_PATH_TO_ROOT, (conversation_id,)).fetchall()
    shown = pictures.of_conversation(db, conversation_id)
    return conversation, [_to_message(row, shown.get(row["id"], ())) for row in rows]


def _message(db: sqlite3.Connection, message_id: int) -> Message:
    found = None
    if abs(message_id) <= _MAX_ID:
        found = db.execute("SELECT * FROM message WHERE id = ?", (message_id,)).fetchone()
    if found is None:
        raise Refused("There is no such message; it may have been deleted", kind="not_found")
    return _to_message(found, pictures.of_message(db, message_id))


def _rename(db: sqlite3.Connection, conversation_id: str, title: str) -> Conversation:
    db.execute("UPDATE conversation SET title = ? WHERE id = ?", (title, conversation_id))
    return _conversation(db, conversation_id)


def _delete(db: sqlite3.Connection, conversation_id: str) -> None:
    db.execute("DELETE FROM conversation WHERE id = ?", (conversation_id,))


def _add_turn(
    db: sqlite3.Connection,
    conversation_id: str,
    text: str,
    model: str,
    *,
    folder: Path,
    uploads: Sequence[Upload],
) -> tuple[Message, Message]:
    with transaction(db):
        leaf = _conversation(db, conversation_id).leaf_id
        said = _insert(db, conversation_id, leaf, "user", text)
        shown = pictures.keep(db, folder, said.id, uploads)
        reply = _insert(db, conversation_id, said.id, "assistant", "", model=model)
        return replace(said, pictures=shown), reply


def _add_reply(db: sqlite3.Connection, parent_id: int, model: str) -> Message:
    with transaction(db):
        parent = _message(db, parent_id)
        return _insert(db, parent.conversation_id, parent.id, "assistant", "", model=model)


def _insert(
    db: sqlite3.Connection,
    conversation_id: str,
    parent_id: int | None,
    role: Role,
    content: str,
    *,
    model: str = "",
) -> Message:
    """Adds a message and makes it the leaf of its conversation."""
    now = time.time()
    status = "generating" if role == "assistant" else "done"
    row = db.execute(
        "INSERT INTO message(conversation_id, parent_id, role, status, content, model, created_s)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING *",
        (conversation_id, parent_id, role, status, content, model, now),
    ).fetchone()
    db.execute(
        "UPDATE conversation SET leaf_id = ?, updated_s = ? WHERE id = ?",
        (row["id"], now, conversation_id),
    )
    return _to_message(row)


def _update_reply(db: sqlite3.Connection, message: Message) -> None:
    outcome, figures = message.outcome, message.figures
    db.execute(
        "UPDATE message SET content = ?, reasoning = ?, calls = ?, status = ?, error = ?,"
        " is_cut = ?, is_full = ?, n_prompt = ?, n_cached = ?, n_generated = ?, prompt_ms = ?,"
        " predicted_ms = ?, first_ms = ?, thought_ms = ? WHERE id = ?",
        (
            message.content,
            message.reasoning,
            json.encode(message.calls),
            outcome.status,
            outcome.error,
            outcome.is_cut,
            outcome.is_full,
            figures.n_prompt,
            figures.n_cached,
            figures.n_generated,
            figures.prompt_ms,
            figures.predicted_ms,
            figures.first_ms,
            figures.thought_ms,
            message.id,
        ),
    )


def _to_message(row: sqlite3.Row, shown: tuple[Picture, ...] = ()) -> Message:
    return Message(
        id=row["id"],
        conversation_id=row["conversation_id"],
        parent_id=row["parent_id"],
        role=row["role"],
        content=row["content"],
        pictures=shown,
        reasoning=row["reasoning"],
        calls=json.decode(row["calls"], type=tuple[Call, ...]),
        model=row["model"],
        outcome=Outcome(
            status=row["status"],
            error=row["error"],
            is_cut=bool(row["is_cut"]),
            is_full=bool(row["is_full"]),
        ),
        figures=Figures(
            n_prompt=row["n_prompt"],
            n_cached=row["n_cached"],
            n_generated=row["n_generated"],
            prompt_ms=row["prompt_ms"],
            predicted_ms=row["predicted_ms"],
            first_ms=row["first_ms"],
            thought_ms=row["thought_ms"],
        ),
        created_s=row["created_s"],
    )
