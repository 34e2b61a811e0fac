"""Replies that are being made. They belong to the server, not to a page: pages come and look.

Owned by the event loop; no locks. Every reply ends in exactly one final state, which is on disk
before anybody is told.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from corral.backend.chat import types as chat
from corral.backend.chat.types import ChatRequest, Content, Event, Finished, Reading, Text, Timings
from corral.backend.errors import Broken, CorralError
from corral.backend.store import Figures, Message, Outcome, Store
from corral.frontend.growing import Document

log = logging.getLogger("corral.frontend")

#: A running reply is written to disk this often; a crash loses no more.
FLUSH_S = 1.0
#: Running replies get this long to end when the server stops.
CLOSE_S = 5.0

Phase: TypeAlias = Literal["loading", "sending", "waiting", "reading", "writing", "ended"]


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
    """The answers of a request, of which there is one here; see ``choices.Choices``."""

    @property
    def generations(self) -> Sequence[Generation]:
        """The answers."""


class Model(Protocol):
    """What of the service is used here; see ``service.Service``."""

    async def chat(self, request: ChatRequest) -> Choices:
        """Starts to answer."""

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


def to_request(messages: Sequence[Message]) -> ChatRequest:
    """A conversation as the model gets it. Replies without text are left out, and what the user
    said in a row is one message: many templates insist that the roles alternate."""
    turns: list[tuple[str, str]] = []
    for m in messages:
        if m.role == "assistant" and not m.content:
            continue
        if turns and turns[-1][0] == m.role:
            turns[-1] = (m.role, f"{turns[-1][1]}\n\n{m.content}")
        else:
            turns.append((m.role, m.content))
    # There is no place for reasoning apart: it is shown where it was written.
    return ChatRequest(
        messages=tuple(chat.Message(role=r, content=c) for r, c in turns), reasoning_format="none"
    )


class Reply:
    """One running reply. ``version`` grows with every change; ``document`` is its text."""

    def __init__(self, message: Message, request: ChatRequest) -> None:
        self.message = message
        self.request = request
        self.document = Document()
        self.phase: Phase = "sending"
        self.reading: Reading | None = None
        self.timings: Timings | None = None
        self.version = 0
        self.generation: Generation | None = None
        self.task: asyncio.Task[None] | None = None
        self.has_begun = False
        self.is_stopping = False
        self.ended = asyncio.Event()
        self._text: list[str] = []
        self._began_s = time.monotonic()
        self._first_ms = 0.0
        self._open: tuple[int, str] = (-1, "")
        self._wake = asyncio.Event()

    @property
    def id(self) -> int:
        """The id of its message."""
        return self.message.id

    async def changed(self, seen: int, timeout_s: float) -> None:
        """Returns when ``version`` is not ``seen`` any more, or after the time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.version == seen and not self.ended.is_set():
                    await self._wake.wait()

    def open_html(self) -> str:
        """The block being written, rendered once per version however many look."""
        if self._open[0] != self.version:
            self.document.advance()
            self._open = (self.version, self.document.open_html())
        return self._open[1]

    def stop(self) -> None:
        """Ends it as soon as the engine can; what was written stays."""
        self.is_stopping = True
        if self.generation is not None:
            self.generation.abort()
        # A task cancelled before its first step would never get to its end.
        elif self.has_begun and self.phase != "ended" and self.task is not None:
            self.task.cancel()

    def enter(self, phase: Phase) -> None:
        """Begins a phase."""
        self.phase = phase
        self.touch()

    def touch(self) -> None:
        """Something changed: wakes everyone who looks."""
        self.version += 1
        self._wake.set()
        self._wake = asyncio.Event()

    def take(self, event: Event) -> None:
        """Notes what an event says."""
        match event:
            case Reading():
                self.reading = event
                self.phase = "reading"
            case Text():
                if not self._text:
                    self._first_ms = (time.monotonic() - self._began_s) * 1e3
                self.phase = "writing"
                self.timings = event.timings
                said = "".join(part.text for part in event.parts if isinstance(part, Content))
                self._text.append(said)
                self.document.feed(said)
            case Finished():
                self.timings = event.timings
        self.touch()

    def standing(self, outcome: Outcome) -> Message:
        """The message as it is now."""
        t = self.timings
        figures = (
            Figures()
            if t is None
            else Figures(
                n_prompt=t.n_prompt,
                n_cached=t.n_cached,
                n_generated=t.n_generated,
                prompt_ms=t.prompt_ms,
                predicted_ms=t.predicted_ms,
                first_ms=self._first_ms,
            )
        )
        return msgspec.structs.replace(
            self.message, content="".join(self._text), outcome=outcome, figures=figures
        )


