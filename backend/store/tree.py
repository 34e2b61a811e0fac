"""The tree of a conversation: branches, edits, what is shown of it. On the store's thread.

Replies to the same message are alternatives, and so are first messages. Nothing that was written is
lost: an edit leaves a revision, and what is deleted can be put back.
"""

import secrets
import sqlite3
import time

from corral.backend.errors import Refused
from corral.backend.store import pictures, rows, tunings
from corral.backend.store.database import transaction
from corral.backend.store.records import Conversation, Message

#: From a message up to the first one.
_PATH = """
    WITH RECURSIVE path(id, depth) AS (
        SELECT ?, 0
        UNION ALL
        SELECT parent_id, depth + 1 FROM message JOIN path USING (id) WHERE parent_id IS NOT NULL
    )
    SELECT message.* FROM path JOIN message USING (id) ORDER BY depth DESC
"""
#: A message and everything below it.
_BELOW = """
    WITH RECURSIVE below(id) AS (
        SELECT ?
        UNION ALL
        SELECT message.id FROM message JOIN below ON message.parent_id = below.id
    )
"""
_RUNNING = "A reply is still being written there. Wait for it, or stop it first"


def read(db: sqlite3.Connection, conversation_id: str) -> tuple[Conversation, list[Message]]:
    """A conversation and the messages of the branch shown. Raises Refused not_found."""
    conversation = rows.conversation(db, conversation_id)
    shown = pictures.of_conversation(db, conversation_id)
    siblings = _siblings(db, conversation_id)
    return conversation, [
        rows.to_message(row, shown.get(row["id"], ()), tuple(siblings[row["parent_id"]]))
        for row in db.execute(_PATH, (conversation.leaf_id,))
    ]


def path(db: sqlite3.Connection, message_id: int) -> list[Message]:
    """The messages from the first to this one. Raises Refused not_found."""
    wanted = rows.message(db, message_id)
    shown = pictures.of_conversation(db, wanted.conversation_id)
    return [
        rows.to_message(row, shown.get(row["id"], ())) for row in db.execute(_PATH, (wanted.id,))
    ]


def everything(db: sqlite3.Connection, conversation_id: str) -> list[Message]:
    """All messages, depth first. Raises Refused not_found."""
    rows.conversation(db, conversation_id)
    shown = pictures.of_conversation(db, conversation_id)
    siblings = _siblings(db, conversation_id)
    found = {
        row["id"]: row
        for row in db.execute(
            "SELECT * FROM message WHERE conversation_id = ? AND deleted_s IS NULL",
            (conversation_id,),
        )
    }
    ordered: list[Message] = []
    left = list(reversed(siblings.get(None, [])))
    while left:
        row = found[left.pop()]
        alternatives = tuple(siblings[row["parent_id"]])
        ordered.append(rows.to_message(row, shown.get(row["id"], ()), alternatives))
        left += reversed(siblings.get(row["id"], []))
    return ordered


def _siblings(db: sqlite3.Connection, conversation_id: str) -> dict[int | None, list[int]]:
    """The ids of the messages below each message, oldest first; below None the first ones."""
    found: dict[int | None, list[int]] = {}
    for id, parent_id in db.execute(
        "SELECT id, parent_id FROM message WHERE conversation_id = ? AND deleted_s IS NULL"
        " ORDER BY id",
        (conversation_id,),
    ):
        found.setdefault(parent_id, []).append(id)
    return found


def edit(db: sqlite3.Connection, message_id: int, version: int, content: str) -> Message:
    """Another text in place. Raises Refused not_found or conflict."""
    with transaction(db):
        old = _at_rest(db, message_id)
        if old.version != version:
            message = "This message was changed elsewhere meanwhile; load the page again to see it"
            raise Refused(message, kind="conflict")
        if old.content == content:
            return old
        db.execute(
            "INSERT INTO revision(message_id, version, content, created_s) VALUES (?, ?, ?, ?)",
            (old.id, old.version, old.content, time.time()),
        )
        db.execute(
            "UPDATE message SET content = ?, version = version + 1 WHERE id = ?", (content, old.id)
        )
        return rows.message(db, message_id)


def revisions(db: sqlite3.Connection, message_id: int) -> list[str]:
    """The texts a message had before, oldest first. Raises Refused not_found."""
    rows.message(db, message_id)
    query = "SELECT content FROM revision WHERE message_id = ? ORDER BY version"
    return [row["content"] for row in db.execute(query, (message_id,))]


def resume(db: sqlite3.Connection, message_id: int) -> Message:
    """Marks a reply as running again: its text will be another one, so it has another version.
    Raises Refused not_found or conflict."""
    with transaction(db):
        reply = _at_rest(db, message_id)
        if reply.role != "assistant":
            raise Refused("Only a reply can be continued")
        db.execute(
            "UPDATE message SET status = 'generating', error = '', is_cut = 0, is_full = 0,"
            " version = version + 1 WHERE id = ?",
            (reply.id,),
        )
        return rows.message(db, message_id)


def branch(
    db: sqlite3.Connection, message_id: int, content: str, model: str
) -> tuple[Message, ...]:
    """An alternative with another text. Raises Refused not_found."""
    with transaction(db):
        old = rows.message(db, message_id)
        new = rows.insert(
            db, old.conversation_id, old.parent_id, old.role, content, model=old.model, is_done=True
        )
        _copy_pictures(db, old.id, new.id)
        new = rows.message(db, new.id)
        if old.role == "assistant":
            return (new,)
        return new, rows.insert(db, old.conversation_id, new.id, "assistant", "", model=model)


