"""A conversation as it stands now: what an act on it is answered with, done or come too late."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, cast

from litestar import Response
from msgspec.structs import replace

from corral.backend.errors import CorralError, Refused
from corral.backend.store import Message
from corral.frontend import views
from corral.frontend.pages import chat_page, composer, strip_of, turns_of
from corral.frontend.reasons import sentence
from corral.frontend.site import Site
from corral.frontend.wire import AnyRequest, form_of, go, is_htmx, page, site_of, text_of
from corral.frontend.words import _, later

_BUSY = later("A reply is still being written here. Wait for it, or stop it first.")
_GONE_ON = later(
    "This conversation has gone on elsewhere meanwhile. Nothing was done; you see it now as it is."
)
OTHER = later(
    "Another alternative is shown here now, chosen elsewhere. Nothing was done; you see it now."
)
_CHANGED = later(
    "This message was changed elsewhere meanwhile. Nothing was done; you see it now as it is."
)
_DELETED = later(
    "This message was deleted elsewhere meanwhile. Nothing was done; you see now what is left."
)

P = ParamSpec("P")
Act: TypeAlias = Callable[Concatenate[AnyRequest, P], Coroutine[Any, Any, Response[Any]]]


def on_its_page(act: Act[P]) -> Act[P]:
    """A route that does something with a message: what cannot be done is said on the page of its
    conversation, as that stands now. Raises Refused not_found when there never was one."""

    @wraps(act)
    async def done(request: AnyRequest, *args: P.args, **kwargs: P.kwargs) -> Response[Any]:
        id = int(str(kwargs["message_id"]))
        if request.method == "POST":
            await form_of(request)  # what was typed comes back with any error
        conversation_id = await site_of(request).store.conversation_of(id)
        try:
            return await act(request, *args, **kwargs)
        except CorralError as error:
            text = await text_of(request) if "text" in await form_of(request) else None
            return await declined(request, conversation_id, error, id, text)

    return cast(Act[P], done)  # the framework hands ``request`` over by its name


async def declined(
    request: AnyRequest,
    conversation_id: str,
    error: CorralError,
    message_id: int | None = None,
    typed: str | None = None,
) -> Response[Any]:
    """Why something was not done, and how things stand now. What was ``typed`` into the form of a
    message is not lost."""
    why, status = sentence(error.message), error.wire.status
    editing_id = None if typed is None else message_id
    if is_htmx(request):
        return await shown(
            request,
            conversation_id,
            "",
            message_id,
            notice=why,
            status=status,
            editing_id=editing_id,
            typed=typed,
        )
    return await chat_page(
        request, conversation_id, notice=why, status=status, editing_id=editing_id, typed=typed
    )


async def shown(
    request: AnyRequest,
    conversation_id: str,
    announcement: str,
    focus_id: int | None = None,
    *,
    undo: str = "",
    notice: str = "",
    status: int = 200,
    editing_id: int | None = None,
    typed: str | None = None,
) -> Response[Any]:
    """The branch that is shown now."""
    site = site_of(request)
    running = site.live.running_in(conversation_id)
    if not is_htmx(request):
        # A page that loads itself again does not do so at an address with a fragment.
        is_still = focus_id is not None and running is None
        return go(f"/c/{conversation_id}" + (f"#m-{focus_id}" if is_still else ""))
    current, messages = await site.store.get(conversation_id)
    beside = await site.store.columns(conversation_id)
    turns = await asyncio.to_thread(turns_of, site, messages, running, editing_id, beside, typed)
    return page(
        request,
        "turns.html",
        status=status,
        turns=tuple(
            replace(
                t,
                # A form has the focus in it.
                has_focus=not t.is_edited and focus_id in {t.id, *(c.id for c in t.columns)},
            )
            for t in turns
        ),
        rows=views.rows(await site.store.list(), conversation_id),
        composer=composer(site, current, messages, running),
        queue=views.waiting(await site.store.queue.list(conversation_id)),
        strip=strip_of(site),
        announcement=announcement,
        notice=notice,
        homeless=views.homeless(turns, typed),
        undo=undo,
        undo_words=_("Deleted"),
    )


async def existing(site: Site, message_id: int) -> Message:
    """A message that there is or was. Raises Refused conflict when it was deleted."""
    try:
        return await site.store.message(message_id)
    except Refused:
        raise Refused(_(_DELETED), kind="conflict") from None


async def written(site: Site, message_id: int) -> Message:
    """A message that nobody is writing any more. Raises Refused conflict."""
    if site.live.get(message_id) is not None:
        raise Refused(_(_BUSY), kind="conflict")
    return await existing(site, message_id)


async def at_rest(site: Site, message_id: int) -> Message:
    """A message of a conversation in which nobody is replying. Raises Refused conflict."""
    found = await existing(site, message_id)
    if site.live.running_in(found.conversation_id) is not None:
        raise Refused(_(_BUSY), kind="conflict")
    return found


async def check_shown(request: AnyRequest, message: Message, *, is_last: bool = False) -> None:
    """Whether a page that has a message still has it as it is: nobody chose another alternative or
    changed it, nor, where it was the last one, went on. Raises Refused conflict."""
    store = site_of(request).store
    _current, messages = await store.get(message.conversation_id)
    beside = await store.columns(message.conversation_id)
    if message.id not in {m.id for m in (*messages, *beside)}:
        raise Refused(_(OTHER), kind="conflict")
    if is_last and message.id != messages[-1].id:
        raise Refused(_(_GONE_ON), kind="conflict")
    await check_version(request, message)


async def check_version(request: AnyRequest, message: Message) -> None:
    """Whether a message is the one that the form was made of. Raises Refused conflict."""
    version = (await form_of(request)).get("version")
    if version is not None and version != str(message.version):
        raise Refused(_(_CHANGED), kind="conflict", param="version")
