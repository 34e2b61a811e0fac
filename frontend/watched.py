"""Something that grows while pages look at it. Owned by the event loop; no locks."""

import asyncio
import contextlib


class Watched:
    """``version`` grows with every change; ``ended`` is set when there will be none any more."""

    def __init__(self) -> None:
        self.version = 0
        self.ended = asyncio.Event()
        self._wake = asyncio.Event()

    async def changed(self, seen: int, timeout_s: float) -> None:
        """Returns when ``version`` is not ``seen`` any more, or after the time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.version == seen and not self.ended.is_set():
                    await self._wake.wait()

    def touch(self) -> None:
        """Something changed: wakes everyone who looks."""
        self.version += 1
        self._wake.set()
        self._wake = asyncio.Event()
