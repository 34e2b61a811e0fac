"""Texts that are being written for the tools' pages. They belong to the server, like replies.

Owned by the event loop; no locks. See ``live`` for the same of conversations.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Literal, TypeAlias

from corral.backend.chat.types import (
    ChatRequest,
    CompletionRequest,
    Content,
    Event,
    Finished,
    Reading,
    Text,
    Thought,
    Timings,
)
from corral.backend.errors import CorralError
from corral.backend.service import Service
from corral.frontend.live import FLUSH_S
from corral.frontend.reasons import sentence
from corral.frontend.watched import Watched
from corral.frontend.words import _

Status: TypeAlias = Literal["generating", "done", "stopped", "error"]
CLOSE_S = 5.0
#: Texts that have ended are remembered, for pages that were not there.
MAX_ENDED = 32


class Run(Watched):
    """One text that is being written, before ``tail``. ``version`` grows with every change."""

    def __init__(self, key: str, asked: ChatRequest | CompletionRequest, *, tail: str = "") -> None:
        super().__init__()
        self.key = key
        self.asked = asked
        self.tail = tail
        self.status: Status = "generating"
        self.error = ""
        self.is_cut = False
        self.is_thinking = False
        self.reading: Reading | None = None
        self.timings: Timings | None = None
        self.has_begun = False
        self.task: asyncio.Task[None] | None = None
        self._pieces: list[str] = []
        self._abort: Callable[[], None] | None = None
        self._is_stopping = False

    @property
    def text(self) -> str:
        """What there is of it."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def stop(self) -> None:
        """Ends it as soon as the engine can; what was written stays."""
        self._is_stopping = True
        if self._abort is not None:
            self._abort()
        # A task cancelled before its first step would never get to its end.
        elif self.has_begun and self.status == "generating" and self.task is not None:
            self.task.cancel()

    def take(self, event: Event) -> None:
        """Notes what an event says."""
        match event:
            case Reading():
                self.reading = event
            case Text():
                self.timings = event.timings
                if isinstance(self.asked, CompletionRequest):
                    self._pieces.append(event.text)
                else:
                    self._pieces += [p.text for p in event.parts if isinstance(p, Content)]
                    self.is_thinking = bool(event.parts) and isinstance(event.parts[-1], Thought)
            case Finished():
                self.timings = event.timings
                self.is_cut = event.finish == "limit"
                self.status = "stopped" if event.finish == "cancelled" else "done"
        self.touch()

    async def write(self, service: Service) -> AsyncGenerator[None]:
        """Has it written; yields whenever there is more. Raises CorralError."""
        self.has_begun = True
        if self._is_stopping:
            raise asyncio.CancelledError
        if service.state == "loading":
            await service.until_loaded()
        if isinstance(self.asked, CompletionRequest):
            choices = await service.complete(self.asked)
        else:
            choices = await service.chat(self.asked)
        generation = choices.generations[0]
        self._abort = generation.abort
        try:
            async for event in generation:
                self.take(event)
                yield
                if isinstance(event, Finished):
                    return
        finally:
            generation.abort()
        self.status, self.error = "error", _("The answer broke off without an end")


#: Keeps how a run stands: once in a while, and when it has ended.
Keep: TypeAlias = Callable[[Run], Awaitable[None]]


async def forget(_: Run) -> None:
    """Keeps nothing."""


class Runs:
    """The texts that are being written now, by the key of their owner, who has one at a time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._runs: dict[str, Run] = {}
        self._ended: OrderedDict[str, Run] = OrderedDict()

    def start(
        self,
        key: str,
        asked: ChatRequest | CompletionRequest,
        keep: Keep = forget,
        *,
        tail: str = "",
    ) -> Run:
        """Begins a text; its key must have none running."""
        assert key not in self._runs
        run = self._runs[key] = Run(key, asked, tail=tail)
        run.task = asyncio.create_task(self._run(run, keep))
        return run

    def get(self, key: str) -> Run | None:
        """The one that is running, if any."""
        return self._runs.get(key)

    def last(self, key: str) -> Run | None:
        """The one that is running, or else ended last and is not forgotten yet."""
        return self._runs.get(key) or self._ended.get(key)

    async def end(self, key: str) -> None:
        """Stops one, and returns when it has ended or the engine hangs."""
        run = self._runs.get(key)
        if run is not None:
            run.stop()
            await asyncio.wait({asyncio.ensure_future(run.ended.wait())}, timeout=2)

    async def close(self) -> None:
        """Stops everything; what was written is kept after."""
        runs = list(self._runs.values())
        for run in runs:
            run.stop()
        tasks = [run.task for run in runs if run.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _run(self, run: Run, keep: Keep) -> None:
        try:
            await self._write(run, keep)
        except CorralError as error:
            run.status, run.error = "error", sentence(error.message)
        except asyncio.CancelledError:
            run.status = "stopped"
        finally:
            if run.status == "generating":  # unforeseen; the task shows its traceback
                run.status = "error"
                run.error = _("Something went wrong in the server; see its log")
            await self._finish(run, keep)

    async def _write(self, run: Run, keep: Keep) -> None:
        kept_s = time.monotonic()
        async with contextlib.aclosing(run.write(self._service)) as news:
            async for _ in news:
                if run.status == "generating" and time.monotonic() - kept_s >= FLUSH_S:
                    await keep(run)
                    kept_s = time.monotonic()

    async def _finish(self, run: Run, keep: Keep) -> None:
        try:
            await keep(run)
        except CorralError as error:
            # Whoever looks now still sees the text, and that it will not be there later.
            run.status, run.error = "error", f"{run.error} {sentence(error.message)}".strip()
        finally:
            self._ended[run.key] = self._runs.pop(run.key)
            self._ended.move_to_end(run.key)
            if len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)
            run.ended.set()
            run.touch()
