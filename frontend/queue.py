"""Messages that wait for a reply to end before they are sent.

The server sends them, whether a page is open or not: one by one, each when the reply to the one
before has ended well. When it has not (stopped, an error, a restart), or when there are several
answers to choose from, they are paused until somebody says *Send now*.
"""

import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any, TypeAlias

from litestar import Litestar, Response, post
from litestar.params import FromPath

from corral.backend.errors import CorralError
from corral.frontend import drafts, views
from corral.frontend.actions import begin
from corral.frontend.present import declined, shown
from corral.frontend.reply import Reply
from corral.frontend.site import Site
from corral.frontend.site import lifespan as open_site
from corral.frontend.wire import AnyRequest, form_of, go, is_htmx, page, site_of, text_of
from corral.frontend.words import _

Act: TypeAlias = Callable[[AnyRequest, int], Coroutine[Any, Any, Response[Any]]]
log = logging.getLogger("corral.frontend")


@asynccontextmanager
async def lifespan(app: Litestar) -> AsyncIterator[None]:
    """Opens the site (see ``site.lifespan``), and lets what waits in it go on by itself."""
    async with open_site(app):
        app.state.site.live.on_end = partial(go_on, app.state.site)
        yield


async def go_on(site: Site, reply: Reply) -> None:
    """After a reply has ended: sends the next message that waits, or pauses all of them."""
    id = reply.message.conversation_id
    is_well = reply.message.outcome.status == "done" and (reply.request.n or 1) == 1
    async with site.live.starting:
        if not is_well or site.live.is_closing:
            await site.store.queue.pause(id, is_paused=True)
            return
        waiting = await site.store.queue.list(id)
        if not waiting or waiting[0].is_paused or site.live.running_in(id) is not None:
            return
        try:
            await begin(site, id, waiting[0].content, (), None, queued_id=waiting[0].id)
        except CorralError as error:
            log.warning("a queued message cannot be sent: %s", error.message)
            await site.store.queue.pause(id, is_paused=True)


def _in_its_conversation(act: Act) -> Act:
    """A route that does something with a message that waits: what cannot be done is said on the
    page of the conversation that the form is ``of``, as that stands now."""

    @wraps(act)
    async def done(request: AnyRequest, queued_id: int) -> Response[Any]:
        try:
            return await act(request, queued_id)
        except CorralError as error:
            id = (await form_of(request)).get("of")
            if not isinstance(id, str):
                raise
            return await declined(request, id, error)

    return done


@post("/q/{queued_id:int}/send", status_code=200)
@_in_its_conversation
async def send_now(request: AnyRequest, queued_id: FromPath[int]) -> Response[Any]:
    """Sends a message that was paused; the others follow in order. Raises Refused conflict."""
    site = site_of(request)
    async with site.live.starting:
        queued = await site.store.queue.get(queued_id)
        id = queued.conversation_id
        begun = await begin(site, id, queued.content, (), None, queued_id=queued_id)
        await site.store.queue.pause(id, is_paused=False)
    if begun is None:  # it is paused no more, and goes when its turn comes
        return await _list(request, id, _("It is sent when the reply has ended"))
    return await shown(request, id, _("Sent; the model is replying"), begun[0].id)


@post("/q/{queued_id:int}/edit", status_code=200)
@_in_its_conversation
async def edit(request: AnyRequest, queued_id: FromPath[int]) -> Response[Any]:
    """Takes a message out of the queue and back into the box, below what is there. Raises Refused
    conflict."""
    site, form = site_of(request), await form_of(request)
    async with site.live.starting:
        queued = await site.store.queue.get(queued_id)
        id = queued.conversation_id
        kept = await site.store.drafts.get(id)
        before = await text_of(request) if "text" in form else kept.content
        own, _dot, was = str(form.get("draft") or drafts.token(kept)).partition(".")
        text = "\n\n".join(filter(None, (before.strip("\n"), queued.content)))
        await site.store.drafts.save(id, own, was, text)
        await site.store.queue.take(queued_id)
    return await _list(request, id, _("Back in the message box"), box=text)


@post("/q/{queued_id:int}/remove", status_code=200)
@_in_its_conversation
async def remove(request: AnyRequest, queued_id: FromPath[int]) -> Response[Any]:
    """Forgets a message that waits. Raises Refused conflict."""
    queued = await site_of(request).store.queue.take(queued_id)
    return await _list(request, queued.conversation_id, _("Removed"))


async def _list(
    request: AnyRequest, conversation_id: str, announcement: str, *, box: str | None = None
) -> Response[Any]:
    if not is_htmx(request):
        return go(f"/c/{conversation_id}")
    waiting = views.waiting(await site_of(request).store.queue.list(conversation_id))
    return page(request, "queued.html", queue=waiting, announcement=announcement, box=box)
