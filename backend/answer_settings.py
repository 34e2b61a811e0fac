"""What an answer is to be like, as it is written in a request, a preset, or a form.

From names, aliases and JSON to ``Params``, with what a range cannot say checked.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct

from corral.backend import formats
from corral.backend.chat.types import Params
from corral.backend.errors import Refused
from corral.backend.samplers import samplers

#: llama-server's word for "draw a seed"; -1 as an unsigned 32-bit integer.
RANDOM_SEED = 2**32 - 1
#: Ids of tokens are held against this where no model is there to ask; it is asked later.
ANY_VOCABULARY = 2**31 - 1
MAX_STOPS = 64

_I32 = 2**31 - 1

Unit = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-100, le=100)]
UpTo100 = Annotated[float, Meta(ge=0, le=100)]
Count = Annotated[int, Meta(ge=-1, le=_I32)]
Natural = Annotated[int, Meta(ge=0, le=_I32)]
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

#: Members that are one setting: what the answer must look like.
FORMS = ("response_format", "json_schema", "grammar", "regex", "lark")
#: Members that are one setting: how long it may be.
LIMITS = ("max_completion_tokens", "max_tokens", "n_predict")
# Members that mean the same in ``Params``.
_SAME = (
    *("temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p"),
    *("typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold"),
    *("repeat_last_n", "repeat_penalty", "presence_penalty", "frequency_penalty"),
    *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
    *("mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay"),
    *("min_keep", "ignore_eos", "context_shift", "n_keep", "n_discard", "n_indent"),
    "t_max_predict_ms",
)

T = TypeVar("T")


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

    def params(self, n_vocab: int) -> Params:
        """The settings asked for. Raises ``Refused`` naming the member that is at fault."""
        given: dict[str, Any] = {name: getattr(self, name) for name in _SAME}
        demanded = formats.constraint(self)
        if demanded is not None:
            given |= {"constraint": demanded.constraint, "constraint_at": demanded.at}
        return Params(
            **given,
            dry_sequence_breakers=_tuple(self.dry_sequence_breakers),
            samplers=None if self.samplers is None else samplers(self.samplers),
            seed=-1 if self.seed == RANDOM_SEED else self.seed,
            logit_bias=None if self.logit_bias is None else _biases(self.logit_bias, n_vocab),
            stop=_stops(self.stop),
            max_tokens=agreed(self, *LIMITS),
        )

    @property
    def names_form(self) -> bool:
        """Whether it says what the answer must look like, be it that it may be anything."""
        return any(getattr(self, name) is not None for name in FORMS)


def agreed(body: Struct, *names: str) -> int | None:
    """The value of a setting that has several names. They must not contradict each other."""
    return agreement({name: getattr(body, name) for name in names})


def agreement(given: Mapping[str, T | None]) -> T | None:
    """The one value under several names, None when there is none. Raises ``Refused`` for two."""
    there = {name: value for name, value in given.items() if value is not None}
    if len(set(there.values())) > 1:
        listed = ", ".join(f"{name}={value}" for name, value in there.items())
        raise Refused(f"these mean the same and differ: {listed}", param=next(iter(there)))
    return next(iter(there.values()), None)


def _tuple(given: list[str] | None) -> tuple[str, ...] | None:
    return None if given is None else tuple(given)


def _stops(stop: str | list[str] | None) -> tuple[str, ...] | None:
    """Empty strings would stop at once and are left out, as llama-server does."""
    if stop is None:
        return None
    return tuple(text for text in ([stop] if isinstance(stop, str) else stop) if text)


def _biases(given: dict[str, Any] | list[Any], n_vocab: int) -> tuple[tuple[int | str, float], ...]:
    """Token id or text, and its bias, from OpenAI's object or llama-server's pairs."""
    if isinstance(given, dict):
        # Keys of an object are text even where they mean an id.
        entries = [
            (f"logit_bias.{key[:40]}", int(key) if _is_id(key) else key, bias)
            for key, bias in given.items()
        ]
    else:
        entries = []
        for i, pair in enumerate(given):
            if not isinstance(pair, list) or len(pair) != 2:
                raise Refused(f"logit_bias[{i}]: expected [token, bias]", param=f"logit_bias[{i}]")
            # A reply shows a ban as null, since JSON has no -inf; it may be sent back.
            bias = False if pair[1] is None else pair[1]
            entries.append((f"logit_bias[{i}]", pair[0], bias))
    return tuple((_token(at, token, n_vocab), _bias(at, bias)) for at, token, bias in entries)


def _is_id(key: str) -> bool:
    digits = key.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 20


def _token(at: str, token: Any, n_vocab: int) -> int | str:
    if isinstance(token, str) and token:
        return token
    if isinstance(token, int) and not isinstance(token, bool):
        return vocabulary_id(token, n_vocab, at)
    raise Refused(f"{at}: expected a token id or a text, got {token!r:.40}", param=at)


def _bias(at: str, bias: Any) -> float:
    if bias is False:
        return float("-inf")
    if isinstance(bias, (int, float)) and bias is not True and -100 <= bias <= 100:
        return float(bias)
    raise Refused(f"{at}: expected a bias from -100 to 100, or false to ban", param=at)


def vocabulary_id(token: int, n_vocab: int, at: str) -> int:
    """``token`` when the model has it; anything else would crash the kernels."""
    if not 0 <= token < n_vocab:
        raise Refused(f"{at}: token {token} is outside the vocabulary of {n_vocab}", param=at)
    return token
