"""Who may come in: host names, API keys, the browser's session cookie, and the request's id."""

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote, urlsplit

from litestar import Request, Response
from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from corral.backend.api.anthropic_errors import HEADER, is_anthropic, request_id
from corral.backend.api.failures import failed, is_api_path, on_page
from corral.backend.api.wire import AnyRequest
from corral.backend.errors import Refused
from corral.backend.listening import is_path

COOKIE = "corral_key"
LOGIN = "/login"
_PROBES = ("/health", "/v1/health")
_OPEN = (*_PROBES, LOGIN, "/favicon.ico")
_OPEN_UNDER = "/static/"
_SAFE = ("GET", "HEAD", "OPTIONS")


def session_value(key: str) -> str:
    """What the cookie ``corral_key`` holds for a browser that knows ``key``; not the key itself."""
    return hmac.new(key.encode(), b"corral session", hashlib.sha256).hexdigest()


def is_key(given: str | bytes, keys: Sequence[str]) -> bool:
    """Whether ``given`` is one of ``keys``, in a time that tells nothing about them."""
    given = given.encode() if isinstance(given, str) else given
    # Not any(): it would stop at the first match.
    return sum([hmac.compare_digest(given, key.encode()) for key in keys]) > 0


def _sent_key(headers: Headers) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key")


def _cookie(headers: Headers) -> str | None:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return None if morsel is None else morsel.value


class Gate:
    """Stands before the router, so that without a key nobody learns which paths exist."""

    def __init__(
        self, app: ASGIApp, *, keys: Sequence[str], hosts: Sequence[str], has_login: bool = True
    ) -> None:
        """``hosts`` are the addresses the server is bound to; ``has_login``: browsers without a
        key are sent to a page that asks for one."""
        self._app = app
        # A cookie or key belongs to one name, so with keys any name will do.
        names = [host for host in hosts if not is_path(host)]
        self._is_private = not keys and bool(names) and all(map(_is_loopback, names))
        self._has_login = has_login
        self._keys = tuple(keys)
        self._sessions = tuple(session_value(key) for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers 401, or 403, or sends a browser to the login page."""
        if scope["type"] != ScopeType.HTTP or not (self._keys or self._is_private):
            await self._app(scope, receive, send)
            return
        request: AnyRequest = Request(scope, receive, send)
        refusal = _unknown_name(request) if self._is_private else self._refusal(request)
        if refusal is None:
            await self._app(scope, receive, send)
            return
        response = refusal.to_asgi_response(app=None, request=request)
        await response(scope, receive, send)

    def _refusal(self, request: AnyRequest) -> Response[bytes] | None:
        method, path, headers = request.method, request.scope["path"], request.headers
        if method == "OPTIONS" or path in _OPEN or path.startswith(_OPEN_UNDER):
            return None
        key = _sent_key(headers)
        if key is not None:
            # Headers arrive as latin-1; a key may hold more than that.
            known = is_key(key.encode("latin-1", "replace"), self._keys)
            return None if known else _unknown("This API key is not known", request)
        session = _cookie(headers)
        if session is not None and is_key(session, self._sessions):
            return _across(request) if method not in _SAFE else None
        wants_page = method in ("GET", "HEAD") and "text/html" in headers.get("accept", "")
        if self._has_login and wants_page:
            return Response(
                b"",
                status_code=303,
                headers={"Location": f"{LOGIN}?next={quote(path)}"},
                media_type="text/plain",
            )
        return _unknown(
            "An API key is needed: Authorization: Bearer KEY, or X-Api-Key: KEY", request
        )


def _unknown(message: str, request: AnyRequest) -> Response[bytes]:
    return failed(Refused(message, kind="unauthorized"), request)


def _across(request: AnyRequest) -> Response[bytes] | None:
    """Refuses what another site makes a logged-in browser send."""
    headers = request.headers
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    # Browsers leave out Sec-Fetch-Site over plain HTTP to another machine; Origin is there then.
    # Where both are, the first is sure: a proxy may have changed the Host the second is held to.
    if site is not None:
        is_own = site in ("same-origin", "none")
    else:
        is_own = origin is None or origin.partition("://")[2] == headers.get("host")
    if is_own:
        return None
    return failed(Refused("This request comes from another site", kind="forbidden"), request)


def _unknown_name(request: AnyRequest) -> Response[bytes] | Response[str] | None:
    """Refuses a name that is not loopback's: any site could point one of its own at this server and
    read what it has."""
    address = request.scope.get("server") or ("", None)
    # No site leads a browser to a UNIX socket.
    if request.scope["path"] in _PROBES or (address[1] is None and is_path(address[0])):
        return None
    try:
        name = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        name = ""
    if _is_loopback(name):
        return None
    error = Refused(
        f"This server does not answer to the name {name[:200]!r}. Behind a proxy, set an API key "
        "or let the proxy send Host: localhost",
        kind="forbidden",
    )
    return failed(error, request) if is_api_path(request) else on_page(request, error)


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def name_request(message: Message, scope: Scope) -> None:
    """Puts ``X-Request-Id`` on a reply: the caller's when it is short and plain, or a new one."""
    if message["type"] != "http.response.start":
        return
    name = request_id(scope, message["headers"]).encode()
    headers = [*message["headers"], (b"x-request-id", name)]
    if is_anthropic(scope["path"]):
        headers = [(k, v) for k, v in headers if k.lower() != HEADER.encode()]
        headers.append((HEADER.encode(), name))
    message["headers"] = headers
