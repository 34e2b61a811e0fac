"""Everything below a path: what a proxy does that strips a prefix, in both directions."""

import re

from litestar import Request
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from corral.backend.api.failures import failed
from corral.backend.api.wire import AnyRequest
from corral.backend.errors import Refused

#: Headers of replies that name a path of this server, htmx's own among them.
_PATHS = (b"location", b"hx-push-url", b"hx-replace-url", b"hx-redirect", b"hx-location")
_COOKIE_PATH = re.compile(rb"(?i)(; ?path=)/(?=;|$)")


class Prefix:
    """Stands before everything: nothing further in knows of the prefix, and no path outside it
    exists. Links in pages are the templates' business."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        """``prefix`` is as ``/corral``: with a slash in front and none behind."""
        self._app = app
        self._prefix = prefix
        self._raw = prefix.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on without the prefix, or answers 404."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        if not self._strip(scope):
            request: AnyRequest = Request(scope, receive, send)
            message = f"There is no route {scope['method']} {scope['path'][:200]}; all begin with "
            refusal = failed(Refused(message + self._prefix, kind="not_found"), request)
            await refusal.to_asgi_response(app=None, request=request)(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [self._outer(*header) for header in message["headers"]]
            await send(message)

        await self._app(scope, receive, sent)

    def _strip(self, scope: HTTPScope) -> bool:
        """Takes the prefix off, in place: what is done to replies looks at the path too."""
        path = scope["path"]
        if path != self._prefix and not path.startswith(self._prefix + "/"):
            return False
        scope["path"] = path.removeprefix(self._prefix) or "/"
        scope["raw_path"] = scope["raw_path"].removeprefix(self._raw) or b"/"
        return True

    def _outer(self, name: bytes, value: bytes) -> tuple[bytes, bytes]:
        if name.lower() in _PATHS and value.startswith(b"/") and not value.startswith(b"//"):
            return name, self._raw + value
        if name.lower() == b"set-cookie":
            return name, _COOKIE_PATH.sub(rb"\g<1>" + self._raw, value)
        return name, value
