"""A busy neighbour on the same cores: does the adapted thread count notice, and recover?"""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx

from bench import servers
from bench.load import Answer, random_tokens, stream
from bench.measure import table

PHASE_S = 8.0


@contextlib.contextmanager
def _busy(n: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def _phases(url: str, n_busy: int) -> list[list[int]]:
    """Tokens in each second of three phases: quiet, with the neighbour, quiet again."""
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        answer = Answer(0.0)
        body = {"prompt": random_tokens(1, 32), "n_predict": 8000, "ignore_eos": True}
        task = asyncio.create_task(stream(client, "/completion", body, answer))
        await asyncio.sleep(1.0)
        starts = []
        for phase in range(3):
            starts.append(time.perf_counter())
            with _busy(n_busy) if phase == 1 else contextlib.nullcontext():
                await asyncio.sleep(PHASE_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return [
        [sum(s + i <= t < s + i + 1 for t in answer.pieces) for i in range(int(PHASE_S))]
        for s in starts
    ]


def report() -> None:
    """Prints tokens in each second, for threads that adapt and threads that do not."""
    n_cores = os.cpu_count() or 1
    rows = []
    for label, flags in (
        ("auto", ("--threads", "auto")),
        (f"fixed {n_cores}", ("--threads", str(n_cores))),
        ("fixed 1", ("--threads", "1")),
    ):
        with servers.corral(*flags) as url:
            for phase, counts in zip(
                ("quiet", f"{n_cores} busy", "quiet again"),
                asyncio.run(_phases(url, n_cores)),
                strict=True,
            ):
                rows.append([label, phase, *counts])
    seconds = [f"s{i + 1}" for i in range(int(PHASE_S))]
    table("Tokens per second beside a busy neighbour", ["threads", "phase", *seconds], rows)
