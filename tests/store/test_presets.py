"""Presets on disk: kept by name, and not changed behind anyone's back."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.backend.errors import Refused
from corral.backend.store import Presets


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Presets]:
    store = Presets(tmp_path)
    await store.open()
    yield store
    await store.close()


async def test_a_preset_reads_back_also_from_another_connection(
    kept: Presets, tmp_path: Path
) -> None:
    put = await kept.put("Größe 1", b'{"temperature":1}')
    other = Presets(tmp_path)
    await other.open()
    assert await other.get("Größe 1") == put
    assert (put.version, put.body) == (1, b'{"temperature":1}')
    await other.close()


async def test_presets_are_listed_by_name(kept: Presets) -> None:
    for name in ("b", "c", "a"):
        await kept.put(name, b"{}")
    assert [preset.name for preset in await kept.list()] == ["a", "b", "c"]


async def test_a_change_counts_the_version_and_keeps_the_others(kept: Presets) -> None:
    await kept.put("a", b"1")
    await kept.put("b", b"1")
    changed = await kept.put("a", b"2", version=1)
    assert (changed.version, changed.body) == (2, b"2")
    assert (await kept.get("b")).body == b"1"
    assert (await kept.put("a", b"3")).version == 3


@pytest.mark.parametrize("version", [0, 1, 3])
async def test_a_change_of_another_version_is_refused_and_changes_nothing(
    kept: Presets, version: int
) -> None:
    await kept.put("a", b"1")
    await kept.put("a", b"2")
    for work in (kept.put("a", b"x", version=version), kept.delete("a", version=version)):
        with pytest.raises(Refused) as refused:
            await work
        assert (refused.value.wire.status, refused.value.param) == (409, "version")
        assert "version 2" in refused.value.message
    assert (await kept.get("a")).body == b"2"


async def test_version_zero_makes_a_preset_and_no_other_version_does(kept: Presets) -> None:
    with pytest.raises(Refused, match="not there") as refused:
        await kept.put("a", b"1", version=1)
    assert refused.value.kind == "conflict"
    assert (await kept.put("a", b"1", version=0)).version == 1


async def test_a_deleted_preset_is_gone(kept: Presets) -> None:
    await kept.put("a", b"1")
    await kept.delete("a", version=1)
    assert await kept.list() == []
    for work in (kept.get("a"), kept.delete("a")):
        with pytest.raises(Refused) as refused:
            await work
        assert refused.value.kind == "not_found"


async def test_one_that_was_set_aside_comes_back_at_a_version_of_its_own(kept: Presets) -> None:
    await kept.put("a", b"1")
    with pytest.raises(Refused):
        await kept.set_aside("a", version=2)
    await kept.set_aside("a", version=1)
    assert await kept.list() == []
    back = await kept.bring_back("a")
    # Not 1: a page from before the deletion is behind.
    assert (back.body, back.version) == (b"1", 2)
    with pytest.raises(Refused) as refused:
        await kept.bring_back("a")
    assert refused.value.wire.status == 409


async def test_one_that_was_forgotten_or_replaced_meanwhile_does_not_come_back(
    kept: Presets,
) -> None:
    await kept.put("a", b"1")
    await kept.delete("a")
    with pytest.raises(Refused) as refused:
        await kept.bring_back("a")
    assert refused.value.wire.status == 404
    await kept.put("a", b"2")
    await kept.set_aside("a")
    await kept.put("a", b"3")
    with pytest.raises(Refused) as refused:
        await kept.bring_back("a")
    assert refused.value.wire.status == 409
    assert (await kept.get("a")).body == b"3"


async def test_answers_and_batches_follow_a_change_of_name_to_the_letter(
    kept: Presets, tmp_path: Path
) -> None:
    before = b'{"seed":0.10,"preset":"a","stop":["a\\u0000","\xc3\xa9"]}'
    await kept.put("a", b"{}")
    db = sqlite3.connect(tmp_path / "corral.db", isolation_level=None)
    db.execute("INSERT INTO batch VALUES ('b', '', '', ?, 'done', '', 0)", (before,))
    db.execute("INSERT INTO batch VALUES ('c', '', '', x'', 'done', '', 0)")
    db.execute(
        "INSERT INTO batch VALUES ('d', '', '', CAST('{\"preset\":\"A\"}' AS BLOB), 'done', '', 0)"
    )
    renamed = await kept.rename("a", 'b"', b'{"top_k":1}', version=1)
    assert (renamed.name, renamed.version, renamed.body) == ('b"', 2, b'{"top_k":1}')
    got = [row[0] for row in db.execute("SELECT settings FROM batch ORDER BY id")]
    assert got == [before.replace(b'"a",', b'"b\\"",'), b"", b'{"preset":"A"}']
    with pytest.raises(Refused, match="is not there"):
        await kept.rename("a", "c", b"{}", version=1)
    db.close()
