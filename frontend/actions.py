"""What is done: every action is a form that works by itself; the page's script gets fragments."""

import asyncio
from collections.abc import Sequence
from typing import Any

from litestar import Response, post
from litestar.params import FromPath
from msgspec.structs import replace

from corral.backend.errors import CorralError, Refused
from corral.backend.store import Conversation, Message, Queued, Upload
from corral.frontend import columns, drafts, panel, texts, titles, tuning, tuning_form, views
from corral.frontend.asked import remember, wanted
from corral.frontend.asking import to_request
from corral.frontend.pages import chat_page, composer, strip_of
from corral.frontend.present import shown
from corral.frontend.reasons import sentence
from corral.frontend.reply import Reply
from corral.frontend.site import Site
from corral.frontend.uploads import looked_at
from corral.frontend.wire import (
    HEADERS,
    AnyRequest,
    form_of,
    go,
    is_htmx,
    nothing,
    page,
    site_of,
    text_of,
)
from corral.frontend.words import _, later

_BUSY = later(
    "A reply is still being written here. Wait for it, or stop it first; your text is kept."
)
_BEHIND = later(
    "This conversation has gone on elsewhere meanwhile. You see it now as it is; your text is kept."
)
_EMPTY = later("Write a message first.")


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
    waiting: Sequence[Queued] = ()
    try:
        n = wanted(await form_of(request))
        own = None if conversation_id else await tuning_form.valid(site, await form_of(request))
        pictures, read = await looked_at(site, await form_of(request))
        uploads = [seen.upload for seen in pictures]
        content = texts.message(text, read)
        if not content.strip() and not uploads:
            return await _decline(request, conversation_id, text, Refused(_(_EMPTY)))
        were = () if conversation_id is None else await site.store.columns(conversation_id)
        async with site.live.starting:
            begun = await begin(site, conversation_id, content, uploads, after, n, own=own)
            if begun is None and conversation_id is not None:
                waiting = await _queue(site, conversation_id, content, uploads, after)
    except CorralError as error:
        return await _decline(request, conversation_id, text, error)
    if begun is None:
        await drafts.sent(site, await form_of(request), conversation_id, text)
        return await _queued(request, str(conversation_id), waiting)
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
    response = await _shown(
        request, "sent.html", conversation, reply, turns, headers=headers, were_beside=bool(were)
    )
    return remember(request, response, n)


async def _queue(
    site: Site, conversation_id: str, text: str, uploads: Sequence[Upload], after: object
) -> Sequence[Queued]:
    """Keeps what was said until the reply that is running has ended; returns all that waits there.
    Raises Refused conflict when the page does not show that reply."""
    current, _messages = await site.store.get(conversation_id)
    if after != str(current.leaf_id):
        raise Refused(_(_BUSY), kind="conflict")
    await site.store.queue.add(conversation_id, text, uploads)
    return await site.store.queue.list(conversation_id)


async def _queued(
    request: AnyRequest, conversation_id: str, waiting: Sequence[Queued]
) -> Response[Any]:
    if not is_htmx(request):
        return go(f"/c/{conversation_id}")
    site = site_of(request)
    current, messages = await site.store.get(conversation_id)
    running = site.live.running_in(conversation_id)
    return page(
        request,
        "queued.html",
        queue=views.waiting(waiting),
        composer=composer(site, current, messages, running),
        panel=await panel.of_chat(site, conversation_id),
        announcement=_("Queued; it is sent when the reply has ended"),
        box=None,
    )


async def begin(
    site: Site,
    conversation_id: str | None,
    text: str,
    uploads: Sequence[Upload],
    after: object,
    n: int = 1,
    *,
    queued_id: int | None = None,
    own: tuning.Own | None = None,
) -> tuple[Message, Reply] | None:
    """Keeps what was said and begins the reply, or ``n`` of which it returns the first; None when
    one is running there. ``after`` is what the page shows last; ``queued_id``: it waited until now;
    ``own``: the settings of a new conversation.
    Raises Refused conflict when that is not so any more."""
    history: list[Message] = []
    if conversation_id is not None:
        if site.live.running_in(conversation_id) is not None:
            return None
        _current, history = await site.store.get(conversation_id)
        if after is not None and after != str(history[-1].id if history else ""):
            raise Refused(_(_BEHIND), kind="conflict")
    settings = await tuning.of(site, conversation_id, own)
    files = await files_of(site, history)
    words, blocks = texts.taken_apart(text)
    names = [*(block.name for block in blocks), *(upload.picture.name for upload in uploads)]
    title = titles.made(words if words.strip() or not names else names[0])
    id = conversation_id or (await site.store.create(title)).id
    if own is not None and own != tuning.Own():
        await site.store.tune(id, 0, tuning.encode(own))
    model = site.service.model_name
    said, message = await site.store.add_turn(
        id, text, model=model, uploads=uploads, queued_id=queued_id
    )
    others = await site.store.add_replies(said.id, n - 1, model=model) if n > 1 else ()
    files |= await files_of(site, [said])
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
    were_beside: bool = False,
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
        panel=await panel.of_chat(site, conversation.id),
        is_new=headers is not None,
        # What was side by side is one turn now.
        closed=views.turn(messages[-3]) if were_beside else None,
    )


async def _decline(
    request: AnyRequest, conversation_id: str | None, text: str, error: CorralError
) -> Response[Any]:
    """Says why not, without losing the text."""
    why, status = sentence(error.message), error.wire.status
    if is_htmx(request):
        if error.kind == "conflict" and conversation_id is not None:
            return await shown(request, conversation_id, "", notice=why, status=status)
        return page(request, "_notice_partial.html", status=status, message=why)
    given = None if conversation_id else tuning_form.read(await form_of(request))
    return await chat_page(
        request, conversation_id, draft=text, notice=why, status=status, given=given
    )


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
        if "row" in await form_of(request):  # a button in a list, which has done its work
            return Response("", headers=HEADERS, media_type="text/html")
        return nothing()  # the page hears of it by its stream
    message: Message = await site.store.message(message_id)
    await end_all(site, replies)
    return go(f"/c/{message.conversation_id}")


@post("/g/{message_id:int}/end-thinking", status_code=200)
async def end_thinking(request: AnyRequest, message_id: FromPath[int]) -> Response[Any]:
    """Has a running reply end its reasoning and answer; one that does not reason is no error."""
    site = site_of(request)
    reply = site.live.get(message_id)
    if reply is not None and reply.generation is not None:
        await site.service.end_thinking(reply.generation.id)
    if is_htmx(request):
        return nothing()
    message: Message = await site.store.message(message_id)
    return go(f"/c/{message.conversation_id}")


async def end_all(site: Site, replies: Sequence[Reply]) -> None:
    """Stops replies, and waits for them a while: an engine that hangs must not hang the form."""
    if replies:
        await asyncio.wait([asyncio.ensure_future(site.live.end(r)) for r in replies], timeout=2)
