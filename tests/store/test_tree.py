"""The tree of a conversation: nothing is lost by an edit, a branch or a deletion."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from corral.backend.errors import Refused
from corral.backend.store import Message, Outcome, Picture, Store, Upload

PICTURE = Picture(key="a" * 64, name="a.png", media_type="image/png", n_bytes=1, width=2, height=3)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path / "data")
    await store.open()
    yield store
    await store.close()


async def said(store: Store, id: str, text: str, answer: str = "answer") -> tuple[Message, Message]:
    """A whole turn."""
    user, reply = await store.add_turn(id, text, model="m")
    return user, await ended(store, reply, answer)


async def ended(store: Store, reply: Message, answer: str) -> Message:
    await store.update_reply(replace(reply, content=answer, outcome=Outcome(status="done")))
    return await store.message(reply.id)


async def shown(store: Store, id: str) -> list[str]:
    return [m.content for m in (await store.get(id))[1]]


async def test_an_edit_in_place_keeps_what_follows_and_what_was_there(store: Store) -> None:
    c = await store.create("c")
    user, _ = await said(store, c.id, "one")
    await said(store, c.id, "two")
    await store.edit(user.id, 1, "eins")
    await store.edit(user.id, 2, "uno")
    assert await shown(store, c.id) == ["uno", "answer", "two", "answer"]
    assert await store.revisions(user.id) == ["one", "eins"]


async def test_a_page_that_is_behind_cannot_edit(store: Store) -> None:
    c = await store.create("c")
    user, _ = await said(store, c.id, "one")
    await store.edit(user.id, 1, "eins")
    with pytest.raises(Refused) as refused:
        await store.edit(user.id, 1, "uno")
    assert refused.value.wire.status == 409
    assert await shown(store, c.id) == ["eins", "answer"]


async def test_a_reply_that_is_being_written_cannot_be_edited_continued_or_deleted(
    store: Store,
) -> None:
    c = await store.create("c")
    user, reply = await store.add_turn(c.id, "one", model="m")
    for work in (
        store.edit(reply.id, 1, "x"),
        store.resume_reply(reply.id),
        store.delete_message(user.id),
        store.fork(reply.id),
    ):
        with pytest.raises(Refused) as refused:
            await work
        assert refused.value.wire.status == 409


async def test_a_branch_has_the_same_pictures_and_the_other_one_stays(store: Store) -> None:
    c = await store.create("c")
    upload = Upload(picture=PICTURE, data=b"x", small=b"y")
    user, reply = await store.add_turn(c.id, "one", model="m", uploads=[upload])
    await ended(store, reply, "answer")
    other, second = await store.branch(user.id, "eins", model="m2")
    assert other.pictures == (PICTURE,) and second.model == "m2"
    await ended(store, second, "Antwort")
    _, messages = await store.get(c.id)
    assert [m.content for m in messages] == ["eins", "Antwort"]
    assert messages[0].siblings == (user.id, other.id)
    await store.choose(user.id)
    assert await shown(store, c.id) == ["one", "answer"]


async def test_a_branch_of_a_reply_is_finished_at_once(store: Store) -> None:
    c = await store.create("c")
    _, reply = await said(store, c.id, "one")
    (other,) = await store.branch(reply.id, "my own", model="m2")
    assert (other.outcome.status, other.parent_id) == ("done", reply.parent_id)
    assert await shown(store, c.id) == ["one", "my own"]


async def test_a_fork_is_a_conversation_of_its_own(store: Store) -> None:
    c = await store.create("c")
    user, reply = await said(store, c.id, "one")
    await said(store, c.id, "two")
    fork = await store.fork(reply.id)
    assert await shown(store, fork.id) == ["one", "answer"]
    await said(store, fork.id, "three")
    await store.edit(user.id, 1, "eins")
    assert await shown(store, fork.id) == ["one", "answer", "three", "answer"]
    assert await shown(store, c.id) == ["eins", "answer", "two", "answer"]


async def test_what_is_deleted_goes_with_all_below_and_comes_back_with_it(store: Store) -> None:
    c = await store.create("c")
    await said(store, c.id, "one")
    two, _ = await said(store, c.id, "two")
    await said(store, c.id, "three")
    await store.delete_message(two.id)
    assert await shown(store, c.id) == ["one", "answer"]
    with pytest.raises(Refused):
        await store.message(two.id)
    await store.restore_message(two.id)
    assert await shown(store, c.id) == ["one", "answer", "two", "answer", "three", "answer"]


async def test_of_alternatives_the_one_before_is_shown_when_one_is_deleted(store: Store) -> None:
    c = await store.create("c")
    user, first = await said(store, c.id, "one", "a")
    replies = [first] + [
        await ended(store, await store.add_reply(user.id, model="m"), x) for x in "bc"
    ]
    await store.choose(replies[1].id)
    await store.delete_message(replies[1].id)
    assert await shown(store, c.id) == ["one", "a"]
    await store.delete_message(replies[0].id)
    assert await shown(store, c.id) == ["one", "c"]
    await store.delete_message(user.id)
    assert await shown(store, c.id) == []


async def test_a_reply_that_goes_on_keeps_its_text(store: Store) -> None:
    c = await store.create("c")
    _, reply = await said(store, c.id, "one", "half")
    again = await store.resume_reply(reply.id)
    assert (again.outcome.status, again.content, again.id) == ("generating", "half", reply.id)
    await ended(store, again, "half and more")
    assert await shown(store, c.id) == ["one", "half and more"]


async def test_nothing_is_written_to_a_reply_that_has_ended(store: Store) -> None:
    c = await store.create("c")
    _, reply = await said(store, c.id, "one")
    await store.edit(reply.id, 1, "mine")
    await store.update_reply(replace(reply, content="late"))
    assert await shown(store, c.id) == ["one", "mine"]


class Trees(RuleBasedStateMachine):
    """Against a model that is a dict of parents."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = TemporaryDirectory()
        self.store = Store(Path(self.folder.name))
        self.run(self.store.open())
        self.id = self.run(self.store.create("c")).id
        self.parents: dict[int, int | None] = {}
        self.texts: dict[int, str] = {}
        self.gone: list[tuple[int, set[int]]] = []
        self.leaf: int | None = None

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.run(self.store.close())
        self.loop.close()
        self.folder.cleanup()

    def alive(self) -> list[int]:
        gone = {id for _, ids in self.gone for id in ids}
        return [id for id in self.parents if id not in gone]

    def pick(self, n: int) -> int:
        return self.alive()[n % len(self.alive())]

    def below(self, top: int) -> set[int]:
        found = {top}
        for id in sorted(self.parents):
            if self.parents[id] in found:
                found.add(id)
        return found & set(self.alive())

    def note(self, message: Message, text: str) -> None:
        self.parents[message.id], self.texts[message.id] = message.parent_id, text
        self.leaf = message.id

    @rule(text=st.text(max_size=5))
    def turn(self, text: str) -> None:
        user, reply = self.run(said(self.store, self.id, text))
        assert user.parent_id == self.leaf
        self.note(user, text)
        self.note(reply, "answer")

    @precondition(lambda self: self.alive())
    @rule(n=st.integers(0, 50), text=st.text(max_size=5))
    def branch(self, n: int, text: str) -> None:
        old = self.run(self.store.message(self.pick(n)))
        made = self.run(self.store.branch(old.id, text, model="m"))
        assert made[0].parent_id == old.parent_id
        self.note(made[0], text)
        if old.role == "user":
            self.note(self.run(ended(self.store, made[1], "other")), "other")

    @precondition(lambda self: self.alive())
    @rule(n=st.integers(0, 50), text=st.text(max_size=5))
    def edit(self, n: int, text: str) -> None:
        old = self.run(self.store.message(self.pick(n)))
        self.run(self.store.edit(old.id, old.version, text))
        self.texts[old.id] = text

    @precondition(lambda self: self.alive())
    @rule(n=st.integers(0, 50))
    def choose(self, n: int) -> None:
        self.run(self.store.choose(self.pick(n)))
        self.leaf = max(self.below(self.pick(n)))

    @precondition(lambda self: self.alive())
    @rule(n=st.integers(0, 50))
    def delete(self, n: int) -> None:
        top = self.pick(n)
        ids = self.below(top)
        self.run(self.store.delete_message(top))
        self.gone.append((top, ids))
        if self.leaf in ids:
            beside = [i for i in self.alive() if self.parents[i] == self.parents[top]]
            before = [i for i in beside if i < top]
            near = before[-1:] or beside[:1]
            self.leaf = max(self.below(near[0])) if near else self.parents[top]

    @precondition(lambda self: self.gone)
    @rule()
    def restore(self) -> None:
        top, _ = self.gone.pop()
        self.run(self.store.restore_message(top))
        self.leaf = max(self.below(top))

    @invariant()
    def every_message_is_there_once_and_the_branch_is_the_one_chosen(self) -> None:
        messages = self.run(self.store.tree(self.id))
        assert {m.id: m.parent_id for m in messages} == {i: self.parents[i] for i in self.alive()}
        assert all(m.content == self.texts[m.id] for m in messages)
        seen: set[int | None] = {None}
        for m in messages:
            assert m.parent_id in seen and m.id in m.siblings
            seen.add(m.id)
        path: list[int] = []
        at = self.leaf
        while at is not None:
            path.insert(0, at)
            at = self.parents[at]
        assert [m.id for m in self.run(self.store.get(self.id))[1]] == path


TestTrees = Trees.TestCase
TestTrees.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
