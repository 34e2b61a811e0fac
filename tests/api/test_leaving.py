"""A client that leaves before its request was accepted."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from corral.backend.app import create_app
from corral.backend.settings import Settings


class Slow(SimpleNamespace):
    """A service that is asked and never answers."""

    def __init__(self) -> None:
        super().__init__(info=None, snapshot=None, start=None, close=None)
        self.asked, self.cancelled = asyncio.Event(), asyncio.Event()

    async def chat(self, request: Any) -> None:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def post(path: str) -> Any:
    """The scope of a request."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }


@pytest.mark.parametrize("stream", [True, False])
async def test_its_waiting_request_is_given_up(stream: bool) -> None:
    slow: Any = Slow()
    app = create_app(Settings(), slow, frontend_handlers=[])
    body = json.dumps({"messages": [], "stream": stream}).encode()
    given = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        if given:
            return given.pop()
        await slow.asked.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await asyncio.wait_for(app(post("/v1/chat/completions"), receive, send), 5)
    await asyncio.wait_for(slow.cancelled.wait(), 5)
    assert sent[0]["status"] == 499


async def test_a_client_that_leaves_while_sending_its_body_is_no_fault_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow: Any = Slow()
    app = create_app(Settings(), slow, frontend_handlers=[])
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await asyncio.wait_for(app(post("/completion"), receive, send), 5)
    assert sent[0]["status"] == 499
    assert not caplog.records
