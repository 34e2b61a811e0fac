"""One reply that is being made: how far it is, and what of it there is. Owned by the event loop."""

import asyncio
import time
from typing import Literal, TypeAlias

from msgspec.structs import replace

from corral.backend.chat.types import ChatRequest, Event, Finished, Reading, Text, Timings
from corral.backend.engine.messages import TokenProbs
from corral.backend.store import Figures, Message, Outcome
from corral.frontend.answer import Answer
from corral.frontend.together import Generation
from corral.frontend.watched import Watched

Phase: TypeAlias = Literal["loading", "sending", "waiting", "reading", "writing", "ended"]


class Reply(Watched):
    """One running reply, perhaps of several to ``request``. ``version`` grows with every change."""

    def __init__(self, message: Message, request: ChatRequest) -> None:
        if request.continue_final and not message.content:
            # How the answer is to begin was put into its mouth; it is part of what it says.
            message = replace(message, content=str(request.messages[-1].content))
        super().__init__()
        self.message = message
        self.request = request
        self.answer = Answer(message.content, message.reasoning)
        self.phase: Phase = "sending"
        self.reading: Reading | None = None
        self.timings: Timings | None = None
        self.generation: Generation | None = None
        self.task: asyncio.Task[None] | None = None
        self.has_begun = False
        self.is_stopping = False
        #: What it says, token by token, with probabilities where they were asked for.
        self.tokens: list[int] = []
        self.probs: list[TokenProbs] = []
        self.seed = 0
        self.begun_with = message.content
        self._began_s = time.monotonic()
        self._first_ms = 0.0
        self._open: tuple[int, str] = (-1, "")

    @property
    def id(self) -> int:
        """The id of its message."""
        return self.message.id

    def open_html(self) -> str:
        """The block being written, rendered once per version however many look."""
        if self._open[0] != self.version:
            self.answer.document.advance()
            self._open = (self.version, self.answer.document.open_html())
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

    def take(self, event: Event) -> None:
        """Notes what an event says."""
        match event:
            case Reading():
                self.reading = event
                self.phase = "reading"
            case Text():
                if self.phase != "writing":
                    self._first_ms = (time.monotonic() - self._began_s) * 1e3
                self.phase = "writing"
                self.timings = event.timings
                self.tokens += event.tokens
                self.probs += event.probs
                self.answer.take(event.parts)
            case Finished():
                self.timings = event.timings
                self.seed = event.seed
        self.touch()

    def standing(self, outcome: Outcome) -> Message:
        """The message as it is now."""
        t = self.timings
        figures = (
            self.message.figures
            if t is None
            else Figures(
                n_prompt=t.n_prompt,
                n_cached=t.n_cached,
                n_generated=t.n_generated,
                prompt_ms=t.prompt_ms,
                predicted_ms=t.predicted_ms,
                first_ms=self._first_ms,
                thought_ms=self.answer.thought_ms + self.message.figures.thought_ms,
            )
        )
        return replace(
            self.message,
            content=self.answer.content,
            reasoning=self.answer.reasoning,
            calls=self.answer.calls,
            outcome=outcome,
            figures=figures,
        )
