"""Whole conversations, for taking out of a data folder and bringing into one."""

import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, json

from corral.backend.store import pictures, rows, tree, tunings
from corral.backend.store.database import Database, transaction
from corral.backend.store.records import Conversation, Message, Upload


class Bundle(Struct, frozen=True, kw_only=True):
    """A conversation with all its branches. Of ``conversation`` the title, pin, times and leaf
    count; ``messages`` come after those they answer, oldest first, and refer to each other by their
    ids, which are other ones after they were brought in. ``uploads`` are the pictures of messages,
    empty of a bundle that was taken out. ``settings`` as in ``tunings``."""

    conversation: Conversation
    messages: Sequence[Message]
    uploads: Mapping[int, Sequence[Upload]] = {}
    settings: bytes = b"{}"


class Bundles:
    """The conversations of a data folder as bundles."""

    def __init__(self, database: Database, pictures_folder: Path) -> None:
        self._run = database.run
        self._folder = pictures_folder

    async def take(self, conversation_id: str) -> Bundle:
        """A conversation as a whole. Raises Refused not_found."""
        return await self._run(take, conversation_id)

    async def bring(self, bundles: Sequence[Bundle]) -> Sequence[Conversation]:
        """Keeps all of them as new conversations, or none when that does not work."""
        return await self._run(bring, self._folder, bundles)


# --- on the store's thread ------------------------------------------------------------------------


def take(db: sqlite3.Connection, conversation_id: str) -> Bundle:
    """A conversation as a whole. Raises Refused not_found."""
    return Bundle(
        conversation=rows.conversation(db, conversation_id),
        messages=sorted(tree.everything(db, conversation_id), key=lambda m: m.id),
        settings=tunings.read(db, conversation_id).body,
    )


def bring(db: sqlite3.Connection, folder: Path, bundles: Sequence[Bundle]) -> list[Conversation]:
    """Keeps all of them, or none."""
    with transaction(db):
        return [_bring(db, folder, bundle) for bundle in bundles]


def _bring(db: sqlite3.Connection, folder: Path, bundle: Bundle) -> Conversation:
    old, id = bundle.conversation, secrets.token_hex(8)
    db.execute(
        "INSERT INTO conversation(id, title, created_s, updated_s, is_pinned)"
        " VALUES (?, ?, ?, ?, ?)",
        (id, old.title, old.created_s, old.updated_s, old.is_pinned),
    )
    ids: dict[int | None, int | None] = {None: None}
    for m in bundle.messages:
        ids[m.id] = _insert(db, id, ids[m.parent_id], m)
        pictures.keep(db, folder, ids[m.id] or 0, bundle.uploads.get(m.id, ()))
    db.execute("UPDATE conversation SET leaf_id = ? WHERE id = ?", (ids[old.leaf_id], id))
    if bundle.settings != b"{}":
        db.execute(
            "INSERT INTO tuning(conversation_id, version, body) VALUES (?, 1, ?)",
            (id, bundle.settings),
        )
    return rows.conversation(db, id)


def _insert(
    db: sqlite3.Connection, conversation_id: str, parent_id: int | None, m: Message
) -> int | None:
    values = {
        "conversation_id": conversation_id,
        "parent_id": parent_id,
        "role": m.role,
        "content": m.content,
        "reasoning": m.reasoning,
        "calls": json.encode(m.calls),
        "model": m.model,
        "label": m.label,
        "created_s": m.created_s,
        "status": m.outcome.status,
        "error": m.outcome.error,
        "is_cut": m.outcome.is_cut,
        "is_full": m.outcome.is_full,
        "n_prompt": m.figures.n_prompt,
        "n_cached": m.figures.n_cached,
        "n_generated": m.figures.n_generated,
        "prompt_ms": m.figures.prompt_ms,
        "predicted_ms": m.figures.predicted_ms,
        "first_ms": m.figures.first_ms,
        "thought_ms": m.figures.thought_ms,
    }
    return db.execute(
        f"INSERT INTO message({', '.join(values)}) VALUES ({', '.join('?' * len(values))})",
        tuple(values.values()),
    ).lastrowid
