"""llama-server's own wire: request bodies and what they mean, reply structs."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from corral.backend.api.generation import GenerationBody
from corral.backend.api.infill import Gap
from corral.backend.api.openai_schema import ChatBody
from corral.backend.api.probs import NativeProb
from corral.backend.api.prompts import Prompts, prompts
from corral.backend.api.timings import WireProgress, WireTimings
from corral.backend.chat.media import MARKER
from corral.backend.chat.types import CompletionRequest

FieldPath = Annotated[str, Meta(min_length=1, max_length=256)]


class NativeOptions(GenerationBody, kw_only=True):
    """What llama-server's own routes take beside the rest."""

    return_tokens: Annotated[
        bool | None, Meta(description="token ids in a whole reply; streams always have them")
    ] = None
    response_fields: Annotated[
        Annotated[list[FieldPath], Meta(max_length=256)] | None,
        Meta(description="the members to show; a/b is member b of a"),
    ] = None
    model: str | None = None


class NativeBody(NativeOptions, kw_only=True):
    """``POST /completion``."""

    prompt: Prompts

    def request(self, n_vocab: int) -> CompletionRequest:
        """What is asked. Raises ``Refused`` naming the field."""
        n = self.n_choices
        given = prompts(self.prompt, n_vocab, n=n)
        params = self.params(n_vocab)
        return CompletionRequest(
            prompts=given.prompts, sources=given.sources, params=params, model=self.model, n=n
        )


class ExtraFile(Struct, kw_only=True):
    """Another file, to know the names in it."""

    text: str
    filename: str | None = None


class InfillBody(NativeOptions, kw_only=True):
    """``POST /infill``. ``prompt`` is more of the prefix."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraFile], Meta(max_length=1024)] | None = None
    prompt: str | None = None

    def gap(self) -> Gap:
        """What surrounds the text to write."""
        files = [(f.filename or "tmp", f.text) for f in self.input_extra or ()]
        prefix = self.input_prefix + (self.prompt or "")
        return Gap(prefix=prefix, suffix=self.input_suffix, files=files)


class TokenizeBody(Struct, kw_only=True):
    """``POST /tokenize``; no content gives no tokens."""

    content: str | list[int | str] | None = None
    add_special: Annotated[bool | None, Meta(description="BOS where the model wants it")] = None
    parse_special: Annotated[bool | None, Meta(description="default true")] = None
    with_pieces: bool | None = None


class DetokenizeBody(Struct, kw_only=True):
    """``POST /detokenize``."""

    tokens: list[int]


class TemplateBody(ChatBody, kw_only=True):
    """``POST /apply-template``: a chat request."""

    tokens: Annotated[
        bool | None, Meta(description="the prompt's tokens too, and whose text they stand for")
    ] = None


infill_decoder = msgspec.json.Decoder(InfillBody)
native_decoder = msgspec.json.Decoder(NativeBody)
tokenize_decoder = msgspec.json.Decoder(TokenizeBody)
detokenize_decoder = msgspec.json.Decoder(DetokenizeBody)
template_decoder = msgspec.json.Decoder(TemplateBody)

# --- replies ----------------------------------------------------------------------------------


class LoraShown(Struct, frozen=True, kw_only=True):
    """An adapter in force and how much of it."""

    id: int
    scale: float


class Settings(Struct, frozen=True, kw_only=True):
    """``generation_settings``: what was in force. A null bias bans its token. They may be sent as a
    request's members again."""

    seed: int
    temperature: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    top_p: float
    min_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    typical_p: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: list[str]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    adaptive_target: float
    adaptive_decay: float
    samplers: list[str]
    min_keep: int
    logit_bias: list[tuple[int | str, float | None]]
    n_probs: int
    post_sampling_probs: bool
    stop: list[str]
    max_tokens: int
    n_predict: int
    ignore_eos: bool
    n_indent: int
    t_max_predict_ms: int
    context_shift: bool
    n_keep: int
    n_discard: int
    grammar: str = ""
    json_schema: msgspec.Raw | UnsetType = UNSET
    regex: str | UnsetType = UNSET
    lark: str | UnsetType = UNSET
    cache_prompt: bool
    lora: list[LoraShown]
    stream: bool


