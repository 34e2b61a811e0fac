"""What pages show of a text that is being written, and how that reaches them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from litestar.response import Stream
from msgspec import Struct

from corral.backend.chat.types import CompletionRequest
from corral.backend.errors import CorralError
from corral.backend.service import Service
from corral.frontend.instruments import speed
from corral.frontend.markdown import escape_code
from corral.frontend.site import Site
from corral.frontend.streams import PACE_S, message, partial
from corral.frontend.tools.runs import Run
from corral.frontend.words import _, ngettext, number

#: A text that is no news is sent this often, so that nobody takes the stream for dead.
PING_S = 10.0
#: What is loaded or waited for changes without an event.
LOOK_S = 0.25


class Now(Struct, frozen=True, kw_only=True):
    """How far it is. ``percent`` of the prompt while that is read, else None."""

    words: str
    percent: int | None = None


class Running(Struct, frozen=True, kw_only=True):
    """A text that is being written, between what stands ``before`` and ``after`` it. ``path``: of
    its pages, to which ``/events`` and ``/stop`` are added."""

    path: str
    before: str
    text: str
    after: str
    now: Now


class Outcome(Struct, frozen=True, kw_only=True):
    """How it ended: in words, or why not."""

    words: str = ""
    error: str = ""


def now(run: Run, service: Service) -> Now:
    """How far a run is."""
    if service.state == "loading":
        return Now(words=_("Loading the model"), percent=round(100 * service.load_progress))
    if run.timings is not None:
        t = run.timings
        words = ngettext("{n} token", "{n} tokens", t.n_generated)
        words = words.format(n=number(t.n_generated))
        if run.is_thinking:
            words = " · ".join((_("Thinking"), words))
        # The first tokens come out of the prompt's own step: too soon to tell how fast.
        per_s = 1e3 * t.n_generated / t.predicted_ms if t.predicted_ms >= 100 else 0.0
        rate = _("{n} tokens a second").format(n=speed(per_s))
        return Now(words=f"{words} · {rate}" if per_s else words)
    if run.reading is not None:
        read = run.reading
        words = _("Reading the prompt: {n} of {total} tokens")
        words = words.format(n=number(read.processed), total=number(read.total))
        return Now(words=words, percent=round(100 * read.processed / max(1, read.total)))
    return Now(words=_("Waiting for a slot"))


def outcome(run: Run) -> Outcome:
    """How a run ended."""
    if run.status == "error":
        return Outcome(error=run.error)
    t = run.timings
    if t is None:
        return Outcome(words=_("Stopped"))
    how = _("Stopped") if run.status == "stopped" else _("Done")
    if run.is_cut:
        how = _("Cut off at the limit of tokens")
    count = ngettext("{n} token", "{n} tokens", t.n_generated).format(n=number(t.n_generated))
    return Outcome(words=f"{how} · {count}")


def running(run: Run, service: Service, path: str) -> Running:
    """A run as pages show it."""
    before = str(run.asked.prompts[0]) if isinstance(run.asked, CompletionRequest) else ""
    standing = now(run, service)
    return Running(path=path, before=before, text=run.text, after=run.tail, now=standing)


class Viewer:
    """What one page has been sent of a run, and so what it needs next."""

    def __init__(self, site: Site, run: Run, path: str) -> None:
        self._site = site
        self._run = run
        self._path = path
        self._n_sent = 0
        self._now = Now(words="")

    def begin(self) -> str:
        """All there is."""
        view = running(self._run, self._site.service, self._path)
        self._n_sent, self._now = len(view.text), view.now
        return self._site.html("tools/_run_now.html", running=view)

    def change(self) -> str:
        """What is new; empty when nothing is."""
        text, standing = self._run.text, now(self._run, self._site.service)
        added, self._n_sent = text[self._n_sent :], len(text)
        html = partial("run-text", escape_code(added), "beforeend") if added else ""
        if standing != self._now:
            self._now = standing
            html += partial("run-status", self._site.html("tools/_run_status.html", now=standing))
        return html


async def _follow(
    run: Run, viewer: Viewer, end: Callable[[], Awaitable[str]]
) -> AsyncIterator[bytes]:
    yield message(viewer.begin())
    sent_s = time.monotonic()
    while not run.ended.is_set():
        seen = run.version
        html = viewer.change()
        if html:
            yield message(html)
        if html or time.monotonic() - sent_s > PING_S:
            sent_s = time.monotonic()
            if not html:
                yield b": ping\n\n"
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(run.ended.wait(), PACE_S)
        await run.changed(seen, LOOK_S)
    try:
        yield message(await end()) + message("", "end")
    except CorralError:  # deleted by another page
        yield message("", "end")


def stream(site: Site, run: Run, path: str, end: Callable[[], Awaitable[str]]) -> Stream:
    """A run as server-sent events: how it stands, what changes, and how it ended, which ``end``
    says."""
    return Stream(
        _follow(run, Viewer(site, run, path), end),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )
