"""What is being written and not sent yet: one draft for each place.

A place is a conversation, or the new chat of one browser (``new-`` and what that calls itself).
Every page that was loaded writes under a token of its own; a token whose text was sent is spent, so
that what a slow network brings late does not come back.
"""

import hashlib
import sqlite3
import time

from msgspec import Struct

from corral.backend.store import rows
from corral.backend.store.database import Database, transaction

#: How places begin that are no conversation.
NEW = "new-"
#: Drafts of new chats that nobody came back for are forgotten after this.
KEPT_S = 90 * 24 * 3600.0


class Draft(Struct, frozen=True, kw_only=True):
    """A draft; ``token`` is that of the page that wrote it last."""

    content: str = ""
    token: str = ""

    @property
    def mark(self) -> str:
        """What a page that was loaded with it knows it by: other text has another mark, though the
        same page wrote it. Empty when there is no draft."""
        digest = hashlib.sha256(self.content.encode()).hexdigest()[:12]
        return f"{self.token}-{digest}" if self.token else ""


class Drafts:
    """The drafts of a data folder, for callers that await them."""

    def __init__(self, database: Database) -> None:
        self._run = database.run

    async def get(self, place: str) -> Draft:
        """The draft of a place, which may be empty."""
        return await self._run(get, place)

    async def save(self, place: str, token: str, was: str, content: str) -> None:
        """See ``save`` below. Raises Refused not_found."""
        await self._run(save, place, token, was, content)

    async def spend(self, place: str, token: str, was: str, content: str) -> None:
        """See ``spend`` below. Raises Refused not_found."""
        await self._run(spend, place, token, was, content)


# --- on the store's thread ------------------------------------------------------------------------


def get(db: sqlite3.Connection, place: str) -> Draft:
    """The draft of a place, which may be empty."""
    row = db.execute("SELECT content, token FROM draft WHERE place = ?", (place,)).fetchone()
    return Draft() if row is None else Draft(**row)


def save(db: sqlite3.Connection, place: str, token: str, was: str, content: str) -> None:
    """What a page's box has now; ``was`` is the mark of the draft it was loaded with. An empty box
    empties no draft that another page wrote since. Raises Refused not_found."""
    with transaction(db):
        id = None if place.startswith(NEW) else rows.conversation(db, place).id
        row = db.execute("SELECT spent FROM draft WHERE place = ?", (place,)).fetchone()
        if row is not None and token == row["spent"]:
            return
        old = get(db, place)
        if not content and row is not None and token != old.token and was != old.mark:
            return
        _write(db, place, id, content=content, token=token)


def spend(db: sqlite3.Connection, place: str, token: str, was: str, content: str) -> None:
    """Notes that a page has sent its text: that draft is gone, and so is the one that it was loaded
    with (``was``); one that another page wrote since stays. Raises Refused not_found."""
    with transaction(db):
        id = None if place.startswith(NEW) else rows.conversation(db, place).id
        old = get(db, place)
        if old.token == token or old.mark == was or old.content.strip() == content.strip():
            old = Draft()
        _write(db, place, id, content=old.content, token=old.token)
        db.execute("UPDATE draft SET spent = ? WHERE place = ?", (token, place))


def _write(db: sqlite3.Connection, place: str, id: str | None, *, content: str, token: str) -> None:
    now = time.time()
    db.execute(
        "INSERT INTO draft(place, conversation_id, content, token, updated_s)"
        " VALUES (?, ?, ?, ?, ?) ON CONFLICT(place) DO UPDATE SET"
        " content = excluded.content, token = excluded.token, updated_s = excluded.updated_s",
        (place, id, content, token, now),
    )
    db.execute("DELETE FROM draft WHERE conversation_id IS NULL AND updated_s < ?", (now - KEPT_S,))
