"""What the renderers of all APIs share: the answer so far, and what a client asked to see of it."""

from typing import Protocol

from msgspec import Struct

from corral.backend.chat.types import Event, Finished, Text


class Wishes(Struct, frozen=True, kw_only=True):
    """What a client wants to see beside the text."""

    usage: bool = False
    timings: bool = False
    progress: bool = False


class Answer:
    """The text and tokens of one generation as they grow. Owned by the request's task."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self.tokens: list[int] = []
        self.has_new_line = False

    def add(self, piece: Text) -> None:
        """Another piece."""
        self._parts.append(piece.text)
        self.tokens += piece.tokens
        self.has_new_line = self.has_new_line or "\n" in piece.text

    @property
    def text(self) -> str:
        """The whole text so far."""
        return "".join(self._parts)


class Render(Protocol):
    """From events to one API's wire structs. Pure: the same events give the same structs."""

    @property
    def says_done(self) -> bool:
        """Whether a stream ends in OpenAI's ``[DONE]``."""
        ...

    def opening(self) -> list[Struct]:
        """What a stream begins with, before any event."""
        ...

    def chunks(self, event: Event, answer: Answer) -> list[Struct]:
        """What an event adds to a stream; ``answer`` includes it."""
        ...

    def reply(self, answer: Answer, end: Finished) -> Struct:
        """The whole answer in one."""
        ...
