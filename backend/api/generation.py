"""What every generating route takes, whichever API it belongs to: one struct, parsed once."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from corral.backend.chat.types import Params
from corral.backend.errors import Refused

_I32 = 2**31 - 1
MAX_STOPS = 64
#: llama-server's word for "draw a seed"; -1 as an unsigned 32-bit integer.
_RANDOM_SEED = 2**32 - 1

Unit = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-100, le=100)]
Count = Annotated[int, Meta(ge=-1, le=_I32)]
Choices = Annotated[int, Meta(ge=1, le=_I32, description="only 1 is built")]
StopText = Annotated[str, Meta(max_length=1024)]

_BIAS = {"anyOf": [{"type": "number", "minimum": -100, "maximum": 100}, {"const": False}]}
_BIAS_PAIR = {
    "type": "array",
    "prefixItems": [{"type": ["integer", "string"]}, {"anyOf": [_BIAS, {"type": "null"}]}],
    "minItems": 2,
    "maxItems": 2,
}
BiasByToken = Annotated[dict[str, Any], Meta(extra_json_schema={"additionalProperties": _BIAS})]
BiasPairs = Annotated[list[Any], Meta(extra_json_schema={"items": _BIAS_PAIR})]


class StreamOptions(Struct):
    """OpenAI's ``stream_options``."""

    include_usage: bool | None = None


class GenerationBody(Struct, kw_only=True):
    """Members of every generating route; ``null`` is as good as absent: the server's default."""

    stream: Annotated[bool | None, Meta(description="answer as server-sent events")] = None
    stream_options: StreamOptions | None = None
    sse_ping_interval: Annotated[
        Count | None, Meta(description="seconds of silence before a comment line; -1: none")
    ] = None
    timings_per_token: Annotated[bool | None, Meta(description="timings on every chunk")] = None
    return_progress: Annotated[bool | None, Meta(description="prompt_progress chunks")] = None

    max_tokens: Annotated[
        Count | None, Meta(description="-1: to the end of the context; 0: read the prompt only")
    ] = None
    max_completion_tokens: Annotated[Count | None, Meta(description="as max_tokens")] = None
    n_predict: Annotated[Count | None, Meta(description="as max_tokens")] = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=_I32)] | None = None
    top_p: Unit | None = None
    min_p: Unit | None = None
    repeat_last_n: Count | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=-1, le=_RANDOM_SEED, description="-1: random")] | None = None
    ignore_eos: bool | None = None
    cache_prompt: bool | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None = None
    logit_bias: BiasByToken | BiasPairs | None = None

    # Known, but not built: anything but "off" is refused (``refuse_unbuilt``).
    n: Choices | None = None
    n_cmpl: Choices | None = None
    n_probs: Annotated[int, Meta(ge=0, le=_I32)] | None = None
    logprobs: bool | Annotated[int, Meta(ge=0, le=_I32)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=_I32)] | None = None
    response_format: dict[str, Any] | None = None
    json_schema: Any = None
    grammar: str | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    samplers: str | list[str] | None = None
    lora: list[Any] | None = None
    mirostat: Annotated[int, Meta(ge=0, le=2)] | None = None
    typical_p: Unit | None = None
    top_n_sigma: Annotated[float, Meta(ge=-1, le=100)] | None = None
    xtc_probability: Unit | None = None
    dynatemp_range: Annotated[float, Meta(ge=0, le=100)] | None = None
    dry_multiplier: Annotated[float, Meta(ge=0, le=100)] | None = None
    adaptive_target: Annotated[float, Meta(ge=-1, le=1)] | None = None
    t_max_predict_ms: Annotated[int, Meta(ge=-1, le=2**53)] | None = None
    n_indent: Annotated[int, Meta(ge=0, le=_I32)] | None = None
    n_keep: Count | None = None
    min_keep: Annotated[int, Meta(ge=0, le=_I32)] | None = None
    penalize_nl: bool | None = None
    post_sampling_probs: bool | None = None
    id_slot: Count | None = None
    image_data: list[Any] | None = None

    def params(self, n_vocab: int) -> Params:
        """The settings asked for. Raises ``Refused`` for what is not built or contradictory."""
        refuse_unbuilt(self)
        return Params(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repeat_last_n=self.repeat_last_n,
            repeat_penalty=self.repeat_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=-1 if self.seed == _RANDOM_SEED else self.seed,
            ignore_eos=self.ignore_eos,
            logit_bias=None if self.logit_bias is None else _biases(self.logit_bias, n_vocab),
            stop=_stops(self.stop),
            max_tokens=_agreed(self, "max_completion_tokens", "max_tokens", "n_predict"),
            cache_prompt=self.cache_prompt,
        )


