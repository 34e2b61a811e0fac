"""The list of conversations: its pages, search, and what is done with a conversation as a whole.

Everything is a link or a form that works by itself; the page's script gets the parts that change.
"""

import re
import time
from typing import Any

from litestar import Response, get, post, route
from litestar.params import FromPath
from msgspec import Struct

from corral.backend.errors import Refused
from corral.backend.store import Conversation
from corral.frontend import clock, titles
from corral.frontend.actions import end_all
from corral.frontend.rail import Rail, Results, Row, place, rail, results, row
from corral.frontend.site import Site
from corral.frontend.tools.frame import tool_page
from corral.frontend.wire import (
    HEADERS,
    LOOK,
    AnyRequest,
    form_of,
    go,
    is_htmx,
    page,
    site_of,
    text_of,
)
from corral.frontend.words import _, ngettext

MAX_QUERY_CHARS = 400
_ID = re.compile(r"/c/([0-9a-f]+)(?:[/?#]|$)")


class Chats(Struct, frozen=True, kw_only=True):
    """The page of all conversations, or of what a search for ``query`` found."""

    query: str
    rows: Rail | None = None
    found: Results | None = None


class Gone(Struct, frozen=True, kw_only=True):
    """A conversation that was deleted, and on which day."""

    id: str
    title: str
    day: str


class Deleted(Struct, frozen=True, kw_only=True):
    """The page of conversations that can be brought back."""

    gone: tuple[Gone, ...]


class Managed(Struct, frozen=True, kw_only=True):
    """The page of one conversation's title, pin, and end."""

    row: Row


def current_id(request: AnyRequest) -> str | None:
    """The conversation on the page whose script asks."""
    found = _ID.search(request.headers.get("hx-current-url", ""))
    return found[1] if found else None


@get("/rows")
async def rows(request: AnyRequest) -> Response[str]:
    """A page of the list, after the place ``?after=``; ``?focus=`` is where the keyboard goes."""
    after = place(request.query_params.get("after", ""))
    listed = await site_of(request).store.list(after)
    focus = request.query_params.get("focus", "")
    view = rail(listed, current_id(request), after=after, focus_id=focus)
    return page(request, "_rows.html", rows=view)


@route("/search", http_method=LOOK, status_code=200)
async def search(request: AnyRequest) -> Response[str]:
    """What has the words ``?q=``; without any, all conversations from ``?after=`` on."""
    site = site_of(request)
    query = request.query_params.get("q", "").strip()[:MAX_QUERY_CHARS]
    before = request.query_params.get("before", "")
    before_id = int(before) if re.fullmatch(r"[0-9]{1,18}", before) else None
    found = results(query, await site.store.search(query, before_id)) if query else None
    if is_htmx(request):
        return page(request, "_hits.html", found=found, said=_said(found))
    if found is not None:
        title = _("Search: {words}").format(words=query)
        return await tool_page(request, "search", title, Chats(query=query, found=found))
    after = place(request.query_params.get("after", ""))
    view = Chats(query="", rows=rail(await site.store.list(after), None, after=after))
    return await tool_page(request, "search", _("All conversations"), view)


def _said(found: Results | None) -> str:
    """What a screen reader says of a search."""
    if found is None:
        return ""
    n = len(found.matches)
    if not n:
        return _("Nothing found")
    return ngettext("{n} conversation found", "{n} conversations found", n).format(n=n)


@get("/deleted")
async def deleted(request: AnyRequest) -> Response[str]:
    """What was deleted in the last 30 days."""
    now_s = time.time()
    gone = tuple(
        Gone(id=c.id, title=c.title, day=clock.day(c.deleted_s or now_s, now_s))
        for c in await site_of(request).store.deleted()
    )
    return await tool_page(request, "deleted", _("Deleted conversations"), Deleted(gone=gone))


@post("/c/{conversation_id:str}/forget", status_code=200)
async def forget(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Deletes for good a conversation that was deleted; one that was not is left alone."""
    await site_of(request).store.forget(conversation_id)
    return go("/deleted")


@get("/c/{conversation_id:str}/manage")
async def manage(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """A line of the list as forms. Raises Refused not_found."""
    current, _messages = await site_of(request).store.get(conversation_id)
    line = row(current, current_id(request))
    if is_htmx(request):
        return page(request, "_managed.html", row=line)
    return await tool_page(request, "manage", current.title, Managed(row=line))


@post("/c/{conversation_id:str}/rename", status_code=200)
async def rename(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Gives a conversation another title; one without a word changes nothing. Raises Refused, also
    when it was renamed since the form was made (``version``)."""
    store = site_of(request).store
    title = titles.short(await text_of(request, "title"))
    version = str((await form_of(request)).get("version", ""))
    if version and not (version.isdecimal() and version.isascii() and len(version) < 10):
        raise Refused(_("The form lacks the version of the title"), param="version")
    if title:
        await store.rename(conversation_id, title, int(version) if version else None)
    renamed, _messages = await store.get(conversation_id)
    return await _changed(request, renamed, _("Renamed"))


@post("/c/{conversation_id:str}/pin", status_code=200)
async def pin(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Pins a conversation to the head of the list (``pinned=1``), or not. Raises Refused."""
    is_pinned = (await form_of(request)).get("pinned") == "1"
    pinned = await site_of(request).store.pin(conversation_id, is_pinned)
    return await _changed(request, pinned, _("Pinned") if is_pinned else _("No longer pinned"))


async def _changed(request: AnyRequest, changed: Conversation, said: str) -> Response[Any]:
    if not is_htmx(request):
        return go(f"/c/{changed.id}")
    here = current_id(request)
    listed = await site_of(request).store.list()
    return page(
        request,
        "listed.html",
        rows=rail(listed, here, focus_id=changed.id),
        current=changed if here == changed.id else None,
        announcement=said,
        undo="",
    )


@post("/c/{conversation_id:str}/delete", status_code=200)
async def delete(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Deletes a conversation; for 30 days it can be brought back. What is being written there is
    stopped first."""
    site = site_of(request)
    await remove(site, conversation_id)
    here = current_id(request)
    if not is_htmx(request):
        return go(f"/?deleted={conversation_id}")
    if here == conversation_id:
        return _lead(f"/?deleted={conversation_id}")
    return page(
        request,
        "listed.html",
        rows=rail(await site.store.list(), here),
        current=None,
        announcement=_("Deleted"),
        undo=f"/c/{conversation_id}/restore",
        undo_words=_("Deleted"),
    )


async def remove(site: Site, conversation_id: str) -> None:
    """Stops what is being written in a conversation, and deletes it."""
    async with site.live.starting:  # nothing new begins meanwhile
        running = site.live.all_in(conversation_id)
        for reply in running:
            reply.stop()
        await site.store.delete(conversation_id)
    await end_all(site, running)


@post("/c/{conversation_id:str}/restore", status_code=200)
async def restore(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Brings back a conversation that was deleted. Raises Refused not_found."""
    restored = await site_of(request).store.restore(conversation_id)
    if is_htmx(request) and current_id(request) is None:
        return _lead(f"/c/{conversation_id}")
    return await _changed(request, restored, _("It is back"))


def _lead(path: str) -> Response[None]:
    """Has the page's script go elsewhere."""
    return Response(None, status_code=204, headers={**HEADERS, "hx-redirect": path})
