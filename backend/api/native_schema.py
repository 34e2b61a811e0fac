"""llama-server's own wire: request bodies and what they mean, reply structs."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from corral.backend.api.generation import GenerationBody, single_prompt
from corral.backend.api.timings import WireProgress, WireTimings
from corral.backend.chat.types import CompletionRequest

Prompt = str | list[int | str | list[int | str]] | dict[str, Any]


class NativeBody(GenerationBody, kw_only=True):
    """``POST /completion``."""

    prompt: Prompt
    return_tokens: Annotated[
        bool | None, Meta(description="token ids in a whole reply; streams always have them")
    ] = None
    response_fields: list[str] | None = None
    model: str | None = None

    def request(self, n_vocab: int) -> CompletionRequest:
        """What is asked. Raises ``Refused`` naming the field."""
        params = self.params(n_vocab)
        prompt = single_prompt(self.prompt, n_vocab)
        return CompletionRequest(prompt=prompt, params=params, model=self.model)


class TokenizeBody(Struct, kw_only=True):
    """``POST /tokenize``; no content gives no tokens."""

    content: str | list[int | str] | None = None
    add_special: Annotated[bool | None, Meta(description="BOS where the model wants it")] = None
    parse_special: Annotated[bool | None, Meta(description="default true")] = None
    with_pieces: bool | None = None


class DetokenizeBody(Struct, kw_only=True):
    """``POST /detokenize``."""

    tokens: list[int]


native_decoder = msgspec.json.Decoder(NativeBody)
tokenize_decoder = msgspec.json.Decoder(TokenizeBody)
detokenize_decoder = msgspec.json.Decoder(DetokenizeBody)

# --- replies ----------------------------------------------------------------------------------


class Settings(Struct, frozen=True, kw_only=True):
    """``generation_settings``: what was in force. A null bias bans its token."""

    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    stop: list[str]
    max_tokens: int
    n_predict: int
    ignore_eos: bool
    cache_prompt: bool
    stream: bool
    logit_bias: list[tuple[int | str, float | None]]
    samplers: list[str]


class Piece(Struct, frozen=True, kw_only=True):
    """One chunk of a streamed completion."""

    index: int = 0
    content: str
    tokens: list[int]
    stop: bool = False
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
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


class Prompted(Struct, frozen=True):
    """``POST /apply-template``."""

    prompt: str


class DefaultSettings(Struct, frozen=True, kw_only=True):
    """The settings of a request that asks for nothing, and the context it may use."""

    params: Settings
    n_ctx: int


class Modalities(Struct, frozen=True, kw_only=True):
    """What the model reads beside text."""

    vision: bool = False
    audio: bool = False
    video: bool = False


class Props(Struct, frozen=True, kw_only=True):
    """``GET /props``."""

    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_ftype: str
    model_path: str
    modalities: Modalities = Modalities()
    endpoint_slots: bool = True
    endpoint_props: bool = False
    endpoint_metrics: bool = True
    chat_template: str
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
