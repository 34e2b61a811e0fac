"""Notebooks on disk: what the model wrote can be undone; pages that are behind write nothing."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.backend.errors import Refused
from corral.backend.store import Notebook, Notebooks, Store
from corral.backend.store.notebooks import MAX_STEPS, Page


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def kept(store: Store) -> Notebooks:
    return store.notebooks


def page(notebook: Notebook, text: str, editor: str = "a", **settings: str) -> Page:
    return Page(version=notebook.version, editor=editor, text=text, settings=settings)


async def written(kept: Notebooks, before: Notebook, text: str, more: str) -> Notebook:
    """What a page has, with what the model added to it."""
    begun = await kept.begin(before.id, page(before, text))
    await kept.grow(before.id, begun.step, text + more[:1])
    await kept.finish(before.id, begun.step, text + more, "done", "")
    return await kept.get(before.id)


async def test_a_notebook_reads_back_with_its_settings(kept: Notebooks) -> None:
    new = await kept.create(settings={"max_tokens": "9"})
    assert (new.text, new.settings, new.status) == ("", {"max_tokens": "9"}, "done")
    await kept.save(new.id, page(new, "é", seed="1"))
    found = await kept.get(new.id)
    assert (found.text, found.settings, found.version) == ("é", {"seed": "1"}, 2)


async def test_the_last_one_written_is_listed_first_by_its_beginning(kept: Notebooks) -> None:
    first, second = [await kept.create(settings={}) for _ in range(2)]
    assert [n.id for n in await kept.list()] == [second.id, first.id]
    await kept.save(first.id, page(first, "x" * 999))
    assert [(n.id, len(n.text)) for n in await kept.list()] == [(first.id, 300), (second.id, 0)]


async def test_what_the_model_wrote_is_undone_and_done_again(kept: Notebooks) -> None:
    one = await written(kept, await kept.create(settings={}), "A", "B")
    two = await written(kept, one, one.text, "C")
    assert (two.text, two.step, two.first_step, two.last_step) == ("ABC", 3, 1, 3)
    # What was typed since is kept where it was typed.
    back = await kept.move(two.id, page(two, "ABC!"), -1)
    assert (back.text, back.step) == ("AB", 2)
    back = await kept.move(two.id, page(back, "AB"), -1)
    assert (back.text, back.step) == ("A", 1)
    assert (await kept.move(two.id, page(back, "A"), -1)).step == 1
    again = await kept.move(two.id, page(back, "A"), 1)
    again = await kept.move(two.id, page(again, again.text), 1)
    assert (again.text, again.step) == ("ABC!", 3)
    assert (await kept.move(two.id, page(again, again.text), 1)).text == "ABC!"


async def test_a_new_text_forgets_what_was_undone(kept: Notebooks) -> None:
    one = await written(kept, await kept.create(settings={}), "A", "B")
    back = await kept.move(one.id, page(one, "AB"), -1)
    other = await written(kept, back, "A", "Z")
    assert (other.text, other.step, other.last_step) == ("AZ", 2, 2)


async def test_what_added_nothing_is_no_step(kept: Notebooks) -> None:
    new = await kept.create(settings={})
    begun = await kept.begin(new.id, page(new, "A"))
    await kept.finish(new.id, begun.step, "A", "error", "The queue is full")
    found = await kept.get(new.id)
    assert (found.step, found.last_step, found.text) == (1, 1, "A")
    assert (found.status, found.error) == ("error", "The queue is full")


async def test_only_so_many_steps_are_kept(kept: Notebooks) -> None:
    now = await kept.create(settings={})
    for _ in range(MAX_STEPS + 5):
        now = await written(kept, now, now.text, "x")
    assert now.last_step - now.first_step == MAX_STEPS
    assert len(now.text) == MAX_STEPS + 5


async def test_a_page_that_is_behind_writes_nothing(kept: Notebooks) -> None:
    new = await kept.create(settings={})
    await kept.save(new.id, page(new, "theirs", "b"))
    for write in (kept.save, kept.begin):
        with pytest.raises(Refused, match="changed on another page") as refused:
            await write(new.id, page(new, "mine", "a"))
        assert refused.value.kind == "conflict"
    with pytest.raises(Refused, match="changed on another page"):
        await kept.move(new.id, page(new, "mine", "a"), -1)
    assert (await kept.get(new.id)).text == "theirs"
    # The one that wrote last goes on, though it has not heard of its own version.
    await kept.save(new.id, page(new, "more of theirs", "b"))
    # A page that was loaded between two of its changes is behind too.
    between = await kept.get(new.id)
    await kept.save(new.id, page(new, "still more", "b"))
    with pytest.raises(Refused, match="changed on another page"):
        await kept.save(new.id, page(between, "mine", "c"))


async def test_what_is_there_already_is_no_change(kept: Notebooks) -> None:
    new = await kept.create(settings={})
    there = await kept.save(new.id, page(new, "x", "b"))
    # The page that left last time is behind, and has nothing to say.
    assert await kept.save(new.id, page(new, "x", "a")) == there


async def test_nobody_writes_while_the_model_does(kept: Notebooks) -> None:
    new = await kept.create(settings={})
    begun = await kept.begin(new.id, page(new, "A"))
    for write in (kept.save, kept.begin):
        with pytest.raises(Refused, match="The model is writing in it"):
            await write(new.id, page(begun, "B"))


async def test_what_comes_late_changes_nothing(kept: Notebooks) -> None:
    one = await written(kept, await kept.create(settings={}), "A", "B")
    await kept.grow(one.id, one.step, "late")
    await kept.finish(one.id, one.step, "late", "stopped", "")
    assert await kept.get(one.id) == one
    await kept.delete(one.id)
    await kept.grow(one.id, one.step, "late")
    with pytest.raises(Refused, match="no such notebook"):
        await kept.get(one.id)
    await kept.delete(one.id)


async def test_a_crash_leaves_it_stopped_with_its_text(kept: Notebooks, tmp_path: Path) -> None:
    new = await kept.create(settings={})
    begun = await kept.begin(new.id, page(new, "A"))
    await kept.grow(new.id, begun.step, "AB")
    other = Store(tmp_path)
    await other.open()
    found = await other.notebooks.get(new.id)
    assert (found.status, found.text, found.step) == ("stopped", "AB", 2)
    await other.close()


async def test_titles_are_changed_and_steps_go_with_their_notebook(
    kept: Notebooks, store: Store
) -> None:
    one = await written(kept, await kept.create(settings={}), "A", "B")
    await kept.rename(one.id, "Notes")
    assert (await kept.get(one.id)).title == "Notes"
    await kept.delete(one.id)
    count = "SELECT count(*) FROM notebook_step"
    assert await store._run(lambda db: db.execute(count).fetchone()[0]) == 0
