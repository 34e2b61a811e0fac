"""Many prompts with one set of settings: ``/batch``. The server works them off, whether a page is
open or not."""

import asyncio
from typing import Any, cast

from litestar import Response, get, post, route
from litestar.datastructures import FormMultiDict, UploadFile
from litestar.params import FromPath
from litestar.response import Stream
from msgspec import Struct

from corral.backend.errors import CorralError, Refused
from corral.backend.presets import BUILT_INS
from corral.backend.store import Batch, Counts
from corral.frontend import titles, tuning, tuning_form, typed
from corral.frontend.markdown import render
from corral.frontend.reasons import sentence
from corral.frontend.site import Site
from corral.frontend.tools import compare
from corral.frontend.tools.batch_files import content
from corral.frontend.tools.batch_input import FORMATS, MAX_ROWS, Prompt, prompts
from corral.frontend.tools.batch_views import Job, Line, job, line, said
from corral.frontend.tools.frame import tool_page
from corral.frontend.typed import Typed
from corral.frontend.wire import HEADERS, LOOK, AnyRequest, form_of, go, page, site_of, text_of
from corral.frontend.words import _, number

#: Rows on one page.
N_ROWS = 100


class Form(Struct, frozen=True, kw_only=True):
    """The page for a new batch, with those there are."""

    rows: str
    format: str
    column_name: str
    column: compare.Column
    presets: tuple[str, ...]
    jobs: tuple[Job, ...]
    limits: str
    notice: str = ""


class Table(Struct, frozen=True, kw_only=True):
    """The page of a batch: a part of its rows. ``before`` and ``after`` lead to the others."""

    job: Job
    lines: tuple[Line, ...]
    at: int
    place: str = ""
    before: int | None = None
    after: int | None = None


class One(Struct, frozen=True, kw_only=True):
    """The page of a row."""

    job: Job
    line: Line
    said: tuple[tuple[str, str], ...]
    reasoning: str
    html: str


@route("/batch", http_method=LOOK, status_code=200)
async def blank(request: AnyRequest) -> Response[str]:
    """The form and the batches there are."""
    given = Typed(own=tuning.Own(), texts=typed.texts(tuning.Own()))
    return await _form(request, given, rows="", format="auto", column="")


@post("/batch", status_code=200)
async def create(request: AnyRequest) -> Response[Any]:
    """Begins a batch; or says what is wrong."""
    site, form = site_of(request), await form_of(request)
    given = await tuning_form.checked(site, tuning_form.read(form, prefix="c1."))
    format, column = str(form.get("format", "auto")), str(form.get("column", ""))
    rows = await text_of(request, "rows")
    try:
        title, found = await _rows(form, rows, format, column)
        if given.errors:
            raise Refused(_("Some settings cannot be used; see below."), param="settings")
        settings = await tuning.in_force(site, given.own)
    except CorralError as error:
        return await _form(
            request,
            given,
            rows=rows,
            format=format,
            column=column,
            notice=sentence(error.message),
            status=error.wire.status,
        )
    body = tuning.encode(given.own)
    made = await site.store.batches.create(title, compare.label(given.own), body, found)
    site.batching.start(made.id, settings)
    return go(f"/batch/{made.id}")


async def _rows(
    form: FormMultiDict, pasted: str, format: str, column: str
) -> tuple[str, list[Prompt]]:
    """The title of a batch and its prompts. Raises Refused."""
    if format not in FORMATS:
        raise Refused(_("There is no such form of prompts."), param="format")
    file, text, name = form.get("file"), pasted, ""
    if isinstance(file, UploadFile) and file.filename:
        if pasted.strip():
            raise Refused(_("Paste the prompts or choose a file, not both."), param="file")
        name = file.filename.replace("\\", "/").rpartition("/")[2]
        try:
            text = (await file.read()).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise Refused(_("The file is not text in UTF-8."), param="file") from None
    chosen = cast(Any, format)
    found = await asyncio.to_thread(prompts, text, chosen, file_name=name, column=column)
    return titles.made(name or said(found[0].messages)[-1][1]), found


@get("/batch/{batch_id:str}")
async def table(request: AnyRequest, batch_id: FromPath[str]) -> Response[str]:
    """A batch. Raises Refused not_found."""
    view = await _table(request, batch_id)
    return await tool_page(request, "batch", view.job.title, view)


@get("/batch/{batch_id:str}/now")
async def now(request: AnyRequest, batch_id: FromPath[str]) -> Response[str]:
    """The part of it that changes. Raises Refused not_found."""
    return page(request, "tools/_batch.html", view=await _table(request, batch_id))


