"""Finding words in conversations. On the store's thread.

Words of three characters and more are looked up in an index of all runs of three (FTS5's `trigram
tokenizer <https://sqlite.org/fts5.html#the_trigram_tokenizer>`_), so parts of words are found, and
words of languages that put no space between them. Shorter ones are looked for in the texts.
"""

import itertools
import re
import sqlite3
from collections.abc import Sequence

from msgspec import Struct

from corral.backend.store.records import Conversation, Role

MAX_WORDS = 8
MAX_WORD_CHARS = 100
PAGE_SIZE = 40
#: Characters shown before a hit, and of the whole excerpt.
_BEFORE, _EXCERPT = 40, 160
_INDEXED_CHARS = 3


class Part(Struct, frozen=True):
    """A part of an excerpt; ``is_hit``: it is what was looked for."""

    text: str
    is_hit: bool


class Hit(Struct, frozen=True, kw_only=True):
    """A message that has the words. ``is_shown``: it is on the branch that its conversation
    shows."""

    message_id: int
    role: Role
    created_s: float
    conversation: Conversation
    excerpt: tuple[Part, ...]
    is_shown: bool


class Found(Struct, frozen=True, kw_only=True):
    """What was found: conversations by their title, and messages, newest first. ``before_id`` is
    where to look on, None at the end."""

    titles: tuple[Conversation, ...] = ()
    hits: tuple[Hit, ...] = ()
    before_id: int | None = None


def words(query: str) -> tuple[str, ...]:
    """What a query looks for: its words, all of them; ``"several words"`` in quotes are one."""
    found = (quoted or bare for quoted, bare in re.findall(r'"([^"]+)"|([^\s"]+)', query))
    plain = (" ".join(word.replace("\0", "").split())[:MAX_WORD_CHARS] for word in found)
    return tuple(dict.fromkeys(word for word in plain if word))[:MAX_WORDS]


def search(db: sqlite3.Connection, query: str, before_id: int | None) -> Found:
    """Conversations and messages with all words of a query. Titles come with the first page."""
    wanted = words(query)
    if not wanted:
        return Found()
    found = _messages(db, wanted, before_id)
    page = found[:PAGE_SIZE]
    shown = {id: _shown(db, id) for id in dict.fromkeys(row["conversation_id"] for row in page)}
    return Found(
        titles=_titles(db, wanted) if before_id is None else (),
        hits=tuple(
            Hit(
                message_id=row["id"],
                role=row["role"],
                created_s=row["created_s"],
                conversation=shown[row["conversation_id"]][0],
                excerpt=excerpt(row["content"], wanted),
                is_shown=row["id"] in shown[row["conversation_id"]][1],
            )
            for row in page
        ),
        before_id=page[-1]["id"] if len(found) > PAGE_SIZE else None,
    )


def _messages(
    db: sqlite3.Connection, wanted: Sequence[str], before_id: int | None
) -> list[sqlite3.Row]:
    """One more than a page."""
    indexed = [word for word in wanted if len(word) >= _INDEXED_CHARS]
    short = [word for word in wanted if len(word) < _INDEXED_CHARS]
    match = " AND ".join('"' + word.replace('"', '""') + '"' for word in indexed)
    source, where, values = "message", ["TRUE"], list[object]()
    if indexed:
        # CROSS: the index first, from its end, so that a page costs a page.
        source = "message_text CROSS JOIN message ON message.id = message_text.rowid"
        where, values = ["message_text MATCH ?"], [match]
    if before_id is not None:
        where.append(f"{'message_text.rowid' if indexed else 'message.id'} < ?")
        values.append(before_id)
    for word in short:
        where.append(_has("message.content", word, values))
    return db.execute(
        f"SELECT message.* FROM {source} WHERE {' AND '.join(where)}"
        " AND message.deleted_s IS NULL AND message.conversation_id NOT IN"
        " (SELECT id FROM conversation WHERE deleted_s IS NOT NULL)"
        f" ORDER BY {'message_text.rowid' if indexed else 'message.id'} DESC LIMIT ?",
        (*values, PAGE_SIZE + 1),
    ).fetchall()


def _titles(db: sqlite3.Connection, wanted: Sequence[str]) -> tuple[Conversation, ...]:
    """Conversations by their title: few enough, and short enough, to look through."""
    patterns = [re.compile(re.escape(word), re.IGNORECASE) for word in wanted]
    ids = [
        row["id"]
        for row in db.execute(
            "SELECT id, title FROM conversation WHERE deleted_s IS NULL ORDER BY updated_s DESC"
        )
        if all(pattern.search(row["title"]) for pattern in patterns)
    ][:PAGE_SIZE]
    query = "SELECT * FROM conversation WHERE id = ?"
    return tuple(Conversation(**db.execute(query, (id,)).fetchone()) for id in ids)


def _has(column: str, word: str, values: list[object]) -> str:
    """That a text has a word, in capitals or not; SQLite itself only knows those of ASCII."""
    spelled = {"".join(p) for p in itertools.product(*((c.lower(), c.upper()) for c in word))}
    values += sorted(spelled)
    return "(" + " OR ".join([f"instr({column}, ?)"] * len(spelled)) + ")"


def _shown(db: sqlite3.Connection, conversation_id: str) -> tuple[Conversation, set[int]]:
    """A conversation and the messages of the branch it shows."""
    row = db.execute("SELECT * FROM conversation WHERE id = ?", (conversation_id,)).fetchone()
    path = db.execute(
        "WITH RECURSIVE path(id) AS (SELECT ? UNION ALL"
        " SELECT parent_id FROM message JOIN path USING (id) WHERE parent_id IS NOT NULL)"
        " SELECT id FROM path",
        (row["leaf_id"],),
    )
    return Conversation(**row), {id for (id,) in path}


def excerpt(text: str, wanted: Sequence[str]) -> tuple[Part, ...]:
    """Around the first hit in a text, on one line."""
    pattern = re.compile("|".join(map(re.escape, wanted)), re.IGNORECASE)
    first = pattern.search(text)
    at = max(0, first.start() - _BEFORE) if first else 0
    # Not from within a word, when it begins near.
    start = at and (text.find(" ", at, at + 15) + 1 or at)
    cut = " ".join(text[start : start + _EXCERPT].split())
    cut = f"{'…' if start else ''}{cut}{'…' if start + _EXCERPT < len(text) else ''}"
    parts, end = [], 0
    for hit in pattern.finditer(cut):
        parts += [Part(cut[end : hit.start()], False), Part(hit[0], True)]
        end = hit.end()
    parts.append(Part(cut[end:], False))
    return tuple(part for part in parts if part.text)
