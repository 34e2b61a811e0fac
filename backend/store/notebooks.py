"""Texts that go on by themselves: each is a document, and how it was before and after each time the
model wrote in it, so that this can be undone and done again.

A page writes under a name of its own, its *editor*; one that is behind another's is refused.
"""

import secrets
import sqlite3
import time
from typing import Literal, TypeAlias

from msgspec import Struct, json

from corral.backend.errors import Refused
from corral.backend.store.database import Database, transaction

Status: TypeAlias = Literal["generating", "done", "stopped", "error"]
#: Steps that can be undone; older ones are forgotten.
MAX_STEPS = 50


class Notebook(Struct, frozen=True, kw_only=True):
    """A document. ``version`` counts changes, ``editor`` made the last one. ``step`` is the one
    shown, of those from ``first_step`` to ``last_step``. ``settings``: what the form has,
    as it was typed. ``error``: why the last text broke off."""

    id: str
    title: str
    text: str
    settings: dict[str, str]
    step: int
    first_step: int
    last_step: int
    status: Status
    error: str
    version: int
    editor: str
    updated_s: float


class Page(Struct, frozen=True, kw_only=True):
    """What a page has when it writes: the ``version`` that it was loaded with, its name, and what
    is in its form."""

    version: int
    editor: str
    text: str
    settings: dict[str, str] = {}


class Notebooks:
    """The notebooks of a data folder, for callers that await them. Every method that has an id
    raises Refused not_found."""

    def __init__(self, database: Database) -> None:
        self._run = database.run

    async def create(self, *, settings: dict[str, str]) -> Notebook:
        """An empty one."""
        return await self._run(_create, settings)

    async def list(self) -> list[Notebook]:
        """All of them, the one last written to first; of each text only the beginning."""
        return await self._run(_list)

    async def get(self, id: str) -> Notebook:
        """One of them."""
        return await self._run(_get, id)

    async def rename(self, id: str, title: str) -> None:
        """Gives it another title."""
        await self._run(_rename, id, title)

    async def delete(self, id: str) -> None:
        """Removes it for good. One that is not there is no error."""
        await self._run(_delete, id)

    async def save(self, id: str, page: Page) -> Notebook:
        """Keeps what a page has; what is there already is no change. Raises Refused conflict when
        another page has written since, or the model is writing."""
        return await self._run(_save, id, page)

    async def begin(self, id: str, page: Page) -> Notebook:
        """Keeps what a page has, and begins a new step with it in which the model writes; steps
        that were undone are forgotten. Raises as ``save``."""
        return await self._run(_begin, id, page)

    async def grow(self, id: str, step: int, text: str) -> None:
        """The text so far of the step in which the model writes. A notebook that is gone, or whose
        step is over, stays as it is."""
        await self._run(_grow, id, step, text)

    async def finish(self, id: str, step: int, text: str, status: Status, error: str) -> None:
        """The step is over. One that added nothing is taken back. See ``grow``."""
        await self._run(_finish, id, step, text, status, error)

    async def move(self, id: str, page: Page, by: Literal[-1, 1]) -> Notebook:
        """Keeps what a page has, and shows the step before or after. Where there is none, nothing
        moves. Raises as ``save``."""
        return await self._run(_move, id, page, by)


def prepare(db: sqlite3.Connection) -> None:
    """Marks what a crash left running as stopped."""
    db.execute("UPDATE notebook SET status = 'stopped' WHERE status = 'generating'")


# --- on the store's thread ------------------------------------------------------------------------

_SELECT = """
    SELECT notebook.id, title, {text} AS text, settings, notebook.step AS step,
        (SELECT min(step) FROM notebook_step WHERE notebook_id = notebook.id) AS first_step,
        (SELECT max(step) FROM notebook_step WHERE notebook_id = notebook.id) AS last_step,
        status, error, version, editor, updated_s
    FROM notebook JOIN notebook_step AS s ON s.notebook_id = notebook.id AND s.step = notebook.step
"""
_WHOLE, _BEGINNING = _SELECT.format(text="s.text"), _SELECT.format(text="substr(s.text, 1, 300)")


def _notebook(row: sqlite3.Row) -> Notebook:
    settings = json.decode(row["settings"], type=dict[str, str])
    return Notebook(**{**dict(row), "settings": settings})


def _create(db: sqlite3.Connection, settings: dict[str, str]) -> Notebook:
    id, now = secrets.token_hex(8), time.time()
    with transaction(db):
        db.execute(
            "INSERT INTO notebook(id, settings, created_s, updated_s) VALUES (?, ?, ?, ?)",
            (id, json.encode(settings), now, now),
        )
        db.execute("INSERT INTO notebook_step(notebook_id, step, text) VALUES (?, 1, '')", (id,))
        return _get(db, id)


