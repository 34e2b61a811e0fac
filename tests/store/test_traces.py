"""What replies were made from: kept with them, and no more than fits."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.backend.store import Store, Trace, traces


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path / "data")
    await store.open()
    yield store
    await store.close()


async def replies(store: Store, n: int) -> list[int]:
    conversation = await store.create("Title")
    return [(await store.add_turn(conversation.id, "x", model="m"))[1].id for _ in range(n)]


async def test_a_trace_reads_back_and_the_last_one_counts(store: Store) -> None:
    (id,) = await replies(store, 1)
    assert await store.trace(id) is None
    await store.keep_trace(id, Trace(sent=b"prompt " * 1000))
    assert await store.trace(id) == Trace(sent=b"prompt " * 1000, said=b"")
    await store.keep_trace(id, Trace(sent=b"prompt", said=b"tokens"))
    assert await store.trace(id) == Trace(sent=b"prompt", said=b"tokens")


async def test_it_goes_with_its_conversation_and_none_comes_after(store: Store) -> None:
    (id,) = await replies(store, 1)
    await store.keep_trace(id, Trace(sent=b"prompt"))
    await store.delete((await store.list())[0].id)
    assert await store.trace(id) in (None, Trace(sent=b"prompt"))  # or brought back for a while
    await store.keep_trace(id + 9, Trace(sent=b"prompt"))
    assert await store.trace(id + 9) is None


async def test_the_oldest_go_when_there_is_too_much(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MAX_BYTES", 2500)
    ids = await replies(store, 4)
    for id in ids:
        await store.keep_trace(id, Trace(sent=os.urandom(1000)))
    assert [await store.trace(id) is not None for id in ids] == [False, False, True, True]
    await store.keep_trace(ids[0], Trace(sent=os.urandom(5000)))
    assert [await store.trace(id) is not None for id in ids] == [True, False, False, False]
