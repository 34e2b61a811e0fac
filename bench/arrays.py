"""Eight equal prompts: one request with an array, the same one by one, and at the same time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from bench import servers
from bench.load import counters, random_tokens
from bench.measure import median, table

N_PROMPTS, N_PROMPT, N_TOKENS = 8, 500, 32


async def _ask(client: httpx.AsyncClient, prompt: Any, **more: Any) -> None:
    body = {"prompt": prompt, "n_predict": N_TOKENS, "ignore_eos": True, **more}
    reply = await client.post("/completion", json=body)
    reply.raise_for_status()
    answers = reply.json()
    for answer in answers if isinstance(answers, list) else [answers]:
        if answer["tokens_predicted"] != N_TOKENS:
            raise RuntimeError("an answer has not the length that was asked for")


async def _as_array(client: httpx.AsyncClient, prompt: list[int]) -> None:
    await _ask(client, [prompt] * N_PROMPTS)


async def _together(client: httpx.AsyncClient, prompt: list[int]) -> None:
    await asyncio.gather(*(_ask(client, prompt) for _ in range(N_PROMPTS)))


async def _in_turn(client: httpx.AsyncClient, prompt: list[int]) -> None:
    for _ in range(N_PROMPTS):
        await _ask(client, prompt)


async def _in_turn_uncached(client: httpx.AsyncClient, prompt: list[int]) -> None:
    for _ in range(N_PROMPTS):
        await _ask(client, prompt, cache_prompt=False)


WAYS: dict[str, Callable[[httpx.AsyncClient, list[int]], Awaitable[None]]] = {
    "an array": _as_array,
    "alone, at the same time": _together,
    "alone, in turn": _in_turn,
    "alone, in turn, no cache": _in_turn_uncached,
}


async def _timed(url: str, way: str, prompt: list[int]) -> float:
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        began = time.perf_counter()
        await WAYS[way](client, prompt)
        return time.perf_counter() - began


def report(threads: str, rounds: int = 3) -> None:
    """Prints seconds for all eight, and the array's time as a part of each other way's. The ways
    take turns, each time with a prompt that no cache holds."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    computed: dict[str, list[float]] = {way: [] for way in WAYS}
    with servers.corral("--threads", threads, "--parallel", str(N_PROMPTS)) as url:
        asyncio.run(_timed(url, "an array", random_tokens(0, 40)))  # the first is always slower
        for i in range(rounds):
            for k, way in enumerate(WAYS):
                before = counters(url)
                prompt = random_tokens(1 + len(WAYS) * i + k, N_PROMPT)
                seconds[way].append(asyncio.run(_timed(url, way, prompt)))
                computed[way].append(counters(url).since(before).prompt)
    rows = []
    for way in WAYS:
        ratios = [a / b for a, b in zip(seconds["an array"], seconds[way], strict=True)]
        rows.append(
            [
                way,
                f"{median(seconds[way]):.1f}",
                f"{median(ratios):.2f}",
                f"{median(computed[way]):.0f}",
            ]
        )
    table(
        f"{N_PROMPTS} equal prompts of {N_PROMPT} tokens, {N_TOKENS} tokens each, "
        f"threads {threads}, median of {rounds}",
        ["way", "seconds", "array/this", "prompt tokens computed"],
        rows,
    )
