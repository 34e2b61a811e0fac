"""What every generating route takes, whichever API it belongs to: one struct, parsed once."""

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from corral.backend.api import formats, params, unbuilt
from corral.backend.chat.types import Params
from corral.backend.errors import Refused

# Other APIs' bodies take these from here.
unsupported = unbuilt.unsupported

_I32 = 2**31 - 1
MAX_STOPS = 64
#: Most answers to one prompt, and the most likely tokens shown in place of each.
MAX_CHOICES, MAX_LOGPROBS = 128, 1000
#: llama-server's word for "draw a seed"; -1 as an unsigned 32-bit integer.
RANDOM_SEED = params.RANDOM_SEED

Unit = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-100, le=100)]
UpTo100 = Annotated[float, Meta(ge=0, le=100)]
Count = Annotated[int, Meta(ge=-1, le=_I32)]
Natural = Annotated[int, Meta(ge=0, le=_I32)]
NChoices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
NLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
StopText = Annotated[str, Meta(max_length=1024)]
Breaker = Annotated[str, Meta(min_length=1, max_length=40)]
SamplerName = Annotated[str, Meta(max_length=32)]
Source = Annotated[str, Meta(description="empty: none")]

_BIAS = {"anyOf": [{"type": "number", "minimum": -100, "maximum": 100}, {"const": False}]}
_BIAS_PAIR = {
    "type": "array",
    "prefixItems": [{"type": ["integer", "string"]}, {"anyOf": [_BIAS, {"type": "null"}]}],
    "minItems": 2,
    "maxItems": 2,
}
_FORMAT = {
    "required": ["type"],
    "properties": {"type": {"enum": ["text", "json_object", "json_schema"]}},
}
BiasByToken = Annotated[dict[str, Any], Meta(extra_json_schema={"additionalProperties": _BIAS})]
BiasPairs = Annotated[list[Any], Meta(extra_json_schema={"items": _BIAS_PAIR})]
Format = Annotated[dict[str, Any], Meta(extra_json_schema=_FORMAT)]
_FORMS = ("response_format", "json_schema", "grammar", "regex", "lark")
MetadataKey = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=16)]


class StreamOptions(Struct):
    """OpenAI's ``stream_options``."""

    include_usage: bool | None = None


class LoraScale(Struct, frozen=True, kw_only=True):
    """An adapter, by its number in ``GET /lora-adapters``, and how much of it."""

    id: Natural
    scale: Penalty


class AnswerSettings(Struct, kw_only=True):
    """Members that say what an answer is to be like; requests have them, and presets."""

    # How much is generated.
    max_tokens: Annotated[
        Count | None, Meta(description="-1: to the end of the context; 0: read the prompt only")
    ] = None
    max_completion_tokens: Annotated[Count | None, Meta(description="as max_tokens")] = None
    n_predict: Annotated[Count | None, Meta(description="as max_tokens")] = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None = None
    ignore_eos: bool | None = None
    n_indent: Annotated[Natural | None, Meta(description="end at a line indented less")] = None
    t_max_predict_ms: Annotated[
        Annotated[int, Meta(ge=-1, le=2**53)] | None,
        Meta(description="end at the first new line after this time; -1: none"),
    ] = None
    context_shift: Annotated[
        bool | None, Meta(description="forget the oldest tokens when the context is full")
    ] = None
    n_keep: Annotated[Count | None, Meta(description="tokens never forgotten; -1: prompt")] = None
    n_discard: Annotated[Natural | None, Meta(description="forgotten at once; 0: half")] = None

    # Which tokens are chosen.
    temperature: UpTo100 | None = None
    dynatemp_range: UpTo100 | None = None
    dynatemp_exponent: UpTo100 | None = None
    top_k: Count | None = None
    top_p: Unit | None = None
    min_p: Unit | None = None
    typical_p: Unit | None = None
    top_n_sigma: Annotated[float, Meta(ge=-1, le=100)] | None = None
    xtc_probability: Unit | None = None
    xtc_threshold: Unit | None = None
    repeat_last_n: Count | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    dry_multiplier: UpTo100 | None = None
    dry_base: Annotated[float, Meta(ge=1, le=100)] | None = None
    dry_allowed_length: Natural | None = None
    dry_penalty_last_n: Count | None = None
    dry_sequence_breakers: (
        Annotated[list[Breaker], Meta(min_length=1, max_length=MAX_STOPS)] | None
    ) = None
    mirostat: Annotated[int, Meta(ge=0, le=2)] | None = None
    mirostat_tau: UpTo100 | None = None
    mirostat_eta: Unit | None = None
    adaptive_target: Annotated[float, Meta(ge=-1, le=1)] | None = None
    adaptive_decay: Annotated[float, Meta(ge=0, le=0.99)] | None = None
    samplers: SamplerName | Annotated[list[SamplerName], Meta(max_length=16)] | None = None
    min_keep: Natural | None = None
    seed: Annotated[int, Meta(ge=-1, le=RANDOM_SEED, description="-1: random")] | None = None
    logit_bias: BiasByToken | BiasPairs | None = None

    # What it must look like.
    response_format: Format | None = None
    json_schema: Annotated[Any, Meta(description="a JSON Schema")] = None
    grammar: Annotated[Source | None, Meta(description="GBNF, or Lark after %llguidance")] = None
    regex: Source | None = None
    lark: Source | None = None


