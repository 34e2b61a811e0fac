"""The list of conversations: order, pages, pins, deletion; and what a search finds."""

import random
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.backend.errors import Refused
from corral.backend.store import Outcome, Place, Store
from corral.backend.store.listing import UNDO_S
from corral.backend.store.schema import MIGRATIONS, migrate
from corral.backend.store.search import PAGE_SIZE, excerpt, words


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path / "data")
    await store.open()
    yield store
    await store.close()


def database(tmp_path: Path) -> sqlite3.Connection:
    return sqlite3.connect(tmp_path / "data" / "corral.db", isolation_level=None)


async def talk(store: Store, title: str, *texts: str) -> str:
    """A conversation with these turns, each answered by the same in capitals."""
    id = (await store.create(title)).id
    for text in texts:
        _, reply = await store.add_turn(id, text, model="m")
        done = Outcome(status="done")
        await store.update_reply(replace(reply, content=text.upper(), outcome=done))
    return id


async def found(store: Store, query: str) -> list[int]:
    return [hit.message_id for hit in (await store.search(query)).hits]


def assert_index_is_right(tmp_path: Path) -> None:
    """What is indexed is the texts of the messages that nobody is writing."""
    db = database(tmp_path)
    # What is being written is not there; to compare with all texts, it must be.
    db.execute("UPDATE message SET status = 'done'")
    db.execute("INSERT INTO message_text(message_text, rank) VALUES ('integrity-check', 1)")
    db.close()


async def test_pages_follow_each_other_while_conversations_are_written_to(store: Store) -> None:
    ids = [(await store.create(f"{n}")).id for n in range(30)]
    await store.pin(ids[3], True)
    await store.pin(ids[4], True)
    first = await store.list(limit=10)
    await store.add_turn(ids[0], "to the front", model="m")
    seen, last = list(first), first[-1]
    while page := await store.list(Place(last.is_pinned, last.updated_s, last.id), 7):
        seen += page
        last = page[-1]
    # What came to the front is not seen again, and nothing that stayed is missed.
    assert [c.id for c in seen] == [ids[4], ids[3], *reversed(ids[5:]), ids[2], ids[1]]
    assert [c.id for c in await store.list(limit=3)] == [ids[4], ids[3], ids[0]]


async def test_a_page_is_read_from_the_index_whatever_there_is(
    store: Store, tmp_path: Path
) -> None:
    db = database(tmp_path)
    plan = db.execute(
        "EXPLAIN QUERY PLAN SELECT * FROM conversation WHERE deleted_s IS NULL"
        " AND (is_pinned, updated_s, id) < (1, 2.0, 'x')"
        " ORDER BY is_pinned DESC, updated_s DESC, id DESC LIMIT 5"
    ).fetchall()
    db.close()
    assert len(plan) == 1 and "SEARCH conversation USING INDEX conversation_by_place" in plan[0][3]


async def test_of_two_who_rename_the_second_is_refused(store: Store) -> None:
    c = await store.create("a")
    assert (await store.rename(c.id, "b", c.version)).version == c.version + 1
    with pytest.raises(Refused) as refused:
        await store.rename(c.id, "c", c.version)
    assert (refused.value.wire.status, refused.value.param) == (409, "version")
    # A pin is no other title.
    await store.pin(c.id, True)
    assert (await store.rename(c.id, "c", c.version + 1)).title == "c"


async def test_what_was_deleted_comes_back_as_it_was(store: Store) -> None:
    id = await talk(store, "one", "a", "b")
    before = await store.get(id)
    await store.delete(id)
    assert await store.list() == [] and [c.id for c in await store.deleted()] == [id]
    for work in (store.get(id), store.message(1), store.add_turn(id, "x", model="m")):
        with pytest.raises(Refused, match="deleted"):
            await work
    for work in (store.edit(1, 1, "x"), store.branch(1, "x", model="m"), store.fork(1)):
        with pytest.raises(Refused, match="deleted"):
            await work
    assert await store.restore(id) == before[0]
    assert await store.get(id) == before
    assert await store.deleted() == []


@pytest.mark.parametrize(("days", "is_kept"), [(29.9, True), (30.1, False)])
async def test_thirty_days_later_it_is_gone_for_good(
    store: Store, tmp_path: Path, days: float, is_kept: bool
) -> None:
    gone, kept = await talk(store, "gone", "secret"), await talk(store, "kept", "x")
    await store.delete(gone)
    db = database(tmp_path)
    db.execute(
        "UPDATE conversation SET deleted_s = ? WHERE id = ?", (time.time() - days * 86400, gone)
    )
    after = Store(tmp_path / "data")
    await after.open()
    assert [c.id for c in await after.deleted()] == ([gone] if is_kept else [])
    assert [c.id for c in await after.list()] == [kept]
    await after.close()
    left = db.execute("SELECT count(*) FROM message WHERE conversation_id = ?", (gone,)).fetchone()
    db.close()
    assert left[0] == (2 if is_kept else 0) and UNDO_S == 30 * 86400
    assert_index_is_right(tmp_path)


