"""Many prompts with one set of settings, worked off one after the other, and their answers.

A batch that ran when the server ended is stopped; what had not ended of it waits again.
"""

import secrets
import sqlite3
import time
from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from corral.backend.errors import Refused
from corral.backend.store.database import Database, transaction

BatchStatus: TypeAlias = Literal["running", "stopped", "done"]
RowStatus: TypeAlias = Literal["waiting", "running", "done", "error"]


class Batch(Struct, frozen=True, kw_only=True):
    """A batch. ``settings`` is JSON that the store does not read; ``label`` says it in words;
    ``error`` why it was stopped, when that was not asked for."""

    id: str
    title: str
    label: str
    settings: bytes
    status: BatchStatus
    error: str
    created_s: float


class BatchRow(Struct, frozen=True, kw_only=True):
    """A prompt of a batch and its answer. ``position`` counts from 1, ``name`` is the id it came
    with, ``messages`` JSON: the conversation to answer. ``is_cut``: a limit ended it."""

    batch_id: str
    position: int
    name: str
    messages: bytes
    status: RowStatus = "waiting"
    answer: str = ""
    reasoning: str = ""
    error: str = ""
    is_cut: int = 0
    n_prompt: int = 0
    n_cached: int = 0
    n_generated: int = 0
    total_ms: float = 0.0


class Counts(Struct, frozen=True, kw_only=True):
    """How many rows of a batch are where, and the tokens generated for them."""

    waiting: int = 0
    running: int = 0
    done: int = 0
    error: int = 0
    n_generated: int = 0

    @property
    def total(self) -> int:
        """All rows."""
        return self.waiting + self.running + self.done + self.error


class Batches:
    """The batches of a data folder, for callers that await them."""

    def __init__(self, database: Database) -> None:
        self._run = database.run

    async def create(
        self, title: str, label: str, settings: bytes, rows: Sequence[tuple[str, bytes]]
    ) -> Batch:
        """A new batch of rows, each a name and its messages; it runs."""
        return await self._run(_create, title, label, settings, rows)

    async def list(self) -> Sequence[tuple[Batch, Counts]]:
        """All batches, the newest first."""
        return await self._run(_list)

    async def get(self, batch_id: str) -> tuple[Batch, Counts]:
        """One batch. Raises Refused not_found."""
        return await self._run(_get, batch_id)

    async def rows(self, batch_id: str, after: int, limit: int) -> Sequence[BatchRow]:
        """Its rows behind a position, in order."""
        return await self._run(_rows, batch_id, after, limit)

    async def row(self, batch_id: str, position: int) -> BatchRow:
        """One row. Raises Refused not_found."""
        return await self._run(_row, batch_id, position)

    async def set_status(self, batch_id: str, status: BatchStatus, error: str = "") -> None:
        """Notes that a batch runs, was stopped, or is done. Rows that were running when it stops
        wait again."""
        await self._run(_set_status, batch_id, status, error)

    async def retry(self, batch_id: str) -> int:
        """Lets rows that failed wait again; how many those are."""
        return await self._run(_retry, batch_id)

    async def take(self, batch_id: str) -> BatchRow | None:
        """The next row that waits, which runs from now on; None when there is none."""
        return await self._run(_take, batch_id)

    async def finish(self, row: BatchRow) -> None:
        """Keeps how a row ended."""
        await self._run(_finish, row)

    async def delete(self, batch_id: str) -> None:
        """Forgets a batch and its rows, for good."""
        await self._run(_delete, batch_id)


# --- on the store's thread ------------------------------------------------------------------------


def sweep(db: sqlite3.Connection) -> None:
    """After a start: what ran is stopped, and its rows wait."""
    db.execute("UPDATE batch SET status = 'stopped' WHERE status = 'running'")
    db.execute("UPDATE batch_row SET status = 'waiting' WHERE status = 'running'")


