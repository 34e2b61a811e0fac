"""JSON in and out: strict decoding that names the place at fault, replies, and the error shape."""

import re
from typing import Any, TypeAlias, TypeVar

import msgspec
from litestar import Request, Response
from litestar.datastructures import State
from litestar.exceptions import InternalServerException
from msgspec import Struct

from corral.backend.errors import CorralError, Refused

AnyRequest: TypeAlias = Request[Any, Any, State]
T = TypeVar("T")

_AT = re.compile(r"^(?P<what>.*) - at `(?P<path>[^`]*)`$", re.DOTALL)
_MISSING = re.compile(r"required field `(?P<name>[^`]+)`")
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


def not_json(error: msgspec.DecodeError) -> Refused:
    """The refusal for bytes that are not JSON."""
    reason = str(error).removeprefix("JSON is malformed: ")
    if reason == "Input data was truncated":
        reason = "it ends too early"
    return Refused(f"The body is not valid JSON: {reason}")


async def read(request: AnyRequest, decoder: msgspec.json.Decoder[T]) -> T:
    """The request's body, whatever its content type says. Raises ``Refused`` naming the field, and
    ``ClientGone``.

    Nothing is converted: ``"5"`` is not an integer. Members nobody knows are ignored.
    """
    try:
        body = await request.body()
    except InternalServerException:  # how the framework says that the connection broke
        raise ClientGone from None
    if not body:
        raise Refused("The body is empty; a JSON object is expected")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except msgspec.DecodeError as error:
        raise not_json(error) from None
    except RecursionError:
        raise Refused("The JSON is nested too deeply") from None


def reply(content: Struct | list[Any] | dict[str, Any], *, status: int = 200) -> Response[bytes]:
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


def error_body(error: CorralError) -> bytes:
    """An error as JSON; also the data of an error event inside a stream."""
    kind = error.wire
    detail = {"message": error.message, "type": kind.type, "param": error.param, "code": kind.code}
    return encode({"error": detail | error.extra})
