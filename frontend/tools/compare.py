"""One prompt, several presets or settings side by side: ``/compare``.

The answers are branches of a conversation of their own; the one that is kept goes on with its
settings.
"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from litestar import Response, get, post, route
from litestar.datastructures import FormMultiDict
from litestar.params import FromPath
from msgspec import Struct
from msgspec.structs import replace

from corral.backend.chat.types import ChatRequest
from corral.backend.errors import CorralError, Refused
from corral.backend.presets import BUILT_INS
from corral.backend.store import Message
from corral.frontend import columns, titles, tuning, tuning_form, typed, views
from corral.frontend.actions import files_of
from corral.frontend.asking import to_request
from corral.frontend.knobs import KNOBS
from corral.frontend.reasons import sentence
from corral.frontend.site import Site
from corral.frontend.tools.frame import tool_page
from corral.frontend.tuning import Own
from corral.frontend.typed import Typed
from corral.frontend.wire import LOOK, AnyRequest, form_of, go, site_of, text_of
from corral.frontend.words import _

MAX_COLUMNS = 4
#: The columns that are always there; the others are switched on.
MIN_COLUMNS = 2
#: What a column has fields for; the preset and the system prompt beside.
FIELDS = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens")
#: As many of the last conversations can be gone on from.
N_EARLIER = 30
_SEEDS = 2**31
_FIRST = (Own(preset="precise"), Own(preset="creative"))


class Field(Struct, frozen=True, kw_only=True):
    """A field of a column, as it was typed, and what is wrong with it."""

    name: str
    label: str
    value: str
    hint: str = ""
    error: str = ""


class Column(Struct, frozen=True, kw_only=True):
    """A column of the form. ``is_used`` when it is switched on; the first ones always are."""

    n: int
    is_used: bool
    preset: str
    system: str
    fields: tuple[Field, ...]
    error: str = ""


class Earlier(Struct, frozen=True):
    """A conversation that can be gone on from."""

    id: str
    title: str
    is_chosen: bool


class Compare(Struct, frozen=True, kw_only=True):
    """The page. ``turn`` are the answers; ``earlier`` what they may go on from."""

    prompt: str
    columns: tuple[Column, ...]
    presets: tuple[str, ...]
    earlier: tuple[Earlier, ...] = ()
    has_same_seed: bool = True
    turn: views.Turn | None = None
    notice: str = ""


@route("/compare", http_method=LOOK, status_code=200)
async def blank(request: AnyRequest) -> Response[str]:
    """The form; ``?q=`` fills in the prompt, ``?from=`` names the conversation to go on from."""
    query = request.query_params
    given = _filled(_FIRST)
    return await _page(request, query.get("q", ""), given, earlier_id=query.get("from", ""))


@get("/compare/{conversation_id:str}")
async def answers(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """The answers and the form that asked for them; once one is kept, its conversation.
    Raises Refused not_found."""
    site = site_of(request)
    _current, messages = await site.store.get(conversation_id)
    replies = (await site.store.columns(conversation_id))[-MAX_COLUMNS:]
    if not any(reply.settings for reply in replies):
        return go(f"/c/{conversation_id}")
    turn = await asyncio.to_thread(columns.turn, site, replies, messages[-1], is_plain=True)
    given = _filled([tuning.read(reply.settings or b"{}") for reply in replies])
    return await _page(
        request,
        messages[-2].content,
        given,
        has_same_seed=request.query_params.get("seeds", "same") == "same",
        turn=turn,
    )


@post("/compare", status_code=200)
async def ask(request: AnyRequest) -> Response[Any]:
    """Asks for the answers, each with the settings of its column; or says what is wrong."""
    site, form = site_of(request), await form_of(request)
    prompt, earlier_id = await text_of(request), str(form.get("from", ""))
    given = [await _column(site, form, n) for n in range(1, MAX_COLUMNS + 1)]
    same = form.get("seeds") == "same"
    try:
        if not prompt.strip():
            raise Refused(_("Write a prompt first."), param="text")
        used = [column.own for column in given if column is not None]
        if any(column.errors for column in given if column is not None):
            raise Refused(_("Some settings cannot be used; see below."), param="settings")
        id = await _begin(site, prompt, used, earlier_id, has_same_seed=same)
    except CorralError as error:
        return await _page(
            request,
            prompt,
            given,
            earlier_id=earlier_id,
            has_same_seed=same,
            notice=sentence(error.message),
            status=error.wire.status,
        )
    return go(f"/compare/{id}?seeds={'same' if same else 'own'}")


async def _begin(
    site: Site, prompt: str, used: Sequence[Own], earlier_id: str, *, has_same_seed: bool
) -> str:
    """Makes the conversation and begins its answers; returns its id. Raises CorralError."""
    settings = [await tuning.in_force(site, own) for own in used]
    async with site.live.starting:
        history: list[Message] = []
        if earlier_id:
            _current, messages = await site.store.get(earlier_id)
            history = list(messages)
        files = await files_of(site, history)
        # All that can be refused is, before anything is kept.
        seed = secrets.randbelow(_SEEDS)
        said = Message(id=0, conversation_id="", parent_id=None, role="user", content=prompt)
        requests = [to_request([*history, said], files, s) for s in settings]
        if has_same_seed:
            requests = [_seeded(request, seed) for request in requests]
        id = await _conversation(site, history, prompt)
        model = site.service.model_name
        asked, first = await site.store.add_turn(id, prompt, model=model)
        others = await site.store.add_replies(asked.id, len(used) - 1, model=model)
        for reply, own, request in zip([first, *others], used, requests, strict=True):
            words = await site.store.label(reply.id, label(own), tuning.encode(own))
            site.live.start(words, request)
    return id


async def _conversation(site: Site, history: Sequence[Message], prompt: str) -> str:
    """A new one, or one with a copy of what is gone on from."""
    if not history:
        return (await site.store.create(titles.made(prompt))).id
    return (await site.store.fork(history[-1].id)).id


def _seeded(request: ChatRequest, seed: int) -> ChatRequest:
    """With the seed that all have, unless it has one of its own."""
    params = request.params
    return replace(
        request, params=replace(params, seed=seed if params.seed is None else params.seed)
    )


def label(own: Own) -> str:
    """What a column was asked for with, in few words."""
    texts = typed.texts(own)
    said = [" ".join([_(KNOBS[name].label), texts[name]]) for name in FIELDS if texts[name]]
    system = [_("System prompt")] if own.system else []
    return " · ".join([*filter(None, [own.preset]), *said, *system]) or _("Server's settings")


# --- the form -------------------------------------------------------------------------------------


async def _column(site: Site, form: FormMultiDict, n: int) -> Typed | None:
    """What a column of the form says; None when it is not used."""
    if n > MIN_COLUMNS and f"c{n}.used" not in form:
        return None
    return await tuning_form.checked(site, tuning_form.read(form, prefix=f"c{n}."))


def _filled(settings: Sequence[Own]) -> list[Typed | None]:
    """The columns of a form as settings are typed."""
    given: list[Typed | None] = [Typed(own=own, texts=typed.texts(own)) for own in settings]
    return given + [None] * (MAX_COLUMNS - len(given))


def shown(n: int, given: Typed | None) -> Column:
    """A column of a form as a page shows it."""
    texts: Mapping[str, str] = {} if given is None else given.texts
    errors: Mapping[str, str] = {} if given is None else given.errors
    fields = tuple(
        Field(
            name=name,
            label=_(KNOBS[name].label),
            value=texts.get(name, ""),
            hint=_(KNOBS[name].hint),
            error=errors.get(name, ""),
        )
        for name in FIELDS
    )
    rest = [words for name, words in errors.items() if name not in FIELDS]
    return Column(
        n=n,
        is_used=given is not None or n <= MIN_COLUMNS,
        preset=texts.get("preset", ""),
        system=texts.get("system", ""),
        fields=fields,
        error=" · ".join(rest),
    )


async def _page(
    request: AnyRequest,
    prompt: str,
    given: Sequence[Typed | None],
    *,
    earlier_id: str = "",
    has_same_seed: bool = True,
    turn: views.Turn | None = None,
    notice: str = "",
    status: int = 200,
) -> Response[str]:
    site = site_of(request)
    names = [*BUILT_INS, *(preset.name for preset in await site.presets.list())]
    found = [] if turn is not None else (await site.store.list())[:N_EARLIER]
    view = Compare(
        prompt=prompt,
        columns=tuple(shown(n, column) for n, column in enumerate(given, 1)),
        presets=tuple(names),
        earlier=tuple(Earlier(c.id, c.title, c.id == earlier_id) for c in found),
        has_same_seed=has_same_seed,
        turn=turn,
        notice=notice,
    )
    return await tool_page(request, "compare", _("Compare"), view, status=status)
