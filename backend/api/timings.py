"""llama-server's ``timings`` and ``prompt_progress``: its fields and formulas, always finite."""

import math
from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from corral.backend.chat.types import Reading, Timings


class WireTimings(Struct, frozen=True, kw_only=True):
    """``cache_n + prompt_n`` is the length of the prompt; a rate nobody can know is 0;
    ``n_discarded`` tokens were forgotten by context shifts."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    n_discarded: int | UnsetType = UNSET


class WireProgress(Struct, frozen=True, kw_only=True):
    """How far the prompt is read; ``processed`` includes the ``cache`` tokens not computed."""

    total: int
    cache: int
    processed: int
    time_ms: float


def wire_timings(t: Timings) -> WireTimings:
    """The first generated token comes out of the prompt's last step, so that rates of generation
    count one step less than tokens."""
    n_read = t.n_prompt - t.n_cached
    n_steps = max(t.n_generated - 1, 0)
    return WireTimings(
        cache_n=t.n_cached,
        prompt_n=n_read,
        prompt_ms=t.prompt_ms,
        prompt_per_token_ms=_ratio(t.prompt_ms, n_read),
        prompt_per_second=_ratio(n_read * 1e3, t.prompt_ms),
        predicted_n=t.n_generated,
        predicted_ms=t.predicted_ms,
        predicted_per_token_ms=_ratio(t.predicted_ms, n_steps),
        predicted_per_second=_ratio(n_steps * 1e3, t.predicted_ms),
        n_discarded=t.n_discarded or UNSET,
    )


def merged(parts: Sequence[tuple[int, Timings]]) -> Timings:
    """The timings of several answers as one, each with the number of its prompt.

    What was generated adds up; a prompt counts once, with what was cached of it when the first of
    its answers began; times are the longest, since the answers ran side by side.
    """
    if len(parts) == 1:
        return parts[0][1]
    prompts: dict[int, tuple[int, int]] = {}
    for number, t in parts:
        n_cached = min(t.n_cached, prompts.get(number, (0, t.n_cached))[1])
        prompts[number] = (t.n_prompt, n_cached)
    return Timings(
        n_prompt=sum(n for n, _ in prompts.values()),
        n_cached=sum(n for _, n in prompts.values()),
        n_generated=sum(t.n_generated for _, t in parts),
        prompt_ms=max(t.prompt_ms for _, t in parts),
        predicted_ms=max(t.predicted_ms for _, t in parts),
        queue_ms=min(t.queue_ms for _, t in parts),
        n_discarded=sum(t.n_discarded for _, t in parts),
    )


def wire_progress(r: Reading) -> WireProgress:
    """A ``Reading`` event on the wire."""
    return WireProgress(total=r.total, cache=r.cached, processed=r.processed, time_ms=r.time_ms)


def _ratio(a: float, b: float) -> float:
    ratio = a / b if b > 0 else 0.0
    return ratio if math.isfinite(ratio) else 0.0
