"""Kept answers: what followed what, and for how long."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.backend.errors import Refused
from corral.backend.store import Item, Responses, Store, Turn
from corral.backend.store import responses as module


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Responses]:
    store = Responses(tmp_path)
    await store.open()
    yield store
    await store.close()


def turn(name: str, previous: str | None = None) -> Turn:
    return Turn(
        id=name,
        previous_id=previous,
        body=f'{{"id":"{name}"}}'.encode(),
        inputs=[Item(f"{name}-said", f"said {name}".encode())],
        outputs=[Item(f"{name}-came", f"came {name}".encode())],
    )


async def test_the_context_of_an_answer_is_all_that_led_to_it_in_order(kept: Responses) -> None:
    await kept.put(turn("a"))
    await kept.put(turn("b", "a"))
    await kept.put(turn("other", "a"))
    await kept.put(turn("c", "b"))
    items = [b"said a", b"came a", b"said b", b"came b", b"said c", b"came c"]
    assert await kept.context("c") == items


async def test_an_answer_reads_back_also_from_another_connection(
    kept: Responses, tmp_path: Path
) -> None:
    await kept.put(turn("a"))
    other = Responses(tmp_path)
    await other.open()
    assert await other.body("a") == b'{"id":"a"}'
    assert [i.id for i in await other.inputs("a")] == ["a-said"]
    assert await other.item("a-came") == b"came a"
    await other.close()


async def test_what_followed_a_deleted_answer_cannot_be_followed_further(kept: Responses) -> None:
    await kept.put(turn("a"))
    await kept.put(turn("b", "a"))
    await kept.delete("a")
    assert await kept.body("b") == b'{"id":"b"}'
    with pytest.raises(Refused, match="'a' not found") as refused:
        await kept.context("b")
    assert refused.value.kind == "previous_response_not_found"


async def test_what_is_not_there_is_refused(kept: Responses) -> None:
    for work in (kept.body("x"), kept.inputs("x"), kept.delete("x"), kept.item("x")):
        with pytest.raises(Refused) as refused:
            await work
        assert refused.value.kind == "not_found"


async def test_an_answer_is_forgotten_thirty_days_after_its_chain_was_last_used(
    kept: Responses, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1e9
    monkeypatch.setattr(module.time, "time", lambda: now)
    await kept.put(turn("a"))
    await kept.put(turn("b", "a"))
    await kept.put(turn("lonely"))
    now += module.KEPT_S - 1
    await kept.context("b")
    now += 2
    await kept.put(turn("c"))
    with pytest.raises(Refused):
        await kept.body("lonely")
    assert len(await kept.context("b")) == 4


async def test_conversations_and_answers_share_one_file(kept: Responses, tmp_path: Path) -> None:
    conversations = Store(tmp_path)
    await conversations.open()
    await kept.put(turn("a"))
    conversation = await conversations.create("Title")
    assert (await conversations.list())[0].id == conversation.id
    assert await kept.body("a")
    await conversations.close()