def _create(
    db: sqlite3.Connection,
    title: str,
    label: str,
    settings: bytes,
    rows: Sequence[tuple[str, bytes]],
) -> Batch:
    with transaction(db):
        id = secrets.token_hex(8)
        row = db.execute(
            "INSERT INTO batch(id, title, label, settings, status, created_s)"
            " VALUES (?, ?, ?, ?, 'running', ?) RETURNING *",
            (id, title, label, settings, time.time()),
        ).fetchone()
        db.executemany(
            "INSERT INTO batch_row(batch_id, position, name, messages) VALUES (?, ?, ?, ?)",
            [(id, n, name, messages) for n, (name, messages) in enumerate(rows, 1)],
        )
        return Batch(**row)


def _counts(db: sqlite3.Connection, batch_id: str) -> Counts:
    query = "SELECT status, count(*), sum(n_generated) FROM batch_row WHERE batch_id = ? GROUP BY 1"
    found = [tuple(row) for row in db.execute(query, (batch_id,))]
    n = {status: n_rows for status, n_rows, _ in found}
    return Counts(**n, n_generated=sum(tokens for _, _, tokens in found))


def _list(db: sqlite3.Connection) -> list[tuple[Batch, Counts]]:
    found = db.execute("SELECT * FROM batch ORDER BY created_s DESC, rowid DESC").fetchall()
    return [(Batch(**row), _counts(db, row["id"])) for row in found]


def _get(db: sqlite3.Connection, batch_id: str) -> tuple[Batch, Counts]:
    row = db.execute("SELECT * FROM batch WHERE id = ?", (batch_id,)).fetchone()
    if row is None:
        raise Refused("There is no such batch; it may have been deleted", kind="not_found")
    return Batch(**row), _counts(db, batch_id)


def _rows(db: sqlite3.Connection, batch_id: str, after: int, limit: int) -> list[BatchRow]:
    query = "SELECT * FROM batch_row WHERE batch_id = ? AND position > ? ORDER BY position LIMIT ?"
    return [BatchRow(**row) for row in db.execute(query, (batch_id, after, limit))]


def _row(db: sqlite3.Connection, batch_id: str, position: int) -> BatchRow:
    query = "SELECT * FROM batch_row WHERE batch_id = ? AND position = ?"
    row = db.execute(query, (batch_id, min(position, 2**31))).fetchone()
    if row is None:
        raise Refused("There is no such row in this batch", kind="not_found")
    return BatchRow(**row)


def _set_status(db: sqlite3.Connection, batch_id: str, status: BatchStatus, error: str) -> None:
    with transaction(db):
        db.execute("UPDATE batch SET status = ?, error = ? WHERE id = ?", (status, error, batch_id))
        if status != "running":
            db.execute(
                "UPDATE batch_row SET status = 'waiting' WHERE batch_id = ? AND status = 'running'",
                (batch_id,),
            )


def _retry(db: sqlite3.Connection, batch_id: str) -> int:
    return db.execute(
        "UPDATE batch_row SET status = 'waiting', error = '' WHERE batch_id = ?"
        " AND status = 'error'",
        (batch_id,),
    ).rowcount


def _take(db: sqlite3.Connection, batch_id: str) -> BatchRow | None:
    row = db.execute(
        "UPDATE batch_row SET status = 'running' WHERE batch_id = ? AND position = ("
        "SELECT min(position) FROM batch_row WHERE batch_id = ? AND status = 'waiting')"
        " RETURNING *",
        (batch_id, batch_id),
    ).fetchone()
    return None if row is None else BatchRow(**row)


def _finish(db: sqlite3.Connection, row: BatchRow) -> None:
    db.execute(
        "UPDATE batch_row SET status = ?, answer = ?, reasoning = ?, error = ?, is_cut = ?,"
        " n_prompt = ?, n_cached = ?, n_generated = ?, total_ms = ?"
        " WHERE batch_id = ? AND position = ?",
        (
            row.status,
            row.answer,
            row.reasoning,
            row.error,
            row.is_cut,
            row.n_prompt,
            row.n_cached,
            row.n_generated,
            row.total_ms,
            row.batch_id,
            row.position,
        ),
    )


def _delete(db: sqlite3.Connection, batch_id: str) -> None:
    db.execute("DELETE FROM batch WHERE id = ?", (batch_id,))
