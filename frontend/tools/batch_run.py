"""Batches that are being worked off. They belong to the server, not to a page. Owned by the event
loop; no locks.

All of them together take one slot less than there are, so that there is always one for a chat.
"""

import asyncio
import logging
import time
from typing import Protocol

from msgspec import json
from msgspec.structs import replace

from corral.backend.chat.types import ChatRequest, Finished, Message, Text
from corral.backend.choices import Choices
from corral.backend.errors import Broken, CorralError
from corral.backend.service import Service
from corral.backend.store import BatchRow, Store
from corral.frontend.answer import Answer
from corral.frontend.reasons import sentence

log = logging.getLogger("corral.frontend")

#: A batch is stopped when the engine has failed so many of its rows one after the other.
MAX_FAILURES = 5
#: A full queue is somebody else's; it is tried again after this.
AGAIN_S = 2.0


class Applies(Protocol):
    """Settings; see ``tuning.Tuning``."""

    def applied(self, request: ChatRequest) -> ChatRequest:
        """A request with them. Raises Refused."""


class Batching:
    """The batches that run now."""

    def __init__(self, service: Service, store: Store) -> None:
        self._service = service
        self._store = store
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.n_at_once = max(1, service.settings.slots - 1)
        self._places = asyncio.Semaphore(self.n_at_once)

    def start(self, batch_id: str, settings: Applies) -> None:
        """Works off what waits in a batch; one that runs already goes on."""
        if batch_id not in self._tasks:
            task = asyncio.create_task(self._work(batch_id, settings))
            self._tasks[batch_id] = task
            task.add_done_callback(lambda _: self._tasks.pop(batch_id, None))

    def is_running(self, batch_id: str) -> bool:
        """Whether a batch is being worked off."""
        return batch_id in self._tasks

    async def stop(self, batch_id: str) -> None:
        """Ends a batch; rows that were not done wait."""
        task = self._tasks.get(batch_id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        """Ends all of them."""
        for batch_id in list(self._tasks):
            await self.stop(batch_id)

    async def _work(self, batch_id: str, settings: Applies) -> None:
        end, error = "stopped", ""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.n_at_once):
                    group.create_task(self._worker(batch_id, settings))
            end = "done"
        except* Broken as errors:
            error = sentence(str(errors.exceptions[0]))
        finally:
            await self._store.batches.set_status(
                batch_id, "done" if end == "done" else "stopped", error
            )

    async def _worker(self, batch_id: str, settings: Applies) -> None:
        """Works off rows until there are none. Raises Broken when the engine fails for good."""
        n_failures = 0
        while True:
            async with self._places:
                row = await self._store.batches.take(batch_id)
                if row is None:
                    return
                try:
                    row = await self._answered(row, settings)
                    n_failures = 0
                except CorralError as error:
                    row = replace(row, status="error", error=sentence(error.message))
                    n_failures += isinstance(error, Broken)
                    if n_failures >= MAX_FAILURES:
                        await self._store.batches.finish(row)
                        raise
                await self._store.batches.finish(row)

    async def _answered(self, row: BatchRow, settings: Applies) -> BatchRow:
        """A row with its answer. Raises CorralError."""
        messages = tuple(
            Message(role=m["role"], content=m["content"])
            for m in json.decode(row.messages, type=list[dict[str, str]])
        )
        request = settings.applied(ChatRequest(messages=messages, reasoning_format="auto"))
        if self._service.state == "loading":
            await self._service.until_loaded()
        began_s, answer = time.monotonic(), Answer()
        choices = await self._begun(request)
        generation = choices.generations[0]
        try:
            async for event in generation:
                match event:
                    case Text():
                        answer.take(event.parts)
                    case Finished():
                        return replace(
                            row,
                            status="done",
                            error="",
                            answer=answer.content or _calls(answer),
                            reasoning=answer.reasoning,
                            is_cut=int(event.finish == "limit"),
                            n_prompt=event.timings.n_prompt,
                            n_cached=event.timings.n_cached,
                            n_generated=event.timings.n_generated,
                            total_ms=(time.monotonic() - began_s) * 1e3,
                        )
        finally:
            generation.abort()
        raise Broken("the answer broke off without an end")

    async def _begun(self, request: ChatRequest) -> Choices:
        """The request, once there is room for it in the queue. Raises CorralError."""
        while True:
            try:
                return await self._service.chat(request)
            except CorralError as error:
                if error.kind != "queue_full":
                    raise
            await asyncio.sleep(AGAIN_S)


def _calls(answer: Answer) -> str:
    return "\n".join(f"{call.name}({call.arguments})" for call in answer.calls)
