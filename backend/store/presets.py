"""Presets that people have made, by name. What is in one is JSON that the store does not read."""

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from corral.backend.errors import Refused
from corral.backend.store.database import Database, transaction

#: How long what was set aside can be brought back.
KEPT_S = 30 * 24 * 3600


class Preset(Struct, frozen=True, kw_only=True):
    """A preset: ``version`` counts its changes from 1 on, ``updated_s`` is Unix seconds."""

    name: str
    version: int
    body: bytes
    updated_s: float


class Presets:
    """The presets of one data folder. ``open`` it before use and ``close`` it after."""

    def __init__(self, folder: Path) -> None:
        self._database = Database(folder, what="presets")
        self._run = self._database.run

    async def open(self) -> None:
        """Opens or makes the file. Raises Broken when the folder cannot be used."""
        await self._database.open(lambda _: None)

    async def close(self) -> None:
        """Closes the file."""
        await self._database.close()

    async def list(self) -> list[Preset]:
        """All presets by name."""
        return await self._run(_list)

    async def get(self, name: str) -> Preset:
        """One preset. Raises Refused not_found."""
        return await self._run(_get, name)

    async def put(self, name: str, body: bytes, *, version: int | None = None) -> Preset:
        """Makes a preset, or changes it. ``version`` is the one that the change was made to, 0 when
        there must be none yet, None when it does not matter. Raises Refused conflict."""
        return await self._run(_put, name, body, version)

    async def rename(self, name: str, new: str, body: bytes, *, version: int) -> Preset:
        """Gives a preset another name, and to what it is changed with it; what is kept here and
        names it follows. ``version`` is the one that the change was made to. Raises Refused
        not_found, and conflict: about ``name`` when the new one is another's."""
        return await self._run(_rename, name, new, body, version)

    async def delete(self, name: str, *, version: int | None = None) -> None:
        """Forgets a preset; ``version`` as in ``put``. Raises Refused not_found and conflict."""
        await self._run(_delete, name, version)

    async def set_aside(self, name: str, *, version: int | None = None) -> None:
        """As ``delete``, but it can be brought back for a while."""
        await self._run(_set_aside, name, version)

    async def gone(self) -> Sequence[str]:
        """The names of those that can be brought back, the one that was deleted last first."""
        return await self._run(_gone)

    async def bring_back(self, name: str) -> Preset:
        """A preset that was set aside. Raises Refused not_found, or conflict when there is another
        of that name by now."""
        return await self._run(_bring_back, name)


# --- on the store's thread ------------------------------------------------------------------------


def _list(db: sqlite3.Connection) -> list[Preset]:
    return [Preset(**row) for row in db.execute("SELECT * FROM preset ORDER BY name")]


def _find(db: sqlite3.Connection, name: str) -> Preset | None:
    row = db.execute("SELECT * FROM preset WHERE name = ?", (name,)).fetchone()
    return None if row is None else Preset(**row)


def _get(db: sqlite3.Connection, name: str) -> Preset:
    found = _find(db, name)
    if found is None:
        raise Refused(f"There is no preset {name[:100]!r}", kind="not_found")
    return found


def _put(db: sqlite3.Connection, name: str, body: bytes, version: int | None) -> Preset:
    with transaction(db):
        _check(_find(db, name), name, version)
        row = db.execute(
            "INSERT INTO preset(name, version, body, updated_s) VALUES (?, 1, ?, ?)"
            " ON CONFLICT(name) DO UPDATE SET"
            " version = version + 1, body = excluded.body, updated_s = excluded.updated_s"
            " RETURNING *",
            (name, body, time.time()),
        ).fetchone()
        return Preset(**row)


# Where presets are named, in JSON with a member ``preset``: by chats, by answers that were asked
# for with settings of their own, and by batches. Chats count what changes their settings.
_NAMING = (
    ("tuning", "body", ", version = version + 1"),
    ("message", "settings", ""),
    ("batch", "settings", ""),
)


def _rename(db: sqlite3.Connection, name: str, new: str, body: bytes, version: int) -> Preset:
    with transaction(db):
        _check(_find(db, name), name, version)
        if _find(db, new) is not None:
            message = f"name: there is a preset {new[:100]!r} already"
            raise Refused(message, kind="conflict", param="name")
        db.execute(
            "UPDATE preset SET name = ?, version = version + 1, body = ?, updated_s = ?"
            " WHERE name = ?",
            (new, body, time.time(), name),
        )
        for table, column, more in _NAMING:
            text = f"CAST({column} AS TEXT)"  # which is JSON for the functions below; bytes are not
            db.execute(
                f"UPDATE {table} SET"
                f" {column} = CAST(json_set({text}, '$.preset', ?) AS BLOB){more} WHERE"
                f" CASE WHEN json_valid({text}) THEN json_extract({text}, '$.preset') END = ?",
                (new, name),
            )
        return _get(db, new)


def _delete(db: sqlite3.Connection, name: str, version: int | None) -> None:
    with transaction(db):
        _check(_get(db, name), name, version)
        db.execute("DELETE FROM preset WHERE name = ?", (name,))


def _set_aside(db: sqlite3.Connection, name: str, version: int | None) -> None:
    with transaction(db):
        found, now = _get(db, name), time.time()
        _check(found, name, version)
        db.execute("DELETE FROM preset WHERE name = ?", (name,))
        db.execute("DELETE FROM preset_gone WHERE gone_s < ?", (now - KEPT_S,))
        db.execute(
            "INSERT OR REPLACE INTO preset_gone(name, version, body, gone_s) VALUES (?, ?, ?, ?)",
            (name, found.version, found.body, now),
        )


def _gone(db: sqlite3.Connection) -> list[str]:
    since = (time.time() - KEPT_S,)
    query = "SELECT name FROM preset_gone WHERE gone_s >= ? ORDER BY gone_s DESC, name"
    return [row["name"] for row in db.execute(query, since)]


def _bring_back(db: sqlite3.Connection, name: str) -> Preset:
    with transaction(db):
        _check(_find(db, name), name, 0)
        row = db.execute("DELETE FROM preset_gone WHERE name = ? RETURNING *", (name,)).fetchone()
        if row is None:
            raise Refused(f"There is no preset {name[:100]!r} to bring back", kind="not_found")
        db.execute(
            "INSERT INTO preset(name, version, body, updated_s) VALUES (?, ?, ?, ?)",
            (name, row["version"] + 1, row["body"], time.time()),
        )
        return _get(db, name)


def _check(found: Preset | None, name: str, version: int | None) -> None:
    """Raises Refused when somebody else has changed it since."""
    now = 0 if found is None else found.version
    if version is None or version == now:
        return
    what = f"is at version {now}" if now else "is not there"
    message = f"version: the preset {name[:100]!r} {what}, not at version {version}"
    if not version:
        message = f"version: there is a preset {name[:100]!r} already, at version {now}"
    raise Refused(message, kind="conflict", param="version")
