"""JSON in and out: strict decoding that names the place at fault, replies, and the error shape."""

import re
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec
from litestar import Request, Response
from litestar.datastructures import State
from litestar.exceptions import InternalServerException
from msgspec import Struct

from corral.backend.api import ignored
from corral.backend.errors import CorralError, Refused

AnyRequest: TypeAlias = Request[Any, Any, State]
T = TypeVar("T")

_AT = re.compile(r"^(?P<what>.*) - at (?:`key` in )?`(?P<path>[^`]*)`$", re.DOTALL)
# What Python's json module writes for a float that is not finite.
_NO_NUMBER = re.compile(rb'"(?P<name>[A-Za-z_]{1,40})"\s*:\s*-?(?:NaN|Infinity)\b')
_ESCAPE = re.compile(rb"\\(?:u(?P<code>[0-9A-Fa-f]{4})|.)", re.DOTALL)
_MISSING = re.compile(r"(?:required|unknown) field `(?P<name>[^`]+)`")
encode = msgspec.json.Encoder().encode


class ClientGone(Exception):
    """The client closed the connection before there was anything to send."""


def invalid(error: msgspec.ValidationError, *, under: str = "") -> Refused:
    """The refusal for a value of the wrong type or range; ``param`` is its JSON path.

    ``under`` is the path of the value that was decoded, when it is not the whole body.
    """
    text = str(error)
    match = _AT.match(text)
    what, path = (match["what"], match["path"]) if match else (text, "$")
    param = (under + path.removeprefix("$")).lstrip(".")
    if missing := _MISSING.search(what):
        param = f"{param}.{missing['name']}".lstrip(".")
    what = what[:1].lower() + what[1:]
    return Refused(f"{param}: {what}" if param else f"The body: {what}", param=param or None)


def not_json(error: msgspec.DecodeError, body: bytes = b"") -> Refused:
    """The refusal for bytes that are not JSON. Names the member whose number is none, and the half
    of a character."""
    reason = str(error).removeprefix("JSON is malformed: ")
    if match := _NO_NUMBER.search(body):
        name = match["name"].decode("utf-8", "replace")
        return Refused(f"{name}: NaN and infinities are no numbers in JSON", param=name)
    if half := _half(body):
        alone = "stands alone, and is half of a character (a surrogate)"
        reason = f"{half[0]} at byte {half[1]} {alone}"
    elif reason == "Input data was truncated":
        reason = "it ends too early"
    return Refused(f"The body is not valid JSON: {reason}")


def _half(body: bytes) -> tuple[str, int] | None:
    """The first escape that is half of a character, without its other half, and where it stands."""
    first: re.Match[bytes] | None = None
    for escape in _ESCAPE.finditer(body):
        code = int(escape["code"] or b"0", 16)
        is_second = first is not None and first.end() == escape.start() and 0xDC00 <= code < 0xE000
        if first is not None and not is_second:
            break
        first = escape if 0xD800 <= code < 0xE000 and not is_second else None
        if first is not None and code >= 0xDC00:
            break
    return None if first is None else (first[0].decode(), first.start())


async def read(request: AnyRequest, decoder: msgspec.json.Decoder[T]) -> T:
    """The request's body, whatever its content type says. Raises ``Refused`` naming the field, and
    ``ClientGone``.

    Nothing is converted: ``"5"`` is not an integer. Members nobody knows are ignored, and named in
    a header of the reply.
    """
    try:
        body = await request.body()
    except InternalServerException:  # how the framework says that the connection broke
        raise ClientGone from None
    if not body:
        raise Refused("The body is empty; a JSON object is expected")
    try:
        decoded = decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except msgspec.DecodeError as error:
        raise not_json(error, body) from None
    except RecursionError:
        raise Refused("The JSON is nested too deeply") from None
    if isinstance(decoded, Struct):
        ignored.note(request.scope, ignored.unknown(body, type(decoded)))
    return decoded


def reply(
    content: Struct | Sequence[Any] | dict[str, Any], *, status: int = 200
) -> Response[bytes]:
    """A JSON response."""
    return Response(encode(content), status_code=status, media_type="application/json")


class ErrorDetail(Struct, frozen=True, kw_only=True):
    """What went wrong. Some errors add members, such as ``n_prompt_tokens`` and ``n_ctx``."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(Struct, frozen=True):
    """The body of every reply that is not a success."""

    error: ErrorDetail


def error_object(error: CorralError) -> dict[str, Any]:
    """An error in OpenAI's shape; also the data of an error event inside a stream."""
    kind = error.wire
    detail = {"message": error.message, "type": kind.type, "param": error.param, "code": kind.code}
    return {"error": detail | error.extra}


def error_body(error: CorralError) -> bytes:
    """``error_object`` as JSON."""
    return encode(error_object(error))
