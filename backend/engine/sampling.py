"""Which samplers run, in which order: llama.cpp's chain as data. Pure."""

from collections.abc import Sequence as Seq
from typing import NamedTuple, TypeAlias

from corral.backend.engine.messages import Sampling


class Bias(NamedTuple):
    """Adds to the logits of single tokens; ``-inf`` bans one."""

    pairs: tuple[tuple[int, float], ...]


class Penalties(NamedTuple):
    """Lowers tokens that occurred among the last ``last_n``."""

    last_n: int
    repeat: float
    frequency: float
    presence: float


class Dry(NamedTuple):
    """Lowers tokens that would go on with a repetition of ``allowed_length`` or more tokens."""

    multiplier: float
    base: float
    allowed_length: int
    last_n: int
    breakers: tuple[str, ...]
    n_ctx: int


class TopNSigma(NamedTuple):
    """Keeps tokens within ``n`` standard deviations of the largest logit."""

    n: float


class TopK(NamedTuple):
    """Keeps the ``k`` likeliest tokens."""

    k: int


class Typical(NamedTuple):
    """Keeps the tokens whose surprise is nearest the expected one, adding up to ``p``."""

    p: float
    min_keep: int


class TopP(NamedTuple):
    """Keeps the likeliest tokens that add up to ``p``."""

    p: float
    min_keep: int


class MinP(NamedTuple):
    """Keeps tokens at least ``p`` times as likely as the likeliest."""

    p: float
    min_keep: int


class Xtc(NamedTuple):
    """With ``probability``, drops all tokens likelier than ``threshold`` but the last of them."""

    probability: float
    threshold: float
    min_keep: int
    seed: int


#: Candidates that ``Infill`` looks at: it takes minutes for a whole vocabulary.
INFILL_CANDIDATES = 256


class Infill(NamedTuple):
    """Prefers ends to tokens that only begin like one another, for fill-in-the-middle."""


class Temperature(NamedTuple):
    """Divides the logits by ``t``, by more or less within ``range`` as the entropy is."""

    t: float
    range: float
    exponent: float


class Greedy(NamedTuple):
    """Picks the likeliest token."""


class Draw(NamedTuple):
    """Draws a token from what is left."""

    seed: int


class Mirostat(NamedTuple):
    """Draws so that the surprise stays at ``tau`` (Basu et al. 2020); ``version`` 1 or 2."""

    version: int
    tau: float
    eta: float
    seed: int


class AdaptiveP(NamedTuple):
    """Draws so that the chosen tokens' probability stays near ``target``."""

    target: float
    decay: float
    seed: int


Stage: TypeAlias = (
    Bias
    | Penalties
    | Dry
    | TopNSigma
    | TopK
    | Typical
    | TopP
    | MinP
    | Xtc
    | Infill
    | Temperature
    | Greedy
    | Draw
    | Mirostat
    | AdaptiveP
)


def chain(
    sampling: Sampling, bias: Seq[tuple[int, float]], *, seed: int, n_ctx: int
) -> list[Stage]:
    """The stages for one request, in the order it asks for; neutral ones are left out.

    The last stage always selects: llama.cpp aborts on a chain that does not. ``bias`` are token ids
    with their biases, end-of-generation bans included. As in llama.cpp mirostat takes the place of
    everything that cuts the distribution; penalties are kept.
    """
    s = sampling
    first: list[Stage] = [Bias(tuple(bias))] if bias else []
    made = [(name, _stage(name, s, seed=seed, n_ctx=n_ctx)) for name in s.samplers]
    stages: list[tuple[str, Stage]] = []
    for name, stage in made:
        if name == "infill":  # compares every candidate with every other
            stages.append((name, TopK(INFILL_CANDIDATES)))
        if stage is not None:
            stages.append((name, stage))
    is_greedy = s.temperature <= 0 and s.dynatemp_range <= 0
    if s.mirostat and not is_greedy:
        kept = [stage for name, stage in stages if name in ("penalties", "dry", "temperature")]
        return [*first, *kept, Mirostat(s.mirostat, s.mirostat_tau, s.mirostat_eta, seed)]
    if is_greedy and (s.mirostat or "temperature" in s.samplers):
        if not any(name in ("typ_p", "xtc", "infill") for name, _ in stages):
            # The others never drop the likeliest token.
            stages = [(n, stage) for n, stage in stages if n in ("penalties", "dry")]
        return [*first, *(stage for n, stage in stages if n != "temperature"), Greedy()]
    last = (
        AdaptiveP(s.adaptive_target, s.adaptive_decay, seed)
        if s.adaptive_target >= 0 and "adaptive_p" in s.samplers
        else Draw(seed)
    )
    return [*first, *(stage for _, stage in stages), last]


def _stage(name: str, s: Sampling, *, seed: int, n_ctx: int) -> Stage | None:
    """One named sampler with its settings; None where they leave it off."""
    keep = max(1, s.min_keep)
    last_n = n_ctx if s.repeat_last_n < 0 else s.repeat_last_n
    dry_last_n = n_ctx if s.dry_penalty_last_n < 0 else s.dry_penalty_last_n
    penalties = (s.repeat_penalty, s.frequency_penalty, s.presence_penalty)
    match name:
        case "penalties" if last_n > 0 and penalties != (1.0, 0.0, 0.0):
            return Penalties(last_n, *penalties)
        case "dry" if s.dry_multiplier != 0 and s.dry_base >= 1 and dry_last_n > 0:
            dry = s.dry_multiplier, s.dry_base, s.dry_allowed_length
            return Dry(*dry, dry_last_n, s.dry_sequence_breakers, n_ctx)
        case "top_n_sigma" if s.top_n_sigma > 0:
            return TopNSigma(s.top_n_sigma)
        case "top_k" if s.top_k > 0:
            return TopK(s.top_k)
        case "typ_p" if s.typical_p < 1:
            return Typical(s.typical_p, keep)
        case "infill":
            return Infill()
        case _:
            return _cut(name, s, keep, seed)


def _cut(name: str, s: Sampling, keep: int, seed: int) -> Stage | None:
    match name:
        case "top_p" if s.top_p < 1:
            return TopP(s.top_p, keep)
        case "min_p" if s.min_p > 0:
            return MinP(s.min_p, keep)
        case "xtc" if s.xtc_probability > 0 and s.xtc_threshold <= 0.5:
            return Xtc(s.xtc_probability, s.xtc_threshold, keep, seed)
        case "temperature" if s.temperature != 1 or s.dynatemp_range > 0:
            return Temperature(s.temperature, s.dynatemp_range, s.dynatemp_exponent)
        case _:
            return None
