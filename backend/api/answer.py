"""What the renderers of all APIs share: the answers so far, and what a client asked to see."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from corral.backend.api.probs import Shape
from corral.backend.chat.types import Event, Finished, Scored, Text
from corral.backend.engine.messages import TokenProbs
from corral.backend.errors import CorralError

#: What goes out as one JSON value.
Shown: TypeAlias = Struct | dict[str, Any]


class Wishes(Struct, frozen=True, kw_only=True):
    """What a client wants to see beside the text. ``probs`` None: no probabilities."""

    usage: bool = False
    timings: bool = False
    progress: bool = False
    probs: Shape | None = None


class Answer:
    """One answer as it grows. Owned by the request's task.

    ``n_chars`` of text; ``probs`` one for each token, and ``prompt_probs`` for those of the prompt,
    where they were asked for. ``prompt_index`` numbers the prompts of a request; ``end`` is None
    until it is complete.
    """

    def __init__(self, index: int = 0, prompt_index: int = 0) -> None:
        self.index = index
        self.prompt_index = prompt_index
        self.n_chars = 0
        self.tokens: list[int] = []
        self.probs: list[TokenProbs] = []
        self.prompt_probs: list[TokenProbs] = []
        self.has_new_line = False
        self.end: Finished | None = None
        self._parts: list[str] = []

    def take(self, event: Event) -> None:
        """Notes what an event brings."""
        match event:
            case Text():
                self._parts.append(event.text)
                self.n_chars += len(event.text)
                self.tokens += event.tokens
                self.probs += event.probs
                self.has_new_line = self.has_new_line or "\n" in event.text
            case Scored():
                self.prompt_probs += event.probs
            case Finished():
                self.end = event

    @property
    def text(self) -> str:
        """The whole text so far."""
        return "".join(self._parts)

    @property
    def last(self) -> Finished:
        """How it ended; for those who know that it has."""
        assert self.end is not None
        return self.end


class Render(Protocol):
    """From events to one API's wire structs. Pure: the same events give the same structs."""

    @property
    def says_done(self) -> bool:
        """Whether a stream ends in OpenAI's ``[DONE]``."""
        ...

    @property
    def names_events(self) -> bool:
        """Whether an event of a stream is named on the wire, by its member ``type``."""
        ...

    def opening(self) -> Sequence[Shown]:
        """What a stream begins with, before any event."""
        ...

    def chunks(self, event: Event, answer: Answer) -> Sequence[Shown]:
        """What an event adds to a stream; ``answer``, whose event it is, includes it."""
        ...

    def closing(self, answers: Sequence[Answer]) -> Sequence[Shown]:
        """What a stream ends with, after the last answer's end."""
        ...

    def reply(self, answers: Sequence[Answer]) -> Shown | Sequence[Shown]:
        """All answers, complete, in one."""
        ...

    def failure(self, error: CorralError) -> Shown | Sequence[Shown]:
        """What ends a stream badly."""
        ...
