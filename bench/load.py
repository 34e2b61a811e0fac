"""Clients of an OpenAI or llama-server route, timed by token."""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx


@dataclass
class Answer:
    """When a request was sent, when each piece of its answer came and when it ended, in seconds;
    ``last`` is its last event."""

    sent: float
    pieces: list[float] = field(default_factory=list)
    ended: float = 0.0
    last: dict[str, Any] = field(default_factory=dict)

    @property
    def ttft(self) -> float:
        """Seconds to the first piece."""
        return self.pieces[0] - self.sent

    def gaps(self, since: float = 0.0, until: float = float("inf")) -> list[float]:
        """Seconds between pieces, for those that came in a window."""
        pairs = zip(self.pieces, self.pieces[1:], strict=False)
        return [b - a for a, b in pairs if since <= b <= until]


async def stream(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], answer: Answer | None = None
) -> Answer:
    """Sends one streaming request and notes when its pieces come."""
    answer = answer or Answer(0.0)
    answer.sent = time.perf_counter()
    async with client.stream("POST", path, json={**body, "stream": True}) as response:
        if response.status_code != 200:
            raise RuntimeError((await response.aread()).decode())
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                answer.last = json.loads(line[6:])
                answer.ended = time.perf_counter()
                if _has_text(answer.last):
                    answer.pieces.append(answer.ended)
    return answer


def _has_text(chunk: dict[str, Any]) -> bool:
    if "error" in chunk:
        raise RuntimeError(str(chunk["error"]))
    if "choices" in chunk:
        choices = chunk["choices"]
        return bool(choices and choices[0].get("delta", {}).get("content"))
    return bool(chunk.get("content"))


async def together(url: str, path: str, bodies: list[dict[str, Any]]) -> list[Answer]:
    """Sends all requests at the same time."""
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        return list(await asyncio.gather(*(stream(client, path, b) for b in bodies)))


def random_tokens(seed: int, n: int) -> list[int]:
    """A prompt of ``n`` random tokens: nothing of it is in any cache."""
    rng = random.Random(seed)
    return [rng.randrange(1000, 40000) for _ in range(n)]


class Counters(NamedTuple):
    """What Corral's ``/metrics`` has counted so far, in tokens. ``chosen`` of the predicted ones
    were sampled; a constraint left no choice about the others."""

    prompt: int
    predicted: int
    chosen: int

    def since(self, before: "Counters") -> "Counters":
        """The difference."""
        return Counters(*(a - b for a, b in zip(self, before, strict=True)))


def counters(url: str) -> Counters:
    """The counters of a server that has nothing to do. ``chosen`` holds for prompts that are read
    in one step each."""
    lines = httpx.get(url + "/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    calls = float(values["llamacpp:n_decode_total"])
    return Counters(
        int(float(values["llamacpp:prompt_tokens_total"])),
        int(float(values["llamacpp:tokens_predicted_total"])),
        round(float(values["llamacpp:n_busy_slots_per_decode"]) * calls),
    )
