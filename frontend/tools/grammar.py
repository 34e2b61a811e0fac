"""Grammars and schemas: written with the engine's compiler looking on, and tried with the model."""

import asyncio
import secrets
from typing import Any, Final

from litestar import Response, get, post, route
from litestar.datastructures import FormMultiDict
from litestar.params import FromPath
from litestar.response import Stream
from msgspec import Struct
from msgspec.structs import replace

from corral.backend.chat.types import ChatRequest, Message, Params
from corral.backend.engine.messages import Constraint, ConstraintKind
from corral.backend.errors import CorralError, Refused
from corral.frontend.numbers import whole
from corral.frontend.reasons import sentence
from corral.frontend.site import Site
from corral.frontend.streams import partial
from corral.frontend.tools.examples import Example, examples
from corral.frontend.tools.frame import tool_page
from corral.frontend.tools.places import Fault, fault
from corral.frontend.tools.running import Outcome, Running, outcome, running, stream
from corral.frontend.tools.runs import Run
from corral.frontend.wire import LOOK, AnyRequest, form_of, go, is_htmx, nothing, page, site_of
from corral.frontend.words import _, number

KINDS: Final[tuple[ConstraintKind, ...]] = ("json_schema", "gbnf", "lark", "regex")
#: Tokens of a trial, at most; and seconds, where the page itself waits for it.
MAX_TOKENS: Final = 2_048
WAIT_S: Final = 120.0
DEFAULT_TOKENS: Final = 256
#: Marks a grammar as Lark wherever it stands, as in requests.
_LARK: Final = "%llguidance"


class Checked(Struct, frozen=True, kw_only=True):
    """What the compiler says: nothing is wrong when there is no ``fault``."""

    fault: Fault | None
    took: str


class Grammar(Struct, frozen=True, kw_only=True):
    """The page, its fields as they were typed. ``checked`` None: there is nothing to check, or an
    ``error`` in its way. ``limit_error``: what is wrong with ``max_tokens``, of which nothing means
    ``usual_tokens``."""

    kind: ConstraintKind = "json_schema"
    source: str = ""
    prompt: str = ""
    max_tokens: str = ""
    usual_tokens: int = DEFAULT_TOKENS
    checked: Checked | None = None
    error: str = ""
    examples: tuple[Example, ...] = ()
    chosen: str = ""
    running: Running | None = None
    outcome: Outcome | None = None
    answer: str = ""
    limit_error: str = ""
    trial_error: str = ""

    @property
    def kinds(self) -> tuple[tuple[str, str], ...]:
        """The kinds with their names."""
        names = (_("JSON Schema"), _("GBNF grammar"), _("Lark grammar"), _("Regular expression"))
        return tuple(zip(KINDS, names, strict=True))


@route("/grammar", http_method=LOOK, status_code=200)
async def grammar_page(request: AnyRequest) -> Response[str]:
    """The page with an example, the one that ``?example=`` names."""
    known = examples()
    wanted = request.query_params.get("example", "")
    chosen = next((e for e in known if e.id == wanted), known[0])
    view = Grammar(kind=chosen.kind, source=chosen.source, prompt=chosen.prompt, chosen=chosen.id)
    return await _shown(request, await _checked(request, view))


@post("/grammar", status_code=200)
async def check(request: AnyRequest) -> Response[str]:
    """What the compiler says of the source in the form."""
    view = await _checked(request, of_form(await form_of(request)))
    if is_htmx(request):
        return page(request, "tools/_grammar_verdict.html", view=view)
    return await _shown(request, view)


@post("/grammar/try", status_code=200)
async def try_it(request: AnyRequest) -> Response[str]:
    """Has the model answer under the grammar: a fragment that follows it, or the page with it."""
    site, view = site_of(request), of_form(await form_of(request))
    try:
        asked = to_request(view)
    except CorralError as error:
        at = "limit_error" if error.param == "max_tokens" else "trial_error"
        return await _tried(request, replace(view, **{at: sentence(error.message)}))
    run = site.runs.start(f"grammar-{secrets.token_hex(8)}", asked)
    if is_htmx(request):
        return await _tried(request, replace(view, running=running(run, site.service, _path(run))))
    try:
        async with asyncio.timeout(WAIT_S):
            await run.ended.wait()
    except TimeoutError:
        await site.runs.end(run.key)
    return await _tried(request, replace(view, outcome=outcome(run), answer=run.text))