class Live:
    """The replies that are running now."""

    def __init__(self, service: Model, store: Store) -> None:
        self._service = service
        self._store = store
        self._replies: dict[int, Reply] = {}

    def start(self, message: Message, request: ChatRequest) -> Reply:
        """Begins to answer; ``message`` is the empty reply in the store."""
        reply = self._replies[message.id] = Reply(message, request)
        reply.task = asyncio.create_task(self._run(reply))
        return reply

    def get(self, message_id: int) -> Reply | None:
        """A running reply, None when it is not running (any more)."""
        return self._replies.get(message_id)

    def running_in(self, conversation_id: str) -> Reply | None:
        """The reply that is being written in a conversation, if any."""
        found = (r for r in self._replies.values() if r.message.conversation_id == conversation_id)
        return next(found, None)

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
        tasks = [r.task for r in self._replies.values() if r.task is not None]
        for reply in list(self._replies.values()):
            reply.stop()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _run(self, reply: Reply) -> None:
        # What stands if anything unforeseen happens below; the task then shows its traceback.
        outcome = Outcome(status="error", error="Something went wrong in the server; see its log")
        reply.has_begun = True
        try:
            if reply.is_stopping:
                raise asyncio.CancelledError
            outcome = await self._answer(reply)
        except CorralError as error:
            outcome = Outcome(status="error", error=sentence(error.message))
        except asyncio.CancelledError:
            outcome = Outcome(status="stopped")
        finally:
            if reply.generation is not None:
                reply.generation.abort()
            await self._finish(reply, outcome)

    async def _finish(self, reply: Reply, outcome: Outcome) -> None:
        reply.phase = "ended"
        reply.message = reply.standing(outcome)
        try:
            await self._write(reply.message)
        except Broken as error:
            # Whoever looks now still sees the text, and that it will not be there later.
            unsaved = f"{outcome.error}. The reply is not saved: {error.message}".lstrip(". ")
            reply.message = reply.standing(Outcome(status="error", error=unsaved))
        finally:
            del self._replies[reply.id]
            reply.ended.set()
            reply.touch()

    async def _answer(self, reply: Reply) -> Outcome:
        """Runs a reply through; returns how it ended. Raises CorralError."""
        if self._service.state == "loading":
            reply.enter("loading")
            await self._service.until_loaded()
            reply.enter("sending")
        reply.generation = (await self._service.chat(reply.request)).generations[0]
        reply.enter("waiting")
        flushed_s = time.monotonic()
        async for event in reply.generation:
            reply.take(event)
            if isinstance(event, Finished):
                return _outcome(event)
            if time.monotonic() - flushed_s >= FLUSH_S:
                await self._write(reply.standing(Outcome()))
                flushed_s = time.monotonic()
        return Outcome(status="error", error="The answer broke off without an end")

    async def _write(self, message: Message) -> None:
        await self._store.update_reply(
            message.id, message.content, message.outcome, message.figures
        )


def _outcome(event: Finished) -> Outcome:
    if event.finish == "cancelled":
        return Outcome(status="stopped")
    return Outcome(status="done", is_cut=event.finish == "limit", is_full=event.truncated)


def sentence(message: str) -> str:
    """An error message as a person reads it: a capital first, no code-like end."""
    return message[:1].upper() + message[1:]
