"""Anthropic's routes: messages, and their tokens counted."""

import secrets
from typing import Any

from litestar import Response, post

from corral.backend.api import presetting
from corral.backend.api.anthropic_errors import AnthropicError
from corral.backend.api.anthropic_render import EVENTS, MessagesRender
from corral.backend.api.anthropic_schema import (
    CountBody,
    MessageObject,
    MessagesBody,
    TokenCount,
    count_decoder,
    messages_decoder,
)
from corral.backend.api.leaving import unless_gone
from corral.backend.api.openapi import WITH_BODY, Operation
from corral.backend.api.serving import n_vocab, serve, service_of, wishes
from corral.backend.api.wire import AnyRequest, read, reply
from corral.backend.choices import Choices

_TAG = "Anthropic"


@post(
    "/messages",
    status_code=200,
    operation=Operation(
        summary="Answer a conversation",
        tag=_TAG,
        body=MessagesBody,
        reply=MessageObject,
        chunks=EVENTS,
        errors=WITH_BODY,
        error=AnthropicError,
    ),
)
async def messages(request: AnyRequest) -> Response[Any]:
    """The model's next message in a conversation."""
    body = await read(request, messages_decoder)
    asked = await presetting.chat(request, body, body.request(n_vocab(request)))

    def render_for(choices: Choices) -> MessagesRender:
        name = f"msg_{secrets.token_hex(12)}"
        n_prompt = choices.generations[0].n_prompt
        return MessagesRender(name, body.model or choices.model, n_prompt, wishes(body))

    return await serve(request, body, service_of(request).chat(asked), render_for)


@post(
    "/messages/count_tokens",
    status_code=200,
    operation=Operation(
        summary="Count the tokens of a prompt",
        tag=_TAG,
        body=CountBody,
        reply=TokenCount,
        errors=WITH_BODY,
        error=AnthropicError,
    ),
)
async def count_tokens(request: AnyRequest) -> Response[bytes]:
    """How many tokens a request's prompt has."""
    body = await read(request, count_decoder)
    asked = await presetting.chat(request, body, body.request(n_vocab(request)))
    return reply(TokenCount(await unless_gone(request, service_of(request).count(asked))))


#: Served under /v1.
handlers = [messages, count_tokens]
