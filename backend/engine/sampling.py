"""Which samplers run, in which order: llama.cpp's default chain as data. Pure."""

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


class TopK(NamedTuple):
    """Keeps the ``k`` likeliest tokens."""

    k: int


class TopP(NamedTuple):
    """Keeps the likeliest tokens that add up to ``p``."""

    p: float


class MinP(NamedTuple):
    """Keeps tokens at least ``p`` times as likely as the likeliest."""

    p: float


class Temperature(NamedTuple):
    """Divides the logits."""

    t: float


class Greedy(NamedTuple):
    """Picks the likeliest token."""


class Draw(NamedTuple):
    """Draws a token from what is left."""

    seed: int


Stage: TypeAlias = Bias | Penalties | TopK | TopP | MinP | Temperature | Greedy | Draw


def chain(
    sampling: Sampling, bias: Seq[tuple[int, float]], *, seed: int, n_ctx: int
) -> list[Stage]:
    """The stages for one request, in llama-server's default order; neutral ones are left out.

    The last stage always selects: llama.cpp aborts on a chain that does not. ``bias`` are token ids
    with their biases, end-of-generation bans included.
    """
    stages: list[Stage] = []
    if bias:
        stages.append(Bias(tuple(bias)))
    last_n = n_ctx if sampling.repeat_last_n < 0 else sampling.repeat_last_n
    penalties = Penalties(
        last_n, sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty
    )
    if last_n > 0 and penalties[1:] != (1.0, 0.0, 0.0):
        stages.append(penalties)
    if sampling.temperature <= 0:
        return [*stages, Greedy()]
    if sampling.top_k > 0:
        stages.append(TopK(sampling.top_k))
    if sampling.top_p < 1:
        stages.append(TopP(sampling.top_p))
    if sampling.min_p > 0:
        stages.append(MinP(sampling.min_p))
    if sampling.temperature != 1:
        stages.append(Temperature(sampling.temperature))
    return [*stages, Draw(seed)]