def _list(db: sqlite3.Connection) -> list[Notebook]:
    found = db.execute(f"{_BEGINNING} ORDER BY updated_s DESC, notebook.rowid DESC")
    return [_notebook(row) for row in found]


def _get(db: sqlite3.Connection, id: str) -> Notebook:
    row = db.execute(f"{_WHOLE} WHERE notebook.id = ?", (id,)).fetchone()
    if row is None:
        raise Refused("There is no such notebook; it may have been deleted", kind="not_found")
    return _notebook(row)


def _rename(db: sqlite3.Connection, id: str, title: str) -> None:
    _get(db, id)
    db.execute("UPDATE notebook SET title = ? WHERE id = ?", (title, id))


def _delete(db: sqlite3.Connection, id: str) -> None:
    db.execute("DELETE FROM notebook WHERE id = ?", (id,))


def _save(db: sqlite3.Connection, id: str, page: Page) -> Notebook:
    with transaction(db):
        there = _get(db, id)
        if (page.text, page.settings) == (there.text, there.settings):
            return there
        _keep(db, id, page)
        return _get(db, id)


def _keep(db: sqlite3.Connection, id: str, page: Page) -> Notebook:
    """The notebook as it was; what the page has is in its step now."""
    there = _get(db, id)
    is_behind = page.version != there.version and page.editor != there.editor
    if is_behind or there.status == "generating":
        what = "The model is writing in it" if not is_behind else "It was changed on another page"
        message = f"{what}; load this page again, and copy your text before"
        raise Refused(message, kind="conflict")
    db.execute(
        "UPDATE notebook SET version = version + 1, editor = ?, settings = ?, updated_s = ?"
        " WHERE id = ?",
        (page.editor, json.encode(page.settings), time.time(), id),
    )
    _write(db, id, there.step, page.text)
    return there


def _write(db: sqlite3.Connection, id: str, step: int, text: str) -> None:
    where = "WHERE notebook_id = ? AND step = ?"
    db.execute(f"UPDATE notebook_step SET text = ? {where}", (text, id, step))


def _begin(db: sqlite3.Connection, id: str, page: Page) -> Notebook:
    with transaction(db):
        step = _keep(db, id, page).step + 1
        db.execute(
            "DELETE FROM notebook_step WHERE notebook_id = ? AND (step >= ? OR step < ?)",
            (id, step, step - MAX_STEPS),
        )
        db.execute(
            "INSERT INTO notebook_step(notebook_id, step, text) VALUES (?, ?, ?)",
            (id, step, page.text),
        )
        db.execute(
            "UPDATE notebook SET step = ?, status = 'generating', error = '' WHERE id = ?",
            (step, id),
        )
        return _get(db, id)


def _is_writing(db: sqlite3.Connection, id: str, step: int) -> bool:
    found = db.execute(
        "SELECT 1 FROM notebook WHERE id = ? AND step = ? AND status = 'generating'", (id, step)
    )
    return found.fetchone() is not None


def _grow(db: sqlite3.Connection, id: str, step: int, text: str) -> None:
    with transaction(db):
        if _is_writing(db, id, step):
            _write(db, id, step, text)


def _finish(
    db: sqlite3.Connection, id: str, step: int, text: str, status: Status, error: str
) -> None:
    with transaction(db):
        if not _is_writing(db, id, step):
            return
        _write(db, id, step, text)
        db.execute(
            "UPDATE notebook SET version = version + 1, status = ?, error = ?, updated_s = ?"
            " WHERE id = ?",
            (status, error, time.time(), id),
        )
        same = db.execute(
            "DELETE FROM notebook_step AS s WHERE notebook_id = ? AND step = ? AND text ="
            " (SELECT text FROM notebook_step WHERE notebook_id = ? AND step = ?)",
            (id, step, id, step - 1),
        )
        if same.rowcount:
            db.execute("UPDATE notebook SET step = ? WHERE id = ?", (step - 1, id))


def _move(db: sqlite3.Connection, id: str, page: Page, by: int) -> Notebook:
    with transaction(db):
        there = _keep(db, id, page)
        step = min(max(there.step + by, there.first_step), there.last_step)
        db.execute(
            "UPDATE notebook SET step = ?, status = 'done', error = '' WHERE id = ?", (step, id)
        )
        return _get(db, id)
