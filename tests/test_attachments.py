"""Pictures and sounds from their sources to what the engine takes."""

import asyncio
import hashlib
import io
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from corral.backend import attachments
from corral.backend.attachments import Attachments
from corral.backend.chat.types import Source
from corral.backend.engine.fake import FakeLlama
from corral.backend.engine.messages import Media
from corral.backend.errors import Refused
from corral.backend.settings import Settings

INFO = FakeLlama(vision=True).info


def png(shade: int, side: int = 8) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), (shade, 0, 0)).save(file, "png")
    return file.getvalue()


def source(data: bytes, at: str = "here") -> Source:
    return Source(kind="image", param=at, data=data)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is decoded, as it is."""
    seen: list[bytes] = []
    verify = attachments.verify

    def listen(data: bytes, **rest: Any) -> Any:
        seen.append(data)
        return verify(data, **rest)

    monkeypatch.setattr(attachments, "verify", listen)
    return seen


@pytest.fixture
def loader() -> Iterator[Attachments]:
    made = Attachments(Settings(media_cache_mib=1))
    yield made
    made.close()


async def test_they_come_in_the_order_they_were_asked_for(loader: Attachments) -> None:
    data = [png(shade) for shade in range(20)]
    found = await loader.load([source(one) for one in data], INFO)
    assert [media.data[0] for media in found] == list(range(20))
    assert [media.key for media in found] == [hashlib.sha256(one).hexdigest() for one in data]


async def test_what_was_decoded_lately_is_not_decoded_again(
    loader: Attachments, decoded: list[bytes]
) -> None:
    one, other = png(1, 400), png(2, 400)  # 480 kB each, of 1 MiB
    first = await loader.load([source(one)], INFO)
    assert await loader.load([source(one), source(other), source(one)], INFO)
    assert (await loader.load([source(one)], INFO))[0] is first[0]
    assert decoded == [one, other]
    await loader.load([source(png(3, 400))], INFO)  # in place of the one not asked for the longest
    await loader.load([source(one)], INFO)
    assert len(decoded) == 3
    await loader.load([source(other)], INFO)
    assert len(decoded) == 4


async def test_what_is_larger_than_the_cache_is_not_kept(
    loader: Attachments, decoded: list[bytes]
) -> None:
    small, large = png(1), png(2, 700)
    for data in (small, large, large, small):
        await loader.load([source(data)], INFO)
    assert decoded == [small, large, large]


async def test_all_of_a_request_have_a_limit_together(
    loader: Attachments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachments, "_MAX_TOTAL", 2 * 3 * 8 * 8)
    assert len(await loader.load([source(png(1)), source(png(1))], INFO)) == 2
    with pytest.raises(Refused, match="together") as caught:
        await loader.load([source(png(1), f"at[{i}]") for i in range(3)], INFO)
    assert caught.value.param in ("at[0]", "at[1]", "at[2]")


async def test_the_bad_one_among_good_ones_is_named(loader: Attachments) -> None:
    sources = [source(png(1), "a[0]"), source(b"<html>", "a[1]"), source(png(2), "a[2]")]
    with pytest.raises(Refused, match=r"^a\[1\]: this is HTML") as caught:
        await loader.load(sources, INFO)
    assert caught.value.param == "a[1]"


async def test_only_so_many_are_decoded_at_once_however_many_leave(
    loader: Attachments, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, lock, running, most = threading.Event(), threading.Lock(), 0, 0
    both = asyncio.Event()
    loop = asyncio.get_running_loop()

    def verify(data: bytes, **rest: Any) -> Media:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == attachments._N_DECODED:
                loop.call_soon_threadsafe(both.set)
        assert go.wait(10)
        with lock:
            running -= 1
        raise Refused("no", param="")

    monkeypatch.setattr(attachments, "verify", verify)
    tasks = [asyncio.create_task(loader.load([source(png(i))], INFO)) for i in range(12)]
    await asyncio.wait_for(both.wait(), 10)
    for task in tasks:  # all leave, and their places in the threads stay taken
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    late = [asyncio.create_task(loader.load([source(png(i))], INFO)) for i in range(20, 24)]
    await asyncio.sleep(0)
    go.set()
    ended = await asyncio.gather(*late, return_exceptions=True)
    assert all(isinstance(error, Refused) for error in ended)
    assert most == attachments._N_DECODED
