"""Every error a caller can meet, and the one table from kind to HTTP status, type and code.

    CorralError
    ├── Refused   the caller's fault: 4xx, names the field in ``param``
    └── Broken    ours: 5xx

Kinds follow OpenAI's error codes where it has one, llama-server's ``type`` words otherwise.
"""

from typing import NamedTuple


class Kind(NamedTuple):
    """How one kind of error looks on the wire."""

    status: int
    type: str
    code: str | None


KINDS: dict[str, Kind] = {
    "invalid": Kind(400, "invalid_request_error", None),
    "unsupported": Kind(400, "invalid_request_error", "unsupported_parameter"),
    "context_length_exceeded": Kind(400, "invalid_request_error", "context_length_exceeded"),
    "previous_response_not_found": Kind(
        400, "invalid_request_error", "previous_response_not_found"
    ),
    "template_error": Kind(400, "invalid_request_error", "template_error"),
    "unauthorized": Kind(401, "authentication_error", "invalid_api_key"),
    "forbidden": Kind(403, "permission_error", None),
    "not_found": Kind(404, "not_found_error", None),
    "model_not_found": Kind(404, "not_found_error", "model_not_found"),
    "timeout": Kind(408, "invalid_request_error", "request_timeout"),
    "conflict": Kind(409, "conflict_error", "conflict"),
    "too_large": Kind(413, "invalid_request_error", "request_too_large"),
    "queue_full": Kind(503, "unavailable_error", "queue_full"),
    "loading": Kind(503, "unavailable_error", "loading_model"),
    "draining": Kind(503, "unavailable_error", "server_draining"),
    "engine_died": Kind(503, "unavailable_error", "engine_died"),
    "engine_error": Kind(500, "server_error", "engine_error"),
    "not_supported": Kind(501, "not_supported_error", None),
    "internal": Kind(500, "server_error", "internal_error"),
}


class CorralError(Exception):
    """An error with a kind from ``KINDS``.

    ``param`` names the request field at fault; ``extra`` holds members added to the error object
    (``n_prompt_tokens``, ``n_ctx``); ``retry_after_s`` becomes the ``Retry-After`` header.
    """

    default_kind = "internal"

    def __init__(
        self,
        message: str,
        *,
        kind: str | None = None,
        param: str | None = None,
        extra: dict[str, int] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind or self.default_kind
        self.param = param
        self.extra = extra or {}
        self.retry_after_s = retry_after_s

    @property
    def wire(self) -> Kind:
        """Status, type and code of this error."""
        return KINDS[self.kind]


class Refused(CorralError):
    """The caller asked for something that cannot be done; nothing was started."""

    default_kind = "invalid"


class Broken(CorralError):
    """The server failed; the caller may try again."""


def from_engine(
    code: str, message: str, extra: dict[str, int] | None = None, param: str = ""
) -> CorralError:
    """The error for a ``Failed`` frame: ``Refused`` for 4xx kinds, ``Broken`` otherwise."""
    kind = code if code in KINDS else "engine_error"
    retry = {"queue_full": 2, "engine_died": 1, "loading": 2, "draining": 5}.get(kind)
    cls = Refused if KINDS[kind].status < 500 else Broken
    return cls(message, kind=kind, param=param or None, extra=extra, retry_after_s=retry)
