"""The words every door shares: what is asked (requests) and what comes back (events)."""

from typing import Any, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from corral.backend.engine.messages import FinishKind, Sampling


class Params(Struct, frozen=True, kw_only=True):
    """Generation settings as asked for; ``None`` means the server's default.

    Names and meanings are llama-server's, whichever API they came through (see ``Sampling``).
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_last_n: int | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    logit_bias: tuple[tuple[int | str, float], ...] | None = None
    stop: tuple[str, ...] | None = None
    max_tokens: int | None = None
    cache_prompt: bool | None = None


class Message(Struct, frozen=True, kw_only=True):
    """One turn of a conversation, as a chat template sees it.

    ``fields`` are the members the client sent beside ``role`` and ``content`` (``name``,
    ``tool_calls``, ``reasoning_content``), handed to the template unchanged. ``content`` UNSET
    means the member was absent, ``None`` that it was null.
    """

    role: str
    content: str | UnsetType | None = UNSET
    fields: dict[str, Any] = {}


class ChatRequest(Struct, frozen=True, kw_only=True):
    """A conversation to continue."""

    messages: tuple[Message, ...]
    params: Params = Params()
    model: str | None = None
    template_kwargs: dict[str, Any] = {}
    add_generation_prompt: bool = True


class CompletionRequest(Struct, frozen=True, kw_only=True):
    """A raw prompt to continue: text, or token ids and texts mixed."""

    prompt: str | list[int | str]
    params: Params = Params()
    model: str | None = None


class Effective(Struct, frozen=True, kw_only=True):
    """The settings in force for one request, every default filled in."""

    sampling: Sampling
    stop: tuple[str, ...]
    max_tokens: int
    cache_prompt: bool


class Reading(Struct, frozen=True):
    """Prompt tokens done: ``processed`` of ``total``, ``cached`` included; after ``time_ms``."""

    total: int
    cached: int
    processed: int
    time_ms: float


class Text(Struct, frozen=True):
    """A piece of the answer and the tokens it came from. ``text`` is never empty, unless the answer
    ends in tokens that show nothing. ``timings`` are those up to this piece."""

    text: str
    tokens: list[int]
    timings: "Timings"


class Timings(Struct, frozen=True):
    """Counts and wall times. ``n_prompt`` includes the ``n_cached`` tokens not computed."""

    n_prompt: int
    n_cached: int
    n_generated: int
    prompt_ms: float
    predicted_ms: float
    queue_ms: float = 0.0


class Finished(Struct, frozen=True):
    """The answer is complete. ``truncated``: the context ended before it did. ``seed``: the one
    that was used."""

    finish: FinishKind
    stopping_word: str
    truncated: bool
    seed: int
    slot: int
    timings: Timings


Event: TypeAlias = Reading | Text | Finished
