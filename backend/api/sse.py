"""Server-sent events: from answers' events to bytes, with pings and errors in-band."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from litestar.response import Stream
from litestar.types import ASGIApp, Receive, Scope, Send

from corral.backend.api.answer import Answer, Render, Shown
from corral.backend.api.wire import encode
from corral.backend.choices import Indexed
from corral.backend.errors import Broken, CorralError

logger = logging.getLogger(__name__)

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def data(shown: Sequence[Shown], *, names_events: bool = False) -> bytes:
    """Values as events, named by their member ``type`` where the API does that."""
    if not names_events:
        return b"".join(b"data: %b\n\n" % encode(value) for value in shown)
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (_name(value).encode(), encode(value)) for value in shown
    )


def _name(value: Shown) -> str:
    name = value["type"] if isinstance(value, dict) else value.type  # type: ignore[attr-defined]
    return str(name)


async def stream(
    events: AsyncIterator[Indexed],
    answers: Sequence[Answer],
    render: Render,
    *,
    ping_s: float | None,
) -> AsyncIterator[bytes]:
    """The bytes of a streamed reply; ``answers`` grow with it. ``ping_s`` None sends no pings.

    Never raises for a failed generation: the reply has begun, its status is out.
    """

    def show(shown: Shown | Sequence[Shown]) -> bytes:
        several = shown if isinstance(shown, Sequence) else [shown]
        return data(several, names_events=render.names_events)

    if opening := show(render.opening()):
        yield opening
    waiting: asyncio.Future[Indexed | None] | None = None
    try:
        while True:
            # The wait for an event outlives a ping: cancelling it would end the generation.
            waiting = asyncio.ensure_future(anext(events, None))
            while not (await asyncio.wait({waiting}, timeout=ping_s))[0]:
                yield PING
            if (item := waiting.result()) is None:
                break
            index, event = item
            answers[index].take(event)
            if chunks := show(render.chunks(event, answers[index])):
                yield chunks
        if end := show(render.closing(answers)) + (DONE if render.says_done else b""):
            yield end
    except Exception as error:  # noqa: BLE001 - the last place that can still tell the client
        yield show(render.failure(_told(error)))
    finally:
        if waiting is not None:
            waiting.cancel()


def _told(error: Exception) -> CorralError:
    """The error that a client is told of; what went wrong inside is for the log."""
    if isinstance(error, CorralError):
        return error
    logger.error("a stream failed", exc_info=error)
    return Broken("The server failed; its log says why")


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
