"""How fast the server was lately: one sample a second, for as long as a plot is wide. Owned by the
event loop."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from corral.backend.engine.messages import Snapshot

#: Seconds that are kept; a plot shows all of them.
KEPT_S = 300
EVERY_S = 1.0


class Sample(Struct, frozen=True):
    """Tokens per second, over the time since the sample before; ``at_s`` of a monotonic clock."""

    at_s: float
    generated: float
    read: float


class History:
    """The last samples, at most ``KEPT_S`` of them."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=KEPT_S)
        self._last: tuple[float, int, int] | None = None

    def take(self, snapshot: Snapshot | None, now_s: float) -> None:
        """Notes what happened since the last call. Without an engine that is nothing; counters
        that went back are those of a new one, and begin anew."""
        generated, read = totals(snapshot)
        last, self._last = self._last, (now_s, generated, read)
        if last is None or now_s <= last[0]:
            return
        seconds = now_s - last[0]
        self.samples.append(
            Sample(
                now_s,
                max(0, generated - last[1]) / seconds,
                max(0, read - last[2]) / seconds,
            )
        )

    async def watch(self, look: Callable[[], Snapshot | None]) -> None:
        """Takes a sample every second until cancelled."""
        while True:
            self.take(look(), time.monotonic())
            await asyncio.sleep(EVERY_S)


def totals(snapshot: Snapshot | None) -> tuple[int, int]:
    """Tokens generated and prompt tokens computed since the engine started. The engine counts a
    prompt when it has been read, so what is being read is added."""
    if snapshot is None:
        return 0, 0
    counters = snapshot.counters
    read = sum(max(0, s.n_processed - s.n_cached) for s in snapshot.slots if s.state == "reading")
    return counters.predicted_tokens, counters.prompt_tokens + read
