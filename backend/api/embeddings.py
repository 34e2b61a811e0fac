"""Vectors of texts, at OpenAI's door and at llama-server's, and scores of documents."""

from litestar import Response, post

from corral.backend.api import embeddings_render as render
from corral.backend.api.embeddings_schema import (
    EmbeddingList,
    EmbeddingsBody,
    NativeEmbedding,
    RankedText,
    Ranking,
    RerankBody,
    embeddings_decoder,
    rerank_decoder,
)
from corral.backend.api.leaving import unless_gone
from corral.backend.api.openapi import WITH_BODY, Operation
from corral.backend.api.serving import n_vocab, service_of
from corral.backend.api.wire import AnyRequest, read, reply
from corral.backend.engine.messages import ModelInfo
from corral.backend.errors import Refused, from_engine
from corral.backend.vectors import Vectors

_ERRORS = (*WITH_BODY, 501)


def _model(request: AnyRequest) -> ModelInfo:
    info = service_of(request).info
    if info is None:
        raise from_engine("loading", "Loading model")
    return info


async def _vectors(request: AnyRequest, body: EmbeddingsBody, info: ModelInfo) -> Vectors:
    """What a body asks for. Raises ``Refused`` before any work, and ``Broken``."""
    asked = body.request(n_vocab(request))
    if info.pooling is not None and (body.dimensions or 0) > info.n_embd_out:
        message = f"dimensions: the model's vectors have {info.n_embd_out}"
        raise Refused(message, param="dimensions")
    return await unless_gone(request, service_of(request).embed(asked))


def _kind(request: AnyRequest, info: ModelInfo) -> int:
    return render.default_kind(info.pooling, service_of(request).settings.embd_normalize)


@post(
    "/embeddings",
    status_code=200,
    operation=Operation(
        summary="Vectors of texts",
        tag="OpenAI",
        body=EmbeddingsBody,
        reply=EmbeddingList | list[NativeEmbedding],
        errors=_ERRORS,
    ),
)
async def embeddings(request: AnyRequest) -> Response[bytes]:
    """A vector for each input; in llama-server's shape when they are its ``content``."""
    body = await read(request, embeddings_decoder)
    info = _model(request)
    if body.is_native:
        found = await _vectors(request, body, info)
        return reply(render.native(found, body, kind=_kind(request, info)))
    if info.pooling == "none":
        message = "a vector for each token has no place in OpenAI's reply; start with --pooling"
        raise Refused(f"{message} mean, cls or last, or use /embedding", kind="unsupported")
    found = await _vectors(request, body, info)
    return reply(render.openai(found, body, kind=_kind(request, info)))


@post(
    ["/embedding", "/embeddings"],
    status_code=200,
    operation=Operation(
        summary="Vectors of texts, llama-server's way",
        tag="llama-server",
        body=EmbeddingsBody,
        reply=list[NativeEmbedding],
        errors=_ERRORS,
    ),
)
async def embedding(request: AnyRequest) -> Response[bytes]:
    """For each input a list of one vector, or without pooling of one for each token."""
    body = await read(request, embeddings_decoder)
    info = _model(request)
    found = await _vectors(request, body, info)
    return reply(render.native(found, body, kind=_kind(request, info)))


@post(
    ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"],
    status_code=200,
    operation=Operation(
        summary="Documents by how well they answer a query",
        tag="llama-server",
        body=RerankBody,
        reply=Ranking | list[RankedText],
        errors=_ERRORS,
    ),
)
async def rerank(request: AnyRequest) -> Response[bytes]:
    """A score for each document, best first."""
    body = await read(request, rerank_decoder)
    scores = await unless_gone(request, service_of(request).embed(body.request()))
    return reply(render.ranking(scores, body))


#: Served under /v1.
handlers = [embeddings]
#: Served as they are.
native_handlers = [embedding, rerank]
