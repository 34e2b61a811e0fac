"""The one way from an accepted generation to a reply, whole or streamed, for every API."""

import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, cast

from litestar import Response

from corral.backend.api import sse
from corral.backend.api.answer import Answer, Render, Wishes
from corral.backend.api.generation import GenerationBody
from corral.backend.api.leaving import unless_gone
from corral.backend.api.metrics import Meters
from corral.backend.api.wire import AnyRequest, reply
from corral.backend.chat.types import Event, Finished, Text
from corral.backend.errors import Broken
from corral.backend.service import Generation, Service
from corral.backend.settings import Settings

#: Ids are checked against this while no model is loaded; such a request is refused anyway.
_ANY_VOCABULARY = 2**31 - 1


def service_of(request: AnyRequest) -> Service:
    """The application's service."""
    return cast(Service, request.app.state.service)


def n_vocab(request: AnyRequest) -> int:
    """The size of the served model's vocabulary."""
    info = service_of(request).info
    return _ANY_VOCABULARY if info is None else info.n_vocab


def wishes(body: GenerationBody) -> Wishes:
    """What a client wants to see of the answer beside its text."""
    options = body.stream_options
    return Wishes(
        usage=bool(options is not None and options.include_usage),
        timings=bool(body.timings_per_token),
        progress=bool(body.return_progress),
    )


async def serve(
    request: AnyRequest,
    body: GenerationBody,
    start: Coroutine[Any, Any, Generation],
    render_for: Callable[[Generation], Render],
) -> Response[Any]:
    """Starts a generation and replies with it, whole or streamed.

    Everything that can be refused is, before the reply begins. A client that leaves takes its
    generation along, also while it waits for its place.
    """
    began_s = time.perf_counter()
    generation = await unless_gone(request, start)
    render = render_for(generation)
    meters = cast(Meters, request.app.state.meters)
    events = meters.watch(generation, began_s)
    if body.stream:
        content = sse.stream(events, render, ping_s=_ping_s(request, body))
        return sse.EventStream(content, generation.abort)
    try:
        answer, end = await unless_gone(request, _collect(events))
    finally:
        generation.abort()
    return reply(render.reply(answer, end))


async def _collect(events: AsyncIterator[Event]) -> tuple[Answer, Finished]:
    answer = Answer()
    async for event in events:
        if isinstance(event, Text):
            answer.add(event)
        elif isinstance(event, Finished):
            return answer, event
    raise Broken("the answer ended without its last word", kind="engine_error")


def _ping_s(request: AnyRequest, body: GenerationBody) -> float | None:
    asked = body.sse_ping_interval
    if asked is None:
        return cast(Settings, request.app.state.settings).ping_s
    return None if asked < 0 else max(asked, 1)