async def test_only_what_was_deleted_can_be_forgotten(store: Store) -> None:
    id = await talk(store, "one", "a")
    await store.forget(id)
    assert (await store.get(id))[0].id == id
    await store.delete(id)
    await store.forget(id)
    with pytest.raises(Refused):
        await store.restore(id)


# --- search ---------------------------------------------------------------------------------------


async def test_all_words_must_be_there_in_any_order_and_case(store: Store) -> None:
    await talk(store, "t", "The quick brown fox", "the quick red fox", "a Straße in köln")
    assert await found(store, "FOX quick") == [4, 3, 2, 1]
    assert await found(store, "brown") == [2, 1]
    assert await found(store, '"quick red"') == [4, 3]
    assert await found(store, '"red quick"') == []
    assert await found(store, "fox of") == []
    assert await found(store, "KÖLN") == [6, 5]


async def test_parts_of_words_are_found_and_words_without_spaces(store: Store) -> None:
    await talk(store, "t", "unbelievable", "今天天气很好", "x.append(y)")
    assert await found(store, "liev") == [2, 1]
    assert await found(store, "天气很") == [4, 3]
    assert await found(store, "append(") == [6, 5]


async def test_short_words_are_found_too(store: Store) -> None:
    await talk(store, "t", "天气很好", "the Go language", "Ärger Öl", "nothing")
    assert await found(store, "天气") == [2, 1]
    assert await found(store, "gO") == [4, 3]
    assert await found(store, "öl") == [6, 5]
    assert await found(store, "language go") == [4, 3]
    assert await found(store, "language xq") == []
    assert await found(store, "_") == await found(store, "%") == []


async def test_only_what_is_there_is_found(store: Store) -> None:
    kept, gone = await talk(store, "t", "zebra one"), await talk(store, "zebra", "zebra two")
    await store.delete_message(1)
    await store.delete(gone)
    assert (await store.search("zebra")).hits == (await store.search("zebra")).titles == ()
    assert await found(store, "ze") == []
    await store.restore_message(1)
    assert await found(store, "zebra") == [2, 1]
    await store.edit(1, 1, "a giraffe")
    assert await found(store, "zebra") == [2]
    assert await found(store, "giraffe") == [1]
    assert (await store.search("giraffe")).hits[0].conversation.id == kept


async def test_titles_are_found_by_the_same_words(store: Store) -> None:
    a, b = await talk(store, "Über den Zebras"), await talk(store, "zebra")
    assert [c.id for c in (await store.search("ZEBRA")).titles] == [b, a]
    assert [c.id for c in (await store.search("über zebra")).titles] == [a]


async def test_a_hit_says_whether_its_branch_is_shown(store: Store) -> None:
    await talk(store, "t", "zebra")
    await store.branch(1, "zebra again", model="m")
    shown = {hit.message_id: hit.is_shown for hit in (await store.search("zebra")).hits}
    assert shown == {3: True, 2: False, 1: False}
    await store.update_reply(
        replace(await store.message(4), content="x", outcome=Outcome(status="done"))
    )
    await store.choose(1)
    shown = {hit.message_id: hit.is_shown for hit in (await store.search("zebra")).hits}
    assert shown == {3: False, 2: True, 1: True}


async def test_a_running_reply_costs_the_index_nothing(store: Store, tmp_path: Path) -> None:
    id = (await store.create("t")).id
    _, reply = await store.add_turn(id, "question", model="m")
    db = database(tmp_path)
    size = "SELECT count(*), sum(length(block)) FROM message_text_data"
    before = db.execute(size).fetchone()
    for n in range(50):
        await store.update_reply(replace(reply, content="zebra " * n, outcome=Outcome()))
    assert db.execute(size).fetchone() == before
    db.close()
    assert await found(store, "zebra") == []
    await store.update_reply(replace(reply, content="a zebra", outcome=Outcome(status="done")))
    assert await found(store, "zebra") == [reply.id]
    # One that goes on is out of it until it ends again.
    going_on = await store.resume_reply(reply.id)
    await store.update_reply(replace(going_on, content="an okapi", outcome=Outcome()))
    await store.update_reply(
        replace(going_on, content="an okapi", outcome=Outcome(status="stopped"))
    )
    assert (await found(store, "zebra"), await found(store, "okapi")) == ([], [reply.id])
    assert_index_is_right(tmp_path)


