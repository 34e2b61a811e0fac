"""How likely each token of a reply was: looked at, and gone on from another one.

Replies keep this only where the reader wants it beforehand, as it costs time and place.
"""

from typing import Any

from litestar import Response, get, post
from litestar.datastructures import Cookie
from litestar.params import FromPath
from msgspec import Struct
from msgspec.structs import replace

from corral.backend.errors import Refused
from corral.backend.store import Message
from corral.frontend import likely, traces, tuning
from corral.frontend.actions import files_of
from corral.frontend.asking import to_request
from corral.frontend.likely import Chip
from corral.frontend.present import at_rest, check_version, on_its_page, shown
from corral.frontend.site import Site
from corral.frontend.tools.frame import tool_page
from corral.frontend.traces import Said
from corral.frontend.wire import AnyRequest, form_of, go, page, site_of
from corral.frontend.words import _, ngettext, number

_MAX_AGE_S = 365 * 24 * 3600


class Level(Struct, frozen=True):
    """A class of probabilities, for the key."""

    level: int
    words: str


class Probabilities(Struct, frozen=True, kw_only=True):
    """The page. ``why``: the reason for there being no ``chips``. ``before``: the text that was
    there already, of a reply that went on. ``previous`` and ``next``: numbers of the tokens that
    other pages begin with."""

    id: int
    version: int
    back: str
    why: str
    summary: str
    before: str
    chips: tuple[Chip, ...]
    levels: tuple[Level, ...]
    previous: int | None
    next: int | None
    is_kept: bool


class Alternatives(Struct, frozen=True, kw_only=True):
    """What might stand in the place of one token."""

    id: int
    version: int
    chip: Chip


@get("/probabilities/{message_id:int}")
async def probabilities(request: AnyRequest, message_id: FromPath[int]) -> Response[str]:
    """The page; ``?from=``: the number of its first token. Raises Refused not_found."""
    site = site_of(request)
    message = await site.store.message(message_id)
    if message.role != "assistant":
        raise Refused(_("Only replies have tokens"))
    kept = await traces.kept(site.store, message_id)
    said = None if kept is None else kept.said
    first = _number(request.query_params.get("from", ""))
    view = look(message, said, controls(site), first, is_running=bool(site.live.get(message_id)))
    return await tool_page(request, "probabilities", _("Token probabilities"), view)


@get("/probabilities/{message_id:int}/{token:int}")
async def alternatives(
    request: AnyRequest, message_id: FromPath[int], token: FromPath[int]
) -> Response[str]:
    """What might stand in the place of a token: a fragment. Raises Refused not_found."""
    site = site_of(request)
    message = await site.store.message(message_id)
    said = await _said(site, message)
    found = likely.chips(said, controls(site), token, 1) if 0 <= token < 2**31 else ()
    if not found:
        raise Refused(_("There is no such token"), kind="not_found")
    view = Alternatives(id=message_id, version=message.version, chip=found[0])
    return page(request, "tools/_alternatives.html", view=view)


@post("/m/{message_id:int}/alternative", status_code=200)
@on_its_page
async def alternative(request: AnyRequest, message_id: FromPath[int]) -> Response[Any]:
    """Another reply, which begins with the text up to a token and another one in its place; the
    model goes on from there. Raises Refused, conflict when the page is behind."""
    site, form = site_of(request), await form_of(request)
    async with site.live.starting:
        old = await at_rest(site, message_id)
        await check_version(request, old)
        text = likely.picked(await _said(site, old), str(form.get("pick", "")), controls(site))
        if text is None or not text.strip():
            raise Refused(_("The reply cannot go on from there"), param="pick")
        history = [*(await site.store.path(message_id))[:-1], replace(old, content=text)]
        settings = await tuning.of(site, old.conversation_id)
        asked = to_request(history, await files_of(site, history), settings)
        asked = replace(asked, continue_final=True, add_generation_prompt=False)
        (made,) = await site.store.branch(message_id, text, model=site.service.model_name)
        reply = await site.store.resume_reply(made.id)
        site.live.start(replace(reply, reasoning=old.reasoning), asked)
    return await shown(request, old.conversation_id, _("The model goes on from there"), made.id)


@post("/probabilities", status_code=200)
async def keep(request: AnyRequest) -> Response[bytes]:
    """Switches on or off whether this browser's replies keep probabilities from now on."""
    form = await form_of(request)
    is_on, id = form.get("keep") == "on", _number(str(form.get("message", "")))
    response = go(f"/probabilities/{id}" if id else "/")
    response.set_cookie(
        Cookie(
            key=traces.COOKIE,
            value="on" if is_on else "",
            max_age=_MAX_AGE_S if is_on else 0,
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
        )
    )
    return response


async def _said(site: Site, message: Message) -> Said:
    """The tokens of a reply. Raises Refused not_found."""
    kept = await traces.kept(site.store, message.id)
    if kept is None or kept.said is None or not kept.said.probs:
        raise Refused(_("No probabilities are kept of this reply"), kind="not_found")
    return kept.said


def controls(site: Site) -> frozenset[str]:
    """The texts of the model's control tokens."""
    info = site.service.info
    return frozenset(() if info is None else info.special_tokens)


def look(
    message: Message,
    said: Said | None,
    controls: frozenset[str],
    first: int = 0,
    *,
    is_running: bool = False,
) -> Probabilities:
    """The page's view. Pure."""
    n = 0 if said is None else len(said.probs)
    first = min(first, max(0, n - 1)) // likely.PAGE * likely.PAGE
    why = ""
    if is_running:
        why = _("The reply is still being written. Load the page again when it has ended.")
    elif not n:
        why = _("No probabilities are kept of this reply.")
    return Probabilities(
        id=message.id,
        version=message.version,
        back=f"/c/{message.conversation_id}#m-{message.id}",
        why=why,
        summary=_summary(said) if said is not None and n else "",
        before=said.before if said is not None and n and not first else "",
        chips=likely.chips(said, controls, first) if said is not None else (),
        levels=levels(),
        previous=first - likely.PAGE if first else None,
        next=first + likely.PAGE if first + likely.PAGE < n else None,
        is_kept=traces.is_wanted(),
    )


def _summary(said: Said) -> str:
    n = len(said.probs)
    tokens = ngettext("{n} token", "{n} tokens", n).format(n=number(n))
    words = _("{tokens} · perplexity {perplexity}")
    return words.format(tokens=tokens, perplexity=number(likely.perplexity(said.probs), 2))


def levels() -> tuple[Level, ...]:
    """The classes of probabilities, in words."""
    sure, *middle, _rest = likely.CLASSES
    found = [_("{n} % and more").format(n=number(sure * 100))]
    above = sure
    for least in middle:
        found.append(_("{a} to {b} %").format(a=number(least * 100), b=number(above * 100)))
        above = least
    found.append(_("below {n} %").format(n=number(above * 100)))
    return tuple(Level(i, words) for i, words in enumerate(found, 1))


def _number(text: str) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) < 18
    return int(text) if is_number else 0
