"""What was sent to the model for a reply, and the tokens that came back. On the store's thread.

For those who look into an answer. The store reads neither, and keeps them compressed, those of the
newest replies: a prompt holds the whole conversation before it, so all of them would grow without
end.
"""

import sqlite3
import time
import zlib

from msgspec import Struct

#: Bytes kept of all traces together, as compressed; beyond them the oldest go.
MAX_BYTES = 64 * 2**20
_LEVEL = 6


class Trace(Struct, frozen=True, kw_only=True):
    """``sent`` to the model, and what it ``said``: empty as long as it has not ended."""

    sent: bytes
    said: bytes = b""


def keep(db: sqlite3.Connection, message_id: int, trace: Trace) -> None:
    """Keeps what a reply was made from, in place of what there was. A reply that was deleted
    meanwhile has none."""
    sent, said = (zlib.compress(part, _LEVEL) if part else b"" for part in (trace.sent, trace.said))
    db.execute(
        "INSERT OR REPLACE INTO trace(message_id, sent, said, n_bytes, kept_s)"
        " SELECT id, ?, ?, ?, ? FROM message WHERE id = ?",
        (sent, said, len(sent) + len(said), time.time(), message_id),
    )
    _bound(db)


def _bound(db: sqlite3.Connection) -> None:
    """Forgets the oldest while there are too many; the newest always stays."""
    if db.execute("SELECT sum(n_bytes) FROM trace").fetchone()[0] <= MAX_BYTES:
        return
    db.execute(
        "DELETE FROM trace WHERE message_id IN (SELECT message_id FROM ("
        " SELECT message_id, row_number() OVER newest AS place, sum(n_bytes) OVER newest AS total"
        " FROM trace WINDOW newest AS (ORDER BY kept_s DESC, message_id DESC)"
        ") WHERE total > ? AND place > 1)",
        (MAX_BYTES,),
    )


def read(db: sqlite3.Connection, message_id: int) -> Trace | None:
    """What is kept of a reply; None when nothing is, or not any more."""
    row = db.execute("SELECT sent, said FROM trace WHERE message_id = ?", (message_id,)).fetchone()
    if row is None:
        return None
    sent, said = (zlib.decompress(part) if part else b"" for part in row)
    return Trace(sent=sent, said=said)