async def test_what_a_crash_left_is_found_after_the_next_start(
    store: Store, tmp_path: Path
) -> None:
    id = (await store.create("t")).id
    _, reply = await store.add_turn(id, "question", model="m")
    await store.update_reply(replace(reply, content="half a zebra", outcome=Outcome()))
    after = Store(tmp_path / "data")
    await after.open()
    assert await found(after, "zebra") == [reply.id]
    await after.close()
    assert_index_is_right(tmp_path)


async def test_the_index_is_right_whatever_happens(  # noqa: C901
    store: Store, tmp_path: Path
) -> None:
    rng = random.Random(7)
    ids = [await talk(store, f"{n}", "alpha beta", "gamma delta") for n in range(3)]
    for step in range(120):
        id = rng.choice(ids)
        try:
            _, messages = await store.get(id)
            at = rng.choice(messages)
            match rng.randrange(8):
                case 0:
                    await store.edit(at.id, at.version, f"edited {step}")
                case 1:
                    await store.branch(at.id, f"branched {step}", model="m")
                case 2:
                    await store.delete_message(at.id)
                case 3:
                    await store.fork(at.id)
                case 4:
                    await store.delete(id)
                case 5:
                    await store.resume_reply(at.id)
                case 6:
                    done = Outcome(status="done")
                    await store.update_reply(replace(at, content=f"done {step}", outcome=done))
                case 7:
                    await store.delete(id)
                    await store.forget(id)
                    ids.append(await talk(store, "new", f"again {step}"))
        except (Refused, IndexError):
            if id in [c.id for c in await store.deleted()]:
                await store.restore(id)
    assert_index_is_right(tmp_path)


async def test_a_file_from_before_the_index_is_indexed_once(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    db = database(tmp_path)
    before = next(n for n, step in enumerate(MIGRATIONS) if "message_text" in step)
    migrate(db, MIGRATIONS[:before])
    db.execute("INSERT INTO conversation(id, title, created_s, updated_s) VALUES ('c', 't', 1, 1)")
    for status in ("done", "generating"):
        db.execute(
            "INSERT INTO message(conversation_id, role, status, content, created_s)"
            " VALUES ('c', 'assistant', ?, 'an old zebra', 1)",
            (status,),
        )
    db.close()
    store = Store(tmp_path / "data")
    await store.open()
    assert await found(store, "zebra") == [2, 1]
    await store.close()
    assert_index_is_right(tmp_path)


@pytest.mark.parametrize("word", ["zebra", "ze"])
async def test_hits_come_in_pages_the_newest_first(store: Store, word: str) -> None:
    await talk(store, "zebra", *(f"zebra {n}" for n in range(PAGE_SIZE)))
    first = await store.search(word)
    second = await store.search(word, first.before_id)
    ids = [hit.message_id for hit in (*first.hits, *second.hits)]
    assert ids == list(range(2 * PAGE_SIZE, 0, -1))
    assert (len(first.titles), second.titles, second.before_id) == (1, (), None)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("one two", ("one", "two")),
        ('"one  two" three', ("one two", "three")),
        ('"open', ("open",)),
        ('a"b c"d', ("a", "b c", "d")),
        ("one one", ("one",)),
        ('"" " "', ()),
        ("\0 x\0y", ("xy",)),
        ("w" * 300, ("w" * 100,)),
        (" ".join(map(str, range(20))), tuple(map(str, range(8)))),
    ],
)
def test_a_query_is_words_and_quoted_ones(query: str, expected: tuple[str, ...]) -> None:
    assert words(query) == expected


def test_an_excerpt_is_one_line_around_the_first_hit_with_every_hit_marked() -> None:
    text = "word " * 100 + "the\nZEBRA\tand a zebra" + " more" * 100
    parts = excerpt(text, ["zebra"])
    assert [p.text for p in parts if p.is_hit] == ["ZEBRA", "zebra"]
    whole = "".join(p.text for p in parts)
    assert whole.startswith("…word") and whole.endswith("…") and "the ZEBRA and a zebra" in whole
    assert len(whole) < 170


@pytest.mark.parametrize("text", ["", "short", "İstanbul", "<b>x</b>"])
def test_an_excerpt_without_a_hit_is_the_beginning(text: str) -> None:
    assert "".join(p.text for p in excerpt(text, ["zebra"])) == text
