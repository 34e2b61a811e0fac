"""Pictures of messages: a file each, named by what is in it, beside the database that knows them.

On the store's thread. Files come and go inside a transaction that writes, so that another process
at the same folder never takes one away that is just being referred to.
"""

import logging
import os
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from corral.backend.errors import Refused
from corral.backend.store.database import transaction
from corral.backend.store.records import Picture, Upload

log = logging.getLogger("corral.store")

FOLDER_NAME = "pictures"
#: Files that are ours; ``.new`` is not written to its end.
_OURS = re.compile(r"[0-9a-f]{64}(\.new)?")
_GONE = "There is no such picture; it may have been deleted"


def keep(
    db: sqlite3.Connection,
    folder: Path,
    message_id: int,
    uploads: Sequence[Upload],
    table: str = "message_picture",
) -> tuple[Picture, ...]:
    """Gives a message its pictures, or by ``table`` one that is queued; to be called inside a
    transaction."""
    for position, upload in enumerate(uploads):
        p = upload.picture
        _write(folder / p.key, upload.data)
        db.execute(
            "INSERT INTO picture(key, media_type, n_bytes, width, height, small)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (p.key, p.media_type, p.n_bytes, p.width, p.height, upload.small),
        )
        db.execute(
            f"INSERT INTO {table}(message_id, position, key, name) VALUES (?, ?, ?, ?)",
            (message_id, position, p.key, p.name),
        )
    return tuple(upload.picture for upload in uploads)


def of_conversation(db: sqlite3.Connection, conversation_id: str) -> dict[int, tuple[Picture, ...]]:
    """The pictures of a conversation by message, in order."""
    return _by_message(
        db, "message_id IN (SELECT id FROM message WHERE conversation_id = ?)", conversation_id
    )


def of_message(db: sqlite3.Connection, message_id: int) -> tuple[Picture, ...]:
    """The pictures of a message, in order."""
    return _by_message(db, "message_id = ?", message_id).get(message_id, ())


def of_queued(db: sqlite3.Connection, conversation_id: str) -> dict[int, tuple[Picture, ...]]:
    """The pictures of what is queued in a conversation."""
    where = "message_id IN (SELECT id FROM queued WHERE conversation_id = ?)"
    return _by_message(db, where, conversation_id, table="queued_picture")


def _by_message(
    db: sqlite3.Connection, where: str, value: str | int, table: str = "message_picture"
) -> dict[int, tuple[Picture, ...]]:
    found: dict[int, tuple[Picture, ...]] = {}
    for row in db.execute(
        "SELECT message_id, key, name, media_type, n_bytes, width, height"
        f" FROM {table} JOIN picture USING (key) WHERE {where}"
        " ORDER BY message_id, position",
        (value,),
    ):
        message_id, *values = row
        picture = Picture(**dict(zip(row.keys()[1:], values, strict=True)))
        found[message_id] = (*found.get(message_id, ()), picture)
    return found


def read(db: sqlite3.Connection, folder: Path, key: str) -> tuple[str, bytes]:
    """Media type and bytes of a picture. Raises Refused not_found."""
    row = db.execute("SELECT media_type FROM picture WHERE key = ?", (key,)).fetchone()
    if row is None:
        raise Refused(_GONE, kind="not_found")
    try:
        return row["media_type"], (folder / key).read_bytes()
    except FileNotFoundError:
        message = f"The file {FOLDER_NAME}/{key} is gone from the server's data folder"
        raise Refused(message, kind="not_found") from None


def small(db: sqlite3.Connection, key: str) -> bytes:
    """A picture made small. Raises Refused not_found."""
    row = db.execute("SELECT small FROM picture WHERE key = ?", (key,)).fetchone()
    if row is None:
        raise Refused(_GONE, kind="not_found")
    return bytes(row["small"])


def sweep(db: sqlite3.Connection, folder: Path) -> None:
    """Deletes the pictures that no message has any more, and files that nobody knows."""
    with transaction(db):
        db.execute(
            "DELETE FROM picture WHERE key NOT IN"
            " (SELECT key FROM message_picture UNION SELECT key FROM queued_picture)"
        )
        known = {row["key"] for row in db.execute("SELECT key FROM picture")}
        for path in folder.glob("*"):
            if path.name in known or not _OURS.fullmatch(path.name):
                continue
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # tried again at the next start
                log.warning("cannot delete %s: %s", path, error)


def _write(path: Path, data: bytes) -> None:
    """A file with this content, whole on disk before any row says so."""
    if path.exists() and path.stat().st_size == len(data):
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    part = path.with_suffix(".new")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
