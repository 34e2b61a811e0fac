"""The events of a streamed response, and the pieces its output is made of."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from corral.backend.api.probs import TokenLogprob
from corral.backend.api.responses_object import ResponseObject
from corral.backend.api.timings import WireTimings


class StreamEvent(Struct, frozen=True, kw_only=True):
    """What all events of a stream have; ``sequence_number`` counts them from 0."""

    type: str
    sequence_number: int


class ResponseEvent(StreamEvent, frozen=True, kw_only=True):
    """``response.created``, ``.in_progress``, ``.completed``, ``.incomplete``, ``.failed``: the
    response as it stands."""

    response: ResponseObject


class OutputItemEvent(StreamEvent, frozen=True, kw_only=True):
    """``response.output_item.added`` and ``.done``."""

    output_index: int
    item: dict[str, Any]


class ContentPartEvent(StreamEvent, frozen=True, kw_only=True):
    """``response.content_part.added`` and ``.done``."""

    item_id: str
    output_index: int
    content_index: int
    part: dict[str, Any]


class TextDeltaEvent(StreamEvent, frozen=True, kw_only=True):
    """``response.output_text.delta``; ``logprobs`` is empty unless they were asked for."""

    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: list[TokenLogprob]
    timings: WireTimings | UnsetType = UNSET


class TextDoneEvent(StreamEvent, frozen=True, kw_only=True):
    """``response.output_text.done``: the whole text."""

    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: list[TokenLogprob]


class ReasoningDeltaEvent(StreamEvent, frozen=True, kw_only=True):
    """``response.reasoning_text.delta``."""

    item_id: str
    output_index: int
    content_index: int
    delta: str


class ReasoningDoneEvent(StreamEvent, frozen=True, kw_only=True):
    """``response.reasoning_text.done``: the whole reasoning."""

    item_id: str
    output_index: int
    content_index: int
    text: str


class ArgumentsDeltaEvent(StreamEvent, frozen=True, kw_only=True):
    """``response.function_call_arguments.delta``."""

    item_id: str
    output_index: int
    delta: str


class ArgumentsDoneEvent(StreamEvent, frozen=True, kw_only=True):
    """``response.function_call_arguments.done``: the whole arguments, JSON text."""

    item_id: str
    output_index: int
    name: str
    arguments: str


class StreamErrorEvent(StreamEvent, frozen=True, kw_only=True):
    """``error``: what went wrong; ``response.failed`` follows."""

    code: str | None
    message: str
    param: str | None


#: What a stream is made of, for the API's document.
EVENTS = (
    ResponseEvent,
    OutputItemEvent,
    ContentPartEvent,
    TextDeltaEvent,
    TextDoneEvent,
    ReasoningDeltaEvent,
    ReasoningDoneEvent,
    ArgumentsDeltaEvent,
    ArgumentsDoneEvent,
    StreamErrorEvent,
)


def text_part(text: str, probs: list[TokenLogprob]) -> dict[str, Any]:
    """A part of a message's content."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": probs}


def reasoning_part(text: str) -> dict[str, Any]:
    """The content of reasoning."""
    return {"type": "reasoning_text", "text": text}


def reasoning_item(item_id: str, status: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Reasoning of the assistant; nobody makes a summary of it."""
    return {
        "id": item_id,
        "type": "reasoning",
        "status": status,
        "summary": [],
        "content": parts,
    }


def call_item(
    item_id: str, status: str, *, call_id: str, name: str, arguments: str
) -> dict[str, Any]:
    """A call of a function."""
    return {
        "id": item_id,
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }


def message_item(item_id: str, status: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A message of the assistant."""
    return {
        "id": item_id,
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": parts,
    }
