"""Server-sent events: from a generation's events to bytes, with pings and errors in-band."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from litestar.response import Stream
from litestar.types import ASGIApp, Receive, Scope, Send
from msgspec import Struct

from corral.backend.api.answer import Answer, Render
from corral.backend.api.wire import encode, error_body
from corral.backend.chat.types import Event, Text
from corral.backend.errors import Broken, CorralError

logger = logging.getLogger(__name__)

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def data(structs: list[Struct]) -> bytes:
    """Structs as events."""
    return b"".join(b"data: %b\n\n" % encode(struct) for struct in structs)


def failure(error: CorralError) -> bytes:
    """The event that ends a stream badly; no ``[DONE]`` follows."""
    return b"data: %b\n\n" % error_body(error)


async def stream(
    events: AsyncIterator[Event], render: Render, *, ping_s: float | None
) -> AsyncIterator[bytes]:
    """The bytes of a streamed answer. ``ping_s`` None sends no pings.

    Never raises for a failed generation: the reply has begun, its status is out.
    """
    answer = Answer()
    if opening := data(render.opening()):
        yield opening
    waiting: asyncio.Future[Event] | None = None
    try:
        while True:
            # The wait for an event outlives a ping: cancelling it would end the generation.
            waiting = asyncio.ensure_future(anext(events))
            while not (await asyncio.wait({waiting}, timeout=ping_s))[0]:
                yield PING
            if chunks := data(_rendered(waiting.result(), render, answer)):
                yield chunks
    except StopAsyncIteration:
        if render.says_done:
            yield DONE
    except CorralError as error:
        yield failure(error)
    except Exception:  # the last place that can still tell the client
        logger.exception("a stream failed")
        yield failure(Broken("The server failed; its log says why"))
    finally:
        if waiting is not None:
            waiting.cancel()


def _rendered(event: Event, render: Render, answer: Answer) -> list[Struct]:
    if isinstance(event, Text):
        answer.add(event)
    return render.chunks(event, answer)


class EventStream(Stream):
    """A reply of events. ``on_end`` runs however it ends, also when it was never begun."""

    def __init__(self, content: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        super().__init__(content, media_type="text/event-stream", headers=dict(_HEADERS))
        self._on_end = on_end

    def to_asgi_response(self, *args: Any, **kwargs: Any) -> ASGIApp:  # type: ignore[override]
        """The framework's streaming response, with ``on_end`` around it.

        A generator that was not begun has no ``finally`` to run: a client that leaves before the
        first byte would leave its request running.
        """
        inner: ASGIApp = super().to_asgi_response(*args, **kwargs)

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await inner(scope, receive, send)
            finally:
                self._on_end()

        return respond