# The largest value that leaves a feature off. Numbers not above it are accepted.
_OFF_UP_TO = {
    "n": 1,
    "n_cmpl": 1,
    "best_of": 1,
    "n_probs": 0,
    "logprobs": 0,
    "top_logprobs": 0,
    "mirostat": 0,
    "top_n_sigma": 0,
    "xtc_probability": 0,
    "dynatemp_range": 0,
    "dry_multiplier": 0,
    "adaptive_target": 0,
    "t_max_predict_ms": 0,
    "n_indent": 0,
    "min_keep": 0,
    "penalize_nl": False,
    "post_sampling_probs": False,
    "id_slot": -1,
    "echo": False,
    "continue_final_message": False,
}
# Features that an empty value leaves off.
_OFF_WHEN_EMPTY = (
    *("grammar", "tools", "functions", "lora", "suffix", "response_fields", "image_data"),
)
# Features that only null leaves off.
_OFF_WHEN_NULL = ("json_schema", "audio", "web_search_options", "prediction")
#: The order in which the engine applies its samplers.
SAMPLERS = ["penalties", "top_k", "top_p", "min_p", "temperature"]
# llama-server's default: the same, since those that are not built are off unless asked for.
_LLAMA_SERVER_SAMPLERS = [
    *("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"),
]


def unsupported(name: str, hint: str = "") -> Refused:
    """The refusal of a field whose feature is not built."""
    message = f"{name} is not supported yet" + (f"; {hint}" if hint else "")
    return Refused(message, kind="unsupported", param=name)


def refuse_unbuilt(body: Struct) -> None:
    """Raises ``Refused`` for a feature that is asked for and not built; nothing is ignored."""
    for name, limit in _OFF_UP_TO.items():
        value = getattr(body, name, None)
        if value is not None and value > limit:
            raise unsupported(name, f"leave it out or send {str(limit).lower()}")
    for name in _OFF_WHEN_EMPTY:
        if getattr(body, name, None):
            raise unsupported(name, "leave it out or send it empty")
    for name in _OFF_WHEN_NULL:
        if getattr(body, name, None) is not None:
            raise unsupported(name, "leave it out or send null")
    if getattr(body, "modalities", None) not in (None, ["text"]):
        raise unsupported("modalities", 'leave it out or send ["text"]')
    if isinstance(body, GenerationBody):
        _refuse_sampling(body)
        _refuse_format(body.response_format)
        _refuse_tool_choice(body.tool_choice)


def _refuse_sampling(body: GenerationBody) -> None:
    if body.typical_p is not None and body.typical_p < 1:
        raise unsupported("typical_p", "leave it out or send 1")
    if body.n_keep:
        raise unsupported("n_keep", "leave it out or send 0")
    if body.samplers and body.samplers not in (SAMPLERS, _LLAMA_SERVER_SAMPLERS):
        raise unsupported("samplers", f"the order is {', '.join(SAMPLERS)}")


def _refuse_format(response_format: dict[str, Any] | None) -> None:
    kind = "text" if response_format is None else response_format.get("type")
    if kind in ("json_object", "json_schema"):
        raise unsupported("response_format", 'only {"type": "text"} is')
    if kind != "text":
        message = "response_format.type: expected text, json_object or json_schema"
        raise Refused(message, param="response_format.type")


def _refuse_tool_choice(choice: str | dict[str, Any] | None) -> None:
    if choice in (None, "none", "auto"):
        return
    if choice == "required" or isinstance(choice, dict):
        raise unsupported("tool_choice", "only none and auto are")
    message = "tool_choice: expected none, auto, required or an object naming a function"
    raise Refused(message, param="tool_choice")


def _agreed(body: Struct, *names: str) -> int | None:
    """The value of a setting that has several names. They must not contradict each other."""
    given = {name: value for name in names if (value := getattr(body, name)) is not None}
    if len(set(given.values())) > 1:
        listed = ", ".join(f"{name}={value}" for name, value in given.items())
        raise Refused(f"these mean the same and differ: {listed}", param=next(iter(given)))
    return next(iter(given.values()), None)


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


def single_prompt(
    prompt: str | list[Any] | dict[str, Any], n_vocab: int, at: str = "prompt"
) -> str | list[int | str]:
    """One prompt from any form llama-server takes: text, ids, both mixed, a list of one of these.

    Raises ``Refused`` for several prompts, for media, and for ids the model does not have.
    """
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, dict):
        raise Refused(f"{at}: media in prompts is not supported yet", kind="unsupported", param=at)
    if len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        return single_prompt(prompt[0], n_vocab, f"{at}[0]")
    if any(isinstance(part, (list, dict)) for part in prompt) or (
        prompt and all(isinstance(part, str) for part in prompt)
    ):
        message = "several prompts in one request are not supported yet; send one each"
        raise Refused(message, kind="unsupported", param=at)
    if not prompt:
        raise Refused(f"{at}: expected text or tokens, got an empty list", param=at)
    return [
        part if isinstance(part, str) else vocabulary_id(part, n_vocab, f"{at}[{i}]")
        for i, part in enumerate(prompt)
    ]
