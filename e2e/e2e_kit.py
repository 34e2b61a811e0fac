"""What the browser tests share: the application in a thread, watched pages, a way to speak."""

import asyncio
import concurrent.futures
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, expect

from corral.backend.app import create_app
from corral.backend.pool import Pool
from corral.backend.service import Service
from corral.backend.settings import Settings

T = TypeVar("T")

CHROMIUM = "/usr/bin/chromium"
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--font-render-hinting=none",
]
DESKTOP = {"width": 1360, "height": 860}
PHONE = {"width": 390, "height": 844}
SMALL_PHONE = {"width": 320, "height": 568}

# Runs before every page's own scripts: violations of the content policy are events, not errors.
WATCH_POLICY = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (e) =>
  window.violations.push(`${e.violatedDirective}: ${e.blockedURI} ${e.sample}`));
document.addEventListener("htmx:error", (e) => console.error("htmx", e.detail.error));
"""

expect.set_options(timeout=10_000)


class Server:
    """The application at a free port of this machine."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.service = Service(settings, Pool(settings))
        self.app = create_app(settings, self.service)

        config = uvicorn.Config(self.app, log_config=None, ws="none", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._ready: concurrent.futures.Future[asyncio.AbstractEventLoop]
        self._ready = concurrent.futures.Future()

    async def _serve(self) -> None:
        serving = asyncio.create_task(self._server.serve([self._socket]))
        while not self._server.started and not serving.done():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await self.service.until_loaded()
        self._ready.set_result(asyncio.get_running_loop())
        await serving

    def start(self) -> None:
        self._thread.start()
        self._loop = self._ready.result(60)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of something that runs in the server's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def control(self, **args: Any) -> None:
        """Scripts the fake engine (see ``engine.fake``)."""
        self.run(self.service.control(args))

    def until(self, holds: Callable[[Service], bool]) -> None:
        """Waits for a state of the engine."""

        async def watch() -> None:
            while not holds(self.service):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        self.run(asyncio.wait_for(watch(), 15))

    def is_idle(self) -> bool:
        """Whether no slot works and nobody waits."""
        snapshot = self.service.snapshot
        return snapshot is None or (
            not snapshot.waiting and all(slot.state == "idle" for slot in snapshot.slots)
        )


class Visitor:
    """Browser contexts that are watched: a test fails for what its pages complained about."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.complaints: list[str] = []
        self.expected: list[str] = []

    def context(self, **options: Any) -> BrowserContext:
        options = {"viewport": DESKTOP, "reduced_motion": "reduce", **options}
        context = self._browser.new_context(**options)
        context.add_init_script(WATCH_POLICY)
        context.on("console", self._console)
        context.on("weberror", lambda e: self.complaints.append(f"page error: {e.error}"))
        context.on("request", self._request)
        self._contexts.append(context)
        return context

    def page(self, **options: Any) -> Page:
        return self.context(**options).new_page()

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"console {message.type}: {message.text}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            self.complaints.append(f"request to {request.url}")

    def leave(self) -> None:
        """Closes everything and raises for what went wrong."""
        for context in self._contexts:
            for page in context.pages:
                if page.url.startswith("http") and page.evaluate("'violations' in window"):
                    self.complaints += page.evaluate("() => window.violations")
            context.close()
        left = [c for c in self.complaints if not any(e in c for e in self.expected)]
        assert not left, left


def write(page: Page, text: str) -> None:
    """Types a message and presses Enter."""
    page.wait_for_load_state()  # Enter is the script's
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def say(page: Page, text: str) -> None:
    """Sends a message; returns when it is in the transcript."""
    said = page.locator(".turn.user")
    n_said = said.count()
    write(page, text)
    expect(said).to_have_count(n_said + 1)


def finished(page: Page) -> None:
    """Waits for the reply to end."""
    expect(page.locator("[aria-busy]")).to_have_count(0)
