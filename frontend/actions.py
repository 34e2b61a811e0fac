"""What is done: every action is a form that works by itself; the page's script gets fragments."""

import asyncio
from typing import Any

from litestar import Response, post
from litestar.params import FromPath

from corral.backend.errors import Refused
from corral.backend.store import Conversation, Message
from corral.frontend import views
from corral.frontend.live import Reply, to_request
from corral.frontend.pages import chat_page, composer, strip_of
from corral.frontend.site import Site
from corral.frontend.wire import AnyRequest, go, is_htmx, nothing, page, site_of

MAX_TITLE_CHARS = 200
_BUSY = "A reply is still being written here. Wait for it, or stop it first; your text is kept."
_EMPTY = "Write a message first."


async def _text(request: AnyRequest, field: str = "text") -> str:
    """A field of the form; browsers send line ends as CRLF."""
    value = (await request.form()).get(field, "")
    return value.replace("\r\n", "\n").strip("\n") if isinstance(value, str) else ""


@post("/c", status_code=200)
async def start(request: AnyRequest) -> Response[Any]:
    """The first message of a new conversation."""
    site, text = site_of(request), await _text(request)
    if not text.strip():
        return await _decline(request, None, text, _EMPTY, 400)
    conversation = await site.store.create(views.title_of(text))
    return await _say(request, conversation, text, is_new=True)


@post("/c/{conversation_id:str}/messages", status_code=200)
async def send(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Another message. Raises Refused not_found."""
    site, text = site_of(request), await _text(request)
    conversation, _ = await site.store.get(conversation_id)
    if not text.strip():
        return await _decline(request, conversation_id, text, _EMPTY, 400)
    if site.live.running_in(conversation_id) is not None:
        return await _decline(request, conversation_id, text, _BUSY, 409)
    return await _say(request, conversation, text, is_new=False)


async def _say(
    request: AnyRequest, conversation: Conversation, text: str, *, is_new: bool
) -> Response[Any]:
    """Keeps what was said, begins the reply, and shows both."""
    site = site_of(request)
    said, _ = await site.store.add_turn(conversation.id, text, model=site.service.model_name)
    conversation, messages = await site.store.get(conversation.id)
    reply = site.live.start(messages[-1], to_request(messages[:-1]))
    if not is_htmx(request):
        return go(f"/c/{conversation.id}")
    headers = {"hx-push-url": f"/c/{conversation.id}"} if is_new else None
    turns = (views.turn(said), views.turn(reply.message, reply, site.service))
    return await _shown(request, "sent.html", conversation, reply, turns, headers=headers)


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
    _, messages = await site.store.get(conversation.id)
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
    if is_htmx(request):
        return page(request, "_notice_partial.html", status=status, message=why)
    return await chat_page(request, conversation_id, draft=text, notice=why, status=status)


@post("/m/{message_id:int}/retry", status_code=200)
async def retry(request: AnyRequest, message_id: FromPath[int]) -> Response[Any]:
    """Another reply in place of one that failed or was stopped, which stays in the store.
    Raises Refused."""
    site = site_of(request)
    old = await site.store.message(message_id)
    conversation, messages = await site.store.get(old.conversation_id)
    if site.live.running_in(conversation.id) is not None:
        raise Refused(_BUSY)
    if not messages or messages[-1].id != message_id or old.parent_id is None:
        raise Refused("Only the last reply can be tried again")
    new = await site.store.add_reply(old.parent_id, model=site.service.model_name)
    reply = site.live.start(new, to_request(messages[:-1]))
    if not is_htmx(request):
        return go(f"/c/{conversation.id}")
    turns = (views.turn(new, reply, site.service),)
    return await _shown(request, "retried.html", conversation, reply, turns)


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
    title = " ".join((await _text(request, "title")).split())[:MAX_TITLE_CHARS]
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
