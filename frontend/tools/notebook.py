"""Notebooks: a text that the model goes on with, at its end or at a marker in it.

Kept on the server as it is typed, and what the model wrote can be undone. A text that is being
written belongs to the server, and every page that looks follows it.
"""

import secrets
from collections.abc import Mapping
from typing import Any, Final, Literal

from litestar import Response, get, post, route
from litestar.datastructures import FormMultiDict
from litestar.params import FromPath
from litestar.response import Stream
from msgspec import Struct

from corral.backend.chat.types import CompletionRequest
from corral.backend.errors import CorralError
from corral.backend.store import Notebook
from corral.backend.store.notebooks import Page
from corral.frontend import titles
from corral.frontend.markdown import escape_code
from corral.frontend.reasons import sentence
from corral.frontend.site import Site
from corral.frontend.streams import partial
from corral.frontend.tools.frame import tool_page
from corral.frontend.tools.running import Outcome, Running, outcome, running, stream
from corral.frontend.tools.runs import Run
from corral.frontend.tools.writing import FIELDS, MARKER, NEW, halves, params
from corral.frontend.wire import LOOK, AnyRequest, form_of, go, is_htmx, nothing, page, site_of
from corral.frontend.words import _, number

EXCERPT_CHARS: Final = 120


class Row(Struct, frozen=True, kw_only=True):
    """A notebook in the list."""

    id: str
    title: str
    excerpt: str
    is_running: bool


class Shelf(Struct, frozen=True, kw_only=True):
    """The list of notebooks."""

    rows: tuple[Row, ...]


class View(Struct, frozen=True, kw_only=True):
    """A notebook's page. ``editor``: the name under which this page writes; ``notice``: why the
    last thing did not work; ``outcome``: how the last text ended."""

    id: str
    title: str
    text: str
    settings: Mapping[str, str]
    version: int
    editor: str
    can_undo: bool
    can_redo: bool
    running: Running | None = None
    outcome: Outcome | None = None
    notice: str = ""
    marker: str = MARKER

    @property
    def is_set(self) -> bool:
        """Whether some setting is not as in a new notebook."""
        return any(self.settings.get(name, "") != NEW.get(name, "") for name in FIELDS)

    @property
    def n_chars(self) -> str:
        """How long the text is."""
        return number(len(self.text))


# --- what is looked at ----------------------------------------------------------------------------


@route("/notebook", http_method=LOOK, status_code=200)
async def shelf(request: AnyRequest) -> Response[str]:
    """The list."""
    site = site_of(request)
    rows = tuple(
        Row(
            id=n.id,
            title=n.title or _("Untitled"),
            excerpt=titles.short(n.text, EXCERPT_CHARS),
            is_running=site.runs.get(_key(n.id)) is not None,
        )
        for n in await site.store.notebooks.list()
    )
    return await tool_page(request, "notebooks", _("Notebooks"), Shelf(rows=rows))


@get("/notebook/{notebook_id:str}")
async def notebook(request: AnyRequest, notebook_id: FromPath[str]) -> Response[str]:
    """A notebook. Raises Refused not_found."""
    site = site_of(request)
    found = await site.store.notebooks.get(notebook_id)
    return await _shown(request, look(site, found))


@get("/notebook/{notebook_id:str}/events")
async def events(request: AnyRequest, notebook_id: FromPath[str]) -> Stream:
    """A text that is being written as server-sent events; of one that has ended, the end. Raises
    Refused not_found."""
    site = site_of(request)
    found = await site.store.notebooks.get(notebook_id)
    run = site.runs.last(_key(found.id)) or _ended(found)

    async def end() -> str:
        view = look(site, await site.store.notebooks.get(found.id), last=run)
        html = partial("notebook", site.html("tools/_notebook.html", view=view), "outerHTML")
        ended = outcome(run)
        return html + partial("announce", escape_code(ended.error or ended.words))

    return stream(site, run, _path(found.id), end)


def _ended(found: Notebook) -> Run:
    """A run that is over and forgotten, for a page that waits for it."""
    run = Run(_key(found.id), CompletionRequest(prompts=("",)))
    run.status, run.error = "done", found.error
    run.ended.set()
    return run


def look(site: Site, found: Notebook, *, last: Run | None = None, notice: str = "") -> View:
    """The view of a notebook; ``last`` is the run that has just ended."""
    run = site.runs.get(_key(found.id))
    ended = outcome(last) if last is not None and last.status != "generating" else None
    if ended is None and found.error:
        ended = Outcome(error=found.error)
    return View(
        id=found.id,
        title=found.title or _("Untitled"),
        text=found.text,
        settings={name: found.settings.get(name, "") for name in FIELDS},
        version=found.version,
        editor=secrets.token_hex(8),
        can_undo=found.step > found.first_step,
        can_redo=found.step < found.last_step,
        running=None if run is None else running(run, site.service, _path(found.id)),
        outcome=ended,
        notice=notice,
    )


def _path(notebook_id: str) -> str:
    return f"/notebook/{notebook_id}"


def _key(notebook_id: str) -> str:
    return f"notebook-{notebook_id}"


async def _shown(request: AnyRequest, view: View, status: int = 200) -> Response[str]:
    if is_htmx(request):
        return page(request, "tools/_notebook.html", status=status, view=view)
    return await tool_page(request, "notebook", view.title, view, status=status)


