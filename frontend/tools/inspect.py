"""A reply looked into: the prompt that the model got, token by token, what of it was new, the
settings in force, the times, and the request as a program would send it."""

import asyncio
from collections.abc import Sequence

from litestar import Response, get
from litestar.params import FromPath
from msgspec import Struct
from msgspec.structs import replace

from corral.backend.chat.types import ChatRequest
from corral.backend.errors import CorralError, Refused
from corral.backend.store import Message
from corral.frontend import traces, tuning
from corral.frontend.asking import to_request
from corral.frontend.gauges import Figure, figures
from corral.frontend.reasons import sentence
from corral.frontend.site import Site
from corral.frontend.tools import findings, prompts, recipes
from corral.frontend.tools.frame import tool_page
from corral.frontend.traces import Said, Sent
from corral.frontend.wire import HEADERS, AnyRequest, site_of
from corral.frontend.words import _, ngettext, number

#: Tokens quoted where two prompts part.
QUOTED = 12


class Prompt(Struct, frozen=True, kw_only=True):
    """The prompt as it is drawn. ``told``: what it is compared with the turn before, in words."""

    pieces: tuple[prompts.Piece, ...]
    count: str
    told: tuple[str, ...]
    is_whole: bool
    can_be_whole: bool


class Recipe(Struct, frozen=True, kw_only=True):
    """The request for programs; ``file``: where its body is, when it is too long to be written
    out."""

    curl: str
    python: str
    file: str


class Inspection(Struct, frozen=True, kw_only=True):
    """The page. ``doubt``: why the prompt may not be what the model got; ``failure``: why there is
    none."""

    id: int
    back: str
    doubt: str
    failure: str
    facts: tuple[Figure, ...]
    prompt: Prompt | None
    settings: tuple[findings.Setting, ...]
    recipe: Recipe | None
    has_probabilities: bool
    keeps_probabilities: bool


@get("/inspect/{message_id:int}")
async def inspect(request: AnyRequest, message_id: FromPath[int]) -> Response[str]:
    """The page; ``?whole=1``: all of a long prompt. Raises Refused not_found."""
    site = site_of(request)
    message = await _reply(site, message_id)
    kept = await traces.kept(site.store, message_id)
    sent, failure = None if kept is None else kept.sent, ""
    if sent is None:
        try:
            sent = await _as_now(site, message)
        except CorralError as error:
            failure = sentence(error.message)
    whole = bool(request.query_params.get("whole"))
    shown = None
    if sent is not None:
        try:
            shown = await _prompt(site, message, sent, is_whole=whole)
        except CorralError as error:
            failure = sentence(error.message)
    n_tokens = None if shown is None else shown[0]
    said = None if kept is None else kept.said
    settings: tuple[findings.Setting, ...] = ()
    if sent is not None:
        settings = await _settings(site, message.conversation_id, sent, said)
    view = Inspection(
        id=message_id,
        back=f"/c/{message.conversation_id}#m-{message_id}",
        doubt=findings.doubt(message, is_kept=kept is not None, n_tokens=n_tokens),
        failure=failure,
        facts=(Figure(_("Model"), message.model), *figures(message.figures)),
        prompt=None if shown is None else shown[1],
        settings=settings,
        recipe=None if sent is None else _recipe(request, message_id, sent),
        has_probabilities=said is not None and bool(said.probs),
        keeps_probabilities=traces.is_wanted(),
    )
    return await tool_page(request, "inspect", _("What the model got"), view)


@get("/inspect/{message_id:int}/request.json")
async def request_json(request: AnyRequest, message_id: FromPath[int]) -> Response[bytes]:
    """The body of the request, pictures and all. Raises Refused."""
    site = site_of(request)
    sent = await _sent(site, await _reply(site, message_id))
    pictures = await _pictures(site, sent.request)
    body = recipes.body(sent.request, site.service.model_name, pictures)
    return _file(recipes.written(body).encode(), "application/json", recipes.FILE_NAME)


@get("/inspect/{message_id:int}/prompt.txt")
async def prompt_text(request: AnyRequest, message_id: FromPath[int]) -> Response[bytes]:
    """The prompt as text, to keep. Raises Refused."""
    site = site_of(request)
    sent = await _sent(site, await _reply(site, message_id))
    text = await site.service.as_text(sent.prompt)
    return _file(text.encode("utf-8", "replace"), "text/plain; charset=utf-8", "prompt.txt")


def _file(data: bytes, media_type: str, name: str) -> Response[bytes]:
    headers = {**HEADERS, "content-disposition": f'attachment; filename="{name}"'}
    return Response(data, media_type=media_type, headers=headers)


async def _reply(site: Site, message_id: int) -> Message:
    message = await site.store.message(message_id)
    if message.role != "assistant":
        raise Refused(_("Only replies can be looked into"))
    return message


async def _sent(site: Site, message: Message) -> Sent:
    """What the model was sent, or would be sent now. Raises Refused or Broken."""
    kept = await traces.kept(site.store, message.id)
    return await _as_now(site, message) if kept is None else kept.sent


async def _as_now(site: Site, message: Message) -> Sent:
    """What the model would be sent for a reply now. Raises Refused or Broken."""
    history = (await site.store.path(message.id))[:-1]
    keys = {picture.key for m in history for picture in m.pictures}
    files = {key: (await site.store.picture(key))[1] for key in keys}
    settings = await tuning.of(site, message.conversation_id)
    asked = to_request(history, files, settings)
    prompt = (await site.service.prepare(asked)).prompt
    effective = site.service.effective(asked.params)
    return Sent(prompt=prompt, request=traces.without_pictures(asked), effective=effective)


