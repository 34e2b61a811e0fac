"""Errors as Anthropic's API shows them, for every route below its path."""

import secrets
from collections.abc import Iterable
from typing import Any

from litestar.types import Scope
from msgspec import UNSET, Struct, UnsetType

from corral.backend.errors import CorralError

PATH = "/v1/messages"
#: The header that names a request in this API.
HEADER = "request-id"
_TYPE_BY_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


class AnthropicFault(Struct, frozen=True, kw_only=True):
    """What went wrong. Some errors add members, such as ``n_prompt_tokens`` and ``n_ctx``."""

    type: str
    message: str
    param: str | UnsetType = UNSET
    code: str | UnsetType = UNSET


class AnthropicError(Struct, frozen=True, kw_only=True):
    """The body of every reply that is not a success."""

    type: str = "error"
    error: AnthropicFault
    request_id: str | None


def is_anthropic(path: str) -> bool:
    """Whether a path belongs to this API."""
    return path == PATH or path.startswith(f"{PATH}/")


def error_object(error: CorralError, request_id: str | None = None) -> dict[str, Any]:
    """An error; also the data of an ``error`` event inside a stream. ``param``, ``code`` and the
    counts of some errors are additions."""
    kind = error.wire
    return error_of_status(
        kind.status,
        error.message,
        request_id,
        {"param": error.param, "code": kind.code, **error.extra},
    )


def error_of_status(
    status: int, message: str, request_id: str | None, extra: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The error for a status."""
    detail = {"type": _TYPE_BY_STATUS.get(status, "invalid_request_error"), "message": message}
    detail |= {name: value for name, value in (extra or {}).items() if value is not None}
    return {"type": "error", "error": detail, "request_id": request_id}


def request_id(scope: Scope, headers: Iterable[tuple[bytes, bytes]] = ()) -> str:
    """A request's name: the one its reply has, else the caller's ``X-Request-Id`` when it is short
    and plain, else a new one."""
    given = next((v for k, v in headers if k.lower() == HEADER.encode()), b"")
    sent = given or next((v for k, v in scope["headers"] if k == b"x-request-id"), b"")
    is_plain = 0 < len(sent) <= 64 and all(33 <= c < 127 for c in sent)
    return sent.decode() if is_plain else f"req_{secrets.token_hex(12)}"
