"""How long a client may stand still: in the middle of a request's body, or not taking an answer."""

import asyncio
import logging

from litestar import Request
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, ReceiveMessage, Scope, Send

from corral.backend.api.failures import failed
from corral.backend.api.wire import AnyRequest
from corral.backend.errors import Refused

log = logging.getLogger("corral.api")


class Patience:
    """Ends requests whose client has not moved for ``seconds``: with 408 in the body, and by
    closing the connection in the answer. How long an answer takes to compute does not matter."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, and watches its client."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        watch = _Watch(self._seconds, receive, send)
        try:
            await self._app(scope, watch.receive, watch.send)
        except asyncio.CancelledError:
            if not watch.has_stalled:
                raise
            watch.task.uncancel()
            log.info("%s %s: the client stands still", scope["method"], scope["path"])
            if not watch.has_begun:
                await _refuse(scope, receive, send, self._seconds)
        finally:
            watch.stop()


class _Watch:
    """One timer for the whole request: one for each piece of an answer would cost more than the
    piece. So a client is found between one and two times ``seconds`` after it stopped."""

    def __init__(self, seconds: float, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.has_stalled = self.has_begun = False
        self._seconds, self._receive, self._send = seconds, receive, send
        self._has_body = True  # more of it may come
        self._since: float | None = None  # waiting for the client
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._look)

    async def receive(self) -> ReceiveMessage:
        if not self._has_body:
            return await self._receive()
        self._since = self._loop.time()
        message = await self._receive()
        self._since = None
        self._has_body = bool(message.get("more_body"))
        return message

    async def send(self, message: Message) -> None:
        self.has_begun = True
        self._since = self._loop.time()
        await self._send(message)
        self._since = None

    def _look(self) -> None:
        if self._since is not None and self._loop.time() - self._since >= self._seconds:
            self.has_stalled = True
            self.task.cancel()
        else:
            self._timer = self._loop.call_later(self._seconds, self._look)

    def stop(self) -> None:
        self._timer.cancel()


async def _refuse(scope: Scope, receive: Receive, send: Send, seconds: float) -> None:
    request: AnyRequest = Request(scope, receive, send)
    error = Refused(f"The body did not go on for {seconds:g} seconds", kind="timeout")
    response = failed(error, request)
    response.headers["connection"] = "close"
    await response.to_asgi_response(app=None, request=request)(scope, receive, send)
