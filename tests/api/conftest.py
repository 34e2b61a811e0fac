import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from corral.backend.app import create_app
from corral.backend.engine.messages import Snapshot
from corral.backend.pool import Pool
from corral.backend.service import Service
from corral.backend.settings import Settings


class Running:
    """A server in a thread of its own, on the fake engine."""

    def __init__(self, settings: Settings) -> None:
        self.service = Service(settings, Pool(settings))
        self.app = create_app(settings, self.service, frontend_handlers=[])
        # The protocol is named because asyncio switches Nagle's delay off only where it is.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self.address = self._socket.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        config = uvicorn.Config(self.app, log_config=None, ws="none", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        serving = asyncio.create_task(self._server.serve([self._socket]))
        while not self._server.started and not serving.done():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await self.service.until_loaded()
        self._ready.set()
        await serving

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(30)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def control(self, **args: Any) -> None:
        """Scripts the fake engine."""
        work = self.service.control(args)
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def until(self, holds: Callable[[Snapshot], bool]) -> Snapshot:
        """Waits for a snapshot of which something holds."""

        async def watch() -> Snapshot:
            while not ((snapshot := self.service.snapshot) and holds(snapshot)):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            return snapshot

        waiting = asyncio.wait_for(watch(), 10)
        return asyncio.run_coroutine_threadsafe(waiting, self._loop).result(12)

    def until_idle(self) -> Snapshot:
        return self.until(lambda s: not s.waiting and all(x.state == "idle" for x in s.slots))


@contextmanager
def running(**settings: Any) -> Iterator[Running]:
    server = Running(Settings(fake=True, **settings))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Running]:
    with running(ping_s=0.05, max_queue=8, max_body_mb=1) as server:
        yield server


@pytest.fixture
def server(shared_server: Running) -> Iterator[Running]:
    """The shared server; whatever a test held is let go afterwards."""
    yield shared_server
    shared_server.control(hold=None, step_ms=0.0)
    shared_server.until_idle()


@pytest.fixture
def http(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=20) as client:
        yield client


@pytest.fixture(scope="session")
def run_server() -> Callable[..., Any]:
    """A server of one's own: ``with run_server(api_keys=("k",)) as server``."""
    return running
