"""What is looked at: the chat page, the header's instruments, the stream of a running reply."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from litestar import Response, get, route
from litestar.params import FromPath
from litestar.response import Stream
from msgspec.structs import replace

from corral.backend.store import Conversation, Draft, Message
from corral.frontend import asked, columns, drafts, panel, streams, views
from corral.frontend.gauges import context_use
from corral.frontend.instruments import Strip, strip
from corral.frontend.reply import Reply
from corral.frontend.site import Site
from corral.frontend.tuning import Own
from corral.frontend.typed import Typed
from corral.frontend.uploads import takes_pictures
from corral.frontend.wire import LOOK, AnyRequest, page, site_of
from corral.frontend.words import _, number


@route("/", http_method=LOOK, status_code=200)
async def new_chat(request: AnyRequest) -> Response[str]:
    """A new chat; ``?q=`` fills in a message, which is never sent by itself, ``?preset=`` names a
    preset. ``?deleted=`` is the conversation that was just deleted."""
    gone = {c.id for c in await site_of(request).store.deleted()}
    deleted = request.query_params.get("deleted", "")
    undo = f"/c/{deleted}/restore" if deleted in gone else ""
    name, draft = request.query_params.get("preset", ""), request.query_params.get("q", "")
    given = Typed(own=Own(preset=name), texts={"preset": name}) if name else None
    return await chat_page(request, None, draft=draft, undo=undo, given=given)


@get("/c/{conversation_id:str}")
async def conversation(request: AnyRequest, conversation_id: FromPath[str]) -> Response[str]:
    """A conversation. A reply that is running goes on, and the page follows it. ``?deleted=`` is
    the message that was just deleted from it."""
    deleted = request.query_params.get("deleted", "")
    undo = f"/m/{deleted}/restore" if deleted.isdecimal() and deleted.isascii() else ""
    return await chat_page(request, conversation_id, undo=undo)


async def chat_page(
    request: AnyRequest,
    conversation_id: str | None,
    *,
    draft: str = "",
    notice: str = "",
    undo: str = "",
    status: int = 200,
    editing_id: int | None = None,
    typed: str | None = None,
    given: Typed | None = None,
) -> Response[str]:
    """The chat page with everything on it; ``given`` settings of a new chat that was not sent,
    ``typed`` what the form of ``editing_id`` had. Raises Refused not_found."""
    site = site_of(request)
    listed = await site.store.list()
    current: Conversation | None = None
    messages: list[Message] = []
    if conversation_id is not None:
        async with site.live.starting:  # not between a reply and the message that waited for it
            current, messages = await site.store.get(conversation_id)
    view = await look(
        site,
        listed,
        current,
        messages,
        draft=draft,
        notice=notice,
        editing_id=editing_id,
        typed=typed,
    )
    asks = replace(view.composer, n_ways=asked.last(request))
    view = replace(view, undo=undo, composer=asks)
    settings = await panel.of_chat(site, conversation_id, given, version=0 if given else None)
    return page(request, "chat.html", status=status, page=view, title=view.title, panel=settings)


async def look(
    site: Site,
    listed: list[Conversation],
    current: Conversation | None,
    messages: list[Message],
    *,
    draft: str = "",
    notice: str = "",
    editing_id: int | None = None,
    typed: str | None = None,
) -> views.Page:
    """The view of the chat page."""
    running = None if current is None else site.live.running_in(current.id)
    info = site.service.info
    kept = Draft() if current is None or draft else await site.store.drafts.get(current.id)
    # Long conversations take a while to render when nobody has looked at them lately.
    beside = () if current is None else await site.store.columns(current.id)
    turns = await asyncio.to_thread(turns_of, site, messages, running, editing_id, beside, typed)
    return views.Page(
        title=current.title if current is not None else _("New chat"),
        model=site.service.model_name,
        rows=views.rows(listed, None if current is None else current.id),
        turns=turns,
        composer=composer(site, current, messages, running, draft=draft, kept=kept),
        strip=strip_of(site),
        current=current,
        queue=() if current is None else views.waiting(await site.store.queue.list(current.id)),
        notice=notice,
        homeless=views.homeless(turns, typed),
        context=_("{n} tokens of context").format(n=number(info.n_ctx)) if info is not None else "",
    )


def turns_of(
    site: Site,
    messages: list[Message],
    running: Reply | None,
    editing_id: int | None = None,
    beside: Sequence[Message] = (),
    typed: str | None = None,
) -> tuple[views.Turn, ...]:
    """The turns of the branch shown, one of them perhaps as a form, with what was ``typed``; the
    last one with those ``beside`` it."""
    shown = []
    for m in messages:
        reply = running if running is not None and running.id == m.id else None
        view = views.turn(m, reply, site.service, is_last=m is messages[-1])
        is_edited = m.id == editing_id and not reply
        shown.append(replace(view, is_edited=True, typed=typed) if is_edited else view)
    if beside:
        shown[-1] = columns.turn(site, beside, messages[-1])
    return tuple(shown)


def composer(
    site: Site,
    current: Conversation | None,
    messages: list[Message],
    running: Reply | None,
    *,
    draft: str = "",
    kept: Draft | None = None,
) -> views.Composer:
    """The form below the conversation, with a ``draft`` or the one that was ``kept``."""
    return views.Composer(
        action="/c" if current is None else f"/c/{current.id}/messages",
        target="#turns",
        takes_pictures=takes_pictures(site),
        draft=draft or (kept.content if kept is not None else ""),
        place="" if current is None else current.id,
        token=drafts.token(kept),
        context=context_use(messages, site.service.info),
        after_id=messages[-1].id if messages else None,
        running_id=None if running is None else running.id,
    )


def strip_of(site: Site) -> Strip:
    """The header's instruments, from what the engine last published."""
    service = site.service
    return strip(
        service.state,
        service.load_progress,
        service.snapshot,
        is_replying=site.live.is_any,
    )


@get("/strip", sync_to_thread=False)
def strip_fragment(request: AnyRequest) -> Response[str]:
    """The header's instruments; the page asks again by itself."""
    return page(request, "_strip.html", strip=strip_of(site_of(request)))


@get("/g/{message_id:int}/events")
async def events(request: AnyRequest, message_id: FromPath[int]) -> Stream:
    """A running reply as server-sent events: how it stands, what changes, how it ended. One that
    has ended is only the last of these. Raises Refused not_found."""
    site = site_of(request)
    reply = site.live.get(message_id)
    if reply is not None:
        content = streams.follow(site, reply)
    else:
        content = _once(await streams.final(site, await site.store.message(message_id)))
    return Stream(
        content,
        media_type="text/event-stream",
        headers=streams.HEADERS,
    )


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content
