"""Several answers to one message: asked for at once, watched side by side, and one kept."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from litestar import Response, get, post
from litestar.params import FromPath
from litestar.response import Stream

from corral.backend.errors import Refused
from corral.backend.store import MAX_COLUMNS, Message
from corral.frontend import views
from corral.frontend.actions import end_all
from corral.frontend.asked import wanted
from corral.frontend.branching import again
from corral.frontend.columns import column
from corral.frontend.columns import turn as columns_turn
from corral.frontend.pages import composer
from corral.frontend.present import at_rest, check_shown, existing, on_its_page, shown
from corral.frontend.site import Site
from corral.frontend.streams import (
    HEADERS,
    PACE_S,
    PING_S,
    RENDER_SHARE,
    Viewer,
    Waiting,
    message,
    partial,
)
from corral.frontend.wire import AnyRequest, form_of, site_of
from corral.frontend.words import _, ngettext


@post("/m/{message_id:int}/ways", status_code=200)
@on_its_page
async def ways(request: AnyRequest, message_id: FromPath[int]) -> Response[Any]:
    """Several more replies beside one that is there, or to what the user said. Raises Refused."""
    return await again(request, message_id, wanted(await form_of(request)))


@post("/m/{message_id:int}/columns", status_code=200)
@on_its_page
async def side_by_side(request: AnyRequest, message_id: FromPath[int]) -> Response[Any]:
    """Shows the alternatives that there are side by side. Raises Refused."""
    site = site_of(request)
    async with site.live.starting:
        found = await at_rest(site, message_id)
        await site.store.show_columns(message_id)
    return await shown(request, found.conversation_id, _("Side by side"), message_id)


@post("/m/{message_id:int}/keep", status_code=200)
@on_its_page
async def keep(request: AnyRequest, message_id: FromPath[int]) -> Response[Any]:
    """Goes on with one of several. The others stay as alternatives, and those that are still being
    written end; the one kept is written to its end. Raises Refused."""
    site = site_of(request)
    async with site.live.starting:
        kept = await existing(site, message_id)
        await check_shown(request, kept)
        beside = await site.store.columns(kept.conversation_id)
        if message_id in {reply.id for reply in beside}:  # else it is kept already
            await _keep(site, kept)
    return await shown(request, kept.conversation_id, _("Kept"), message_id)


async def _keep(site: Site, kept: Message) -> None:
    running = site.live.all_in(kept.conversation_id)
    await end_all(site, [reply for reply in running if reply.id != kept.id])
    await site.store.choose(kept.id)
    if kept.settings:  # the conversation goes on as this one was asked for
        tuned = await site.store.tuning(kept.conversation_id)
        await site.store.tune(kept.conversation_id, tuned.version, kept.settings)


@get("/w/{message_id:int}/events")
async def events(request: AnyRequest, message_id: FromPath[int]) -> Stream:
    """Running replies to a message as server-sent events; ``of`` are those that the page shows as
    running. Raises Refused not_found."""
    site = site_of(request)
    await site.store.message(message_id)
    ids = request.query_params.get("of", "").split(",")
    shown_ids = [int(id) for id in ids if id.isdecimal() and id.isascii() and len(id) < 19]
    is_plain = "plain" in request.query_params
    content = follow(site, message_id, shown_ids[:MAX_COLUMNS], is_plain=is_plain)
    return Stream(content, media_type="text/event-stream", headers=HEADERS)


async def follow(
    site: Site, asked_id: int, ids: Sequence[int], *, is_plain: bool = False
) -> AsyncIterator[bytes]:
    """The stream of several replies, until all have ended: how each stands, what changes."""
    viewers: dict[int, Viewer] = {}
    parts: list[str] = []
    asked = await site.store.message(asked_id)
    waiting = None if is_plain else Waiting(site, asked.conversation_id)
    for id in ids:
        reply = site.live.get(id)
        if reply is None:
            parts.append(await _ended(site, id, None, is_plain=is_plain))
        else:
            viewers[id] = Viewer(site, reply)
            parts.append(partial(f"g-{id}", viewers[id].snapshot()))
    sent_s = 0.0
    while True:
        html, began_s = "".join(parts), time.monotonic()
        if html:
            yield message(html)
            sent_s = began_s
        elif began_s - sent_s > PING_S:
            yield b": ping\n\n"
            sent_s = began_s
        if not viewers:
            break
        began_s, parts = time.monotonic(), []
        for id, viewer in list(viewers.items()):
            if viewer.reply.ended.is_set():
                del viewers[id]
                parts.append(await _ended(site, id, viewer.reply.message, is_plain=is_plain))
            else:
                parts.append(viewer.changes())
        if waiting is not None:
            parts.append(await waiting.changes())
        await asyncio.sleep(max(PACE_S, RENDER_SHARE * (time.monotonic() - began_s)))
    yield message(await _all_ended(site, asked_id)) + message("", "end")


async def _ended(site: Site, id: int, reply: Message | None, *, is_plain: bool) -> str:
    """A column as it will be on every later page; nothing when it is on none any more."""
    try:
        reply = reply or await site.store.message(id)
        replies, leaf = await _beside(site, reply.conversation_id)
    except Refused:
        return ""
    n = next((n for n, beside in enumerate(replies, 1) if beside.id == id), None)
    if n is None:
        return ""
    view = column(site, reply, n, is_leaf=reply.id == leaf, is_plain=is_plain)
    html = await asyncio.to_thread(site.html, "_column.html", turn=view)
    return partial(f"m-{id}", html, "outerHTML")


async def _beside(site: Site, conversation_id: str) -> tuple[Sequence[Message], int | None]:
    current, _messages = await site.store.get(conversation_id)
    return await site.store.columns(conversation_id), current.leaf_id


async def _all_ended(site: Site, asked_id: int) -> str:
    """What is around the columns once none of them runs."""
    try:
        id = (await site.store.message(asked_id)).conversation_id
        current, messages = await site.store.get(id)
        replies = await site.store.columns(id)
    except Refused:
        return ""
    if not replies or site.live.running_in(id) is not None:
        return ""
    view = columns_turn(site, replies, messages[-1])
    waiting = await site.store.queue.list(id)
    crow = site.html("_crow.html", composer=composer(site, current, messages, None))
    words = ngettext("%(num)d answer finished", "%(num)d answers finished", len(replies))
    return "".join(
        [
            partial(f"w-{asked_id}-head", site.html("_columns_head.html", turn=view)),
            partial("queue", site.html("_queue.html", queue=views.waiting(waiting))),
            partial("crow", crow),
            partial("announce", words % {"num": len(replies)}),
        ]
    )
