"""What is done: every action is a form that works by itself; the page's script gets fragments."""

import asyncio
from collections.abc import Sequence
from typing import Any

from litestar import Response, post
from litestar.params import FromPath

from corral.backend.errors import CorralError, Refused
from corral.backend.store import Conversation, Message, Upload
from corral.frontend import views
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
        uploads = [seen.upload for seen in await looked_at(site, await form_of(request))]
        if not text.strip() and not uploads:
            return await _decline(request, conversation_id, text, _(_EMPTY), 400)
        async with site.live.starting:
            begun = await _begin(site, conversation_id, text, uploads, after)
    except CorralError as error:
        return await _decline(request, conversation_id, text, error.message, error.wire.status)
    if begun is None:
        return await _decline(request, conversation_id, text, _(BUSY), 409)
    said, reply = begun
    id = said.conversation_id
    if not is_htmx(request):
        return go(f"/c/{id}")
    conversation, _messages = await site.store.get(id)
    headers = {"hx-push-url": f"/c/{id}"} if conversation_id is None else None
    turns = (views.turn(said), views.turn(reply.message, reply, site.service))
    return await _shown(request, "sent.html", conversation, reply, turns, headers=headers)


async def _begin(
    site: Site, conversation_id: str | None, text: str, uploads: Sequence[Upload], after: object
) -> tuple[Message, Reply] | None:
    """Keeps what was said and begins the reply; None when one is running there. ``after`` is what
    the page shows last. Raises Refused conflict when that is not so any more."""
    history: list[Message] = []
    if conversation_id is not None:
        if site.live.running_in(conversation_id) is not None:
            return None
        _current, history = await site.store.get(conversation_id)
        if after is not None and after != str(history[-1].id if history else ""):
            raise Refused(_(_BEHIND), kind="conflict")
    files = await files_of(site, history)
    title = views.title_of(text) if text.strip() else uploads[0].picture.name
    id = conversation_id or (await site.store.create(title)).id
    said, message = await site.store.add_turn(
        id, text, model=site.service.model_name, uploads=uploads
    )
    files |= {upload.picture.key: upload.data for upload in uploads}
    return said, site.live.start(message, to_request([*history, said], files))


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
        composer=composer(site, conversation, messages, reply),
        strip=strip_of(site),
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
    """Stops a running reply; one that has ended is no error."""
    site = site_of(request)
    reply = site.live.get(message_id)
    if is_htmx(request):
        if reply is not None:
            reply.stop()
        return nothing()  # the page hears of it by its stream
    message: Message = await site.store.message(message_id)
    await _end(site, reply)
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
    await _end(site, site.live.running_in(conversation_id))
    await site.store.delete(conversation_id)
    return go("/")


async def _end(site: Site, reply: Reply | None) -> None:
    # An engine that hangs must not hang the form.
    if reply is not None:
        await asyncio.wait({asyncio.ensure_future(site.live.end(reply))}, timeout=2)
