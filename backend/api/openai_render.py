"""From events to OpenAI's chat and text completions. Pure functions of events."""

import math
from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from corral.backend import __version__
from corral.backend.api.answer import Answer, Shown, Wishes
from corral.backend.api.openai_schema import (
    AssistantMessage,
    CallDelta,
    CallMade,
    Chat,
    ChatChoice,
    ChatChunk,
    ChunkChoice,
    Completion,
    Delta,
    FunctionMade,
    PromptDetails,
    TextChoice,
    Usage,
)
from corral.backend.api.probs import for_chat, for_text
from corral.backend.api.timings import merged, wire_progress, wire_timings
from corral.backend.api.wire import error_object
from corral.backend.chat.types import (
    CallArguments,
    CallBegin,
    Content,
    Event,
    Finished,
    Part,
    Reading,
    Scored,
    Text,
    Thought,
    Timings,
)
from corral.backend.engine.messages import FinishKind
from corral.backend.errors import CorralError

FINGERPRINT = f"corral-{__version__}"

# An answer that was cut off from outside is as incomplete as one that ran into its limit.
_REASON: dict[FinishKind, str] = {
    "eos": "stop",
    "word": "stop",
    "limit": "length",
    "cancelled": "length",
}


def _all(answers: Sequence[Answer]) -> Timings:
    return merged([(a.prompt_index, a.last.timings) for a in answers])


def usage(answers: Sequence[Answer]) -> Usage:
    """Token counts of a request: all that was generated, each prompt once."""
    t = _all(answers)
    return Usage(
        completion_tokens=t.n_generated,
        prompt_tokens=t.n_prompt,
        total_tokens=t.n_prompt + t.n_generated,
        prompt_tokens_details=PromptDetails(t.n_cached),
    )


def _totals(answers: Sequence[Answer], first: Answer | None = None) -> dict[str, Any]:
    """What stands at the end of a whole reply: counts, times, and the first answer's seed."""
    timings = wire_timings(_all(answers))
    return {"usage": usage(answers), "timings": timings, "seed": (first or answers[0]).last.seed}


class Envelope(Struct, frozen=True, kw_only=True):
    """What every object of one reply repeats."""

    id: str
    created: int
    model: str


C = TypeVar("C", ChatChunk, Completion)


def dressed(event: Event, wishes: Wishes, chunk: C) -> list[C]:
    """A bare chunk with what the client wishes to see; none at all when there is nothing to show.

    An answer's seed and timings ride on its last chunk, the timings on the usage chunk when that
    was asked for.
    """
    match event:
        case Reading():
            return [replace(chunk, prompt_progress=wire_progress(event))] if wishes.progress else []
        case Text():
            return [
                replace(chunk, timings=wire_timings(event.timings)) if wishes.timings else chunk
            ]
        case Finished(seed=seed):
            if wishes.usage:
                return [replace(chunk, seed=seed)]
            return [replace(chunk, timings=wire_timings(event.timings), seed=seed)]
        case Scored():
            return [chunk]


class ChatRender(Struct, frozen=True):
    """``chat.completion`` and its chunks, for ``n`` answers; ``is_old``: calls in the form that was
    there before tools."""

    envelope: Envelope
    wishes: Wishes
    n: int = 1
    is_old: bool = False
    says_done: bool = True
    names_events: bool = False

    def _chunk(self, choices: list[ChunkChoice]) -> ChatChunk:
        e = self.envelope
        return ChatChunk(
            id=e.id,
            created=e.created,
            model=e.model,
            system_fingerprint=FINGERPRINT,
            choices=choices,
        )

    def opening(self) -> list[Shown]:
        """The role, before anything is known of the answers."""
        role = Delta(role="assistant", content=None)
        return [self._chunk([ChunkChoice(index=i, delta=role)]) for i in range(self.n)]

    def chunks(self, event: Event, answer: Answer) -> Sequence[Shown]:
        """An event's chunks; see ``Render``."""
        shown: list[Shown] = []
        for choice in self._choices(event, answer.index):
            shown += dressed(event, self.wishes, self._chunk([choice]))
        return shown

    def _choices(self, event: Event, index: int) -> list[ChunkChoice]:
        match event:
            case Text(probs=probs, parts=parts):
                logprobs = for_chat(probs, self.wishes.probs) if self.wishes.probs else UNSET
                deltas = [self._delta(part) for part in parts]
                if not deltas and logprobs and probs:
                    deltas = [Delta()]  # else clients take an empty delta for the end
                choices = [ChunkChoice(index=index, delta=delta) for delta in deltas]
                choices[:1] = [replace(c, logprobs=logprobs) for c in choices[:1]]
                return choices
            case Finished():
                reason = self._reason(event)
                return [ChunkChoice(index=index, delta=Delta(), finish_reason=reason)]
            case Reading():
                return [ChunkChoice(index=index, delta=Delta())]
            case Scored():
                return []

    def _delta(self, part: Part) -> Delta:
        match part:
            case Content(text):
                return Delta(content=text)
            case Thought(text):
                return Delta(reasoning_content=text)
            case CallBegin(index, call_id, name):
                function = FunctionMade(name=name, arguments="")
                return self._call(
                    CallDelta(index=index, id=call_id, type="function", function=function)
                )
            case CallArguments(index, text):
                return self._call(CallDelta(index=index, function=FunctionMade(arguments=text)))

    def _call(self, call: CallDelta) -> Delta:
        return Delta(function_call=call.function) if self.is_old else Delta(tool_calls=[call])

    def _reason(self, end: Finished) -> str:
        if end.n_calls and end.finish in ("eos", "word"):
            return "function_call" if self.is_old else "tool_calls"
        return _REASON[end.finish]

    def _message(self, answer: Answer) -> AssistantMessage:
        calls = [
            CallMade(id=c.call_id, function=FunctionMade(name=c.name, arguments=c.text))
            for c in answer.calls
        ]
        return AssistantMessage(
            content=answer.content or (None if calls else ""),
            reasoning_content=answer.thoughts or UNSET,
            tool_calls=calls if calls and not self.is_old else UNSET,
            function_call=calls[0].function if calls and self.is_old else UNSET,
        )

    def closing(self, answers: Sequence[Answer]) -> list[Shown]:
        """The usage chunk, when it was asked for."""
        return [replace(self._chunk([]), **_totals(answers))] if self.wishes.usage else []

    def reply(self, answers: Sequence[Answer]) -> Chat:
        """The whole answers; see ``Render``."""
        e, shape = self.envelope, self.wishes.probs
        choices = [
            ChatChoice(
                index=a.index,
                message=self._message(a),
                logprobs=for_chat(a.probs, shape) if shape else None,
                finish_reason=self._reason(a.last),
                seed=_seed(a, answers),
            )
            for a in answers
        ]
        return Chat(
            id=e.id,
            created=e.created,
            model=e.model,
            system_fingerprint=FINGERPRINT,
            choices=choices,
            **_totals(answers),
        )

    def failure(self, error: CorralError) -> Shown:
        """An error event; see ``Render``."""
        return error_object(error)


