"""The one way from accepted answers to a reply, whole or streamed, for every API."""

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Protocol, cast

from litestar import Response

from corral.backend.answer_settings import ANY_VOCABULARY
from corral.backend.api import ignored, sse
from corral.backend.api.answer import Answer, Render, Wishes
from corral.backend.api.generation import GenerationBody
from corral.backend.api.leaving import unless_gone
from corral.backend.api.metrics import Meters
from corral.backend.api.probs import Shape
from corral.backend.api.wire import AnyRequest, reply
from corral.backend.choices import Choices, Indexed
from corral.backend.errors import CorralError
from corral.backend.service import Service
from corral.backend.settings import Settings


class Keeper(Protocol):
    """Whoever wants to know how answers end."""

    async def ended(self, answers: Sequence[Answer], error: CorralError | None) -> None:
        """All answers have ended, or with the error. The client learns of it afterwards."""
        ...

    def gone(self) -> None:
        """Nobody waits for the answers any more, whether they have ended or not."""
        ...


def service_of(request: AnyRequest) -> Service:
    """The application's service."""
    return cast(Service, request.app.state.service)


def n_vocab(request: AnyRequest) -> int:
    """The size of the served model's vocabulary."""
    info = service_of(request).info
    return ANY_VOCABULARY if info is None else info.n_vocab


def wishes(body: GenerationBody) -> Wishes:
    """What a client wants to see of the answer beside its text."""
    options, n_top = body.stream_options, body.n_top
    return Wishes(
        usage=bool(options is not None and options.include_usage),
        timings=bool(body.timings_per_token),
        progress=bool(body.return_progress),
        probs=None if n_top is None else Shape(n_top, bool(body.post_sampling_probs)),
    )


async def serve(
    request: AnyRequest,
    body: GenerationBody,
    start: Coroutine[Any, Any, Choices],
    render_for: Callable[[Choices], Render],
    keeper: Keeper | None = None,
) -> Response[Any]:
    """Starts the answers to a request and replies with them, whole or streamed.

    Everything that can be refused is, before the reply begins. A client that leaves takes its
    answers along, also while it waits for its place. ``keeper`` is told how they ended.
    """
    began_s = time.perf_counter()
    choices = await unless_gone(request, start)
    ignored.note(request.scope, choices.folded, ignored.FOLDED)
    render = render_for(choices)
    answers = [Answer(i, g.prompt_index) for i, g in enumerate(choices.generations)]
    meters = cast(Meters, request.app.state.meters)
    events = meters.watch(choices, began_s)
    end = choices.abort
    if keeper is not None:
        events = _settled(events, answers, keeper)
        end = _both(choices.abort, keeper.gone)
    if body.stream:
        content = sse.stream(events, answers, render, ping_s=_ping_s(request, body))
        return sse.EventStream(content, end)
    try:
        await unless_gone(request, _collect(events, answers))
    finally:
        end()
    return reply(render.reply(answers))


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        first()
        second()

    return both


async def _settled(
    events: AsyncIterator[Indexed], answers: Sequence[Answer], keeper: Keeper
) -> AsyncIterator[Indexed]:
    try:
        async for event in events:
            yield event
    except CorralError as error:
        await keeper.ended(answers, error)
        raise
    await keeper.ended(answers, None)


async def _collect(events: AsyncIterator[Indexed], answers: list[Answer]) -> None:
    async for index, event in events:
        answers[index].take(event)


def _ping_s(request: AnyRequest, body: GenerationBody) -> float | None:
    asked = body.sse_ping_interval
    if asked is None:
        return cast(Settings, request.app.state.settings).ping_s
    return None if asked < 0 else max(asked, 1)
