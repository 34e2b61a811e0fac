"""Clients of an OpenAI or llama-server route, timed by token."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Answer:
    """When a request was sent and when each piece of its answer came, in seconds."""

    sent: float
    pieces: list[float] = field(default_factory=list)

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
            if line.startswith("data: {") and _has_text(json.loads(line[6:])):
                answer.pieces.append(time.perf_counter())
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
