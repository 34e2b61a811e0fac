"""The application with the fake engine, in this loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from litestar import Litestar

from corral.backend.app import create_app
from corral.backend.pool import Pool
from corral.backend.service import Service
from corral.backend.settings import Settings


class Client(httpx.AsyncClient):
    """Talks to the application in this loop; an answer is there when it is complete."""

    def __init__(self, app: Litestar) -> None:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        super().__init__(transport=transport, base_url="http://127.0.0.1:8080")
        self.app = app


async def open_client(settings: Settings) -> AsyncIterator[Client]:
    service = Service(settings, Pool(settings))
    app = create_app(settings, service)
    up, done = asyncio.Event(), asyncio.Event()

    async def live() -> None:
        # In one task from start to end, as a server does it.
        async with app.lifespan():
            up.set()
            await done.wait()

    task = asyncio.create_task(live())
    await up.wait()
    await service.until_loaded()
    async with Client(app) as client:
        yield client
    done.set()
    await task


@pytest.fixture
def client_of() -> Callable[[Settings], AsyncIterator[Client]]:
    """Opens clients with other settings."""
    return open_client


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async for client in open_client(Settings(fake=True, data_dir=tmp_path, n_ctx=1024)):
        yield client


@pytest.fixture
async def locked(tmp_path: Path) -> AsyncIterator[Client]:
    settings = Settings(fake=True, data_dir=tmp_path, n_ctx=1024, api_keys=("sesame",))
    async for client in open_client(settings):
        yield client


@pytest.fixture
async def thinking(tmp_path: Path) -> AsyncIterator[Client]:
    """A server whose model can be told not to reason."""
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if enable_thinking is false %}<think></think>{% endif %}"
    )
    settings = Settings(fake=True, data_dir=tmp_path, n_ctx=1024, chat_template=template)
    async for client in open_client(settings):
        yield client