async def _pictures(site: Site, request: ChatRequest) -> dict[bytes, tuple[str, bytes]]:
    return {s.data: await site.store.picture(s.data.decode("ascii")) for s in request.sources}


# --- the prompt -----------------------------------------------------------------------------------


async def _prompt(
    site: Site, message: Message, sent: Sent, *, is_whole: bool
) -> tuple[int | None, Prompt]:
    """How many tokens the prompt has, and the prompt; None when another model got it."""
    if message.model and message.model != site.service.model_name:
        # Its tokens are another model's.
        found = await asyncio.to_thread(prompts.cut, sent.prompt, (), (), ())
        return None, _drawn(found, (), is_whole=is_whole)
    tokens = await _tokens(site, sent)
    pieces = await site.service.pieces([token for token in tokens if token >= 0])
    info = site.service.info
    names = frozenset(() if info is None else info.special_tokens)
    found = await asyncio.to_thread(prompts.cut, sent.prompt, tokens, pieces, names)
    before = await _before(site, message)
    is_same = len(tokens) == message.figures.n_prompt
    n_cached = message.figures.n_cached if is_same else 0
    told = [findings.cached_words(n_cached, len(tokens))] if is_same else []
    differs_at = None
    if before is not None:
        differs_at, words = await _compared(site, tokens, *before)
        told.insert(0, words)
        if is_same and differs_at > n_cached + 1:
            told.append(findings.lost_words(differs_at - n_cached))
    drawn = await asyncio.to_thread(
        _drawn, found, told, n_cached=n_cached, differs_at=differs_at, is_whole=is_whole
    )
    return len(tokens), drawn


def _drawn(
    found: prompts.Cut,
    told: Sequence[str],
    *,
    n_cached: int = 0,
    differs_at: int | None = None,
    is_whole: bool,
) -> Prompt:
    n = len(found.prompt.text)
    is_whole = is_whole and n <= prompts.MAX_WHOLE
    n_tokens = len(found.tokens)
    count = ngettext("{n} token", "{n} tokens", n_tokens).format(n=number(n_tokens))
    return Prompt(
        pieces=prompts.draw(found, n_cached=n_cached, differs_at=differs_at, is_whole=is_whole),
        count=count if n_tokens else "",
        told=tuple(told),
        is_whole=is_whole or n <= prompts.MAX_CHARS,
        can_be_whole=n <= prompts.MAX_WHOLE,
    )


async def _tokens(site: Site, sent: Sent) -> list[int]:
    """The tokens of a prompt, those of pictures among them. Raises Refused or Broken."""
    pictures = await _pictures(site, sent.request)
    sources = [replace(s, data=pictures[s.data][1]) for s in sent.request.sources]
    return await site.service.prompt_tokens(sent.prompt, await site.service.load_media(sources))


async def _before(site: Site, message: Message) -> tuple[list[int], int] | None:
    """The tokens of the turn before, prompt and answer, and how many are the prompt's. None when
    there was none, or it is not known."""
    path = await site.store.path(message.id)
    last = next((m for m in reversed(path[:-1]) if m.role == "assistant"), None)
    if last is None or last.model != message.model:
        return None
    kept = await traces.kept(site.store, last.id)
    if kept is None:
        return None
    try:
        tokens = await _tokens(site, kept.sent)
    except CorralError:  # a picture that is gone
        return None
    return [*tokens, *(kept.said.tokens if kept.said else ())], len(tokens)


async def _compared(
    site: Site, tokens: Sequence[int], before: Sequence[int], n_prompt: int
) -> tuple[int, str]:
    """The number of the first token that the turn before did not have, and words about it."""
    n = traces.common(tokens, before)
    here, there = [
        prompts.excerpt(await site.service.pieces([t for t in part[n : n + QUOTED] if t >= 0]))
        for part in (tokens, before)
    ]
    return n, findings.compared_words(n, n_prompt, len(before) - n_prompt, here, there)


async def _settings(
    site: Site, conversation_id: str, sent: Sent, said: Said | None
) -> tuple[findings.Setting, ...]:
    info, flags = site.service.info, site.service.settings
    recommended = {} if info is None else info.sampling
    return findings.settings(sent, said, flags, recommended, await _asked(site, conversation_id))


async def _asked(site: Site, conversation_id: str) -> findings.Asked:
    """The settings of the conversation, and of its preset, as they are now."""
    try:
        now = await tuning.of(site, conversation_id)
        own = now.own.params(now.n_vocab)
        if now.preset is None:
            return findings.Asked(own=own)
        preset, name = now.preset.params(now.n_vocab), now.own.preset or ""
        return findings.Asked(own=own, preset=preset, preset_name=name)
    except CorralError:  # a preset that is gone
        return findings.Asked()


# --- the request ----------------------------------------------------------------------------------


def _recipe(request: AnyRequest, message_id: int, sent: Sent) -> Recipe:
    site = site_of(request)
    root = site.service.settings.api_prefix
    base = f"{request.url.scheme}://{request.url.netloc}{root}"
    body = recipes.body(sent.request, site.service.model_name)
    is_long = recipes.is_long(body, sent.request)
    has_keys = bool(site.service.settings.keys)
    return Recipe(
        curl=recipes.curl(body, base, has_keys=has_keys, from_file=is_long),
        python=recipes.python(body, base, has_keys=has_keys, from_file=is_long),
        file=f"/inspect/{message_id}/{recipes.FILE_NAME}" if is_long else "",
    )