@get("/batch/{batch_id:str}/rows/{position:int}")
async def one(
    request: AnyRequest, batch_id: FromPath[str], position: FromPath[int]
) -> Response[str]:
    """A row with all of its answer. Raises Refused not_found."""
    site = site_of(request)
    batch, counts = await site.store.batches.get(batch_id)
    row = await site.store.batches.row(batch_id, position)
    view = One(
        job=_job(site, batch, counts),
        line=line(row),
        said=tuple(said(row.messages)),
        reasoning=row.reasoning,
        html=await asyncio.to_thread(render, row.answer),
    )
    title = _("Row {name} of {title}").format(name=view.line.name, title=batch.title)
    return await tool_page(request, "batch_row", title, view)


@post("/batch/{batch_id:str}/stop", status_code=200)
async def stop(request: AnyRequest, batch_id: FromPath[str]) -> Response[Any]:
    """Stops a batch; rows that are being answered wait again. Raises Refused not_found."""
    site = site_of(request)
    await site.store.batches.get(batch_id)
    await site.batching.stop(batch_id)
    return go(f"/batch/{batch_id}")


@post("/batch/{batch_id:str}/resume", status_code=200)
async def resume(request: AnyRequest, batch_id: FromPath[str]) -> Response[Any]:
    """Goes on with a batch; with ``failed`` in the form its failed rows are tried again too.
    Raises Refused."""
    site = site_of(request)
    batch, _counts = await site.store.batches.get(batch_id)
    settings = await tuning.in_force(site, tuning.read(batch.settings))
    if "failed" in await form_of(request):
        await site.store.batches.retry(batch_id)
    await site.store.batches.set_status(batch_id, "running")
    site.batching.start(batch_id, settings)
    return go(f"/batch/{batch_id}")


@post("/batch/{batch_id:str}/delete", status_code=200)
async def delete(request: AnyRequest, batch_id: FromPath[str]) -> Response[Any]:
    """Deletes a batch and its answers for good; the page has asked before."""
    site = site_of(request)
    await site.batching.stop(batch_id)
    await site.store.batches.delete(batch_id)
    return go("/batch")


@get("/batch/{batch_id:str}/download")
async def download(request: AnyRequest, batch_id: FromPath[str]) -> Stream:
    """All rows as JSONL, or with ``?as=csv`` as a table. Raises Refused not_found."""
    site = site_of(request)
    await site.store.batches.get(batch_id)
    is_csv = request.query_params.get("as") == "csv"
    kind = "csv" if is_csv else "jsonl"
    media_type = "text/csv; header=present" if is_csv else "application/x-ndjson"
    return Stream(
        content(site.store, batch_id, is_csv=is_csv),
        media_type=media_type,
        headers={
            **HEADERS,
            "content-disposition": f'attachment; filename="batch-{batch_id[:16]}.{kind}"',
        },
    )


# --- views ----------------------------------------------------------------------------------------


async def _form(
    request: AnyRequest,
    given: Typed,
    *,
    rows: str,
    format: str,
    column: str,
    notice: str = "",
    status: int = 200,
) -> Response[str]:
    site = site_of(request)
    names = [*BUILT_INS, *(preset.name for preset in await site.presets.list())]
    limits = _("{n} prompts at most, {size} MiB; {slots} of them are answered at a time.")
    view = Form(
        rows=rows,
        format=format,
        column_name=column,
        column=compare.shown(1, given),
        presets=tuple(names),
        jobs=tuple(_job(site, *found) for found in await site.store.batches.list()),
        limits=limits.format(
            n=number(MAX_ROWS),
            size=number(site.service.settings.max_body_mb),
            slots=number(site.batching.n_at_once),
        ),
        notice=notice,
    )
    return await tool_page(request, "batches", _("Batch"), view, status=status)


async def _table(request: AnyRequest, batch_id: str) -> Table:
    site = site_of(request)
    batch, counts = await site.store.batches.get(batch_id)
    asked = request.query_params.get("at", "0")
    at = int(asked) if asked.isdecimal() and asked.isascii() and len(asked) < 9 else 0
    at = min(at, max(0, counts.total - 1)) // N_ROWS * N_ROWS
    rows = await site.store.batches.rows(batch_id, at, N_ROWS)
    last = at + len(rows)
    place = _("{first} to {last} of {n}").format(
        first=number(at + 1), last=number(last), n=number(counts.total)
    )
    return Table(
        job=_job(site, batch, counts),
        lines=tuple(map(line, rows)),
        at=at,
        place=place if counts.total > N_ROWS else "",
        before=at - N_ROWS if at else None,
        after=last if last < counts.total else None,
    )


def _job(site: Site, batch: Batch, counts: Counts) -> Job:
    return job(batch, counts, is_running=site.batching.is_running(batch.id))
