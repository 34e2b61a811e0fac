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

from corral.backend.store import (
    batches,
    columns,
    listing,
    notebooks,
    pictures,
    queue,
    rows,
    search,
    traces,
    tree,
    tunings,
)
from corral.backend.store.batches import Batches
from corral.backend.store.bundles import Bundles
from corral.backend.store.database import Database, transaction
from corral.backend.store.drafts import Drafts
from corral.backend.store.notebooks import Notebooks
from corral.backend.store.queue import Queue
from corral.backend.store.records import (
    Conversation,
    Message,
    Upload,
)
from corral.backend.store.search import Found
from corral.backend.store.traces import Trace
from corral.backend.store.tunings import Tuned


class Store:
    """The conversations of one data folder. ``open`` it before use and ``close`` it after."""

    def __init__(self, folder: Path) -> None:
        self._pictures = folder / pictures.FOLDER_NAME
        self._database = Database(folder, what="conversations")
        self._run = self._database.run
        #: What is being written, and what waits to be sent.
        self.drafts = Drafts(self._database)
        self.batches = Batches(self._database)
        self.queue = Queue(self._database, self._pictures)
        #: Documents, which have no conversation.
        self.notebooks = Notebooks(self._database)
        #: Whole conversations, to take out and bring in.
        self.bundles = Bundles(self._database, self._pictures)

    async def open(self) -> None:
        """Opens or makes the file, marks replies a crash left running as stopped, and deletes
        for good what was deleted long ago and pictures that no message has.

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

    async def conversation_of(self, message_id: int) -> str:
        """The id of the conversation that a message is in, or was until it was deleted. Raises
        Refused not_found."""
        return await self._run(rows.conversation_of, message_id)

    async def rename(
        self, conversation_id: str, title: str, version: int | None = None
    ) -> Conversation:
        """Gives it another title. Raises Refused not_found, or conflict when it is not at
        ``version``."""
        return await self._run(listing.rename, conversation_id, title, version)

    async def pin(self, conversation_id: str, is_pinned: bool) -> Conversation:
        """Pins it to the head of the list, or not. Raises Refused not_found."""
        return await self._run(listing.pin, conversation_id, is_pinned)

    async def delete(self, conversation_id: str) -> None:
        """Takes it out of the list; for 30 days it can be brought back. One that is not there is no
        error."""
        await self._run(listing.delete, conversation_id)

    async def restore(self, conversation_id: str) -> Conversation:
        """Brings back what was deleted. Raises Refused not_found."""
        return await self._run(listing.restore, conversation_id)

    async def deleted(self) -> Sequence[Conversation]:
        """Those that can be brought back, the one deleted last first."""
        return await self._run(listing.deleted)

    async def forget(self, conversation_id: str) -> None:
        """Deletes for good, with its messages and pictures that no other has, one that was
        deleted. One that is not there is no error."""
        await self._run(listing.forget, conversation_id)
        await self._run(pictures.sweep, self._pictures)

    async def add_turn(
        self,
        conversation_id: str,
        text: str,
        *,
        model: str,
        uploads: Sequence[Upload] = (),
        queued_id: int | None = None,
    ) -> tuple[Message, Message]:
        """Adds what the user said after the leaf, with its pictures, and an empty reply that is
        being generated. Returns both. ``queued_id``: it waited, and does not any more. Raises
        Refused not_found, or conflict when it was not waiting."""
        return await self._run(
            _add_turn,
            conversation_id,
            text,
            model,
            folder=self._pictures,
            uploads=uploads,
            queued_id=queued_id,
        )

    async def add_reply(self, parent_id: int, *, model: str) -> Message:
        """Adds another empty reply to a user's message and makes it the leaf; those there were stay
        in the tree. Raises Refused not_found."""
        return await self._run(_add_reply, parent_id, model)

    async def add_replies(self, parent_id: int, n: int, *, model: str) -> tuple[Message, ...]:
        """Adds ``n`` empty replies to a user's message, to be shown side by side with those that
        run there; the first that runs becomes the leaf. Raises Refused not_found."""
        return await self._run(columns.add, parent_id, n, model)

    async def label(self, message_id: int, words: str, settings: bytes) -> Message:
        """Notes what a reply was asked for with. Raises Refused not_found."""
        return await self._run(columns.label, message_id, words, settings)

    async def show_columns(self, message_id: int) -> Message:
        """Shows a reply and its alternatives side by side until one is chosen. Raises Refused."""
        return await self._run(columns.show, message_id)

    async def columns(self, conversation_id: str) -> tuple[Message, ...]:
        """The replies that are shown side by side, oldest first. Raises Refused not_found."""
        return await self._run(columns.read, conversation_id)

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

    async def keep_trace(self, message_id: int, trace: Trace) -> None:
        """Keeps what a reply was made from, in place of what there was; see ``traces``."""
        await self._run(traces.keep, message_id, trace)

    async def trace(self, message_id: int) -> Trace | None:
        """What a reply was made from; None when that is not kept, or not any more."""
        return await self._run(traces.read, message_id)

    async def path(self, message_id: int) -> Sequence[Message]:
        """The messages from the first to this one. Raises Refused not_found."""
        return await self._run(tree.path, message_id)

    async def tuning(self, conversation_id: str) -> Tuned:
        """The settings of a conversation. Raises Refused not_found."""
        return await self._run(tunings.read, conversation_id)

    async def tune(self, conversation_id: str, version: int, body: bytes) -> Tuned:
        """Gives a conversation other settings, made from those of ``version``. Raises Refused
        not_found, or conflict when they are not at that version."""
        return await self._run(tunings.write, conversation_id, version, body)

    async def search(self, query: str, before_id: int | None = None) -> Found:
        """What has all words of a query; ``before_id`` of the page before goes on from there."""
        return await self._run(search.search, query, before_id)

    async def list(
        self, after: listing.Place | None = None, limit: int = listing.PAGE_SIZE + 1
    ) -> list[Conversation]:
        """Conversations that come after a place: pinned ones, then by the time last written to. One
        more than a page, which shows whether there are more."""
        return await self._run(listing.page, after, limit)

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute("UPDATE message SET status = 'stopped' WHERE status = 'generating'")
        db.execute("UPDATE queued SET is_paused = 1")
        notebooks.prepare(db)
        batches.sweep(db)
        listing.purge(db)
        pictures.sweep(db, self._pictures)


# --- on the store's thread ------------------------------------------------------------------------


def _create(db: sqlite3.Connection, title: str) -> Conversation:
    now = time.time()
    row = db.execute(
        "INSERT INTO conversation(id, title, created_s, updated_s) VALUES (?, ?, ?, ?) RETURNING *",
        (secrets.token_hex(8), title, now, now),
    ).fetchone()
    return Conversation(**row)


def _add_turn(
    db: sqlite3.Connection,
    conversation_id: str,
    text: str,
    model: str,
    *,
    folder: Path,
    uploads: Sequence[Upload],
    queued_id: int | None,
) -> tuple[Message, Message]:
    with transaction(db):
        leaf = rows.conversation(db, conversation_id).leaf_id
        said = rows.insert(db, conversation_id, leaf, "user", text)
        shown = pictures.keep(db, folder, said.id, uploads)
        if queued_id is not None:
            queue.hand_over(db, queued_id, said.id)
            shown = pictures.of_message(db, said.id)
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
