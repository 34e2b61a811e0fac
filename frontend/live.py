"""Replies that are being made. They belong to the server, not to a page: pages come and look.

Owned by the event loop; no locks. Every reply ends in exactly one final state, which is on disk
before anybody is told.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from corral.backend.chat.types import ChatRequest, Finished
from corral.backend.errors import Broken, CorralError
from corral.backend.store import Message, Outcome, Store
from corral.frontend import traces
from corral.frontend.reasons import sentence
from corral.frontend.reply import Reply
from corral.frontend.together import Asks, Part, Together
from corral.frontend.words import _, later

log = logging.getLogger("corral.frontend")

WRONG = later("Something went wrong in the server; see its log")
#: A running reply is written to disk this often; a crash loses no more.
FLUSH_S = 1.0
#: Running replies get this long to end when the server stops.
CLOSE_S = 5.0


class Model(Asks, Protocol):
    """What of the service is used here; see ``service.Service``."""

    async def until_loaded(self) -> None:
        """Waits for the model."""

    @property
    def state(self) -> str:
        """loading, ready, …"""

    @property
    def load_progress(self) -> float:
        """0 to 1."""

    def waiting_ahead(self, generation_id: int) -> int | None:
        """Requests before this one in the queue."""


class Live:
    """The replies that are running now."""

    def __init__(self, service: Model, store: Store) -> None:
        self._service = service
        self._store = store
        self._replies: dict[int, Reply] = {}
        #: Held from the look whether a reply is running until another one is.
        self.starting = asyncio.Lock()
        self.is_closing = False
        #: Called when a reply has ended and is on disk, before anybody is told.
        self.on_end: Callable[[Reply], Awaitable[None]] | None = None

    def start(self, message: Message, request: ChatRequest) -> Reply:
        """Begins to answer; ``message`` is the empty reply in the store."""
        return self.start_all([message], request)[0]

    def start_all(self, messages: Sequence[Message], request: ChatRequest) -> tuple[Reply, ...]:
        """Begins to answer in as many ways as there are ``messages``, empty replies in the store,
        with one request: its prompt is read once. Each ends by itself."""
        request = traces.asking(replace(request, n=len(messages)))
        replies = tuple(Reply(message, request) for message in messages)
        for reply, part in zip(replies, Together(self._service, request).parts, strict=True):
            self._replies[reply.id] = reply
            reply.task = asyncio.create_task(self._run(reply, part))
        return replies

    def get(self, message_id: int) -> Reply | None:
        """A running reply, None when it is not running (any more)."""
        return self._replies.get(message_id)

    def running_in(self, conversation_id: str) -> Reply | None:
        """The reply that is being written in a conversation, if any; of several the first."""
        return next(iter(self.all_in(conversation_id)), None)

    @property
    def all(self) -> tuple[Reply, ...]:
        """All replies that are being written."""
        return tuple(self._replies.values())

    def all_in(self, conversation_id: str) -> tuple[Reply, ...]:
        """All replies that are being written in a conversation."""
        found = self._replies.values()
        return tuple(r for r in found if r.message.conversation_id == conversation_id)

    @property
    def is_any(self) -> bool:
        """Whether any reply is running."""
        return bool(self._replies)

    async def end(self, reply: Reply) -> None:
        """Stops a reply and returns when it has ended."""
        reply.stop()
        await reply.ended.wait()

    async def close(self) -> None:
        """Stops everything; what was written is on disk after."""
        self.is_closing = True
        tasks = [r.task for r in self._replies.values() if r.task is not None]
        for reply in list(self._replies.values()):
            reply.stop()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _run(self, reply: Reply, part: Part) -> None:
        # What stands if anything unforeseen happens below; the task then shows its traceback.
        outcome = Outcome(status="error", error=_(WRONG))
        reply.has_begun = True
        try:
            if reply.is_stopping:
                raise asyncio.CancelledError
            outcome = await self._answer(reply, part)
        except CorralError as error:
            outcome = Outcome(status="error", error=sentence(error.message))
        except asyncio.CancelledError:
            outcome = Outcome(status="stopped")
        finally:
            part.leave()
            await self._finish(reply, outcome)

    async def _finish(self, reply: Reply, outcome: Outcome) -> None:
        reply.phase = "ended"
        reply.message = reply.standing(outcome)
        try:
            await self._write(reply.message)
            await traces.keep(self._store, reply)
        except Broken as error:
            # Whoever looks now still sees the text, and that it will not be there later.
            why = _("The reply is not saved: {reason}").format(reason=sentence(error.message))
            unsaved = f"{outcome.error}. {why}".lstrip(". ")
            reply.message = reply.standing(Outcome(status="error", error=unsaved))
        finally:
            del self._replies[reply.id]
            try:
                if self.on_end is not None:
                    await self.on_end(reply)
            finally:
                reply.ended.set()
                reply.touch()

    async def _answer(self, reply: Reply, part: Part) -> Outcome:
        """Runs a reply through; returns how it ended. Raises CorralError."""
        if self._service.state == "loading":
            reply.enter("loading")
            await self._service.until_loaded()
            reply.enter("sending")
        reply.generation = await part.begin()
        await traces.keep(self._store, reply)
        reply.enter("waiting")
        flushed_s = time.monotonic()
        async for event in reply.generation:
            reply.take(event)
            if isinstance(event, Finished):
                return _outcome(event)
            if time.monotonic() - flushed_s >= FLUSH_S:
                await self._write(reply.standing(Outcome()))
                flushed_s = time.monotonic()
        return Outcome(status="error", error=_("The answer broke off without an end"))

    async def _write(self, message: Message) -> None:
        await self._store.update_reply(message)


def _outcome(event: Finished) -> Outcome:
    if event.finish == "cancelled":
        return Outcome(status="stopped")
    return Outcome(status="done", is_cut=event.finish == "limit", is_full=event.truncated)
