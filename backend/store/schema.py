"""The tables, as the steps that led to them. Append a step, never change one."""

import sqlite3

from corral.backend.errors import Broken

MIGRATIONS = (
    """
    CREATE TABLE conversation (
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL,
        leaf_id INTEGER REFERENCES message(id) ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED,
        created_s REAL NOT NULL,
        updated_s REAL NOT NULL
    ) STRICT;
    CREATE INDEX conversation_by_time ON conversation(updated_s DESC);
    CREATE TABLE message (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        conversation_id TEXT NOT NULL REFERENCES conversation(id) ON DELETE CASCADE,
        parent_id INTEGER REFERENCES message(id) ON DELETE CASCADE,
        role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
        status TEXT NOT NULL CHECK (status IN ('generating', 'done', 'stopped', 'error')),
        content TEXT NOT NULL DEFAULT '',
        error TEXT NOT NULL DEFAULT '',
        is_cut INTEGER NOT NULL DEFAULT 0,
        is_full INTEGER NOT NULL DEFAULT 0,
        model TEXT NOT NULL DEFAULT '',
        n_prompt INTEGER NOT NULL DEFAULT 0,
        n_cached INTEGER NOT NULL DEFAULT 0,
        n_generated INTEGER NOT NULL DEFAULT 0,
        prompt_ms REAL NOT NULL DEFAULT 0,
        predicted_ms REAL NOT NULL DEFAULT 0,
        first_ms REAL NOT NULL DEFAULT 0,
        created_s REAL NOT NULL
    ) STRICT;
    CREATE INDEX message_by_conversation ON message(conversation_id);
    CREATE INDEX message_by_parent ON message(parent_id);
    CREATE INDEX message_running ON message(id) WHERE status = 'generating';
    """,
    # No foreign key on previous_id: an answer outlives the one it followed.
    """
    CREATE TABLE response (
        id TEXT PRIMARY KEY,
        previous_id TEXT,
        body BLOB NOT NULL,
        used_s REAL NOT NULL
    ) STRICT;
    CREATE INDEX response_by_time ON response(used_s);
    CREATE TABLE response_item (
        response_id TEXT NOT NULL REFERENCES response(id) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        is_output INTEGER NOT NULL,
        id TEXT NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (response_id, position)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX response_item_by_id ON response_item(id);
    """,
    # A picture itself is a file, see ``pictures``; ``small`` is a WebP, ``calls`` JSON.
    """
    CREATE TABLE picture (
        key TEXT PRIMARY KEY,
        media_type TEXT NOT NULL,
        n_bytes INTEGER NOT NULL,
        width INTEGER NOT NULL,
        height INTEGER NOT NULL,
        small BLOB NOT NULL
    ) STRICT;
    CREATE TABLE message_picture (
        message_id INTEGER NOT NULL REFERENCES message(id) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        key TEXT NOT NULL REFERENCES picture(key),
        name TEXT NOT NULL,
        PRIMARY KEY (message_id, position)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX message_picture_by_key ON message_picture(key);
    ALTER TABLE message ADD COLUMN reasoning TEXT NOT NULL DEFAULT '';
    ALTER TABLE message ADD COLUMN calls BLOB NOT NULL DEFAULT x'5b5d';
    ALTER TABLE message ADD COLUMN thought_ms REAL NOT NULL DEFAULT 0;
    """,
    # ``version`` counts changes, so that a page that is behind cannot undo them unseen; what was
    # there before an edit is a revision. What was deleted can be brought back for a while.
    """
    ALTER TABLE conversation ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE conversation ADD COLUMN is_pinned INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE conversation ADD COLUMN deleted_s REAL;
    ALTER TABLE message ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE message ADD COLUMN deleted_s REAL;
    CREATE TABLE revision (
        message_id INTEGER NOT NULL REFERENCES message(id) ON DELETE CASCADE,
        version INTEGER NOT NULL,
        content TEXT NOT NULL,
        created_s REAL NOT NULL,
        PRIMARY KEY (message_id, version)
    ) STRICT, WITHOUT ROWID;
    """,
    # What a person has set for requests to name; ``body`` is JSON.
    """
    CREATE TABLE preset (
        name TEXT PRIMARY KEY,
        version INTEGER NOT NULL,
        body BLOB NOT NULL,
        updated_s REAL NOT NULL
    ) STRICT;
    """,
)


def migrate(db: sqlite3.Connection, migrations: tuple[str, ...] = MIGRATIONS) -> None:
    """Brings a database to the newest shape; each step happens whole or not at all.

    Raises Broken when a newer Corral has written it: its data must not be touched.
    """
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > len(migrations):
        raise Broken(
            "the conversations were written by a newer version of Corral "
            f"(format {version}, this one knows {len(migrations)}); use that one, "
            "or another folder with --data-dir"
        )
    for number, script in enumerate(migrations[version:], start=version + 1):
        db.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;")
