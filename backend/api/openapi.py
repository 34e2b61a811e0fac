"""The OpenAPI document, built from what the handlers declare and the structs they decode.

The framework's own generator drops ``minimum: 0`` and describes its lax decoding; this one reads
msgspec's JSON Schema, which is what the decoders enforce.
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from litestar.routes import BaseRoute
from msgspec import Struct

from corral.backend import __version__
from corral.backend.api.wire import ErrorBody

_ERRORS = {
    400: "The request is malformed, contradicts itself, or asks for what is not built",
    401: "The API key is missing or unknown",
    403: "It is not to be changed",
    404: "There is no such thing",
    409: "It was changed meanwhile",
    413: "The body is too large",
    500: "The server failed",
    501: "The server was not started with what this needs",
    503: "The model is loading, the queue is full, or the server is shutting down",
}


class Parameter(Struct, frozen=True, kw_only=True):
    """A path or query parameter; a text."""

    name: str
    where: str
    help: str = ""


class Operation(Struct, frozen=True, kw_only=True):
    """What a handler takes and gives; lies in its ``opt["operation"]``.

    ``chunks`` are the structs of events, for handlers that stream. ``reply`` None is text.
    ``error`` is the body of a reply that is not a success.
    """

    summary: str
    tag: str
    body: Any = None
    reply: Any = None
    chunks: tuple[Any, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    errors: tuple[int, ...] = (401,)
    error: Any = ErrorBody


#: What a handler with a body may answer beside success.
WITH_BODY = (400, 401, 413, 500, 503)


def document(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of all routes that declare an ``Operation``."""
    found = [
        (route.path, handler.opt["operation"], handler.http_methods)
        for route in routes
        for handler in getattr(route, "route_handlers", ())
        if "operation" in handler.opt and handler.resolve_include_in_schema()
    ]
    kinds = set()
    for _, operation, _ in found:
        used = (operation.body, operation.reply, operation.error, *operation.chunks)
        kinds |= {kind for kind in used if kind is not None}
    ordered = sorted(kinds, key=str)
    schemas, components = msgspec.json.schema_components(
        ordered, ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, Any] = {}
    for path, operation, methods in sorted(found, key=lambda f: f[0]):
        template = path.replace(":str", "").replace(":path", "")
        for method in sorted(methods):
            described = _operation(operation, method, template, schema_of)
            paths.setdefault(template, {})[method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Corral",
            "version": __version__,
            "description": "OpenAI's API and llama-server's native API over GGUF models.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _operation(
    operation: Operation, method: str, path: str, schema_of: dict[Any, Any]
) -> dict[str, Any]:
    is_head = method == "HEAD"
    good: dict[str, Any] = {"description": "Success"}
    if not is_head:
        good["content"] = _content(operation, schema_of)
    responses = {"200": good}
    for status in operation.errors:
        answer: dict[str, Any] = {"description": _ERRORS[status]}
        if not is_head:
            answer["content"] = {"application/json": {"schema": schema_of[operation.error]}}
        responses[str(status)] = answer
    words = re.findall(r"\w+", path)
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": "_".join([method.lower(), *words]),
        "tags": [operation.tag],
        "responses": responses,
    }
    if operation.body is not None:
        schema = {"schema": schema_of[operation.body]}
        described["requestBody"] = {"required": True, "content": {"application/json": schema}}
    if operation.parameters:
        described["parameters"] = [
            {
                "name": p.name,
                "in": p.where,
                "description": p.help,
                "required": p.where == "path",
                "schema": {"type": "string"},
            }
            for p in operation.parameters
        ]
    return described


def _content(operation: Operation, schema_of: dict[Any, Any]) -> dict[str, Any]:
    if operation.reply is None:
        return {"text/plain": {"schema": {"type": "string"}}}
    content = {"application/json": {"schema": schema_of[operation.reply]}}
    if operation.chunks:
        chunks = [schema_of[kind] for kind in (*operation.chunks, operation.error)]
        event = {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"anyOf": chunks},
        }
        content["text/event-stream"] = {
            # OpenAPI has no words for event streams before 3.2; these are theirs.
            "itemSchema": {
                "type": "object",
                "properties": {"data": {"anyOf": [{"const": "[DONE]"}, event]}},
            },
        }
    return content
