"""The settings of conversations on disk."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.backend.errors import Refused
from corral.backend.store import Store, Tuned


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path)
    await store.open()
    yield store
    await store.close()


async def test_settings_count_their_changes_and_a_change_to_the_same_is_none(store: Store) -> None:
    id = (await store.create("a")).id
    assert await store.tuning(id) == Tuned(version=0, body=b"{}")
    assert await store.tune(id, 0, b'{"a":1}') == Tuned(version=1, body=b'{"a":1}')
    assert await store.tune(id, 1, b'{"a":1}') == Tuned(version=1, body=b'{"a":1}')
    assert await store.tune(id, 1, b"{}") == Tuned(version=2, body=b"{}")
    assert await store.tuning(id) == Tuned(version=2, body=b"{}")


@pytest.mark.parametrize("version", [0, 2])
async def test_a_change_of_another_version_is_refused_and_changes_nothing(
    store: Store, version: int
) -> None:
    id = (await store.create("a")).id
    await store.tune(id, 0, b'{"a":1}')
    with pytest.raises(Refused) as refused:
        await store.tune(id, version, b'{"a":2}')
    assert (refused.value.wire.status, refused.value.param) == (409, "version")
    assert (await store.tuning(id)).body == b'{"a":1}'


async def test_a_fork_has_a_copy_and_goes_its_own_way(store: Store) -> None:
    id = (await store.create("a")).id
    said, _ = await store.add_turn(id, "Hi", model="m")
    await store.tune(id, 0, b'{"a":1}')
    fork = (await store.fork(said.id)).id
    await store.tune(fork, 1, b'{"a":2}')
    assert (await store.tuning(id)).body == b'{"a":1}'
    assert (await store.tuning(fork)).body == b'{"a":2}'


async def test_a_conversation_that_is_not_there_has_none(store: Store) -> None:
    for work in (store.tuning("x"), store.tune("x", 0, b"{}")):
        with pytest.raises(Refused) as refused:
            await work
        assert refused.value.wire.status == 404
