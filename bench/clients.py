"""Throughput and waiting of 1, 4 and 8 clients: Corral, its ceiling, the packaged server."""

import asyncio
from typing import Any

from bench import ceiling, servers
from bench.load import Answer, together
from bench.measure import median, table

TOPICS = ["lighthouses", "the sea", "an old clock", "a red fox", "winter", "a town", "bread", "ice"]
N_TOKENS = 64


def _bodies(n: int) -> list[dict[str, Any]]:
    return [
        {
            "model": "any",
            "messages": [{"role": "user", "content": f"Write a long story about {topic}."}],
            "max_tokens": N_TOKENS,
            "temperature": 0,
            "logit_bias": {"0": -100, "2": -100},  # the two tokens this model ends with
        }
        for topic in TOPICS[:n]
    ]


def _rate(answers: list[Answer]) -> float:
    began = min(a.sent for a in answers)
    return sum(len(a.pieces) for a in answers) / (max(a.pieces[-1] for a in answers) - began)


def report(n_threads: int, ours_threads: str, rounds: int = 3) -> None:
    """Prints tokens per second and ratios. The three take turns, so that noise meets all alike."""
    counts = (1, 4, 8)
    rates: dict[tuple[str, int], list[float]] = {}
    first: dict[tuple[str, int], list[float]] = {}
    path = "/v1/chat/completions"
    model = ceiling.load(n_threads)
    template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    flags = ("--threads", ours_threads, "--parallel", "8")
    with servers.corral(*flags) as ours, servers.packaged(n_threads) as theirs:
        for n in counts:
            bodies = _bodies(n)
            texts = [template.format(b["messages"][0]["content"]) for b in bodies]
            prompts = [model.tokenize_prompt(t) for t in texts]
            for _ in range(rounds):
                rates.setdefault(("ceiling", n), []).append(
                    ceiling.bare_rate(model, prompts, N_TOKENS)
                )
                for name, url in (("corral", ours), ("packaged", theirs)):
                    answers = asyncio.run(together(url, path, bodies))
                    rates.setdefault((name, n), []).append(_rate(answers))
                    first.setdefault((name, n), []).append(median([a.ttft for a in answers]))
    model.close()
    rows = []
    for n in counts:
        bare, corral, packaged = (
            median(rates[name, n]) for name in ("ceiling", "corral", "packaged")
        )
        rows.append(
            [
                n,
                f"{bare:.0f}",
                f"{corral:.0f}",
                f"{packaged:.0f}",
                f"{corral / bare:.2f}",
                f"{corral / packaged:.2f}",
                f"{median(first['corral', n]) * 1e3:.0f}",
                f"{median(first['packaged', n]) * 1e3:.0f}",
            ]
        )
    table(
        f"Clients at the same time, {N_TOKENS} tokens each, {n_threads} threads, "
        f"median of {rounds}",
        [
            "clients",
            "ceiling tok/s",
            "corral tok/s",
            "packaged tok/s",
            "corral/ceiling",
            "corral/packaged",
            "ttft ms",
            "packaged ttft ms",
        ],
        rows,
    )
