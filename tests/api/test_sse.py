import asyncio
from collections.abc import AsyncIterator

from corral.backend.api import sse
from corral.backend.api.answer import Answer, Wishes
from corral.backend.api.openai_render import Envelope, TextRender
from corral.backend.chat.types import Finished, Text, Timings
from corral.backend.choices import Indexed
from corral.backend.errors import from_engine

RENDER = TextRender(Envelope(id="i", created=0, model="m"), Wishes())
TIMES = Timings(1, 0, 1, 0.0, 0.0)
END = Finished("eos", "", False, 1, 0, TIMES)


async def collect(events: AsyncIterator[Indexed], ping_s: float | None = None) -> list[bytes]:
    return [data async for data in sse.stream(events, [Answer()], RENDER, ping_s=ping_s)]


async def test_a_stream_ends_in_done() -> None:
    async def events() -> AsyncIterator[Indexed]:
        yield 0, Text("a", [1], TIMES)
        yield 0, END

    sent = await collect(events())
    assert len(sent) == 3
    assert sent[-1] == b"data: [DONE]\n\n"


async def test_silence_brings_pings_and_loses_no_event() -> None:
    go_on = asyncio.Event()

    async def events() -> AsyncIterator[Indexed]:
        await go_on.wait()
        yield 0, Text("late", [1], TIMES)
        yield 0, END

    sent = []
    async for data in sse.stream(events(), [Answer()], RENDER, ping_s=0.01):
        sent.append(data)
        if sent == [sse.PING] * 3:
            go_on.set()
    assert b'"text":"late"' in sent[sent.index(sse.PING) + sent.count(sse.PING)]
    assert sent[-1] == sse.DONE


async def test_no_pings_are_sent_when_switched_off() -> None:
    async def events() -> AsyncIterator[Indexed]:
        for _ in range(20):
            await asyncio.sleep(0)
        yield 0, END

    assert sse.PING not in await collect(events(), None)


async def test_an_engine_that_dies_ends_the_stream_in_one_error_and_no_done() -> None:
    async def events() -> AsyncIterator[Indexed]:
        yield 0, Text("a", [1], TIMES)
        raise from_engine("engine_died", "gone")

    sent = await collect(events())
    assert sent[-1] == (
        b'data: {"error":{"message":"gone","type":"unavailable_error","param":null,'
        b'"code":"engine_died"}}\n\n'
    )
    assert sse.DONE not in sent


async def test_a_fault_of_ours_tells_nothing_of_the_inside() -> None:
    async def events() -> AsyncIterator[Indexed]:
        yield 0, Text("a", [1], TIMES)
        raise KeyError("secret")

    sent = await collect(events())
    assert b"internal_error" in sent[-1]
    assert b"secret" not in sent[-1]


async def test_leaving_a_silent_stream_cancels_its_wait() -> None:
    cancelled = asyncio.Event()

    async def events() -> AsyncIterator[Indexed]:
        try:
            await asyncio.Event().wait()
            yield 0, END
        finally:
            cancelled.set()

    stream = sse.stream(events(), [Answer()], RENDER, ping_s=0.001)
    assert await anext(stream) == sse.PING
    await stream.aclose()
    await asyncio.wait_for(cancelled.wait(), 5)
