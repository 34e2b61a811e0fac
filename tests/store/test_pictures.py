"""Pictures of messages: there as long as a message has them, on disk no longer than that."""

import asyncio
import hashlib
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.backend.errors import Broken, Refused
from corral.backend.store import Picture, Store, Upload
from corral.backend.store.schema import MIGRATIONS, migrate


def upload(data: bytes, name: str = "a.png") -> Upload:
    key = hashlib.sha256(data).hexdigest()
    picture = Picture(
        key=key, name=name, media_type="image/png", n_bytes=len(data), width=3, height=2
    )
    return Upload(picture=picture, data=data, small=b"small " + data)


ONE, TWO = upload(b"one", "one.png"), upload(b"two", "two.png")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path)
    await store.open()
    yield store
    await store.close()


def files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "pictures").glob("*")}


async def say(store: Store, *uploads: Upload) -> str:
    conversation = await store.create("t")
    await store.add_turn(conversation.id, "look", model="m", uploads=uploads)
    return conversation.id


async def test_pictures_come_back_with_their_message_in_order(store: Store) -> None:
    again = upload(b"one", "the same, named otherwise.png")
    conversation = await store.create("t")
    said, reply = await store.add_turn(conversation.id, "x", model="m", uploads=[TWO, ONE, again])
    await store.add_turn(conversation.id, "y", model="m")
    expected = (TWO.picture, ONE.picture, again.picture)
    assert said.pictures == expected
    assert (await store.message(said.id)).pictures == expected
    _, messages = await store.get(conversation.id)
    assert [m.pictures for m in messages] == [expected, (), (), ()]
    assert (await store.message(reply.id)).pictures == ()


async def test_a_picture_is_the_same_file_as_it_came_readable_by_its_owner_only(
    store: Store, tmp_path: Path
) -> None:
    await say(store, ONE)
    assert await store.picture(ONE.picture.key) == ("image/png", b"one")
    assert await store.thumbnail(ONE.picture.key) == b"small one"
    path = tmp_path / "pictures" / ONE.picture.key
    assert path.read_bytes() == b"one"
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


async def test_a_deleted_conversation_takes_the_pictures_that_no_other_has(
    store: Store, tmp_path: Path
) -> None:
    first, second = await say(store, ONE, TWO), await say(store, TWO)
    await store.delete(first)
    await store.forget(first)
    assert files(tmp_path) == {TWO.picture.key}
    with pytest.raises(Refused, match="deleted"):
        await store.picture(ONE.picture.key)
    with pytest.raises(Refused, match="deleted"):
        await store.thumbnail(ONE.picture.key)
    assert await store.picture(TWO.picture.key) == ("image/png", b"two")
    await store.delete(second)
    await store.forget(second)
    assert files(tmp_path) == set()


async def test_opening_sweeps_what_a_crash_left_and_nothing_that_is_not_ours(
    store: Store, tmp_path: Path
) -> None:
    await say(store, ONE)
    folder = tmp_path / "pictures"
    (folder / ("0" * 64)).write_bytes(b"no row")
    (folder / f"{'1' * 64}.new").write_bytes(b"half")
    (folder / "notes.txt").write_text("a person's own")
    after = Store(tmp_path)
    await after.open()
    await after.close()
    assert files(tmp_path) == {ONE.picture.key, "notes.txt"}


async def test_a_turn_that_is_not_kept_leaves_no_picture_behind(
    store: Store, tmp_path: Path
) -> None:
    with pytest.raises(Refused):
        await store.add_turn("gone", "x", model="m", uploads=[ONE])
    await say(store, TWO)
    with pytest.raises(Refused):
        await store.picture(ONE.picture.key)
    assert files(tmp_path) == {TWO.picture.key}


async def test_a_file_that_was_taken_away_is_named(store: Store, tmp_path: Path) -> None:
    await say(store, ONE)
    (tmp_path / "pictures" / ONE.picture.key).unlink()
    with pytest.raises(Refused, match=f"pictures/{ONE.picture.key} is gone"):
        await store.picture(ONE.picture.key)
    # Sent again, it is there again.
    await say(store, ONE)
    assert (await store.picture(ONE.picture.key))[1] == b"one"


async def test_a_disk_that_takes_no_picture_keeps_nothing_of_the_message(
    store: Store, tmp_path: Path
) -> None:
    conversation = await store.create("t")
    (tmp_path / "pictures").write_text("in the way")
    with pytest.raises(Broken, match="cannot be read or written"):
        await store.add_turn(conversation.id, "x", model="m", uploads=[ONE])
    _, messages = await store.get(conversation.id)
    assert messages == []


@pytest.mark.parametrize("key", ["", "..", "../corral.db", "%00", "0" * 64])
async def test_no_other_file_can_be_asked_for(store: Store, key: str) -> None:
    with pytest.raises(Refused, match="no such picture"):
        await store.picture(key)


async def test_a_file_from_before_pictures_keeps_everything(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "corral.db", isolation_level=None)
    migrate(db, MIGRATIONS[:2])
    db.execute(
        "INSERT INTO conversation(id, title, leaf_id, created_s, updated_s)"
        " VALUES ('c', 'Old', 2, 1, 2)"
    )
    db.executemany(
        "INSERT INTO message(id, conversation_id, parent_id, role, status, content, created_s)"
        " VALUES (?, 'c', ?, ?, 'done', ?, 1)",
        [(1, None, "user", "hi"), (2, 1, "assistant", "<think>so</think>hello")],
    )
    db.close()
    store = Store(tmp_path)
    await store.open()
    try:
        _, (said, reply) = await store.get("c")
        assert (said.content, reply.content) == ("hi", "<think>so</think>hello")
        assert (reply.reasoning, reply.calls, reply.figures.thought_ms) == ("", (), 0)
        await store.add_turn("c", "look", model="m", uploads=[ONE])
        assert len((await store.get("c"))[1]) == 4
    finally:
        await store.close()


_POOL = [upload(bytes([65 + n]) * (n + 1)) for n in range(3)]
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.lists(st.sampled_from(_POOL), max_size=3)),
        st.tuples(st.just("delete"), st.integers(0, 5)),
        st.tuples(st.just("open again"), st.none()),
    ),
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(_STEPS)
def test_whatever_happens_the_files_are_those_that_messages_have(steps: list[object]) -> None:
    async def run(folder: Path) -> None:
        store, had = Store(folder), dict[str, list[Upload]]()
        await store.open()
        for step in steps:
            match step:
                case ("say", list(uploads)):
                    had[await say(store, *uploads)] = uploads
                case ("delete", int(n)) if n < len(had):
                    gone = sorted(had)[n]
                    del had[gone]
                    await store.delete(gone)
                    await store.forget(gone)
                case ("open again", _):
                    await store.close()
                    store = Store(folder)
                    await store.open()
            assert files(folder) == {u.picture.key for uploads in had.values() for u in uploads}
            for id, uploads in had.items():
                _, messages = await store.get(id)
                assert messages[0].pictures == tuple(u.picture for u in uploads)
                for u in uploads:
                    assert await store.picture(u.picture.key) == ("image/png", u.data)
        await store.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))
