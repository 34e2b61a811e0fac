"""The Responses API's replies: the response object and what is said about kept ones."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from corral.backend.api.timings import WireProgress, WireTimings


class InputDetails(Struct, frozen=True, kw_only=True):
    """``cached_tokens`` needed no computation; writing to the cache is no event of its own."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(Struct, frozen=True):
    """``reasoning_tokens`` of the answer."""

    reasoning_tokens: int = 0


class ResponseUsage(Struct, frozen=True, kw_only=True):
    """Token counts; ``input_tokens`` includes the cached ones."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class IncompleteDetails(Struct, frozen=True):
    """Why an answer is not whole."""

    reason: str


class ResponseFault(Struct, frozen=True, kw_only=True):
    """What went wrong; ``code`` is one of OpenAI's."""

    code: str = "server_error"
    message: str


class ResponseObject(Struct, frozen=True, kw_only=True):
    """An answer and the settings it came from. ``timings`` and ``seed`` (the one used) are
    additions. ``status``: ``in_progress``, ``completed``, ``incomplete``, ``failed`` or
    ``cancelled``."""

    id: str
    object: str = "response"
    created_at: int
    status: str
    background: bool = False
    completed_at: int | None = None
    error: ResponseFault | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    model: str
    output: list[dict[str, Any]] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    reasoning: dict[str, Any] = {}
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool = True
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: int = 0
    top_p: float
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    timings: WireTimings | None = None
    seed: int | None = None
    prompt_progress: WireProgress | UnsetType = UNSET


class ResponseDeleted(Struct, frozen=True):
    """``DELETE /v1/responses/{id}``."""

    id: str
    object: str = "response"
    deleted: bool = True


class InputItems(Struct, frozen=True, kw_only=True):
    """A page of what was said for an answer."""

    object: str = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
