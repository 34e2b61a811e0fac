"""OpenAI's routes: chat completions, text completions, models."""

import secrets
from typing import Any

from litestar import HttpMethod, Response, post, route
from litestar.params import FromPath
from msgspec.structs import replace

from corral.backend.api import presetting
from corral.backend.api.infill import Gap, fill_in
from corral.backend.api.leaving import unless_gone
from corral.backend.api.openai_render import ChatRender, Envelope, TextRender
from corral.backend.api.openai_schema import (
    Chat,
    ChatBody,
    ChatChunk,
    Completion,
    CompletionBody,
    InputTokens,
    Model,
    ModelAbilities,
    ModelList,
    ModelMeta,
    chat_decoder,
    completion_decoder,
)
from corral.backend.api.openapi import WITH_BODY, Operation, Parameter
from corral.backend.api.serving import n_vocab, serve, service_of, wishes
from corral.backend.api.wire import AnyRequest, read, reply
from corral.backend.chat.types import CompletionRequest, Prompt, Written
from corral.backend.choices import Choices
from corral.backend.engine.messages import ModelInfo
from corral.backend.errors import Refused, from_engine
from corral.backend.service import Service

LOOK = (HttpMethod.GET, HttpMethod.HEAD)
_TAG = "OpenAI"


def _envelope(prefix: str, choices: Choices) -> Envelope:
    name = f"{prefix}-{secrets.token_urlsafe(18)}"
    return Envelope(id=name, created=choices.created, model=choices.model)


@post(
    "/chat/completions",
    status_code=200,
    operation=Operation(
        summary="Answer a conversation",
        tag=_TAG,
        body=ChatBody,
        reply=Chat,
        chunks=(ChatChunk,),
        errors=WITH_BODY,
    ),
)
async def chat_completions(request: AnyRequest) -> Response[Any]:
    """The model's next message in a conversation."""
    body = await read(request, chat_decoder)
    service = service_of(request)
    asked = await presetting.chat(request, body, body.request(n_vocab(request)))

    def render(choices: Choices) -> ChatRender:
        envelope = _envelope("chatcmpl", choices)
        service.named[envelope.id] = choices
        return ChatRender(
            envelope,
            wishes(body),
            n=len(choices.generations),
            is_old=body.functions is not None,
        )

    return await serve(request, body, service.chat(asked), render)


def _texts(asked: CompletionRequest) -> list[Prompt]:
    found: list[Prompt] = []
    for prompt in asked.prompts:
        if isinstance(prompt, Written):
            message = "suffix: text is filled in between texts, not beside pictures and sounds"
            raise Refused(message, kind="unsupported", param="suffix")
        found.append(prompt)
    return found


@post(
    "/completions",
    status_code=200,
    operation=Operation(
        summary="Continue a text",
        tag=_TAG,
        body=CompletionBody,
        reply=Completion,
        chunks=(Completion,),
        errors=WITH_BODY,
    ),
)
async def completions(request: AnyRequest) -> Response[Any]:
    """The continuation of raw prompts."""
    body = await read(request, completion_decoder)
    service = service_of(request)
    asked = await presetting.text(request, body, body.request(n_vocab(request)))
    echoed = [await service.as_text(prompt) for prompt in asked.prompts] if body.echo else []
    if body.suffix:
        gaps = [Gap(prefix=prefix, suffix=body.suffix) for prefix in _texts(asked)]
        limit = asked.params.max_tokens
        filled = [await fill_in(service, gap, max_tokens=limit, at="suffix") for gap in gaps]
        asked = replace(asked, prompts=tuple(filled))

    def render(choices: Choices) -> TextRender:
        return TextRender(
            _envelope("cmpl", choices),
            wishes(body),
            echoed=echoed,
            n=body.n_choices,
            n_made=asked.n,
        )

    return await serve(request, body, service.complete(asked), render)


@post(
    "/chat/completions/input_tokens",
    status_code=200,
    operation=Operation(
        summary="Count the tokens of a conversation",
        tag=_TAG,
        body=ChatBody,
        reply=InputTokens,
        errors=WITH_BODY,
    ),
)
async def input_tokens(request: AnyRequest) -> Response[bytes]:
    """How many tokens the prompt of a chat request has; generates nothing."""
    body = await read(request, chat_decoder)
    service = service_of(request)
    asked = await presetting.chat(request, body, body.request(n_vocab(request)))
    return reply(InputTokens(input_tokens=await unless_gone(request, service.count(asked))))


def _model(service: Service) -> Model:
    info = service.info
    if info is None:
        raise from_engine("loading", "Loading model")
    meta = ModelMeta(
        vocab_type=info.vocab_type,
        n_vocab=info.n_vocab,
        n_ctx=info.n_ctx,
        n_ctx_train=info.n_ctx_train,
        n_embd=info.n_embd,
        n_params=info.n_params,
        size=info.size_bytes,
        ftype=info.ftype,
    )
    settings = service.settings
    return Model(
        id=service.model_name,
        aliases=settings.alias.split(",")[1:],
        tags=[tag for tag in settings.tags.split(",") if tag],
        created=service.created,
        meta=meta,
    )


def _abilities(info: ModelInfo | None) -> list[str]:
    if info is None:
        return []
    can = {
        "completion": info.generates,
        "multimodal": info.vision or info.audio,
        "embedding": info.pooling is not None,
    }
    return [name for name, is_so in can.items() if is_so]


@route(
    "/models",
    http_method=LOOK,
    status_code=200,
    operation=Operation(summary="The models", tag=_TAG, reply=ModelList, errors=(401, 503)),
)
async def models(request: AnyRequest) -> Response[bytes]:
    """What can be asked for by name."""
    service = service_of(request)
    found = _model(service)
    can = ModelAbilities(name=found.id, model=found.id, capabilities=_abilities(service.info))
    return reply(ModelList(data=[found], models=[can]))


@route(
    "/models/{model_id:path}",
    http_method=LOOK,
    status_code=200,
    operation=Operation(
        summary="One model",
        tag=_TAG,
        reply=Model,
        parameters=(Parameter(name="model_id", where="path"),),
        errors=(400, 401, 404, 503),
    ),
)
async def model(request: AnyRequest, model_id: FromPath[str]) -> Response[bytes]:
    """One model; its name may hold slashes."""
    found = _model(service_of(request))
    name = model_id.lstrip("/")
    if name not in (found.id, *found.aliases):
        raise Refused(
            f"There is no model {name[:100]!r}; there is {found.id!r}",
            kind="model_not_found",
            param="model",
        )
    return reply(found)


#: Served under /v1.
handlers = [chat_completions, completions, input_tokens, models, model]
#: Served without /v1 too; there /completions is llama-server's own (``native``).
handlers_without_prefix = [chat_completions, input_tokens, models, model]
