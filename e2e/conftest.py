"""A browser at the real application: its own server in a thread, the fake engine in a child."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from corral.backend.settings import Settings

sys.path.insert(0, str(Path(__file__).parent))
from e2e_kit import ARGS, CHROMIUM, Server, Visitor


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
    yield browser
    browser.close()


@pytest.fixture(scope="module")  # titles of one file's conversations are not in another's way
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("data")
    server = Server(Settings(fake=True, alias="scripted", n_ctx=4096, n_slots=2, data_dir=data))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The shared server; whatever a test held goes on after it."""
    yield shared_server
    shared_server.control(hold=None, step_ms=0.0)
    shared_server.until(lambda _: shared_server.is_idle())


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Visitor]:
    visitor = Visitor(browser)
    yield visitor
    visitor.leave()


@pytest.fixture
def page(visitor: Visitor) -> Page:
    return visitor.page()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers with other settings."""
    started: list[Server] = []

    def start(**settings: Any) -> Server:
        server = Server(Settings(fake=True, alias="scripted", data_dir=tmp_path, **settings))
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()