# --- what is done ---------------------------------------------------------------------------------


@post("/notebook", status_code=200)
async def create(request: AnyRequest) -> Response[Any]:
    """A new notebook."""
    made = await site_of(request).store.notebooks.create(settings=dict(NEW))
    return go(f"/notebook/{made.id}")


def of_form(form: FormMultiDict) -> Page:
    """What a page has."""
    version = str(form.get("version", ""))
    return Page(
        version=int(version) if version.isdecimal() and version.isascii() else 0,
        editor=str(form.get("editor", ""))[:64] or secrets.token_hex(8),
        text=_text(form.get("text")),
        settings={name: _text(form.get(name)) for name in FIELDS},
    )


def _text(value: object) -> str:
    return value.replace("\r\n", "\n") if isinstance(value, str) else ""


@post("/notebook/{notebook_id:str}/save", status_code=200)
async def save(request: AnyRequest, notebook_id: FromPath[str]) -> Response[Any]:
    """Keeps what is in the form. Raises Refused."""
    site, sent = site_of(request), of_form(await form_of(request))
    try:
        await site.store.notebooks.save(notebook_id, sent)
    except CorralError as error:
        if site.runs.get(_key(notebook_id)) is not None and is_htmx(request):
            return nothing()  # what was typed went along when the text began
        return await _declined(request, notebook_id, sent, error)
    if is_htmx(request):
        return page(request, "tools/_saved.html")
    return go(f"/notebook/{notebook_id}")


@post("/notebook/{notebook_id:str}/generate", status_code=200)
async def generate(request: AnyRequest, notebook_id: FromPath[str]) -> Response[Any]:
    """Goes on with the text. Raises Refused."""
    site, sent = site_of(request), of_form(await form_of(request))
    try:
        before, after = halves(sent.text)
        asked = CompletionRequest(prompts=(before,), params=params(sent.settings))
        begun = await site.store.notebooks.begin(notebook_id, sent)
    except CorralError as error:
        return await _declined(request, notebook_id, sent, error)

    async def keep(run: Run) -> None:
        kept = site.store.notebooks
        if run.status == "generating":
            await kept.grow(begun.id, begun.step, before + run.text + after)
        else:
            # Nothing written: the text is as it was, marker and all.
            whole = before + run.text + after if run.text else sent.text
            await kept.finish(begun.id, begun.step, whole, run.status, run.error)

    site.runs.start(_key(begun.id), asked, keep, tail=after)
    return await _shown(request, look(site, begun)) if is_htmx(request) else _back(begun)


@post("/notebook/{notebook_id:str}/undo", status_code=200)
async def undo(request: AnyRequest, notebook_id: FromPath[str]) -> Response[Any]:
    """Back to before the model wrote. Raises Refused."""
    return await _move(request, notebook_id, -1)


@post("/notebook/{notebook_id:str}/redo", status_code=200)
async def redo(request: AnyRequest, notebook_id: FromPath[str]) -> Response[Any]:
    """What was undone, again. Raises Refused."""
    return await _move(request, notebook_id, 1)


async def _move(request: AnyRequest, notebook_id: str, by: Literal[-1, 1]) -> Response[Any]:
    site, sent = site_of(request), of_form(await form_of(request))
    try:
        moved = await site.store.notebooks.move(notebook_id, sent, by)
    except CorralError as error:
        return await _declined(request, notebook_id, sent, error)
    return await _shown(request, look(site, moved)) if is_htmx(request) else _back(moved)


def _back(found: Notebook) -> Response[bytes]:
    return go(f"/notebook/{found.id}")


async def _declined(
    request: AnyRequest, notebook_id: str, sent: Page, error: CorralError
) -> Response[str]:
    """Says why not, without losing what was typed. Raises Refused not_found."""
    why, status = sentence(error.message), error.wire.status
    if is_htmx(request):
        return page(request, "_notice_partial.html", status=status, message=why)
    site = site_of(request)
    found = await site.store.notebooks.get(notebook_id)
    view = look(site, found, notice=why)
    typed = {"text": sent.text, "settings": sent.settings, "version": sent.version}
    return await _shown(request, View(**{**_fields(view), **typed}), status)


def _fields(view: View) -> dict[str, Any]:
    return {name: getattr(view, name) for name in view.__struct_fields__}


@post("/notebook/{notebook_id:str}/stop", status_code=200)
async def stop(request: AnyRequest, notebook_id: FromPath[str]) -> Response[Any]:
    """Stops what is being written; what there is of it stays."""
    await site_of(request).runs.end(_key(notebook_id))
    return nothing() if is_htmx(request) else go(f"/notebook/{notebook_id}")


@post("/notebook/{notebook_id:str}/rename", status_code=200)
async def rename(request: AnyRequest, notebook_id: FromPath[str]) -> Response[Any]:
    """Gives it another title. Raises Refused not_found."""
    title = titles.short(_text((await form_of(request)).get("title")))
    await site_of(request).store.notebooks.rename(notebook_id, title)
    return go(f"/notebook/{notebook_id}")


@post("/notebook/{notebook_id:str}/delete", status_code=200)
async def delete(request: AnyRequest, notebook_id: FromPath[str]) -> Response[Any]:
    """Deletes it for good; the form has asked before."""
    site = site_of(request)
    await site.runs.end(_key(notebook_id))
    await site.store.notebooks.delete(notebook_id)
    return go("/notebook")
