"""Rows of conversations and messages as records. On the store's thread."""

import sqlite3
import time

from msgspec import json

from corral.backend.errors import Refused
from corral.backend.store import pictures
from corral.backend.store.records import (
    Call,
    Conversation,
    Figures,
    Message,
    Outcome,
    Picture,
    Role,
)

#: The largest integer SQLite knows; no id is above it.
MAX_ID = 2**63 - 1
_NO_MESSAGE = "There is no such message; it may have been deleted"


def conversation(db: sqlite3.Connection, conversation_id: str) -> Conversation:
    """One that is not deleted. Raises Refused not_found."""
    found = db.execute(
        "SELECT * FROM conversation WHERE id = ? AND deleted_s IS NULL", (conversation_id,)
    ).fetchone()
    if found is None:
        raise Refused("There is no such conversation; it may have been deleted", kind="not_found")
    return Conversation(**found)


def message(db: sqlite3.Connection, message_id: int) -> Message:
    """One that is not deleted. Raises Refused not_found."""
    found = None
    if abs(message_id) <= MAX_ID:
        found = db.execute(
            "SELECT * FROM message WHERE id = ? AND deleted_s IS NULL AND conversation_id NOT IN"
            " (SELECT id FROM conversation WHERE deleted_s IS NOT NULL)",
            (message_id,),
        ).fetchone()
    if found is None:
        raise Refused(_NO_MESSAGE, kind="not_found")
    return to_message(found, pictures.of_message(db, message_id))


def conversation_of(db: sqlite3.Connection, message_id: int) -> str:
    """The conversation that a message is or was in. Raises Refused not_found."""
    found = None
    if abs(message_id) <= MAX_ID:
        query = "SELECT conversation_id FROM message WHERE id = ?"
        found = db.execute(query, (message_id,)).fetchone()
    if found is None:
        raise Refused(_NO_MESSAGE, kind="not_found")
    return conversation(db, found["conversation_id"]).id


def insert(
    db: sqlite3.Connection,
    conversation_id: str,
    parent_id: int | None,
    role: Role,
    content: str,
    *,
    model: str = "",
    is_done: bool = False,
) -> Message:
    """Adds a message and makes it the leaf of its conversation. A reply is being generated unless
    it ``is_done``."""
    now = time.time()
    status = "generating" if role == "assistant" and not is_done else "done"
    row = db.execute(
        "INSERT INTO message(conversation_id, parent_id, role, status, content, model, created_s)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING *",
        (conversation_id, parent_id, role, status, content, model, now),
    ).fetchone()
    db.execute(
        "UPDATE conversation SET leaf_id = ?, updated_s = ? WHERE id = ?",
        (row["id"], now, conversation_id),
    )
    return to_message(row)


def to_message(
    row: sqlite3.Row, shown: tuple[Picture, ...] = (), siblings: tuple[int, ...] = ()
) -> Message:
    """A row of ``message`` with its pictures and alternatives."""
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
        version=row["version"],
        siblings=siblings,
        label=row["label"],
        settings=row["settings"],
    )