class Piece(Struct, frozen=True, kw_only=True):
    """One chunk of a streamed completion."""

    index: int = 0
    content: str
    tokens: list[int]
    stop: bool = False
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: list[NativeProb] | UnsetType = UNSET
    timings: WireTimings | UnsetType = UNSET
    prompt_progress: WireProgress | UnsetType = UNSET


class Whole(Struct, frozen=True, kw_only=True):
    """A whole completion; in a stream the last chunk, with no text of its own."""

    index: int = 0
    content: str
    tokens: list[int]
    id_slot: int
    stop: bool = True
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: Settings
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: str
    stopping_word: str
    tokens_cached: int
    completion_probabilities: list[NativeProb] | UnsetType = UNSET
    timings: WireTimings


class TokenPiece(Struct, frozen=True):
    """A token and its text, or its bytes when they are not UTF-8 by themselves."""

    id: int
    piece: str | list[int]


class Tokens(Struct, frozen=True):
    """``POST /tokenize``."""

    tokens: Sequence[int | TokenPiece]


class Content(Struct, frozen=True):
    """``POST /detokenize``."""

    content: str


class PromptToken(Struct, frozen=True):
    """A token of a prompt, as ``TokenPiece``. ``foreign``: it stands for text of the client, in
    part at least, and not for the template's own. A picture or sound is one with id -1 that
    stands for ``n_tokens``; neighbours without text between them are one."""

    id: int
    piece: str | list[int]
    foreign: bool
    n_tokens: int | UnsetType = UNSET


class Prompted(Struct, frozen=True):
    """``POST /apply-template``."""

    prompt: str
    tokens: list[PromptToken] | UnsetType = UNSET


class DefaultSettings(Struct, frozen=True, kw_only=True):
    """The settings of a request that asks for nothing, and the context it may use."""

    params: Settings
    n_ctx: int


class Modalities(Struct, frozen=True, kw_only=True):
    """What the model reads beside text."""

    vision: bool = False
    audio: bool = False
    video: bool = False


class TemplateCaps(Struct, frozen=True, kw_only=True):
    """What the chat template can say. Four are additions: ``supports_developer_role``,
    ``supports_tool_results``, ``supports_thinking_switch`` (``enable_thinking`` changes the prompt)
    and ``supports_string_arguments``."""

    supports_system_role: bool = False
    supports_developer_role: bool = False
    supports_tools: bool = False
    supports_tool_calls: bool = False
    supports_parallel_tool_calls: bool = False
    supports_tool_results: bool = False
    supports_preserve_reasoning: bool = False
    supports_thinking_switch: bool = False
    supports_reasoning_effort: bool = False
    supports_string_content: bool = False
    supports_typed_content: bool = False
    supports_object_arguments: bool = False
    supports_string_arguments: bool = False


class Props(Struct, frozen=True, kw_only=True):
    """``GET /props``."""

    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_ftype: str
    model_path: str
    modalities: Modalities
    media_marker: str = MARKER
    endpoint_slots: bool = True
    endpoint_props: bool = False
    endpoint_metrics: bool = True
    chat_template: str
    chat_template_tool_use: str | UnsetType = UNSET
    chat_template_caps: TemplateCaps
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool = False


class NextToken(Struct, frozen=True, kw_only=True):
    """``n_remain`` is -1 when only the context limits the answer."""

    has_next_token: bool
    n_remain: int
    n_decoded: int


class Slot(Struct, frozen=True, kw_only=True):
    """A row of ``GET /slots``. ``n_prompt_tokens`` is the whole prompt, ``…_cache`` the part that
    needed no computation, ``…_processed`` the part computed so far."""

    id: int
    id_task: int
    n_ctx: int
    speculative: bool = False
    is_processing: bool
    state: str
    n_prompt_tokens: int
    n_prompt_tokens_processed: int
    n_prompt_tokens_cache: int
    n_decoded: int
    tokens_per_second: float
    next_token: list[NextToken]
