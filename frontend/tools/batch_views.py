"""A batch and its rows as pages show them."""

import msgspec
from msgspec import Struct

from corral.backend.store import Batch, BatchRow, Counts
from corral.frontend.titles import plain
from corral.frontend.words import _, ngettext, number

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


def job(batch: Batch, counts: Counts, *, is_running: bool) -> Job:
    """A batch as it stands."""
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


def line(row: BatchRow) -> Line:
    """A row in a table."""
    messages = said(row.messages)
    words = {
        "waiting": _("waiting"),
        "running": _("running"),
        "done": _("cut off") if row.is_cut else _("done"),
        "error": _("failed"),
    }
    figures = _("{n} tok").format(n=number(row.n_generated)) if row.n_generated else ""
    return Line(
        position=row.position,
        name=plain(row.name),
        prompt=_excerpt(messages[-1][1]),
        status=row.status,
        words=words[row.status],
        answer=_excerpt(row.answer),
        error=row.error,
        figures=figures,
    )


def said(messages: bytes) -> list[tuple[str, str]]:
    """Who says what, of messages as they are kept."""
    found = msgspec.json.decode(messages, type=list[dict[str, str]])
    return [(message["role"], message["content"]) for message in found]


def _excerpt(text: str) -> str:
    words = " ".join(text[: EXCERPT_CHARS * 4].split())
    return words if len(words) <= EXCERPT_CHARS else f"{words[:EXCERPT_CHARS]}…"
