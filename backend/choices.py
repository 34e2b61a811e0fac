"""Running answers: one generation, and the several of a request as one. Owned by the event loop."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from corral.backend.chat.model import Turn
from corral.backend.chat.types import (
    Effective,
    Event,
    Finished,
    Media,
    Prompt,
    Reading,
    Scored,
    Text,
    Timings,
    Written,
)
from corral.backend.engine.messages import (
    Add,
    Delta,
    Done,
    Failed,
    Progress,
    PromptProbs,
    Started,
)
from corral.backend.errors import CorralError, from_engine
from corral.backend.pool import Engine, Request, next_request_id

#: An event and the index of the answer it belongs to.
Indexed: TypeAlias = tuple[int, Event]


class Generation:
    """One answer. Iterate once, after ``start``, for its events; the last one is ``Finished``.

    Iterating raises ``CorralError`` when it ends badly. Leaving early without ``abort()`` leaves it
    running, so whoever iterates calls ``abort()`` (synchronous, idempotent) in a ``finally``.
    ``prompt_index`` numbers the prompts of a request; ``n_prompt`` is 0 until it is known. With
    a ``turn`` it is a chat's answer, and read as its dialect says. ``media``: see ``Add``.
    """

    def __init__(
        self,
        engine: Engine,
        prompt: Prompt | Written,
        effective: Effective,
        *,
        prompt_index: int = 0,
        joins: bool = False,
        turn: Turn | None = None,
        media: tuple[Media, ...] = (),
    ) -> None:
        self.id = next_request_id()
        self.model = engine.name
        self.created = int(time.time())
        self.prompt = prompt
        #: The prompt as the template wrote it, also where it is tokens already.
        self.written = prompt if turn is None else turn.prompt
        self.prompt_index = prompt_index
        self.n_prompt = 0
        self.effective = effective
        self.slot = -1
        self.was_aborted = False
        self._joins = joins
        self._media = media
        self._turn = turn
        self._parser = None if turn is None else turn.new_parser()
        self._engine = engine
        self._request: Request | None = None
        self._timings = Timings(0, 0, 0, 0.0, 0.0)
        self._first_text_s = 0.0

    async def start(self) -> None:
        """Gives it to the engine; returns once its prompt fits and it is queued or running.
        Raises Refused or Broken."""
        e, turn = self.effective, self._turn
        add = Add(
            id=self.id,
            prompt=self.prompt,
            sampling=e.sampling,
            stop=e.stop,
            max_tokens=e.max_tokens,
            # What is in the cache has no probabilities.
            cache_prompt=e.cache_prompt and not e.prompt_probs,
            constraint=e.constraint if turn is None else turn.constraint or e.constraint,
            context_shift=e.context_shift,
            n_keep=e.n_keep,
            n_discard=e.n_discard,
            n_indent=e.n_indent,
            t_max_predict_ms=e.t_max_predict_ms,
            id_slot=e.id_slot,
            lora=e.lora,
            prompt_probs=e.prompt_probs,
            joins=self._joins,
            marks=() if turn is None else turn.marks,
            thinking=None if turn is None else turn.thinking,
            media=self._media,
        )
        request = await self._engine.submit(add)
        self._request = request
        self._media = ()  # on its way, and large
        self.n_prompt = request.accepted.result().n_prompt
        self._timings = Timings(self.n_prompt, 0, 0, 0.0, 0.0)
        if self.was_aborted:  # while it was on its way
            self.abort()

    def abort(self) -> None:
        """Ends it now; the events end in ``Finished(finish="cancelled")``."""
        self.was_aborted = True
        if self._request is not None and not self._request.has_ended:
            self._engine.abort(self.id)

    def unstarted(self) -> Finished:
        """How it ends when it was cancelled before it was given to the engine."""
        return Finished("cancelled", "", False, 0, -1, self._timings)

    async def __aiter__(self) -> AsyncIterator[Event]:
        assert self._request is not None, "start() comes first"
        while True:
            match await self._request.get():
                case Started(_, slot, _):
                    self.slot = slot
                case Progress(_, total, cached, processed, time_ms):
                    self._timings = Timings(total, cached, 0, time_ms, 0.0)
                    yield Reading(total, cached, processed, time_ms)
                case PromptProbs(_, probs):
                    yield Scored(probs)
                case Delta(_, text, tokens, probs, marks):
                    self._count(len(tokens))
                    parts = () if self._parser is None else tuple(self._parser.feed(text, marks))
                    yield Text(text, tokens, self._timings, probs, marks, parts)
                case Done() as done:
                    n_calls = 0
                    if self._parser is not None:
                        if parts := tuple(self._parser.finish()):
                            yield Text("", [], self._timings, parts=parts)
                        n_calls = self._parser.n_calls
                    yield replace(_finished(done), n_calls=n_calls)
                    return
                case Failed(_, code, message, extra, param):
                    raise from_engine(code, message, extra, param)

    def _count(self, n_tokens: int) -> None:
        """Times up to now, for those who show them while the answer runs."""
        now, t = time.perf_counter(), self._timings
        if t.n_generated == 0:
            self._first_text_s = now
        ms = (now - self._first_text_s) * 1e3
        self._timings = Timings(t.n_prompt, t.n_cached, t.n_generated + n_tokens, t.prompt_ms, ms)


def _finished(done: Done) -> Finished:
    s = done.stats
    timings = Timings(
        s.n_prompt,
        s.n_cached,
        s.n_generated,
        s.prompt_ms,
        s.predicted_ms,
        s.queue_ms,
        s.n_discarded,
    )
    return Finished(done.finish, done.stopping_word, s.truncated, s.seed, s.slot, timings)


class Choices:
    """The answers of one request. Iterate once for ``(index, Event)`` as they come.

    Each answer's last event is ``Finished``. The first answer that fails ends the iteration with
    its ``CorralError``. Whoever iterates calls ``abort()`` (synchronous, idempotent) in a
    ``finally``. Of a single answer the generation may be iterated instead.

    At most ``n_at_once`` of them are with the engine: a request for many answers takes turns with
    other people's, and needs no more than one free place in the queue to begin.
    """

    def __init__(self, generations: Sequence[Generation], *, n_at_once: int) -> None:
        self.generations = list(generations)
        #: What was done to the conversation so that the template takes it; see ``fitting.fold``.
        self.folded: tuple[str, ...] = ()
        self._n_at_once = n_at_once
        self._left = iter(range(len(self.generations)))
        self._events: asyncio.Queue[tuple[int, Event | CorralError] | BaseException]
        self._events = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def model(self) -> str:
        """The name of the model that answers."""
        return self.generations[0].model

    @property
    def created(self) -> int:
        """When the request came, in Unix seconds."""
        return self.generations[0].created

    async def start(self) -> None:
        """Gives the first answer to the engine, the others after it. Raises Refused or Broken."""
        await self.generations[0].start()
        n = len(self.generations)
        if n > 1:
            self._tasks = [
                asyncio.create_task(self._work()) for _ in range(min(n, self._n_at_once))
            ]
        for task in self._tasks:
            task.add_done_callback(self._worked)

    def abort(self) -> None:
        """Ends all of them now; the events of each end in ``Finished(finish="cancelled")``."""
        for generation in self.generations:
            generation.abort()

    async def _work(self) -> None:
        # Nothing is awaited between an answer's end and the next one's submission, so that a server
        # that drains never sees the engine without a request of this group before all are done.
        for index in self._left:
            try:
                await self._run(index)
            except CorralError as error:
                self._events.put_nowait((index, error))

    def _worked(self, task: asyncio.Task[None]) -> None:
        """Whoever iterates gets the error."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.put_nowait(error)

    async def _run(self, index: int) -> None:
        generation = self.generations[index]
        if index and generation.was_aborted:
            self._events.put_nowait((index, generation.unstarted()))
            return
        if index:  # the first is started already
            await generation.start()
        async for event in generation:
            self._events.put_nowait((index, event))

    async def __aiter__(self) -> AsyncIterator[Indexed]:
        if not self._tasks:
            async for event in self.generations[0]:
                yield 0, event
            return
        async for index, item in self.each():
            if isinstance(item, CorralError):
                raise item
            yield index, item

    async def each(self) -> AsyncIterator[tuple[int, Event | CorralError]]:
        """The answers of a request for several as iterating gives them, but that one's error is
        only its own last item: the others go on."""
        n_open = len(self.generations)
        while n_open:
            item = await self._events.get()
            if isinstance(item, BaseException):
                raise item
            n_open -= isinstance(item[1], Finished | CorralError)
            yield item
