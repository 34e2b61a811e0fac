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
    # What a reply was made from, and its tokens, compressed; see ``traces``.
    """
    CREATE TABLE trace (
        message_id INTEGER PRIMARY KEY REFERENCES message(id) ON DELETE CASCADE,
        sent BLOB NOT NULL,
        said BLOB NOT NULL,
        n_bytes INTEGER NOT NULL,
        kept_s REAL NOT NULL
    ) STRICT;
    CREATE INDEX trace_by_time ON trace(kept_s, n_bytes);
    """,
    # What a conversation sets for its replies; ``body`` is JSON.
    """
    CREATE TABLE tuning (
        conversation_id TEXT PRIMARY KEY REFERENCES conversation(id) ON DELETE CASCADE,
        version INTEGER NOT NULL,
        body BLOB NOT NULL
    ) STRICT;
    """,
    # A draft is of a conversation, or of a browser's new chat. What is queued is sent in order when
    # the reply that runs has ended well.
    """
    CREATE TABLE draft (
        place TEXT PRIMARY KEY,
        conversation_id TEXT REFERENCES conversation(id) ON DELETE CASCADE,
        content TEXT NOT NULL,
        token TEXT NOT NULL,
        spent TEXT NOT NULL DEFAULT '',
        updated_s REAL NOT NULL
    ) STRICT;
    CREATE INDEX draft_by_conversation ON draft(conversation_id);
    CREATE TABLE queued (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        conversation_id TEXT NOT NULL REFERENCES conversation(id) ON DELETE CASCADE,
        content TEXT NOT NULL,
        is_paused INTEGER NOT NULL DEFAULT 0,
        created_s REAL NOT NULL
    ) STRICT;
    CREATE INDEX queued_by_conversation ON queued(conversation_id);
    CREATE TABLE queued_picture (
        message_id INTEGER NOT NULL REFERENCES queued(id) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        key TEXT NOT NULL REFERENCES picture(key),
        name TEXT NOT NULL,
        PRIMARY KEY (message_id, position)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX queued_picture_by_key ON queued_picture(key);
    """,
    # ``columns_id``: the user's message whose replies are shown side by side until one is kept.
    # ``label``: what a reply was asked for with, where several were compared.
    """
    ALTER TABLE conversation ADD COLUMN columns_id INTEGER;
    ALTER TABLE message ADD COLUMN label TEXT NOT NULL DEFAULT '';
    """,
    # The order of the list; and an index of the texts of messages that nobody is writing, so that a
    # running reply, which is saved every second, costs nothing there. The index keeps no texts: it
    # must be told the one that goes as it was.
    """
    DROP INDEX conversation_by_time;
    CREATE INDEX conversation_by_place ON conversation(is_pinned DESC, updated_s DESC, id DESC)
        WHERE deleted_s IS NULL;
    CREATE VIRTUAL TABLE message_text USING fts5(
        content, content = 'message', content_rowid = 'id', tokenize = 'trigram'
    );
    INSERT INTO message_text(rowid, content)
        SELECT id, content FROM message WHERE status <> 'generating';
    CREATE TRIGGER message_text_new AFTER INSERT ON message WHEN new.status <> 'generating' BEGIN
        INSERT INTO message_text(rowid, content) VALUES (new.id, new.content);
    END;
    CREATE TRIGGER message_text_gone AFTER DELETE ON message WHEN old.status <> 'generating' BEGIN
        INSERT INTO message_text(message_text, rowid, content)
            VALUES ('delete', old.id, old.content);
    END;
    CREATE TRIGGER message_text_other AFTER UPDATE OF content, status ON message
    WHEN (old.status = 'generating') <> (new.status = 'generating')
        OR (new.status <> 'generating' AND new.content <> old.content) BEGIN
        INSERT INTO message_text(message_text, rowid, content)
            SELECT 'delete', old.id, old.content WHERE old.status <> 'generating';
        INSERT INTO message_text(rowid, content)
            SELECT new.id, new.content WHERE new.status <> 'generating';
    END;
    """,
    # Presets that were deleted on a page, which can bring them back.
    """
    CREATE TABLE preset_gone (
        name TEXT PRIMARY KEY,
        version INTEGER NOT NULL,
        body BLOB NOT NULL,
        gone_s REAL NOT NULL
    ) STRICT;
    """,
    # Documents that the model goes on with, and how they were before and after each time it did.
    """
    CREATE TABLE notebook (
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL DEFAULT '',
        settings BLOB NOT NULL,
        step INTEGER NOT NULL DEFAULT 1,
        status TEXT NOT NULL DEFAULT 'done'
            CHECK (status IN ('generating', 'done', 'stopped', 'error')),
        error TEXT NOT NULL DEFAULT '',
        version INTEGER NOT NULL DEFAULT 1,
        editor TEXT NOT NULL DEFAULT '',
        created_s REAL NOT NULL,
        updated_s REAL NOT NULL
    ) STRICT;
    CREATE TABLE notebook_step (
        notebook_id TEXT NOT NULL REFERENCES notebook(id) ON DELETE CASCADE,
        step INTEGER NOT NULL,
        text TEXT NOT NULL,
        PRIMARY KEY (notebook_id, step)
    ) STRICT;
    """,
    # What a reply was asked for with where that is not what its conversation sets; JSON.
    """
    ALTER TABLE message ADD COLUMN settings BLOB NOT NULL DEFAULT x'';
    """,
    # Many prompts with one set of settings; ``messages`` and ``settings`` are JSON.
    """
    CREATE TABLE batch (
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL,
        label TEXT NOT NULL,
        settings BLOB NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('running', 'stopped', 'done')),
        error TEXT NOT NULL DEFAULT '',
        created_s REAL NOT NULL
    ) STRICT;
    CREATE TABLE batch_row (
        batch_id TEXT NOT NULL REFERENCES batch(id) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        name TEXT NOT NULL,
        messages BLOB NOT NULL,
        status TEXT NOT NULL DEFAULT 'waiting'
            CHECK (status IN ('waiting', 'running', 'done', 'error')),
        answer TEXT NOT NULL DEFAULT '',
        reasoning TEXT NOT NULL DEFAULT '',
        error TEXT NOT NULL DEFAULT '',
        is_cut INTEGER NOT NULL DEFAULT 0,
        n_prompt INTEGER NOT NULL DEFAULT 0,
        n_cached INTEGER NOT NULL DEFAULT 0,
        n_generated INTEGER NOT NULL DEFAULT 0,
        total_ms REAL NOT NULL DEFAULT 0,
        PRIMARY KEY (batch_id, position)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX batch_row_by_status ON batch_row(batch_id, status, position);
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
