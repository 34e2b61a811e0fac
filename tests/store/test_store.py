"""The store: nothing a user saved is lost, whatever happens in between."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.backend.errors import Broken, Refused
from corral.backend.store import Figures, Outcome, Store
from corral.backend.store.schema import migrate


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path / "data")
    await store.open()
    yield store
    await store.close()


async def test_a_turn_is_on_disk_before_its_reply_begins(store: Store, tmp_path: Path) -> None:
    conversation = await store.create("Title")
    await store.add_turn(conversation.id, "Hello\n  there ☃", model="m")
    with sqlite3.connect(tmp_path / "data" / "corral.db") as other:
        rows = other.execute("SELECT role, status, content FROM message ORDER BY id").fetchall()
    other.close()
    assert rows == [("user", "done", "Hello\n  there ☃"), ("assistant", "generating", "")]


async def test_a_conversation_reads_back_in_order_with_every_figure(store: Store) -> None:
    conversation = await store.create("Title")
    first, reply = await store.add_turn(conversation.id, "one", model="m")
    figures = Figures(
        n_prompt=7, n_cached=3, n_generated=9, prompt_ms=1.5, predicted_ms=2.5, first_ms=3.5
    )
    outcome = Outcome(status="done", is_cut=True, is_full=True)
    await store.update_reply(replace(reply, content="answer", outcome=outcome, figures=figures))
    await store.add_turn(conversation.id, "two", model="m")
    _, messages = await store.get(conversation.id)
    assert [m.content for m in messages] == ["one", "answer", "two", ""]
    assert messages[0] == replace(first, siblings=(first.id,))
    assert messages[1].outcome == outcome
    assert messages[1].figures == figures
    assert [m.parent_id for m in messages] == [None, *(m.id for m in messages[:3])]


async def test_another_reply_replaces_the_shown_one_and_keeps_it(store: Store) -> None:
    conversation = await store.create("Title")
    said, failed = await store.add_turn(conversation.id, "one", model="m")
    await store.update_reply(
        replace(failed, content="part", outcome=Outcome(status="error", error="no"))
    )
    again = await store.add_reply(said.id, model="m")
    _, messages = await store.get(conversation.id)
    assert [m.id for m in messages] == [said.id, again.id]
    assert (await store.message(failed.id)).content == "part"


async def test_replies_left_running_by_a_crash_are_stopped_and_keep_their_text(
    store: Store, tmp_path: Path
) -> None:
    conversation = await store.create("Title")
    _, reply = await store.add_turn(conversation.id, "one", model="m")
    await store.update_reply(replace(reply, content="half an ans", outcome=Outcome()))
    after = Store(tmp_path / "data")
    await after.open()
    found = await after.message(reply.id)
    await after.close()
    assert (found.outcome.status, found.content) == ("stopped", "half an ans")


async def test_the_conversation_written_to_last_comes_first(store: Store) -> None:
    a, b, c = [await store.create(t) for t in "abc"]
    await store.add_turn(a.id, "x", model="m")
    await store.rename(b.id, "B")
    assert [x.title for x in await store.list()] == ["a", "c", "B"]
    assert c.id != b.id


async def test_a_deleted_conversation_takes_its_messages_and_late_writes_with_it(
    store: Store,
) -> None:
    conversation = await store.create("Title")
    other = await store.create("Other")
    _, reply = await store.add_turn(conversation.id, "x", model="m")
    _, kept = await store.add_turn(other.id, "y", model="m")
    await store.delete(conversation.id)
    await store.update_reply(replace(reply, content="late", outcome=Outcome(status="done")))
    with pytest.raises(Refused, match="deleted"):
        await store.message(reply.id)
    with pytest.raises(Refused, match="deleted"):
        await store.get(conversation.id)
    assert (await store.message(kept.id)).conversation_id == other.id


@pytest.mark.parametrize("what", ["rename", "add_turn", "add_reply"])
async def test_writing_to_what_is_gone_is_refused_as_not_found(store: Store, what: str) -> None:
    with pytest.raises(Refused) as caught:
        match what:
            case "rename":
                await store.rename("gone", "x")
            case "add_turn":
                await store.add_turn("gone", "x", model="m")
            case _:
                await store.add_reply(99, model="m")
    assert caught.value.wire.status == 404
    # The refused transaction must not stay open.
    await store.create("still works")


async def test_nobody_else_may_read_the_folder(store: Store, tmp_path: Path) -> None:
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "data" / "corral.db").stat().st_mode & 0o077 == 0


async def test_a_folder_that_cannot_be_made_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "data")
    with pytest.raises(Broken, match="--data-dir"):
        await store.open()
    await store.close()


@pytest.mark.parametrize("message_id", [2**63, 10**26, -(10**26)])
async def test_an_id_larger_than_the_file_can_hold_is_not_found(
    store: Store, message_id: int
) -> None:
    with pytest.raises(Refused, match="no such message"):
        await store.message(message_id)


async def test_a_file_of_a_newer_version_is_left_alone(store: Store, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "data" / "corral.db") as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    after = Store(tmp_path / "data")
    with pytest.raises(Broken, match="newer version"):
        await after.open()
    await after.close()


def test_a_migration_that_fails_leaves_nothing_behind() -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    steps = ("CREATE TABLE a(x);", "CREATE TABLE b(x); CREATE TABLE a(x);")
    with pytest.raises(sqlite3.OperationalError):
        migrate(db, steps)
    db.execute("ROLLBACK")
    names = [row[0] for row in db.execute("SELECT name FROM sqlite_master")]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    db.close()
    assert (names, version) == (["a"], 1)
