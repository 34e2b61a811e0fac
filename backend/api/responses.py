"""The Responses API's routes: answers, and what is kept of them."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from litestar import HttpMethod, Response, delete, post, route
from litestar.params import FromPath

from corral.backend.api import presetting, responses_items
from corral.backend.api.leaving import unless_gone
from corral.backend.api.openai_schema import InputTokens
from corral.backend.api.openapi import WITH_BODY, Operation, Parameter
from corral.backend.api.responses_events import EVENTS
from corral.backend.api.responses_items import Item
from corral.backend.api.responses_object import (
    InputItems,
    ResponseDeleted,
    ResponseObject,
)
from corral.backend.api.responses_running import Running, running_in, store_of
from corral.backend.api.responses_schema import (
    PromptBody,
    ResponsesBody,
    prompt_decoder,
    responses_decoder,
)
from corral.backend.api.serving import n_vocab, serve, service_of
from corral.backend.api.wire import AnyRequest, read, reply
from corral.backend.errors import CorralError, Refused
from corral.backend.store import Responses

T = TypeVar("T")
LOOK = (HttpMethod.GET, HttpMethod.HEAD)
_TAG = "OpenAI responses"
_ID = Parameter(name="response_id", where="path")
#: How long a cancelled answer may take to end before its caller is told that it still runs.
_CANCEL_S = 10.0


# --- answers --------------------------------------------------------------------------------------


@post(
    "/responses",
    status_code=200,
    operation=Operation(
        summary="Answer a conversation, and keep the answer",
        tag=_TAG,
        body=ResponsesBody,
        reply=ResponseObject,
        chunks=EVENTS,
        errors=WITH_BODY,
    ),
)
async def responses(request: AnyRequest) -> Response[Any]:
    """The model's next turn in a conversation, of which it may know the earlier part."""
    body = await read(request, responses_decoder)
    running = Running(request, body)
    earlier, running.items = await _conversation(store_of(request), body, _names(running.suffix))
    asked = body.request([*earlier, *running.items], n_vocab(request), len(earlier))
    asked = await presetting.chat(request, body, asked)
    start = _at_this_door(service_of(request).chat(asked))
    return await serve(request, body, start, running.render_for, running)


