"""Four streams are running and a long prompt arrives: how long do their readers wait for a token,
and how long does the prompt take compared with having the machine to itself?"""

import asyncio
import time

import httpx

from bench import servers
from bench.load import Answer, random_tokens, stream
from bench.measure import median, percentile, table

N_PROMPT = 2000
QUIET_S = 4.0


async def _alone(client: httpx.AsyncClient, seed: int) -> float:
    body = {"prompt": random_tokens(seed, N_PROMPT), "n_predict": 1, "ignore_eos": True}
    return (await stream(client, "/completion", body)).ttft


async def _round(url: str, seed: int) -> tuple[float, float, float, float, int]:
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        alone = [await _alone(client, seed)]
        running = [Answer(0.0) for _ in range(4)]
        tasks = [
            asyncio.create_task(
                stream(
                    client,
                    "/completion",
                    {"prompt": random_tokens(seed + i, 40), "n_predict": 1500, "ignore_eos": True},
                    running[i],
                )
            )
            for i in range(4)
        ]
        await asyncio.sleep(3.0)  # all four are past their prompts
        since = time.perf_counter()
        await asyncio.sleep(QUIET_S)
        quiet = [g for a in running for g in a.gaps(since)]
        began = time.perf_counter()
        beside = await _alone(client, seed + 100)
        ended = time.perf_counter()
        busy = [g for a in running for g in a.gaps(began, ended)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.5)
        alone.append(await _alone(client, seed + 200))
        return median(quiet), percentile(busy, 99), median(alone), beside, len(busy)


def report(threads: str, rounds: int = 3) -> None:
    """Prints the ratios the design promises to keep, per round."""
    rows = []
    with servers.corral("--threads", threads, "--parallel", "5") as url:
        for i in range(rounds):
            quiet, p99, alone, beside, n = asyncio.run(_round(url, 1000 * i))
            rows.append(
                [
                    f"{quiet * 1e3:.0f}",
                    f"{p99 * 1e3:.0f}",
                    f"{p99 / quiet:.1f}",
                    f"{alone:.1f}",
                    f"{beside:.1f}",
                    f"{beside / alone:.2f}",
                    n,
                ]
            )
    table(
        f"Four streams and a prompt of {N_PROMPT} tokens, threads {threads} (at most 5.0 and 1.50)",
        [
            "quiet p50 ms",
            "p99 ms",
            "p99/quiet",
            "prompt alone s",
            "beside s",
            "beside/alone",
            "tokens",
        ],
        rows,
    )
