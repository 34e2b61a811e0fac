"""What is done: every action is a form that works by itself; the page's script gets fragments."""

import asyncio
from collections.abc import Sequence
from typing import Any

from litestar import Response, post
from litestar.params import FromPath
from msgspec.structs import replace

from corral.backend.errors import CorralError, Refused
from corral.backend.store import Conversation, Message, Upload
from corral.frontend import columns, drafts, tuning, views
from corral.frontend.asked import remember, wanted
from corral.frontend.asking import to_request
from corral.frontend.live import sentence
from corral.frontend.pages import chat_page, composer, strip_of
from corral.frontend.reply import Reply
from corral.frontend.site import Site
from corral.frontend.uploads import looked_at
from corral.frontend.wire import AnyRequest, form_of, go, is_htmx, nothing, page, site_of
from corral.frontend.words import _, later

MAX_TITLE_CHARS = 200
BUSY = later(
    "A reply is still being written here. Wait for it, or stop it first; your text is kept."
)
_BEHIND = later(
    "This conversation has gone on elsewhere. Load the page again to see it; copy your text before."
)
_EMPTY = later("Write a message first.")


async def text_of(request: AnyRequest, field: str = "text") -> str:
    """A field of the form; browsers send line ends as CRLF."""
    value = (await form_of(request)).get(field, "")
    return value.replace("\r\n", "\n").strip("\n") if isinstance(value, str) else ""


@post("/c", status_code=200)
async def start(request: AnyRequest) -> Response[Any]:
    """The first message of a new conversation."""
    return await _say(request, None)


@post("/c/{conversation_id:str}/messages", status_code=200)
async def send(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Another message. Raises Refused not_found."""
    return await _say(request, conversation_id)


async def _say(request: AnyRequest, conversation_id: str | None) -> Response[Any]:
    """Keeps what was said, begins the reply, and shows both; or says why not."""
    site, text = site_of(request), await text_of(request)
    after = (await form_of(request)).get("after")
    try:
        n = wanted(await form_of(request))
        uploads = [seen.upload for seen in await looked_at(site, await form_of(request))]
        if not text.strip() and not uploads:
            return await _decline(request, conversation_id, text, _(_EMPTY), 400)
        async with site.live.starting:
            begun = await _begin(site, conversation_id, text, uploads, after, n)
    except CorralError as error:
        return await _decline(request, conversation_id, text, error.message, error.wire.status)
    if begun is None:
        return await _decline(request, conversation_id, text, _(BUSY), 409)
    said, reply = begun
    id = said.conversation_id
    await drafts.sent(site, await form_of(request), conversation_id, text)
    if not is_htmx(request):
        return remember(request, go(f"/c/{id}"), n)
    conversation, _messages = await site.store.get(id)
    headers = {"hx-push-url": f"/c/{id}"} if conversation_id is None else None
    beside = await site.store.columns(id)
    last = columns.turn(site, beside, reply.message) if beside else None
    turns = (views.turn(said), last or views.turn(reply.message, reply, site.service))
    response = await _shown(request, "sent.html", conversation, reply, turns, headers=headers)
    return remember(request, response, n)


async def _begin(
    site: Site,
    conversation_id: str | None,
    text: str,
    uploads: Sequence[Upload],
    after: object,
    n: int,
) -> tuple[Message, Reply] | None:
    """Keeps what was said and begins the reply, or ``n`` of which it returns the first; None when
    one is running there. ``after`` is what the page shows last. Raises Refused conflict when that
    is not so any more."""
    history: list[Message] = []
    if conversation_id is not None:
        if site.live.running_in(conversation_id) is not None:
            return None
        _current, history = await site.store.get(conversation_id)
        if after is not None and after != str(history[-1].id if history else ""):
            raise Refused(_(_BEHIND), kind="conflict")
    settings = await tuning.of(site, conversation_id)
    files = await files_of(site, history)
    title = views.title_of(text) if text.strip() else uploads[0].picture.name
    id = conversation_id or (await site.store.create(title)).id
    model = site.service.model_name
    said, message = await site.store.add_turn(id, text, model=model, uploads=uploads)
    others = await site.store.add_replies(said.id, [""] * (n - 1), model=model) if n > 1 else ()
    files |= {upload.picture.key: upload.data for upload in uploads}
    asking = to_request([*history, said], files, settings)
    return said, site.live.start_all([message, *others], asking)[0]


async def files_of(site: Site, messages: Sequence[Message]) -> dict[str, bytes]:
    """The pictures of a conversation by key. Raises Refused when one is gone."""
    keys = {picture.key for m in messages for picture in m.pictures}
    return {key: (await site.store.picture(key))[1] for key in keys}


async def _shown(
    request: AnyRequest,
    template: str,
    conversation: Conversation,
    reply: Reply,
    turns: tuple[views.Turn, ...],
    *,
    headers: dict[str, str] | None = None,
) -> Response[str]:
    site = site_of(request)
    _current, messages = await site.store.get(conversation.id)
    return page(
        request,
        template,
        headers=headers,
        turns=turns,
        current=conversation,
        rows=views.rows(await site.store.list(), conversation.id),
        composer=replace(
            composer(site, conversation, messages, reply), n_ways=wanted(await form_of(request))
        ),
        strip=strip_of(site),
        closed=views.turn(messages[-3]) if len(messages) > 2 else None,
    )


async def _decline(
    request: AnyRequest, conversation_id: str | None, text: str, why: str, status: int
) -> Response[str]:
    """Says why not, without losing the text."""
    why = sentence(why)
    if is_htmx(request):
        return page(request, "_notice_partial.html", status=status, message=why)
    return await chat_page(request, conversation_id, draft=text, notice=why, status=status)


@post("/g/{message_id:int}/stop", status_code=200)
async def stop(request: AnyRequest, message_id: FromPath[int]) -> Response[Any]:
    """Stops a running reply, and with it all others of its conversation unless the form says
    ``only``; one that has ended is no error."""
    site = site_of(request)
    reply = site.live.get(message_id)
    replies = [] if reply is None else [reply]
    if reply is not None and "only" not in await form_of(request):
        replies = list(site.live.all_in(reply.message.conversation_id))
    if is_htmx(request):
        for reply in replies:
            reply.stop()
        return nothing()  # the page hears of it by its stream
    message: Message = await site.store.message(message_id)
    await end_all(site, replies)
    return go(f"/c/{message.conversation_id}")


@post("/c/{conversation_id:str}/rename", status_code=200)
async def rename(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Gives a conversation another title. Raises Refused not_found."""
    title = " ".join((await text_of(request, "title")).split())[:MAX_TITLE_CHARS]
    if title:
        await site_of(request).store.rename(conversation_id, title)
    return go(f"/c/{conversation_id}")


@post("/c/{conversation_id:str}/delete", status_code=200)
async def delete(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Deletes a conversation for good; the form has asked before."""
    site = site_of(request)
    await end_all(site, site.live.all_in(conversation_id))
    await site.store.delete(conversation_id)
    return go("/")


async def end_all(site: Site, replies: Sequence[Reply]) -> None:
    """Stops replies, and waits for them a while: an engine that hangs must not hang the form."""
    if replies:
        await asyncio.wait([asyncio.ensure_future(site.live.end(r)) for r in replies], timeout=2)
