"""A reply looked into: the prompt that the model got, token by token, what of it was new, the
settings in force, the times, and the request as a program would send it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Response, get
from litestar.params import FromPath
from msgspec import Struct
from msgspec.structs import replace

from corral.backend.chat.types import ChatRequest, Effective, Params, Written
from corral.backend.errors import CorralError, Refused
from corral.backend.store import Message
from corral.frontend import traces, tuning
from corral.frontend.asking import to_request
from corral.frontend.instruments import speed
from corral.frontend.live import sentence
from corral.frontend.site import Site
from corral.frontend.tools import prompts, recipes
from corral.frontend.tools.frame import tool_page
from corral.frontend.tools.status import Fact
from corral.frontend.traces import Kept, Said, Sent
from corral.frontend.wire import HEADERS, AnyRequest, site_of
from corral.frontend.words import _, ngettext, number

#: Tokens quoted where two prompts part.
QUOTED = 12
# Settings that are always shown; the others only where they are not what they usually are.
_MAIN = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed", "max_tokens")


class Setting(Struct, frozen=True, kw_only=True):
    """A setting in force, and who set it."""

    name: str
    value: str
    source: str


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
    facts: tuple[Fact, ...]
    prompt: Prompt | None
    settings: tuple[Setting, ...]
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
    view = Inspection(
        id=message_id,
        back=f"/c/{message.conversation_id}#m-{message_id}",
        doubt=doubt(message, is_kept=kept is not None, n_tokens=n_tokens),
        failure=failure,
        facts=facts(message, None if kept is None else kept.said),
        prompt=None if shown is None else shown[1],
        settings=() if sent is None else _settings(site, sent, kept),
        recipe=None if sent is None else _recipe(request, message_id, sent),
        has_probabilities=kept is not None and kept.said is not None and bool(kept.said.probs),
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
    n_cached = message.figures.n_cached if len(tokens) == message.figures.n_prompt else 0
    told = [cached_words(n_cached, len(tokens))] if message.figures.n_prompt else []
    differs_at = None
    if before is not None:
        differs_at, words = await _compared(site, tokens, *before)
        told.insert(0, words)
        if differs_at > n_cached + 1 and message.figures.n_prompt:
            told.append(lost_words(differs_at - n_cached))
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
    count = ngettext("{n} token", "{n} tokens", len(found.tokens)).format(n=number(len(found.tokens)))
    return Prompt(
        pieces=prompts.draw(found, n_cached=n_cached, differs_at=differs_at, is_whole=is_whole),
        count=count if found.tokens else "",
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
    return n, compared_words(n, n_prompt, len(before) - n_prompt, here, there)


# --- in words; pure -------------------------------------------------------------------------------


def compared_words(n: int, n_prompt: int, n_answer: int, here: str, there: str) -> str:
    """How a prompt goes on from the turn before, which had ``n_prompt`` tokens and an answer of
    ``n_answer``; ``n`` of these are at its beginning. ``here`` and ``there``: what comes then."""
    first = ngettext(
        "The first {n} token is that of the turn before",
        "The first {n} tokens are those of the turn before",
        n,
    ).format(n=number(n))
    if n >= n_prompt + n_answer:
        return _("{first}: its prompt and all of its answer. Then comes what is new.").format(
            first=first
        )
    if n >= n_prompt:
        answered = _("{first}: its prompt and {k} of the {n} tokens of its answer.")
        said = answered.format(first=first, k=number(n - n_prompt), n=number(n_answer))
        return f"{said} " + _("Then here is “{here}”, there was “{there}”.").format(
            here=here, there=there
        )
    if not n:
        return _("Nothing at the beginning is as in the turn before.")
    differs = _("{first}; then it differs: here is “{here}”, there was “{there}”.")
    return differs.format(first=first, here=here, there=there)


def cached_words(n_cached: int, n_tokens: int) -> str:
    """What of a prompt had not to be read."""
    if not n_cached:
        return _("Nothing was in the cache: all of it was read.")
    words = _("{n} of {all} tokens came from the cache (shaded), {rest} were read.")
    return words.format(n=number(n_cached), all=number(n_tokens), rest=number(n_tokens - n_cached))


def lost_words(n: int) -> str:
    """That the cache held less than it might have."""
    return ngettext(
        "{n} token of the turn before was read again: it was not in the cache any more.",
        "{n} tokens of the turn before were read again: they were not in the cache any more.",
        n,
    ).format(n=number(n))


def doubt(message: Message, *, is_kept: bool, n_tokens: int | None) -> str:
    """Why what is shown may not be what the model got; nothing when it is."""
    n_prompt = message.figures.n_prompt
    if n_tokens is None and is_kept:
        words = _("{model} got this; another model is loaded now, so its tokens cannot be shown.")
        return words.format(model=message.model)
    if is_kept:
        return ""
    said = _(
        "What the model got then is not kept: this is made of the conversation and its settings "
        "as they are now."
    )
    if not n_prompt:
        return said + " " + _("The model never read it.")
    if n_tokens != n_prompt:
        was = ngettext(
            "Then the prompt had {n} token.", "Then the prompt had {n} tokens.", n_prompt
        )
        return f"{said} {was.format(n=number(n_prompt))}"
    return said + " " + _("It has as many tokens as then.")


def facts(message: Message, said: Said | None) -> tuple[Fact, ...]:
    """The figures of a reply."""
    f = message.figures
    found = [Fact(_("Model"), message.model)]
    if f.n_prompt:
        tokens = ngettext("{n} token", "{n} tokens", f.n_prompt).format(n=number(f.n_prompt))
        found.append(Fact(_("Prompt"), tokens))
        found.append(Fact(_("From the cache"), number(f.n_cached)))
        found.append(Fact(_("Read"), _rate(f.n_prompt - f.n_cached, f.prompt_ms)))
        found.append(Fact(_("Written"), _rate(f.n_generated, f.predicted_ms)))
    if f.first_ms:
        found.append(Fact(_("First word after"), f"{number(f.first_ms / 1e3, 2)} s"))
    if f.thought_ms:
        found.append(Fact(_("Of that reasoning"), f"{number(f.thought_ms / 1e3, 1)} s"))
    if said is not None:
        found.append(Fact(_("Seed"), str(said.seed)))
    return tuple(fact for fact in found if fact.value)


def _rate(n: int, ms: float) -> str:
    tokens = number(n)
    if not (n and ms > 0):
        return tokens
    words = _("{n} in {seconds} s · {speed} tok/s")
    return words.format(n=tokens, seconds=number(ms / 1e3, 2), speed=speed(n / ms * 1e3))


# --- settings -------------------------------------------------------------------------------------


def _settings(site: Site, sent: Sent, kept: Kept | None) -> tuple[Setting, ...]:
    info = site.service.info
    recommended = {} if info is None else info.sampling
    usual = Effective()
    found = []
    for name, value in _values(sent.effective).items():
        source = source_of(name, value, sent.request.params, site, recommended)
        is_usual = value == _values(usual)[name]
        if name in _MAIN or not is_usual:
            found.append(Setting(name=name, value=_written(name, value, kept), source=source))
    return tuple(sorted(found, key=lambda s: (s.name not in _MAIN, s.name)))


def _values(effective: Effective) -> dict[str, Any]:
    values = msgspec.structs.asdict(effective)
    values.pop("sampling")
    sampling = msgspec.structs.asdict(effective.sampling)
    sampling.pop("n_probs")
    return sampling | values


def source_of(name: str, value: Any, params: Params, site: Site, recommended: Any) -> str:
    """Who set a setting."""
    if getattr(params, name) is not None:
        return _("this chat or its preset")
    settings = site.service.settings
    flag = getattr(settings, name, None)
    if name in settings.given and flag == value:
        return _("the server")
    if name in recommended and type(value)(recommended[name]) == value:
        return _("the model’s file")
    return _("default") if value == _values(Effective())[name] else _("the server")


def _written(name: str, value: Any, kept: Kept | None) -> str:
    if name == "seed" and value is None:
        drawn = None if kept is None or kept.said is None else kept.said.seed
        return _("random") if drawn is None else _("random: {seed}").format(seed=drawn)
    if name == "max_tokens" and value == -1:
        return _("no limit")
    if isinstance(value, bool):
        return _("on") if value else _("off")
    if isinstance(value, Struct):
        return str(getattr(value, "source", ""))[:2000]
    if isinstance(value, tuple):
        return ", ".join(repr(v) if isinstance(v, str) else str(v) for v in value) or _("none")
    return str(value)


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
