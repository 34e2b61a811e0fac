"""Turns that are changed: edited, answered again, continued, branched, forked, deleted.

Each is a form that works by itself; the page's script gets the branch that is shown then.
"""

from collections.abc import Sequence
from typing import Any

from litestar import Response, get, post
from litestar.params import FromPath
from msgspec.structs import replace

from corral.backend.errors import Refused
from corral.backend.store import Message
from corral.frontend import tuning
from corral.frontend.actions import files_of
from corral.frontend.asking import to_request
from corral.frontend.pages import chat_page, turns_of
from corral.frontend.present import (
    OTHER,
    at_rest,
    check_shown,
    existing,
    on_its_page,
    shown,
    written,
)
from corral.frontend.site import Site
from corral.frontend.wire import AnyRequest, form_of, go, is_htmx, page, site_of, text_of
from corral.frontend.words import _, later

_EMPTY = later("A message without text and pictures cannot be kept")


@get("/m/{message_id:int}")
@on_its_page
async def turn(request: AnyRequest, message_id: FromPath[int]) -> Response[Any]:
    """A turn as it is: where it stands in its conversation. Raises Refused not_found."""
    return await _one(request, message_id, is_edited=False)


@get("/m/{message_id:int}/edit")
@on_its_page
async def editing(request: AnyRequest, message_id: FromPath[int]) -> Response[Any]:
    """A turn as a form. Raises Refused not_found, or conflict while it is written."""
    return await _one(request, message_id, is_edited=True)


async def _one(request: AnyRequest, message_id: int, *, is_edited: bool) -> Response[Any]:
    site = site_of(request)
    wanted = await (written if is_edited else existing)(site, message_id)
    id = wanted.conversation_id
    if not is_edited and not is_htmx(request):
        return go(f"/c/{id}#m-{message_id}")
    _current, messages = await site.store.get(id)
    turns = turns_of(site, messages, site.live.running_in(id), message_id if is_edited else None)
    found = next((t for t in turns if t.id == message_id), None)
    if found is None:
        raise Refused(_(OTHER), kind="conflict")
    if not is_htmx(request):
        return await chat_page(request, id, editing_id=message_id)
    return page(request, "_turn.html", turn=replace(found, has_focus=not is_edited))


@post("/m/{message_id:int}/edit", status_code=200)
@on_its_page
async def edit(request: AnyRequest, message_id: FromPath[int]) -> Response[Any]:
    """Another text in place; what follows stays. Raises Refused, conflict when the page is
    behind."""
    site, text = site_of(request), await text_of(request)
    version = str((await form_of(request)).get("version", ""))
    if not (version.isdecimal() and version.isascii() and len(version) < 10):
        raise Refused(_("The form lacks the version of the message"), param="version")
    old = await written(site, message_id)
    await check_shown(request, old)
    _check(text, old)
    await site.store.edit(message_id, int(version), text)
    return await shown(request, old.conversation_id, _("Saved"), focus_id=message_id)


@post("/m/{message_id:int}/branch", status_code=200)
@on_its_page
async def branch(request: AnyRequest, message_id: FromPath[int]) -> Response[Any]:
    """An alternative with another text: one of the user's is sent. Raises Refused."""
    site, text = site_of(request), await text_of(request)
    async with site.live.starting:
        old = await at_rest(site, message_id)
        await check_shown(request, old)
        _check(text, old)
        if old.role == "assistant":
            (made,) = await site.store.branch(message_id, text, model=site.service.model_name)
            return await shown(request, old.conversation_id, _("Saved as a branch"), made.id)
        settings = await tuning.of(site, old.conversation_id)
        before = await _before(site, old)
        files = await files_of(site, [*before, old])
        said, reply = await site.store.branch(message_id, text, model=site.service.model_name)
        site.live.start(reply, to_request([*before, said], files, settings))
    return await shown(request, old.conversation_id, _("Sent; the model is replying"), said.id)


def _check(text: str, old: Message) -> None:
    if not text.strip() and not old.pictures:
        raise Refused(_(_EMPTY), param="text")


@post("/m/{message_id:int}/retry", status_code=200)
@on_its_page
async def retry(request: AnyRequest, message_id: FromPath[int]) -> Response[Any]:
    """Another reply beside one that is there, or to what the user said. Raises Refused."""
    return await again(request, message_id, 1)


