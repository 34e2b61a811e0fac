"""From any exception to a reply in the one error shape. Nothing of the server's inside leaks."""

import difflib
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, cast

import msgspec
from litestar import Litestar, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.types import ExceptionHandlersMap

from corral.backend.api import anthropic_errors
from corral.backend.api.wire import AnyRequest, ClientGone, encode, error_body, invalid, not_json
from corral.backend.errors import Broken, CorralError, Refused

logger = logging.getLogger(__name__)

# What the framework raises by itself, as kinds of ours where there is one.
_KIND_BY_STATUS = {
    400: "invalid",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    413: "too_large",
}
ErrorPage: TypeAlias = Callable[[AnyRequest, CorralError], Response[Any]]


def failed(error: CorralError, request: AnyRequest) -> Response[bytes]:
    """The reply for one of our own errors, in the shape of the API that was asked."""
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if error.wire.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = error_body(error)
    if anthropic_errors.is_anthropic(request.scope["path"]):
        name = headers[anthropic_errors.HEADER] = anthropic_errors.request_id(request.scope)
        body = encode(anthropic_errors.error_object(error, name))
    return Response(
        body, status_code=error.wire.status, headers=headers, media_type="application/json"
    )


def nearest(path: str, paths: Iterable[str]) -> str | None:
    """The known path most like ``path``, if any is alike at all."""
    close = difflib.get_close_matches(path, list(paths), n=1, cutoff=0.5)
    return close[0] if close else None


def route_paths(app: Litestar) -> list[str]:
    """The paths a caller may be pointed to: those in the API's document."""
    return sorted(
        {
            route.path
            for route in app.routes
            for handler in getattr(route, "route_handlers", ())
            if "operation" in handler.opt and "{" not in route.path
        }
    )


def is_api_path(request: AnyRequest) -> bool:
    """Whether programs, not people, ask below this path: an error is JSON there."""
    path = request.scope["path"]
    heads = {
        route.path.split("/")[1]
        for route in request.app.routes
        if any("operation" in handler.opt for handler in getattr(route, "route_handlers", ()))
    }
    return path.split("/")[1] in heads


def _is_for_people(request: AnyRequest) -> bool:
    """Whether a browser wants a page at an address, be it one that there is not."""
    accept, mode = (request.headers.get(name, "") for name in ("accept", "sec-fetch-mode"))
    return ("text/html" in accept or mode == "navigate") and not is_api_path(request)


def on_page(request: AnyRequest, error: CorralError) -> Response[Any]:
    """The reply for people: the web UI's error page, or the JSON one where there is no UI."""
    page = cast(ErrorPage | None, request.app.state.get("error_page"))
    return failed(error, request) if page is None else page(request, error)


def _unknown_route(request: AnyRequest) -> Refused:
    path = request.scope["path"]
    message = f"There is no route {request.method} {path[:200]}."
    if near := nearest(path, route_paths(request.app)):
        message += f" Did you mean {near}?"
    return Refused(message, kind="not_found")


def _wrong_method(request: AnyRequest, error: HTTPException) -> Response[Any]:
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    if request.method == "GET" and _is_for_people(request):
        # Somebody has loaded the address that a form was sent to.
        page = on_page(request, Refused("There is nothing to look at here", kind="not_found"))
        page.status_code = 405
        page.headers.update(headers)
        return page
    message = f"{request.method} is not allowed here; use {headers.get('allow', 'another method')}"
    detail: dict[str, Any] = {
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "param": None,
            "code": "method_not_allowed",
        }
    }
    if anthropic_errors.is_anthropic(request.scope["path"]):
        name = headers[anthropic_errors.HEADER] = anthropic_errors.request_id(request.scope)
        detail = anthropic_errors.error_of_status(405, message, name)
    return Response(encode(detail), status_code=405, headers=headers, media_type="application/json")


def _framework(request: AnyRequest, error: HTTPException) -> Response[Any]:
    """Errors that Litestar raises by itself: unknown route, wrong method, body too large."""
    if error.status_code == 404:
        if _is_for_people(request):
            return on_page(request, Refused("There is no such page", kind="not_found"))
        return failed(_unknown_route(request), request)
    if error.status_code == 405:
        return _wrong_method(request, error)
    if error.status_code == 413:
        limit = request.app.state.settings.max_body_mb
        message = f"The body is larger than {limit} MiB (--max-body-mb)"
        return failed(Refused(message, kind="too_large"), request)
    if error.status_code >= 500:
        return _unexpected(request, error)
    kind = _KIND_BY_STATUS.get(error.status_code, "invalid")
    param = None
    if isinstance(error, ValidationException) and isinstance(error.extra, list) and error.extra:
        first = error.extra[0]
        param = first.get("key") if isinstance(first, dict) else None
    return failed(Refused(error.detail, kind=kind, param=param), request)


def _unexpected(request: AnyRequest, error: Exception) -> Response[bytes]:
    logger.error("%s %s failed", request.method, request.scope["path"], exc_info=error)
    return failed(Broken("The server failed; its log says why"), request)


def _ours(request: AnyRequest, error: CorralError) -> Response[bytes]:
    if error.wire.status == 500:
        logger.error("%s %s: %s", request.method, request.scope["path"], error.message)
    return failed(error, request)


def _wrong_value(request: AnyRequest, error: msgspec.ValidationError) -> Response[bytes]:
    return failed(invalid(error), request)


def _wrong_bytes(request: AnyRequest, error: msgspec.DecodeError) -> Response[bytes]:
    return failed(not_json(error), request)


def _too_deep(request: AnyRequest, error: RecursionError) -> Response[bytes]:
    return failed(Refused("The JSON is nested too deeply"), request)


def _gone(request: AnyRequest, error: ClientGone) -> Response[bytes]:
    # Nobody reads this; the status is for the log.
    return Response(b"", status_code=499, media_type="text/plain")


exception_handlers: ExceptionHandlersMap = {
    CorralError: _ours,
    HTTPException: _framework,
    msgspec.ValidationError: _wrong_value,
    msgspec.DecodeError: _wrong_bytes,
    RecursionError: _too_deep,
    ClientGone: _gone,
    Exception: _unexpected,
}
