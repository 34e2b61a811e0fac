"""The words every door shares: what is asked (requests) and what comes back (events)."""

from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from corral.backend.engine.messages import Constraint, FinishKind, Sampling, TokenProbs
from corral.backend.engine.messages import Media as Media
from corral.backend.engine.messages import Written as Written
from corral.backend.values import ReasoningFormat


class Params(Struct, frozen=True, kw_only=True):
    """Generation settings as asked for; ``None`` means the server's default.

    Names and meanings are llama-server's, whichever API they came through (see ``Sampling``).
    ``constraint_at`` is what the client calls the place of the constraint.
    """

    temperature: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repeat_last_n: int | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: tuple[str, ...] | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    adaptive_target: float | None = None
    adaptive_decay: float | None = None
    samplers: tuple[str, ...] | None = None
    min_keep: int | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    logit_bias: tuple[tuple[int | str, float], ...] | None = None
    n_probs: int | None = None
    post_sampling_probs: bool | None = None
    stop: tuple[str, ...] | None = None
    max_tokens: int | None = None
    cache_prompt: bool | None = None
    constraint: Constraint | None = None
    constraint_at: str | None = None
    context_shift: bool | None = None
    n_keep: int | None = None
    n_discard: int | None = None
    n_indent: int | None = None
    t_max_predict_ms: int | None = None
    id_slot: int | None = None
    lora: tuple[tuple[int, float], ...] | None = None
    prompt_probs: bool | None = None


class Content(Struct, frozen=True, tag="content"):
    """More of what the answer says."""

    text: str


class Thought(Struct, frozen=True, tag="thought"):
    """More of the reasoning before (or between) what the answer says."""

    text: str


class CallBegin(Struct, frozen=True, tag="call_begin"):
    """A tool call begins: number ``index`` of the answer, with an id of its own."""

    index: int
    id: str
    name: str


class CallArguments(Struct, frozen=True, tag="call_arguments"):
    """More of a call's arguments; all fragments of a call joined are its JSON text."""

    index: int
    text: str


#: What an answer is made of, once its dialect has been read.
Part: TypeAlias = Content | Thought | CallBegin | CallArguments

ToolChoice: TypeAlias = Literal["none", "auto", "required"]


class Tool(Struct, frozen=True, kw_only=True):
    """A function the model may call. ``parameters`` is the JSON Schema of its arguments, an object;
    ``source`` is the tool as the client sent it, for the template; ``at`` is what the client calls
    the place of the schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    strict: bool | None = None
    source: dict[str, Any] = {}
    at: str = "tools"


class Source(Struct, frozen=True, kw_only=True):
    """Where a picture or a sound comes from, as a client gave it: a ``url`` (``data:``, ``http:``,
    ``https:``, ``file:``) or, without one, ``data`` as it was uploaded. ``param`` is what the
    client calls the place."""

    kind: Literal["image", "audio"]
    param: str
    url: str = ""
    data: bytes = b""


class Message(Struct, frozen=True, kw_only=True):
    """One turn of a conversation, as a chat template sees it.

    ``fields`` are the members the client sent beside ``role`` and ``content`` (``name``,
    ``tool_calls``, ``reasoning_content``), handed to the template. ``content`` may be a list of
    parts, ``{"type": "text", "text": …}`` or ``{"type": "media", "index": i}`` for source ``i`` of
    the request; UNSET means the member was absent, ``None`` that it was null.
    """

    role: str
    content: str | list[dict[str, Any]] | UnsetType | None = UNSET
    fields: dict[str, Any] = {}


class ChatRequest(Struct, frozen=True, kw_only=True):
    """A conversation to continue, ``n`` times.

    ``tool_name``: the one tool that must be called (``tool_choice`` is then ``required``).
    ``parallel_tool_calls`` None: as the template can. ``thinking_budget`` is the most tokens of
    reasoning, -1 without limit, None the server's default, as for ``reasoning_format``.
    ``continue_final``: the last message is an assistant's and goes on; None: when it is one.
    ``sources``: its pictures and sounds, in the order in which its messages show them.
    ``places``: what the client calls the messages, when that is not ``messages[i]``.
    """

    messages: tuple[Message, ...]
    params: Params = Params()
    model: str | None = None
    template_kwargs: dict[str, Any] = {}
    add_generation_prompt: bool = True
    n: int = 1
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    tool_name: str | None = None
    parallel_tool_calls: bool | None = None
    reasoning_format: ReasoningFormat | None = None
    thinking_budget: int | None = None
    continue_final: bool | None = None
    sources: tuple[Source, ...] = ()
    places: tuple[str, ...] = ()

    def place(self, i: int) -> str:
        """What the client calls message number ``i``."""
        return self.places[i] if self.places else f"messages[{i}]"


#: A raw prompt: text, or token ids and texts mixed.
Prompt: TypeAlias = str | list[int | str]


class CompletionRequest(Struct, frozen=True, kw_only=True):
    """Raw prompts to continue, each ``n`` times. Answer ``i * n + j`` is prompt i's choice j.
    ``sources``: the pictures and sounds of each prompt, which is then ``Written`` with as many
    ``places``; empty: none has any."""

    prompts: tuple[Prompt | Written, ...]
    sources: tuple[tuple[Source, ...], ...] = ()
    params: Params = Params()
    model: str | None = None
    n: int = 1


class Effective(Struct, frozen=True, kw_only=True):
    """The settings in force for one answer, every default filled in; see ``messages.Add``."""

    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    max_tokens: int = -1
    cache_prompt: bool = True
    constraint: Constraint | None = None
    context_shift: bool = False
    n_keep: int = 0
    n_discard: int = 0
    n_indent: int = 0
    t_max_predict_ms: int = -1
    id_slot: int = -1
    lora: tuple[tuple[int, float], ...] | None = None
    prompt_probs: bool = False


class Reading(Struct, frozen=True):
    """Prompt tokens done: ``processed`` of ``total``, ``cached`` included; after ``time_ms``."""

    total: int
    cached: int
    processed: int
    time_ms: float


class Scored(Struct, frozen=True):
    """The next tokens of the prompt with their probabilities, when those were asked for."""

    probs: list[TokenProbs]


class Text(Struct, frozen=True):
    """A piece of the answer and the tokens it came from. ``text`` is never empty, unless the answer
    ends in tokens that show nothing. ``timings`` are those up to this piece; ``probs`` one for each
    token when they were asked for. ``marks`` are the tags among its tokens (see
    ``messages.Delta``). ``parts`` is what a chat's dialect reads in it."""

    text: str
    tokens: list[int]
    timings: "Timings"
    probs: list[TokenProbs] = []
    marks: list[tuple[int, str]] = []
    parts: tuple[Part, ...] = ()


class Timings(Struct, frozen=True):
    """Counts and wall times. ``n_prompt`` includes the ``n_cached`` tokens not computed;
    ``n_discarded`` tokens were forgotten to make room."""

    n_prompt: int
    n_cached: int
    n_generated: int
    prompt_ms: float
    predicted_ms: float
    queue_ms: float = 0.0
    n_discarded: int = 0


class Finished(Struct, frozen=True):
    """The answer is complete. ``truncated``: the context ended before it did. ``seed``: the one
    that was used. ``n_calls``: complete tool calls in it."""

    finish: FinishKind
    stopping_word: str
    truncated: bool
    seed: int
    slot: int
    timings: Timings
    n_calls: int = 0


Event: TypeAlias = Reading | Scored | Text | Finished