async def again(request: AnyRequest, message_id: int, n: int) -> Response[Any]:
    """``n`` more replies beside one that is there, or to what the user said; several of them side
    by side. Raises Refused."""
    site = site_of(request)
    async with site.live.starting:
        old = await at_rest(site, message_id)
        # A reply is offered only to what the user said last.
        await check_shown(request, old, is_last=old.role == "user")
        asked_id = old.id if old.role == "user" else old.parent_id
        if asked_id is None:
            raise Refused(_("There is nothing that this would be a reply to"))
        asked = await site.store.message(asked_id)
        history = [*await _before(site, asked), asked]
        settings = await tuning.of(site, old.conversation_id)
        if old.settings:
            settings = await tuning.in_force(site, tuning.read(old.settings))
        files = await files_of(site, history)
        asking, model = to_request(history, files, settings), site.service.model_name
        if n > 1:
            made = await site.store.add_replies(asked_id, n, model=model)
        else:
            made = (await site.store.add_reply(asked_id, model=model),)
        if old.settings:
            made = tuple([await site.store.label(m.id, old.label, old.settings) for m in made])
        new = site.live.start_all(made, asking)[0]
    return await shown(request, old.conversation_id, _("The model is replying again"), new.id)


@post("/m/{message_id:int}/continue", status_code=200)
@on_its_page
async def go_on(request: AnyRequest, message_id: FromPath[int]) -> Response[Any]:
    """The last reply goes on where it ended. Raises Refused."""
    site = site_of(request)
    async with site.live.starting:
        old = await at_rest(site, message_id)
        await check_shown(request, old, is_last=True)
        _current, messages = await site.store.get(old.conversation_id)
        if not old.content.strip():
            raise Refused(_("There is no text to continue"))
        settings = await tuning.of(site, old.conversation_id)
        files = await files_of(site, messages)
        reply = await site.store.resume_reply(message_id)
        request_ = replace(to_request(messages, files, settings), continue_final=True)
        site.live.start(reply, replace(request_, add_generation_prompt=False))
    return await shown(request, old.conversation_id, _("The model goes on"), message_id)


@post("/m/{message_id:int}/choose", status_code=200)
@on_its_page
async def choose(request: AnyRequest, message_id: FromPath[int]) -> Response[Any]:
    """Shows the branch through a message. Raises Refused."""
    site = site_of(request)
    async with site.live.starting:
        chosen = await at_rest(site, message_id)
        await site.store.choose(message_id)
    return await shown(request, chosen.conversation_id, _("Another alternative"), message_id)


@post("/m/{message_id:int}/fork", status_code=200)
@on_its_page
async def fork(request: AnyRequest, message_id: FromPath[int]) -> Response[Any]:
    """A new conversation from all up to this message. Raises Refused."""
    site = site_of(request)
    await written(site, message_id)
    made = await site.store.fork(message_id)
    return go(f"/c/{made.id}")


@post("/m/{message_id:int}/delete", status_code=200)
@on_its_page
async def delete(request: AnyRequest, message_id: FromPath[int]) -> Response[Any]:
    """Takes a message and what follows it out of the tree; it can be put back. Raises Refused."""
    site = site_of(request)
    async with site.live.starting:
        gone = await at_rest(site, message_id)
        await check_shown(request, gone)
        await site.store.delete_message(message_id)
    if not is_htmx(request):
        return go(f"/c/{gone.conversation_id}?deleted={message_id}")
    return await shown(request, gone.conversation_id, _("Deleted"), undo=f"/m/{message_id}/restore")


@post("/m/{message_id:int}/restore", status_code=200)
@on_its_page
async def restore(request: AnyRequest, message_id: FromPath[int]) -> Response[Any]:
    """Puts back what was deleted with a message. Raises Refused."""
    site = site_of(request)
    async with site.live.starting:
        found = await site.store.restore_message(message_id)
    return await shown(request, found.conversation_id, _("It is back"), message_id)


async def _before(site: Site, message: Message) -> Sequence[Message]:
    """What comes before a message, from the first."""
    before: list[Message] = []
    at = message.parent_id
    while at is not None:
        before.insert(0, await site.store.message(at))
        at = before[0].parent_id
    return before
