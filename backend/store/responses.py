"""Answers of the Responses API, kept so that others may follow them. Items are JSON of the API.

Kept for 30 days after they were last asked for or followed, or until they are deleted.
"""

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from corral.backend.errors import Refused
from corral.backend.store.database import Database, transaction

KEPT_S = 30 * 24 * 3600.0

_CHAIN = """
    WITH RECURSIVE chain(id, depth) AS (
        VALUES (?, 0)
        UNION ALL
        SELECT previous_id, depth + 1 FROM chain JOIN response USING (id)
        WHERE previous_id IS NOT NULL
    )
    SELECT chain.id AS id, response.id IS NULL AS is_gone
    FROM chain LEFT JOIN response USING (id) ORDER BY depth DESC
"""


class Item(Struct, frozen=True):
    """Something said to the model or by it: its id, and its JSON."""

    id: str
    body: bytes


class Turn(Struct, frozen=True, kw_only=True):
    """One answer: its JSON, what was said for it, and what came. ``previous_id`` is the answer it
    followed."""

    id: str
    previous_id: str | None
    body: bytes
    inputs: Sequence[Item]
    outputs: Sequence[Item]


class Responses:
    """The answers of one data folder. ``open`` it before use and ``close`` it after."""

    def __init__(self, folder: Path) -> None:
        self._database = Database(folder, what="responses")
        self._run = self._database.run

    async def open(self) -> None:
        """Opens or makes the file, and forgets what has been kept long enough. Raises Broken when
        the folder cannot be used."""
        await self._database.open(_expire)

    async def close(self) -> None:
        """Closes the file."""
        await self._database.close()

    async def put(self, turn: Turn) -> None:
        """Keeps an answer."""
        await self._run(_put, turn)

    async def body(self, response_id: str) -> bytes:
        """An answer's JSON. Raises Refused not_found."""
        return await self._run(_body, response_id)

    async def inputs(self, response_id: str) -> list[Item]:
        """What was said for an answer, in order. Raises Refused not_found."""
        return await self._run(_inputs, response_id)

    async def context(self, response_id: str) -> list[bytes]:
        """All items of an answer and of those it followed, in order.

        Raises Refused previous_response_not_found when it or one of those is not there.
        """
        return await self._run(_context, response_id)

    async def item(self, item_id: str) -> bytes:
        """The item of that name; the newest when there are several. Raises Refused not_found."""
        return await self._run(_item, item_id)

    async def delete(self, response_id: str) -> None:
        """Forgets an answer and its items. Raises Refused not_found."""
        await self._run(_delete, response_id)


# --- on the store's thread ------------------------------------------------------------------------


def _expire(db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM response WHERE used_s < ?", (time.time() - KEPT_S,))


def _put(db: sqlite3.Connection, turn: Turn) -> None:
    items = [(item, False) for item in turn.inputs] + [(item, True) for item in turn.outputs]
    with transaction(db):
        _expire(db)
        db.execute(
            "INSERT INTO response(id, previous_id, body, used_s) VALUES (?, ?, ?, ?)",
            (turn.id, turn.previous_id, turn.body, time.time()),
        )
        db.executemany(
            "INSERT INTO response_item(response_id, position, is_output, id, body)"
            " VALUES (?, ?, ?, ?, ?)",
            [(turn.id, i, is_out, item.id, item.body) for i, (item, is_out) in enumerate(items)],
        )


def _touch(db: sqlite3.Connection, ids: Sequence[str]) -> None:
    now = time.time()
    db.executemany("UPDATE response SET used_s = ? WHERE id = ?", [(now, name) for name in ids])


def _missing(response_id: str) -> Refused:
    return Refused(f"There is no response {response_id[:100]!r}", kind="not_found")


def _body(db: sqlite3.Connection, response_id: str) -> bytes:
    row = db.execute("SELECT body FROM response WHERE id = ?", (response_id,)).fetchone()
    if row is None:
        raise _missing(response_id)
    _touch(db, [response_id])
    return bytes(row["body"])


def _inputs(db: sqlite3.Connection, response_id: str) -> list[Item]:
    _body(db, response_id)
    rows = db.execute(
        "SELECT id, body FROM response_item WHERE response_id = ? AND NOT is_output"
        " ORDER BY position",
        (response_id,),
    )
    return [Item(row["id"], row["body"]) for row in rows]


def _context(db: sqlite3.Connection, response_id: str) -> list[bytes]:
    chain = db.execute(_CHAIN, (response_id,)).fetchall()
    for row in chain:
        if row["is_gone"]:
            raise Refused(
                f"Previous response with id {row['id'][:100]!r} not found.",
                kind="previous_response_not_found",
                param="previous_response_id",
            )
    ids = [row["id"] for row in chain]
    with transaction(db):
        _touch(db, ids)
    query = "SELECT body FROM response_item WHERE response_id = ? ORDER BY position"
    return [row["body"] for name in ids for row in db.execute(query, (name,))]


def _item(db: sqlite3.Connection, item_id: str) -> bytes:
    row = db.execute(
        "SELECT response_item.body AS body FROM response_item JOIN response"
        " ON response.id = response_id WHERE response_item.id = ?"
        " ORDER BY response.rowid DESC, position DESC LIMIT 1",
        (item_id,),
    ).fetchone()
    if row is None:
        raise Refused(f"There is no item {item_id[:100]!r}", kind="not_found")
    return bytes(row["body"])


def _delete(db: sqlite3.Connection, response_id: str) -> None:
    if db.execute("DELETE FROM response WHERE id = ?", (response_id,)).rowcount == 0:
        raise _missing(response_id)