class GenerationBody(AnswerSettings, kw_only=True):
    """Members of every generating route; ``null`` is as good as absent: the server's default."""

    #: Whether there is a conversation, and tools to be called in it.
    is_chat: ClassVar[bool] = False

    preset: Annotated[
        str | None, Meta(description="the settings that this request leaves unsaid, by their name")
    ] = None

    # How the answer is shown.
    stream: Annotated[bool | None, Meta(description="answer as server-sent events")] = None
    stream_options: StreamOptions | None = None
    sse_ping_interval: Annotated[
        Count | None, Meta(description="seconds of silence before a comment line; -1: none")
    ] = None
    timings_per_token: Annotated[bool | None, Meta(description="timings on every chunk")] = None
    return_progress: Annotated[bool | None, Meta(description="prompt_progress chunks")] = None
    n_probs: Annotated[
        NLogprobs | None, Meta(description="the likeliest tokens in place of each chosen one")
    ] = None
    logprobs: bool | NLogprobs | None = None
    top_logprobs: NLogprobs | None = None
    post_sampling_probs: Annotated[
        bool | None, Meta(description="probabilities as the samplers left them")
    ] = None

    # How many answers there are.
    n: Annotated[NChoices | None, Meta(description="answers to each prompt")] = None
    n_cmpl: Annotated[NChoices | None, Meta(description="as n")] = None

    # Where it is computed.
    cache_prompt: bool | None = None
    id_slot: Annotated[Count | None, Meta(description="-1: any")] = None
    lora: Annotated[list[LoraScale], Meta(max_length=64)] | None = None
    backend_sampling: Annotated[bool | None, Meta(description="taken, changes nothing")] = None

    # OpenAI's bookkeeping: taken, changes nothing.
    user: str | None = None
    store: bool | None = None
    metadata: Metadata | None = None

    # What may be called; of use in chats only.
    tools: list[Any] | None = None
    functions: Annotated[list[Any] | None, Meta(description="OpenAI's old form of tools")] = None
    tool_choice: str | dict[str, Any] | None = None
    function_call: str | dict[str, Any] | None = None

    # Known, but not built: anything but "off" is refused (``unbuilt.refuse``).
    image_data: list[Any] | None = None

    def params(self, n_vocab: int) -> Params:
        """The settings asked for. Raises ``Refused`` for what is not built or contradictory."""
        unbuilt.refuse(self)
        if not self.is_chat:
            unbuilt.refuse_tools(self)
        return params.params(self, formats.constraint(self), n_vocab)

    @property
    def names_form(self) -> bool:
        """Whether it says what the answer must look like, be it that it may be anything."""
        return any(getattr(self, name) is not None for name in _FORMS)

    @property
    def n_choices(self) -> int:
        """Answers to each prompt. Raises ``Refused`` for names that contradict each other."""
        return params.agreed(self, "n", "n_cmpl") or 1

    @property
    def n_top(self) -> int | None:
        """How many tokens to show in place of each chosen one, 0 for that alone; None when no
        probabilities are asked for. Raises ``Refused`` for a contradiction."""
        if isinstance(self.logprobs, bool) or self.logprobs is None:
            counts = {"n_probs": self.n_probs or None, "top_logprobs": self.top_logprobs}
            if self.logprobs:
                return params.agreement(counts) or 0
            if self.top_logprobs:
                raise Refused("top_logprobs needs logprobs to be true", param="top_logprobs")
            return self.n_probs or None
        names = ("n_probs", "logprobs", "top_logprobs")
        return params.agreement({n: getattr(self, n) or None for n in names})