@get("/grammar/{key:str}/events")
async def events(request: AnyRequest, key: FromPath[str]) -> Stream:
    """A trial as server-sent events. Raises Refused not_found."""
    site = site_of(request)
    run = _run_of(site, key)

    async def end() -> str:
        view = Grammar(outcome=outcome(run), answer=run.text)
        return partial("answer", site.html("tools/_grammar_answer.html", view=view))

    return stream(site, run, _path(run), end)


@post("/grammar/{key:str}/stop", status_code=200)
async def stop(request: AnyRequest, key: FromPath[str]) -> Response[Any]:
    """Stops a trial; one that has ended is no error."""
    site = site_of(request)
    await site.runs.end(key)
    return nothing() if is_htmx(request) else go("/grammar")


def _run_of(site: Site, key: str) -> Run:
    run = site.runs.last(key)
    if run is None or not key.startswith("grammar-"):
        raise Refused(_("This trial is over and forgotten"), kind="not_found")
    return run


def _path(run: Run) -> str:
    return f"/grammar/{run.key}"


async def _shown(request: AnyRequest, view: Grammar) -> Response[str]:
    view = replace(view, examples=examples())
    return await tool_page(request, "grammar", _("Grammars"), view)


async def _tried(request: AnyRequest, view: Grammar) -> Response[str]:
    if is_htmx(request):
        return page(request, "tools/_grammar_tried.html", view=view)
    return await _shown(request, await _checked(request, view))


def of_form(form: FormMultiDict) -> Grammar:
    """What is in the form."""
    kind = next((k for k in KINDS if k == form.get("kind")), KINDS[0])
    source = _text(form.get("source"))
    if kind == "gbnf" and source.startswith(_LARK):
        kind = "lark"
    return Grammar(
        kind=kind,
        source=source,
        prompt=_text(form.get("prompt")),
        max_tokens=_text(form.get("max_tokens")),
    )


def _text(value: object) -> str:
    return value.replace("\r\n", "\n") if isinstance(value, str) else ""


def _constraint(view: Grammar) -> Constraint:
    # A line break at the end of the box is no part of an expression.
    source = view.source.strip("\n") if view.kind == "regex" else view.source
    return Constraint(view.kind, source)


def to_request(view: Grammar) -> ChatRequest:
    """The question under the grammar. Raises Refused."""
    if not view.source.strip():
        raise Refused(_("Write a grammar first."))
    if not view.prompt.strip():
        raise Refused(_("Write a question first."))
    return ChatRequest(
        messages=(Message(role="user", content=view.prompt),),
        params=Params(constraint=_constraint(view), max_tokens=_limit(view)),
        reasoning_format="auto",
    )


def _limit(view: Grammar) -> int:
    """How many tokens a trial may take. Raises Refused."""
    try:
        is_set = bool(view.max_tokens.strip())
        return whole(view.max_tokens, 1, MAX_TOKENS) if is_set else DEFAULT_TOKENS
    except ValueError as error:
        raise Refused(str(error), param="max_tokens") from None


async def _checked(request: AnyRequest, view: Grammar) -> Grammar:
    if not view.source.strip():
        return view
    service = site_of(request).service
    if service.info is not None and not service.info.generates:
        return replace(view, error=_("This model writes no text that could be held to a grammar."))
    try:
        verdict = await service.check_constraint(_constraint(view))
    except CorralError as error:
        return replace(view, error=sentence(error.message))
    found = None
    if verdict.problem:
        found = fault(view.kind, view.source, verdict)
        found = found if found.at else found._replace(words=sentence(found.words))
    return replace(view, checked=Checked(fault=found, took=number(verdict.compile_ms, 1)))
