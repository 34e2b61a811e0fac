import logging
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from litestar import get
from litestar.testing import AsyncTestClient

from corral.backend.app import create_app
from corral.backend.settings import Settings


class Stub(SimpleNamespace):
    """A service that only notes what is done to it."""

    def __init__(self) -> None:
        super().__init__(state="ready", snapshot=None, info=None, calls=[])

    async def start(self) -> None:
        self.calls.append("start")

    async def close(self) -> None:
        self.calls.append("close")


async def test_the_service_lives_as_long_as_the_application() -> None:
    stub: Any = Stub()
    app = create_app(Settings(), stub, frontend_handlers=[])
    async with AsyncTestClient(app):
        assert stub.calls == ["start"]
    assert stub.calls == ["start", "close"]


async def test_handlers_find_service_and_settings_in_the_state() -> None:
    stub: Any = Stub()
    settings = Settings()
    app = create_app(settings, stub, frontend_handlers=[])
    assert app.state.service is stub
    assert app.state.settings is settings


async def test_a_fault_is_a_500_that_tells_nothing_but_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @get("/broken")
    async def broken() -> None:
        raise KeyError("secret")

    stub: Any = Stub()
    app = create_app(Settings(), stub, frontend_handlers=[broken])
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        with caplog.at_level(logging.ERROR):
            reply = await http.get("/broken")
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "internal_error"
    assert "secret" not in reply.text
    assert "secret" in caplog.text


def test_the_web_ui_is_mounted_unless_something_stands_in_for_it() -> None:
    stub: Any = Stub()
    paths = {route.path for route in create_app(Settings(), stub).routes}
    assert {"/", "/login", "/v1/chat/completions"} <= paths
    paths = {route.path for route in create_app(Settings(), stub, frontend_handlers=[]).routes}
    assert "/login" not in paths
