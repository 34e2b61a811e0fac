"""Sixteen clients whose prompts begin alike, and the same with prompts of their own: a server with
its usual number of slots, so that they come in waves."""

import asyncio
from typing import NamedTuple

from bench import servers
from bench.load import counters, random_tokens, together
from bench.measure import median, table

N_CLIENTS, N_PREFIX, N_OWN, N_TOKENS = 16, 1000, 30, 32


class Run(NamedTuple):
    """Seconds until everybody had a first token, the median wait for it, seconds until everybody
    was done, and prompt tokens computed."""

    all_first_s: float
    first_s: float
    whole_s: float
    n_computed: float


def _run(url: str, seed: int, *, is_common: bool) -> Run:
    """``seed`` and the next ``N_CLIENTS`` ones must be new to the server."""
    before = counters(url)
    bodies = [
        {
            "prompt": random_tokens(seed + (0 if is_common else i), N_PREFIX)
            + random_tokens(seed + 1000 + i, N_OWN),
            "n_predict": N_TOKENS,
            "ignore_eos": True,
        }
        for i in range(N_CLIENTS)
    ]
    answers = asyncio.run(together(url, "/completion", bodies))
    if any(a.last["tokens_predicted"] != N_TOKENS for a in answers):
        raise RuntimeError("an answer has not the length that was asked for")
    began = min(a.sent for a in answers)
    return Run(
        max(a.pieces[0] for a in answers) - began,
        median([a.ttft for a in answers]),
        max(a.ended for a in answers) - began,
        counters(url).since(before).prompt,
    )


def report(threads: str, rounds: int = 3) -> None:
    """Prints times, ratios and what was computed; the two kinds take turns."""
    runs: dict[bool, list[Run]] = {True: [], False: []}
    with servers.corral("--threads", threads) as url:
        for i in range(rounds):
            for is_common, done in runs.items():
                seed = 10_000 * (2 * i + is_common)
                done.append(_run(url, seed, is_common=is_common))
    common, own = list(zip(*runs[True], strict=True)), list(zip(*runs[False], strict=True))
    paired = zip(common, own, strict=True)
    ratios = [[a / b for a, b in zip(*column, strict=True)] for column in paired]
    rows = [
        ["common", *(f"{median(column):.1f}" for column in common)],
        ["of their own", *(f"{median(column):.1f}" for column in own)],
        ["ratio", *(f"{median(column):.2f}" for column in ratios)],
    ]
    table(
        f"{N_CLIENTS} clients with {N_PREFIX} + {N_OWN} tokens, {N_TOKENS} tokens each, "
        f"threads {threads}, median of {rounds}",
        ["prefix", "all first tokens s", "median ttft s", "all done s", "prompt tokens computed"],
        rows,
    )
