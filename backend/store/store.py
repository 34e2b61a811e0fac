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

from corral.backend.store import pictures, rows, tree
from corral.backend.store.database import Database, transaction
from corral.backend.store.records import (
    Conversation,
    Message,
    Upload,
)


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
        return await self._run(tree.read, conversation_id)

    async def message(self, message_id: int) -> Message:
        """One message. Raises Refused not_found."""
        return await self._run(rows.message, message_id)

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
        """Writes how a running reply stands. One that was deleted meanwhile stays deleted."""
        await self._run(_update_reply, message)

    async def resume_reply(self, message_id: int) -> Message:
        """Marks a reply that has ended as being generated again; its text stays.
        Raises Refused not_found, or conflict when it is running."""
        return await self._run(tree.resume, message_id)

    async def edit(self, message_id: int, version: int, content: str) -> Message:
        """Another text in place; what follows stays, and what was there is kept as a revision.
        Raises Refused not_found, or conflict when it is not at ``version`` or is running."""
        return await self._run(tree.edit, message_id, version, content)

    async def revisions(self, message_id: int) -> Sequence[str]:
        """The texts a message had before, oldest first. Raises Refused not_found."""
        return await self._run(tree.revisions, message_id)

    async def branch(self, message_id: int, content: str, *, model: str) -> tuple[Message, ...]:
        """An alternative to a message with another text, with the same pictures, which becomes the
        leaf; to one of the user's also an empty reply that is being generated. Raises Refused
        not_found."""
        return await self._run(tree.branch, message_id, content, model)

    async def choose(self, message_id: int) -> None:
        """Shows the branch through a message, down to what was written last below it.
        Raises Refused not_found."""
        await self._run(tree.choose, message_id)

    async def fork(self, message_id: int) -> Conversation:
        """A new conversation that begins with a copy of all from the first message to this one.
        Raises Refused not_found."""
        return await self._run(tree.fork, message_id)

    async def delete_message(self, message_id: int) -> None:
        """Takes a message and all below it out of the tree; the nearest alternative, or else what
        came before, is shown. Raises Refused not_found."""
        await self._run(tree.delete, message_id)

    async def restore_message(self, message_id: int) -> Message:
        """Puts back what ``delete_message`` took out, and shows it. Raises Refused not_found."""
        return await self._run(tree.restore, message_id)

    async def tree(self, conversation_id: str) -> Sequence[Message]:
        """All messages of a conversation, each after the one it answers, with its branches in
        order. Raises Refused not_found."""
        return await self._run(tree.everything, conversation_id)

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
    found = db.execute(
        "SELECT * FROM conversation WHERE deleted_s IS NULL ORDER BY updated_s DESC, rowid DESC"
    )
    return [Conversation(**row) for row in found]


def _rename(db: sqlite3.Connection, conversation_id: str, title: str) -> Conversation:
    db.execute("UPDATE conversation SET title = ? WHERE id = ?", (title, conversation_id))
    return rows.conversation(db, conversation_id)


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
        leaf = rows.conversation(db, conversation_id).leaf_id
        said = rows.insert(db, conversation_id, leaf, "user", text)
        shown = pictures.keep(db, folder, said.id, uploads)
        reply = rows.insert(db, conversation_id, said.id, "assistant", "", model=model)
        return replace(said, pictures=shown), reply


def _add_reply(db: sqlite3.Connection, parent_id: int, model: str) -> Message:
    with transaction(db):
        parent = rows.message(db, parent_id)
        return rows.insert(db, parent.conversation_id, parent.id, "assistant", "", model=model)


def _update_reply(db: sqlite3.Connection, message: Message) -> None:
    outcome, figures = message.outcome, message.figures
    db.execute(
        "UPDATE message SET content = ?, reasoning = ?, calls = ?, status = ?, error = ?,"
        " is_cut = ?, is_full = ?, n_prompt = ?, n_cached = ?, n_generated = ?, prompt_ms = ?,"
        " predicted_ms = ?, first_ms = ?, thought_ms = ? WHERE id = ? AND status = 'generating'",
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