def choose(db: sqlite3.Connection, message_id: int) -> None:
    """Shows the branch through a message. Raises Refused not_found."""
    with transaction(db):
        chosen = rows.message(db, message_id)
        id = rows.conversation(db, chosen.conversation_id).id
        db.execute("UPDATE conversation SET columns_id = NULL WHERE id = ?", (id,))
        _show(db, id, _newest_below(db, chosen.id))


def _newest_below(db: sqlite3.Connection, message_id: int) -> int:
    """What was written last below a message, or itself. Ids grow with time, and along a branch."""
    newest = db.execute(
        f"{_BELOW} SELECT max(id) FROM below JOIN message USING (id) WHERE deleted_s IS NULL",
        (message_id,),
    ).fetchone()[0]
    return int(newest)


def _show(db: sqlite3.Connection, conversation_id: str, leaf_id: int | None) -> None:
    db.execute("UPDATE conversation SET leaf_id = ? WHERE id = ?", (leaf_id, conversation_id))


def fork(db: sqlite3.Connection, message_id: int) -> Conversation:
    """A new conversation from a copy of a path. Raises Refused not_found."""
    with transaction(db):
        last = _at_rest(db, message_id)
        title, now = rows.conversation(db, last.conversation_id).title, time.time()
        id = secrets.token_hex(8)
        db.execute(
            "INSERT INTO conversation(id, title, created_s, updated_s) VALUES (?, ?, ?, ?)",
            (id, title, now, now),
        )
        parent_id: int | None = None
        for row in db.execute(_PATH, (last.id,)).fetchall():
            changed = {"id": None, "conversation_id": id, "parent_id": parent_id}
            values = {**dict(row), **changed}
            parent_id = db.execute(
                f"INSERT INTO message({', '.join(values)}) VALUES ({', '.join('?' * len(values))})",
                tuple(values.values()),
            ).lastrowid
            assert parent_id is not None
            _copy_pictures(db, row["id"], parent_id)
        tunings.copy(db, last.conversation_id, id)
        _show(db, id, parent_id)
        return rows.conversation(db, id)


def _copy_pictures(db: sqlite3.Connection, from_id: int, to_id: int) -> None:
    db.execute(
        "INSERT INTO message_picture(message_id, position, key, name)"
        " SELECT ?, position, key, name FROM message_picture WHERE message_id = ?",
        (to_id, from_id),
    )


def delete(db: sqlite3.Connection, message_id: int) -> None:
    """Takes a message and all below it out of the tree. Raises Refused not_found, or conflict while
    a reply is being written there."""
    with transaction(db):
        gone = rows.message(db, message_id)
        below = f"id IN ({_BELOW} SELECT id FROM below)"
        query = f"SELECT 1 FROM message WHERE status = 'generating' AND {below}"
        if db.execute(query, (gone.id,)).fetchone():
            raise Refused(_RUNNING, kind="conflict")
        db.execute(
            f"UPDATE message SET deleted_s = ? WHERE deleted_s IS NULL AND {below}",
            (time.time(), gone.id),
        )
        query = f"{_BELOW} SELECT 1 FROM below WHERE id = ?"
        leaf_id = rows.conversation(db, gone.conversation_id).leaf_id
        if db.execute(query, (gone.id, leaf_id)).fetchone():
            _show(db, gone.conversation_id, _instead_of(db, gone))


def _instead_of(db: sqlite3.Connection, gone: Message) -> int | None:
    """The leaf to show when a branch is gone: that of the alternative written just before it, or of
    the one just after; else what it followed."""
    nearest = db.execute(
        "SELECT id FROM message WHERE conversation_id = ? AND parent_id IS ? AND deleted_s IS NULL"
        " ORDER BY id > ?, abs(id - ?) LIMIT 1",
        (gone.conversation_id, gone.parent_id, gone.id, gone.id),
    ).fetchone()
    return gone.parent_id if nearest is None else _newest_below(db, nearest["id"])


def restore(db: sqlite3.Connection, message_id: int) -> Message:
    """Puts back what was taken out with a message. Raises Refused not_found."""
    with transaction(db):
        row = None
        if abs(message_id) <= rows.MAX_ID:
            query = "SELECT deleted_s, parent_id FROM message WHERE id = ?"
            row = db.execute(query, (message_id,)).fetchone()
        if row is not None and row["deleted_s"] is not None:
            if row["parent_id"] is not None:
                rows.message(db, row["parent_id"])
            db.execute(
                "UPDATE message SET deleted_s = NULL"
                f" WHERE deleted_s = ? AND id IN ({_BELOW} SELECT id FROM below)",
                (row["deleted_s"], message_id),
            )
        found = rows.message(db, message_id)
        _show(db, found.conversation_id, _newest_below(db, found.id))
        return found


def _at_rest(db: sqlite3.Connection, message_id: int) -> Message:
    """A message that nobody is writing. Raises Refused not_found or conflict."""
    found = rows.message(db, message_id)
    if found.outcome.status == "generating":
        raise Refused(_RUNNING, kind="conflict")
    return found
