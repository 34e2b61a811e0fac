"""From a body's settings to ``Params``: names, aliases and what a range cannot say."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from corral.backend.api.formats import Demanded
from corral.backend.chat.types import Params
from corral.backend.errors import Refused
from corral.backend.samplers import samplers

if TYPE_CHECKING:
    from corral.backend.api.generation import GenerationBody, LoraScale

#: llama-server's word for "draw a seed"; -1 as an unsigned 32-bit integer.
RANDOM_SEED = 2**32 - 1

#: Members that mean the same in a body as in ``Params``.
_SAME = (
    *("temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p"),
    *("typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold"),
    *("repeat_last_n", "repeat_penalty", "presence_penalty", "frequency_penalty"),
    *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
    *("mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay"),
    *("min_keep", "ignore_eos", "post_sampling_probs", "cache_prompt", "id_slot"),
    *("context_shift", "n_keep", "n_discard", "n_indent", "t_max_predict_ms"),
)

T = TypeVar("T")


def params(body: "GenerationBody", demanded: Demanded | None, n_vocab: int) -> Params:
    """The settings asked for. Raises ``Refused`` for what contradicts itself or does not exist."""
    top = body.n_top
    given: dict[str, Any] = {name: getattr(body, name) for name in _SAME}
    if demanded is not None:
        given |= {"constraint": demanded.constraint, "constraint_at": demanded.at}
    return Params(
        **given,
        dry_sequence_breakers=_tuple(body.dry_sequence_breakers),
        samplers=None if body.samplers is None else samplers(body.samplers),
        seed=-1 if body.seed == RANDOM_SEED else body.seed,
        logit_bias=None if body.logit_bias is None else _biases(body.logit_bias, n_vocab),
        n_probs=None if top is None else max(top, 1),
        stop=_stops(body.stop),
        max_tokens=agreed(body, "max_completion_tokens", "max_tokens", "n_predict"),
        lora=None if body.lora is None else _lora(body.lora),
    )


def agreed(body: "GenerationBody", *names: str) -> int | None:
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


def _lora(given: "list[LoraScale]") -> tuple[tuple[int, float], ...]:
    seen: set[int] = set()
    for i, lora in enumerate(given):
        if lora.id in seen:
            raise Refused(f"lora[{i}].id: {lora.id} is named twice", param=f"lora[{i}].id")
        seen.add(lora.id)
    return tuple((lora.id, lora.scale) for lora in given)


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
