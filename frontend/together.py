"""The answers of one request, each followed by itself: one that fails or is stopped leaves the
others. Owned by the event loop."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from corral.backend.chat.types import ChatRequest, Event, Finished
from corral.backend.errors import CorralError


class Generation(Protocol):
    """What of a running generation is used here; see ``choices.Generation``."""

    @property
    def id(self) -> int:
        """Its number in the queue."""

    def abort(self) -> None:
        """Ends it now."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """Its events; the last is ``Finished``."""


class Choices(Protocol):
    """The answers of a request; see ``choices.Choices``."""

    @property
    def generations(self) -> Sequence[Generation]:
        """The answers."""

    def each(self) -> AsyncIterator[tuple[int, Event | CorralError]]:
        """Their events; an answer's error is its last one."""


class Asks(Protocol):
    """What of the service is used here; see ``service.Service``."""

    async def chat(self, request: ChatRequest) -> Choices:
        """Starts to answer."""


class Together:
    """A request and its ``parts``, one for each of its ``n`` answers. The first part that begins
    sends it; when all have left, nothing of it runs any more."""

    def __init__(self, service: Asks, request: ChatRequest) -> None:
        self._service = service
        self._request = request
        self._begun: asyncio.Future[Choices] | None = None
        self._task: asyncio.Task[None] | None = None
        self.parts = tuple(Part(self) for _ in range(request.n))

    async def begin(self) -> Choices:
        """The answers, once the engine has them. Raises CorralError."""
        if self._begun is None:
            self._begun = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(self._begun))
        # Who stops waiting does not stop the others.
        return await asyncio.shield(self._begun)

    def left(self) -> None:
        """A part has left."""
        if self._task is not None and all(part.has_left for part in self.parts):
            self._task.cancel()

    async def _run(self, begun: asyncio.Future[Choices]) -> None:
        try:
            choices = await self._service.chat(self._request)
        except asyncio.CancelledError:
            begun.cancel()
            raise
        except Exception as error:  # noqa: BLE001 raised again where it is waited for
            begun.set_exception(error)
            begun.exception()  # perhaps nobody waits any more
            return
        for part, generation in zip(self.parts, choices.generations, strict=True):
            part.generation = generation
            if part.has_left:
                generation.abort()
        begun.set_result(choices)
        if len(self.parts) > 1:
            await self._share(choices)

    async def _share(self, choices: Choices) -> None:
        """Gives every part what is its own."""
        try:
            async for index, item in choices.each():
                self.parts[index].events.put_nowait(item)
        except Exception as error:  # noqa: BLE001 raised again in every part
            for part in self.parts:
                part.events.put_nowait(error)


class Part:
    """One answer. ``begin``, iterate what it gives, and ``leave`` in a ``finally``."""

    def __init__(self, whole: Together) -> None:
        self._whole = whole
        self.generation: Generation | None = None
        self.events: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self.has_left = False

    async def begin(self) -> Generation:
        """The answer, once the engine has it. Raises CorralError."""
        choices = await self._whole.begin()
        return choices.generations[0] if len(choices.generations) == 1 else self

    def leave(self) -> None:
        """Ends it if it still runs, or before it begins."""
        self.has_left = True
        self.abort()
        self._whole.left()

    @property
    def id(self) -> int:
        """As of a ``Generation``, which this is when it is one of several."""
        assert self.generation is not None
        return self.generation.id

    def abort(self) -> None:
        """As of a ``Generation``."""
        if self.generation is not None:
            self.generation.abort()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            item = await self.events.get()
            if isinstance(item, Exception):
                raise item
            yield item
            if isinstance(item, Finished):
                return
