"""Many prompts with one set of settings: ``/batch``. The server works them off, whether a page is
open or not."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import msgspec
from litestar import Response, get, post, route
from litestar.datastructures import FormMultiDict, UploadFile
from litestar.params import FromPath
from litestar.response import Stream
from msgspec import Struct

from corral.backend.errors import CorralError, Refused
from corral.backend.presets import BUILT_INS
from corral.backend.store import Batch, BatchRow, Counts
from corral.frontend import tuning, tuning_form, typed, views
from corral.frontend.actions import text_of
from corral.frontend.live import sentence
from corral.frontend.markdown import render
from corral.frontend.site import Site
from corral.frontend.tools import compare
from corral.frontend.tools.batch_input import FORMATS, MAX_ROWS, Prompt, prompts
from corral.frontend.tools.frame import tool_page
from corral.frontend.typed import Typed
from corral.frontend.wire import HEADERS, LOOK, AnyRequest, form_of, go, page, site_of
from corral.frontend.words import _, ngettext, number

#: Rows on one page, and rows read at a time for a download.
N_ROWS = 100
EXCERPT_CHARS = 220


class Job(Struct, frozen=True, kw_only=True):
    """A batch as it stands. ``value`` of ``top`` rows have ended; ``is_open``: rows wait and
    nobody works on them."""

    id: str
    title: str
    label: str
    status: str
    error: str
    is_running: bool
    is_open: bool
    value: int
    top: int
    n_failed: int
    figures: str


class Line(Struct, frozen=True, kw_only=True):
    """A row of the table."""

    position: int
    name: str
    prompt: str
    status: str
    words: str
    answer: str
    error: str
    figures: str


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
        name = file.filename.replace("\\", "/").rpartition("/")[2][:120]
        try:
            text = (await file.read()).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise Refused(_("The file is not text in UTF-8."), param="file") from None
    chosen = cast(Any, format)
    found = await asyncio.to_thread(prompts, text, chosen, file_name=name, column=column)
    return name or views.title_of(_said(found[0].messages)[-1][1]), found


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
        line=_line(row),
        said=tuple(_said(row.messages)),
        reasoning=row.reasoning,
        html=await asyncio.to_thread(render, row.answer),
    )
    title = _("Row {name} of {title}").format(name=row.name, title=batch.title)
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


# --- downloads ------------------------------------------------------------------------------------

_COLUMNS = ("id", "status", "prompt", "answer", "error", "n_prompt", "n_generated", "is_cut")


@get("/batch/{batch_id:str}/download")
async def download(request: AnyRequest, batch_id: FromPath[str]) -> Stream:
    """All rows as JSONL, or with ``?as=csv`` as a table. Raises Refused not_found."""
    site = site_of(request)
    await site.store.batches.get(batch_id)
    is_csv = request.query_params.get("as") == "csv"
    kind = "csv" if is_csv else "jsonl"
    media_type = "text/csv; charset=utf-8; header=present" if is_csv else "application/x-ndjson"
    return Stream(
        _content(site, batch_id, is_csv=is_csv),
        media_type=media_type,
        headers={
            **HEADERS,
            "content-disposition": f'attachment; filename="batch-{batch_id[:16]}.{kind}"',
        },
    )


async def _content(site: Site, batch_id: str, *, is_csv: bool) -> AsyncIterator[bytes]:
    yield _csv_line(_COLUMNS) if is_csv else b""
    at = 0
    while rows := await site.store.batches.rows(batch_id, at, N_ROWS):
        at = rows[-1].position
        yield b"".join(_csv_line(_values(row)) if is_csv else _json_line(row) for row in rows)


def _values(row: BatchRow) -> Sequence[object]:
    said = _said(row.messages)
    prompt = said[-1][1] if len(said) == 1 else bytes(row.messages).decode()
    cut = "true" if row.is_cut else "false"
    return (
        *(row.name, row.status, prompt, row.answer, row.error),
        *(row.n_prompt, row.n_generated, cut),
    )


def _csv_line(values: Sequence[object]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerow(values)  # RFC 4180: lines end in CRLF
    return text.getvalue().encode()


def _json_line(row: BatchRow) -> bytes:
    said = {
        "id": row.name,
        "status": row.status,
        "messages": json.loads(row.messages),
        "answer": row.answer,
        "reasoning": row.reasoning,
        "error": row.error,
        "is_cut": bool(row.is_cut),
        "n_prompt": row.n_prompt,
        "n_cached": row.n_cached,
        "n_generated": row.n_generated,
        "total_ms": round(row.total_ms, 1),
    }
    return json.dumps(said, ensure_ascii=False).encode() + b"\n"


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
        lines=tuple(map(_line, rows)),
        at=at,
        place=place if counts.total > N_ROWS else "",
        before=at - N_ROWS if at else None,
        after=last if last < counts.total else None,
    )


def _job(site: Site, batch: Batch, counts: Counts) -> Job:
    is_running = site.batching.is_running(batch.id)
    ended = counts.done + counts.error
    words = _("Running") if is_running else _("Stopped") if counts.waiting else _("Done")
    parts = [_("{n} of {all}").format(n=number(ended), all=number(counts.total))]
    if counts.error:
        failed = ngettext("{n} failed", "{n} failed", counts.error)
        parts.append(failed.format(n=number(counts.error)))
    if counts.n_generated:
        parts.append(_("{n} tok").format(n=number(counts.n_generated)))
    return Job(
        id=batch.id,
        title=batch.title,
        label=batch.label,
        status=words,
        error=batch.error,
        is_running=is_running,
        is_open=not is_running and counts.waiting > 0,
        value=ended,
        top=counts.total,
        n_failed=counts.error,
        figures=" · ".join(parts),
    )


def _line(row: BatchRow) -> Line:
    said = _said(row.messages)
    words = {
        "waiting": _("waiting"),
        "running": _("running"),
        "done": _("cut off") if row.is_cut else _("done"),
        "error": _("failed"),
    }
    figures = _("{n} tok").format(n=number(row.n_generated)) if row.n_generated else ""
    return Line(
        position=row.position,
        name=row.name,
        prompt=_excerpt(said[-1][1]),
        status=row.status,
        words=words[row.status],
        answer=_excerpt(row.answer),
        error=row.error,
        figures=figures,
    )


def _said(messages: bytes) -> list[tuple[str, str]]:
    found = msgspec.json.decode(messages, type=list[dict[str, str]])
    return [(message["role"], message["content"]) for message in found]


def _excerpt(text: str) -> str:
    words = " ".join(text[: EXCERPT_CHARS * 4].split())
    return words if len(words) <= EXCERPT_CHARS else f"{words[:EXCERPT_CHARS]}…"
