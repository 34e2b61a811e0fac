"""What can still be asked of an answer that is under way."""

from typing import Literal

import msgspec
from litestar import Response, post
from msgspec import UNSET, Struct, UnsetType

from corral.backend.api.openapi import WITH_BODY, Operation
from corral.backend.api.serving import service_of
from corral.backend.api.wire import AnyRequest, read, reply


class ControlBody(Struct, kw_only=True):
    """``POST /v1/chat/completions/control``: ``id`` as the answer's chunks have it."""

    id: str
    action: Literal["reasoning_end"]
    model: str | None = None


class Controlled(Struct, frozen=True, kw_only=True):
    """Whether it was done, and if not, why."""

    success: bool
    message: str | UnsetType = UNSET


_decoder = msgspec.json.Decoder(ControlBody)


@post(
    "/chat/completions/control",
    status_code=200,
    operation=Operation(
        summary="End the reasoning of a running answer",
        tag="OpenAI",
        body=ControlBody,
        reply=Controlled,
        errors=WITH_BODY,
    ),
)
async def control(request: AnyRequest) -> Response[bytes]:
    """Lets the reasoning of all answers of a running request end now; they go on with what they
    have to say."""
    body = await read(request, _decoder)
    service = service_of(request)
    choices = service.named.get(body.id)
    if choices is None:
        message = "no answer with this id is under way"
        return reply(Controlled(success=False, message=message))
    ended = [await service.end_thinking(g.id) for g in choices.generations]
    if not any(ended):
        return reply(Controlled(success=False, message="it is not reasoning"))
    return reply(Controlled(success=True))


handlers = [control]
