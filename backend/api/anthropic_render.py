"""From events to Anthropic's message and its stream events. Pure: the same events, the same
structs."""

import json
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from corral.backend.api import anthropic_errors
from corral.backend.api.answer import Answer, Block, Shown, Wishes
from corral.backend.api.anthropic_schema import MessageObject, MessageUsage
from corral.backend.api.timings import WireProgress, WireTimings, wire_progress, wire_timings
from corral.backend.chat.types import (
    CallArguments,
    CallBegin,
    Content,
    Event,
    Finished,
    Part,
    Reading,
    Text,
    Thought,
    Timings,
)
from corral.backend.errors import CorralError
from corral.backend.jsonvalue import whole_characters


class MessageStart(Struct, frozen=True, kw_only=True):
    """The message before anything is known of it. Its ``input_tokens`` are the whole prompt; how
    many of them were cached is in ``message_delta``."""

    type: str = "message_start"
    message: MessageObject


class BlockStart(Struct, frozen=True, kw_only=True):
    """A block begins, empty."""

    type: str = "content_block_start"
    index: int
    content_block: dict[str, Any]


class Ping(Struct, frozen=True, kw_only=True):
    """Nothing has happened, or the prompt is being read."""

    type: str = "ping"
    prompt_progress: WireProgress | UnsetType = UNSET


class BlockDelta(Struct, frozen=True, kw_only=True):
    """A block grows."""

    type: str = "content_block_delta"
    index: int
    delta: dict[str, Any]
    timings: WireTimings | UnsetType = UNSET


class BlockStop(Struct, frozen=True, kw_only=True):
    """A block is whole."""

    type: str = "content_block_stop"
    index: int


class StopDelta(Struct, frozen=True, kw_only=True):
    """Why the message ended."""

    stop_reason: str
    stop_sequence: str | None


class MessageDelta(Struct, frozen=True, kw_only=True):
    """How the message ended, and the final counts."""

    type: str = "message_delta"
    delta: StopDelta
    usage: MessageUsage
    timings: WireTimings
    seed: int


class MessageStop(Struct, frozen=True, kw_only=True):
    """The stream is over."""

    type: str = "message_stop"


#: What a stream is made of, for the API's document.
EVENTS = (MessageStart, BlockStart, Ping, BlockDelta, BlockStop, MessageDelta, MessageStop)


def usage(t: Timings) -> MessageUsage:
    """Token counts of a request."""
    return MessageUsage(
        input_tokens=t.n_prompt - t.n_cached,
        cache_read_input_tokens=t.n_cached,
        output_tokens=t.n_generated,
    )


def stop(end: Finished) -> StopDelta:
    """Why an answer ended."""
    reason, word = "max_tokens", None
    if end.n_calls and end.finish in ("eos", "word"):
        reason = "tool_use"
    elif end.finish == "eos":
        reason = "end_turn"
    elif end.finish == "word":
        reason, word = "stop_sequence", end.stopping_word
    elif end.truncated:
        reason = "model_context_window_exceeded"
    return StopDelta(stop_reason=reason, stop_sequence=word)


def _whole(block: Block) -> dict[str, Any] | None:
    """A block of a whole message; None for a call that was cut off, which has no input."""
    match block.kind:
        case "text":
            return {"type": "text", "text": block.text}
        case "thought":
            return {"type": "thinking", "thinking": block.text, "signature": ""}
        case "call":
            try:
                given = json.loads(block.text or "{}")
                given = whole_characters(given) if "\\u" in block.text else given
            except (ValueError, RecursionError):
                return None
            return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": given}


class MessagesRender:
    """One message, whole and streamed. Owned by the request's task."""

    says_done = False
    names_events = True

    def __init__(self, name: str, model: str, n_prompt: int, wishes: Wishes) -> None:
        self._name = name
        self._model = model
        self._n_prompt = n_prompt
        self._wishes = wishes
        self._n_shown = 0  # blocks that have begun
        self._kind = ""  # of the open one

    def opening(self) -> Sequence[Struct]:
        """The message, before anything is known of it."""
        message = MessageObject(
            id=self._name,
            model=self._model,
            content=[],
            usage=MessageUsage(input_tokens=self._n_prompt, output_tokens=0),
        )
        return [MessageStart(message=message)]

    def chunks(self, event: Event, answer: Answer) -> Sequence[Struct]:
        """An event's stream events; see ``Render``."""
        match event:
            case Reading() if self._wishes.progress:
                return [Ping(prompt_progress=wire_progress(event))]
            case Text(parts=parts, timings=timings):
                shown: list[Struct] = []
                for part in parts:
                    shown += self._show(part, timings)
                return shown
            case Finished():
                return self._close()
            case _:
                return []

    def _show(self, part: Part, timings: Timings) -> list[Struct]:
        match part:
            case Content(text):
                begun = self._begin({"type": "text", "text": ""})
                return [*begun, self._delta({"type": "text_delta", "text": text}, timings)]
            case Thought(text):
                begun = self._begin({"type": "thinking", "thinking": "", "signature": ""})
                return [*begun, self._delta({"type": "thinking_delta", "thinking": text}, timings)]
            case CallBegin(_, call_id, name):
                return self._begin({"type": "tool_use", "id": call_id, "name": name, "input": {}})
            case CallArguments(_, text):
                delta = {"type": "input_json_delta", "partial_json": text}
                return [self._delta(delta, timings)]

    def _begin(self, block: dict[str, Any]) -> list[Struct]:
        """Begins a block, unless what it brings goes on with the open one."""
        if self._kind == block["type"] != "tool_use":
            return []
        closed = self._close()
        self._kind = block["type"]
        self._n_shown += 1
        first = [Ping()] if self._n_shown == 1 else []
        return [*closed, BlockStart(index=self._n_shown - 1, content_block=block), *first]

    def _close(self) -> list[Struct]:
        """Ends the open block."""
        if not self._kind:
            return []
        index = self._n_shown - 1
        signature = {"type": "signature_delta", "signature": ""}
        signed = [BlockDelta(index=index, delta=signature)] if self._kind == "thinking" else []
        self._kind = ""
        return [*signed, BlockStop(index=index)]

    def _delta(self, delta: dict[str, Any], timings: Timings) -> BlockDelta:
        return BlockDelta(
            index=self._n_shown - 1,
            delta=delta,
            timings=wire_timings(timings) if self._wishes.timings else UNSET,
        )

    def closing(self, answers: Sequence[Answer]) -> Sequence[Struct]:
        """Why it ended, and the counts."""
        end = answers[0].last
        delta = MessageDelta(
            delta=stop(end),
            usage=usage(end.timings),
            timings=wire_timings(end.timings),
            seed=end.seed,
        )
        return [delta, MessageStop()]

    def reply(self, answers: Sequence[Answer]) -> MessageObject:
        """The whole message; see ``Render``."""
        (answer,) = answers
        end = answer.last
        why = stop(end)
        return MessageObject(
            id=self._name,
            model=self._model,
            content=[shown for block in answer.blocks if (shown := _whole(block)) is not None],
            stop_reason=why.stop_reason,
            stop_sequence=why.stop_sequence,
            usage=usage(end.timings),
            timings=wire_timings(end.timings),
            seed=end.seed,
        )

    def failure(self, error: CorralError) -> Shown:
        """What went wrong."""
        return anthropic_errors.error_object(error)