class TextRender(Struct, frozen=True):
    """``text_completion``, whole and streamed.

    ``echoed`` are the prompts as texts when they are to stand in front of the answers. Of the
    ``n_made`` answers to each prompt the ``n`` likeliest are kept.
    """

    envelope: Envelope
    wishes: Wishes
    echoed: Sequence[str] = ()
    n: int = 1
    n_made: int = 1
    says_done: bool = True
    names_events: bool = False

    def _object(self, choices: list[TextChoice]) -> Completion:
        e = self.envelope
        return Completion(
            id=e.id,
            created=e.created,
            model=e.model,
            system_fingerprint=FINGERPRINT,
            choices=choices,
        )

    def opening(self) -> list[Shown]:
        """The prompts, where they are echoed; a completion has no role."""
        return [
            self._object([TextChoice(text=text, index=i * self.n + j)])
            for i, text in enumerate(self.echoed)
            for j in range(self.n)
        ]

    def chunks(self, event: Event, answer: Answer) -> Sequence[Shown]:
        """An event's chunks; see ``Render``."""
        choice = self._choice(event, answer)
        return [] if choice is None else dressed(event, self.wishes, self._object([choice]))

    def _choice(self, event: Event, answer: Answer) -> TextChoice | None:
        shape, index = self.wishes.probs, answer.index
        match event:
            case Text(text=text, probs=probs):
                start = self._n_echoed(answer) + answer.n_chars - len(text)
                logprobs = for_text(probs, shape, start=start) if shape and probs else None
                if not text and logprobs is None:
                    return None
                return TextChoice(text=text, index=index, logprobs=logprobs)
            case Scored(probs=probs):
                if shape is None or not self.echoed:
                    return None
                # The text is out already; what came before these tokens says where they begin.
                before = answer.prompt_probs[: len(answer.prompt_probs) - len(probs)]
                start = len(b"".join(p.piece for p in before).decode("utf-8", "replace"))
                logprobs = for_text(probs, shape, start=start)
                return TextChoice(text="", index=index, logprobs=logprobs)
            case Finished(finish=finish):
                return TextChoice(text="", index=index, finish_reason=_REASON[finish])
            case Reading():
                return TextChoice(text="", index=index)

    def _n_echoed(self, answer: Answer) -> int:
        return len(self.echoed[answer.prompt_index]) if self.echoed else 0

    def closing(self, answers: Sequence[Answer]) -> list[Shown]:
        """The usage chunk, when it was asked for."""
        return [replace(self._object([]), **_totals(answers))] if self.wishes.usage else []

    def reply(self, answers: Sequence[Answer]) -> Completion:
        """The whole completions; see ``Render``. All that were made are counted."""
        kept = answers
        if self.n_made > self.n:
            groups = [answers[i : i + self.n_made] for i in range(0, len(answers), self.n_made)]
            kept = [
                answer
                for group in groups
                for answer in sorted(group, key=_mean_logprob, reverse=True)[: self.n]
            ]
        choices = [self._whole(a, i, kept) for i, a in enumerate(kept)]
        return replace(self._object(choices), **_totals(answers, first=kept[0]))

    def _whole(self, answer: Answer, index: int, kept: Sequence[Answer]) -> TextChoice:
        text, probs = answer.text, answer.probs
        if self.echoed:
            text = self.echoed[answer.prompt_index] + text
            probs = answer.prompt_probs + probs
        shape = self.wishes.probs
        return TextChoice(
            text=text,
            index=index,
            logprobs=for_text(probs, shape) if shape else None,
            finish_reason=_REASON[answer.last.finish],
            seed=_seed(answer, kept),
        )

    def failure(self, error: CorralError) -> Shown:
        """An error event; see ``Render``."""
        return error_object(error)


def _seed(answer: Answer, answers: Sequence[Answer]) -> int | UnsetType:
    return answer.last.seed if len(answers) > 1 else UNSET


def _mean_logprob(answer: Answer) -> float:
    """By which answers are ranked: long ones are not at a disadvantage."""
    logprobs = [p.logprob for p in answer.probs if p.logprob is not None]
    return math.fsum(logprobs) / len(logprobs) if logprobs else -math.inf