async def _at_this_door(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except CorralError as error:
        if error.param == "messages":  # what the conversation is called elsewhere
            error.param = "input"
            if error.message.startswith("messages:"):
                error.message = "input" + error.message.removeprefix("messages")
        raise


def _names(suffix: str) -> Callable[[str], str]:
    """Names for the items of one request."""
    given = iter(range(1 << 32))
    return lambda prefix: f"{prefix}_{suffix}i{next(given):04x}"


async def _conversation(
    store: Responses, body: PromptBody, new_id: Callable[[str], str]
) -> tuple[list[Item], list[Item]]:
    """The items of the responses that this one follows, and its own."""
    earlier: list[Item] = []
    if body.previous_response_id is not None:
        kept = await store.context(body.previous_response_id)
        earlier = [msgspec.json.decode(item) for item in kept]
    items = responses_items.normal(body.input or [], new_id)
    return earlier, [await _found(store, item, f"input[{i}]") for i, item in enumerate(items)]


async def _found(store: Responses, item: Item, at: str) -> Item:
    """An item, or the kept one that it refers to."""
    if item["type"] != "item_reference":
        return item
    try:
        found: Item = msgspec.json.decode(await store.item(item["id"]))
    except Refused as error:
        raise Refused(f"{at}: {error.message}", param=f"{at}.id") from None
    return found


@post(
    "/responses/input_tokens",
    status_code=200,
    operation=Operation(
        summary="Count the tokens of a prompt",
        tag=_TAG,
        body=PromptBody,
        reply=InputTokens,
        errors=WITH_BODY,
    ),
)
async def input_tokens(request: AnyRequest) -> Response[bytes]:
    """How many tokens a request's prompt has."""
    body = await read(request, prompt_decoder)
    earlier, items = await _conversation(store_of(request), body, _names("count"))
    asked = body.request([*earlier, *items], n_vocab(request), len(earlier))
    asked = await presetting.chat(request, body, asked)
    counting = _at_this_door(service_of(request).count(asked))
    return reply(InputTokens(input_tokens=await unless_gone(request, counting)))


# --- what is kept ---------------------------------------------------------------------------------


@route(
    "/responses/{response_id:str}",
    http_method=LOOK,
    status_code=200,
    operation=Operation(
        summary="A response, kept or running",
        tag=_TAG,
        reply=ResponseObject,
        parameters=(_ID, Parameter(name="stream", where="query", help="only false")),
        errors=(400, 401, 404, 500),
    ),
)
async def response(request: AnyRequest, response_id: FromPath[str]) -> Response[bytes]:
    """A response as it was sent; one that runs, as it stands."""
    if request.query_params.get("stream", "false").lower() not in ("", "0", "false"):
        raise Refused(
            "A kept response cannot be streamed; leave stream out",
            kind="unsupported",
            param="stream",
        )
    running = running_in(request).get(response_id)
    if running is not None:
        return reply(running.render.so_far())
    return _json(await store_of(request).body(response_id))


@delete(
    "/responses/{response_id:str}",
    status_code=200,
    operation=Operation(
        summary="Forget a response",
        tag=_TAG,
        reply=ResponseDeleted,
        parameters=(_ID,),
        errors=(401, 404, 500),
    ),
)
async def delete_response(request: AnyRequest, response_id: FromPath[str]) -> Response[bytes]:
    """Removes a kept response for good."""
    await store_of(request).delete(response_id)
    return reply(ResponseDeleted(response_id))


@post(
    "/responses/{response_id:str}/cancel",
    status_code=200,
    operation=Operation(
        summary="Stop a running response",
        tag=_TAG,
        reply=ResponseObject,
        parameters=(_ID,),
        errors=(400, 401, 404, 500),
    ),
)
async def cancel(request: AnyRequest, response_id: FromPath[str]) -> Response[bytes]:
    """Stops a response and shows what came of it."""
    running = running_in(request).get(response_id)
    if running is None:
        await store_of(request).body(response_id)
        raise Refused("This response has ended; there is nothing to cancel")
    running.cancel()
    # A reader that is slow keeps it from ending; the reply says then that it still runs.
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(running.has_ended.wait(), _CANCEL_S)
    return reply(running.render.so_far())


@route(
    "/responses/{response_id:str}/input_items",
    http_method=LOOK,
    status_code=200,
    operation=Operation(
        summary="What was said for a response",
        tag=_TAG,
        reply=InputItems,
        parameters=(
            _ID,
            Parameter(name="limit", where="query", help="1 to 100, else 20"),
            Parameter(name="order", where="query", help="asc or desc, else desc"),
            Parameter(name="after", where="query", help="the id of an item: those that follow it"),
        ),
        errors=(400, 401, 404, 500),
    ),
)
async def input_items(request: AnyRequest, response_id: FromPath[str]) -> Response[bytes]:
    """The items of a kept response's input, page by page."""
    query = request.query_params
    limit, order, after = query.get("limit", "20"), query.get("order", "desc"), query.get("after")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit) <= 100):
        raise Refused("limit: expected a number from 1 to 100", param="limit")
    if order not in ("asc", "desc"):
        raise Refused("order: expected asc or desc", param="order")
    items = await store_of(request).inputs(response_id)
    if order == "desc":
        items.reverse()
    ids = [item.id for item in items]
    if after is not None:
        if after not in ids:
            raise Refused(f"after: there is no item {after[:100]!r}", param="after")
        items = items[ids.index(after) + 1 :]
    page = items[: int(limit)]
    return reply(
        InputItems(
            data=[msgspec.json.decode(item.body) for item in page],
            first_id=page[0].id if page else None,
            last_id=page[-1].id if page else None,
            has_more=len(page) < len(items),
        )
    )


def _json(body: bytes) -> Response[bytes]:
    return Response(body, status_code=200, media_type="application/json")


#: Served with and without /v1.
handlers = [responses, input_tokens, response, delete_response, cancel, input_items]
