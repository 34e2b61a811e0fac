"""From events to OpenAI's chat and text completions. Pure functions of events."""

from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from corral.backend import __version__
from corral.backend.api.answer import Answer, Wishes
from corral.backend.api.openai_schema import (
    AssistantMessage,
    Chat,
    ChatChoice,
    ChatChunk,
    ChunkChoice,
    Completion,
    Delta,
    PromptDetails,
    TextChoice,
    Usage,
)
from corral.backend.api.timings import wire_progress, wire_timings
from corral.backend.chat.types import Event, Finished, Reading, Text, Timings
from corral.backend.engine.messages import FinishKind

FINGERPRINT = f"corral-{__version__}"

# An answer that was cut off from outside is as incomplete as one that ran into its limit.
_REASON: dict[FinishKind, str] = {
    "eos": "stop",
    "word": "stop",
    "limit": "length",
    "cancelled": "length",
}


def usage(t: Timings) -> Usage:
    """Token counts of a request."""
    return Usage(
        completion_tokens=t.n_generated,
        prompt_tokens=t.n_prompt,
        total_tokens=t.n_prompt + t.n_generated,
        prompt_tokens_details=PromptDetails(t.n_cached),
    )


class Envelope(Struct, frozen=True, kw_only=True):
    """What every object of one reply repeats."""

    id: str
    created: int
    model: str


C = TypeVar("C", ChatChunk, Completion)


def dressed(event: Event, wishes: Wishes, chunk: C) -> list[Struct]:
    """A bare chunk with what the client wishes to see; none at all when there is nothing to show.

    Timings and seed ride on the very last chunk, which is the usage chunk when that was asked for.
    """
    match event:
        case Reading():
            return [replace(chunk, prompt_progress=wire_progress(event))] if wishes.progress else []
        case Text(text=""):
            return []  # clients take an empty delta for the end
        case Text():
            return [
                replace(chunk, timings=wire_timings(event.timings)) if wishes.timings else chunk
            ]
        case Finished():
            last = {"timings": wire_timings(event.timings), "seed": event.seed}
            if not wishes.usage:
                return [replace(chunk, **last)]
            return [chunk, replace(chunk, choices=[], usage=usage(event.timings), **last)]


class ChatRender(Struct, frozen=True):
    """``chat.completion`` and its chunks."""

    envelope: Envelope
    wishes: Wishes
    says_done: bool = True

    def _chunk(self, choices: list[ChunkChoice]) -> ChatChunk:
        e = self.envelope
        return ChatChunk(
            id=e.id,
            created=e.created,
            model=e.model,
            system_fingerprint=FINGERPRINT,
            choices=choices,
        )

    def opening(self) -> list[Struct]:
        """The role, before anything is known of the answer."""
        return [self._chunk([ChunkChoice(delta=Delta(role="assistant", content=None))])]

    def chunks(self, event: Event, answer: Answer) -> list[Struct]:
        """An event's chunks; see ``Render``."""
        return dressed(event, self.wishes, self._bare(event))

    def _bare(self, event: Event) -> ChatChunk:
        match event:
            case Text(text=text):
                return self._chunk([ChunkChoice(delta=Delta(content=text))])
            case Finished(finish=finish):
                return self._chunk([ChunkChoice(delta=Delta(), finish_reason=_REASON[finish])])
            case _:
                return self._chunk([ChunkChoice(delta=Delta())])

    def reply(self, answer: Answer, end: Finished) -> Struct:
        """The whole answer; see ``Render``."""
        e = self.envelope
        choice = ChatChoice(
            message=AssistantMessage(content=answer.text), finish_reason=_REASON[end.finish]
        )
        return Chat(
            id=e.id,
            created=e.created,
            model=e.model,
            system_fingerprint=FINGERPRINT,
            choices=[choice],
            usage=usage(end.timings),
            timings=wire_timings(end.timings),
            seed=end.seed,
        )


class TextRender(Struct, frozen=True):
    """``text_completion``, whole and streamed."""

    envelope: Envelope
    wishes: Wishes
    says_done: bool = True

    def _object(self, text: str, finish: FinishKind | None) -> Completion:
        e = self.envelope
        choice = TextChoice(text=text, finish_reason=finish and _REASON[finish])
        return Completion(
            id=e.id,
            created=e.created,
            model=e.model,
            system_fingerprint=FINGERPRINT,
            choices=[choice],
        )

    def opening(self) -> list[Struct]:
        """Nothing: a completion has no role."""
        return []

    def chunks(self, event: Event, answer: Answer) -> list[Struct]:
        """An event's chunks; see ``Render``."""
        text = event.text if isinstance(event, Text) else ""
        finish = event.finish if isinstance(event, Finished) else None
        return dressed(event, self.wishes, self._object(text, finish))

    def reply(self, answer: Answer, end: Finished) -> Struct:
        """The whole completion; see ``Render``."""
        return replace(
            self._object(answer.text, end.finish),
            usage=usage(end.timings),
            timings=wire_timings(end.timings),
            seed=end.seed,
        )
