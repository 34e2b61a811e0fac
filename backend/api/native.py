"""llama-server's own routes: completion, infill, vocabulary, template, properties."""

from typing import Any

from litestar import HttpMethod, Response, post, route

from corral.backend.answer_settings import vocabulary_id
from corral.backend.api import ignored, presetting
from corral.backend.api import native_render as render
from corral.backend.api.infill import fill_in
from corral.backend.api.leaving import unless_gone
from corral.backend.api.native_schema import (
    Content,
    DetokenizeBody,
    InfillBody,
    NativeBody,
    NativeOptions,
    Piece,
    Prompted,
    Props,
    TemplateBody,
    TokenizeBody,
    Tokens,
    Whole,
    detokenize_decoder,
    infill_decoder,
    native_decoder,
    template_decoder,
    tokenize_decoder,
)
from corral.backend.api.openapi import WITH_BODY, Operation
from corral.backend.api.serving import n_vocab, serve, service_of, wishes
from corral.backend.api.wire import AnyRequest, read, reply
from corral.backend.chat.media import shown
from corral.backend.chat.types import CompletionRequest
from corral.backend.choices import Choices
from corral.backend.errors import from_engine

_TAG = "llama-server"
_LOOK = (HttpMethod.GET, HttpMethod.HEAD)


@post(
    ["/completion", "/completions"],
    status_code=200,
    operation=Operation(
        summary="Continue a text, llama-server's way",
        tag=_TAG,
        body=NativeBody,
        reply=Whole | list[Whole],
        chunks=(Piece, Whole),
        errors=WITH_BODY,
    ),
)
async def completion(request: AnyRequest) -> Response[Any]:
    """The continuation of raw prompts, in llama-server's shape; a list when there are several."""
    body = await read(request, native_decoder)
    asked = await presetting.text(request, body, body.request(n_vocab(request)))
    return await _complete(request, body, asked)


@post(
    "/infill",
    status_code=200,
    operation=Operation(
        summary="Write the text between two others",
        tag=_TAG,
        body=InfillBody,
        reply=Whole | list[Whole],
        chunks=(Piece, Whole),
        errors=WITH_BODY,
    ),
)
async def infill(request: AnyRequest) -> Response[Any]:
    """What belongs between a prefix and a suffix, from a model with tokens for that."""
    body = await read(request, infill_decoder)
    params = await presetting.params(request, body, body.params(n_vocab(request)))
    filled = fill_in(
        service_of(request), body.gap(), max_tokens=params.max_tokens, at="input_prefix"
    )
    prompt = await filled
    asked = CompletionRequest(prompts=(prompt,), params=params, model=body.model, n=body.n_choices)
    return await _complete(request, body, asked)


async def _complete(
    request: AnyRequest, body: NativeOptions, asked: CompletionRequest
) -> Response[Any]:
    service = service_of(request)
    prompts = [await service.as_text(prompt) for prompt in asked.prompts]

    def shape(choices: Choices) -> render.NativeRender:
        return render.NativeRender(
            model=choices.model,
            prompts=prompts,
            generations=choices.generations,
            wishes=wishes(body),
            stream=bool(body.stream),
            return_tokens=bool(body.return_tokens),
            fields=body.response_fields or (),
        )

    return await serve(request, body, service.complete(asked), shape)


@post(
    "/tokenize",
    status_code=200,
    operation=Operation(
        summary="Text to tokens", tag=_TAG, body=TokenizeBody, reply=Tokens, errors=WITH_BODY
    ),
)
async def tokenize(request: AnyRequest) -> Response[bytes]:
    """Token ids of a text, or of ids and texts mixed, with their pieces when asked."""
    body = await read(request, tokenize_decoder)
    service = service_of(request)
    content = [] if body.content is None else body.content
    if isinstance(content, list):
        _check(content, n_vocab(request), "content")
    tokens = await service.tokenize(
        content,
        add_special=bool(body.add_special),
        parse_special=body.parse_special is not False,
    )
    if not body.with_pieces:
        return reply(Tokens(tokens))
    return reply(Tokens(render.token_pieces(tokens, await service.pieces(tokens))))


@post(
    "/detokenize",
    status_code=200,
    operation=Operation(
        summary="Tokens to text", tag=_TAG, body=DetokenizeBody, reply=Content, errors=WITH_BODY
    ),
)
async def detokenize(request: AnyRequest) -> Response[bytes]:
    """The text of tokens, special ones by name."""
    body = await read(request, detokenize_decoder)
    _check(body.tokens, n_vocab(request), "tokens")
    return reply(Content(await service_of(request).detokenize(body.tokens)))


def _check(tokens: list[int] | list[int | str], size: int, name: str) -> None:
    for i, token in enumerate(tokens):
        if isinstance(token, int):
            vocabulary_id(token, size, f"{name}[{i}]")


@post(
    "/apply-template",
    status_code=200,
    operation=Operation(
        summary="A conversation as the prompt it becomes",
        tag=_TAG,
        body=TemplateBody,
        reply=Prompted,
        errors=WITH_BODY,
    ),
)
async def apply_template(request: AnyRequest) -> Response[bytes]:
    """The prompt that a chat request would be answered from; generates nothing."""
    body = await read(request, template_decoder)
    service = service_of(request)
    asked = await presetting.chat(request, body, body.request(n_vocab(request)))
    prepared = await service.prepare(asked)
    ignored.note(request.scope, prepared.folded, ignored.FOLDED)
    prompt = prepared.prompt
    if not body.tokens:
        return reply(Prompted(shown(prompt)))
    tokens = await unless_gone(request, service.chat_tokens(asked, prepared))
    pieces = await service.pieces([token for token in tokens if token >= 0])
    return reply(Prompted(shown(prompt), render.prompt_tokens(prompt, tokens, pieces)))


@route(
    "/props",
    http_method=_LOOK,
    status_code=200,
    operation=Operation(
        summary="What is served, and how", tag=_TAG, reply=Props, errors=(401, 503)
    ),
)
async def props(request: AnyRequest) -> Response[bytes]:
    """The model, its template and the settings of a request that asks for nothing."""
    service = service_of(request)
    if service.info is None:
        raise from_engine("loading", "Loading model")
    return reply(
        render.props(
            service.info,
            service.defaults,
            service.model_name,
            service.chat_template,
            service.capabilities,
        )
    )


handlers = [completion, infill, tokenize, detokenize, apply_template, props]
