"""Long conversations: the work of a page grows with their length and no faster."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace

from corral.backend.store import Outcome
from corral.frontend import views

#: See ``conftest``.
Client: TypeAlias = Any


async def long(client: Client, n_turns: int) -> str:
    store = client.app.state.site.store
    id = (await store.create(f"{n_turns} turns")).id
    for n in range(n_turns):
        _, reply = await store.add_turn(id, f"question {n}", model="m")
        done = replace(
            reply, content=f"**answer** {n} of {n_turns}", outcome=Outcome(status="done")
        )
        await store.update_reply(done)
    return str(id)


class Work:
    """What a page took: steps of SQLite's machine, and replies made into HTML."""

    n_steps = 0
    n_rendered = 0


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    work, render = Work(), views.render

    def counting(text: str) -> str:
        work.n_rendered += 1
        return render(text)

    with monkeypatch.context() as patch:
        patch.setattr(views, "render", counting)
        yield work


async def opened(client: Client, id: str, monkeypatch: pytest.MonkeyPatch) -> Work:
    run = client.app.state.site.store._run
    with counted(monkeypatch) as work:

        def step() -> int:
            work.n_steps += 1
            return 0

        await run(lambda db: db.set_progress_handler(step, 10))
        answer = await client.get(f"/c/{id}")
        await run(lambda db: db.set_progress_handler(None, 10))
    assert answer.status_code == 200
    return work


async def test_twice_as_long_is_twice_the_work(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, twice = [await opened(client, await long(client, n), monkeypatch) for n in (125, 250)]
    assert twice.n_rendered == 2 * short.n_rendered == 250
    assert twice.n_steps < 2.2 * short.n_steps


async def test_each_turn_is_on_the_page_once(client: Client) -> None:
    page = (await client.get(f"/c/{await long(client, 250)}")).text
    assert page.count('<article class="turn') == 500
    assert page.count("<strong>answer</strong>") == 250
    assert len(page) < 500 * 4000
