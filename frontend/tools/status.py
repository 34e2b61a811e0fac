"""The status page: what every slot does, the queue, the cache, the model, and how fast it was
lately.

All from what the engine last published, so it answers whatever the engine does. Nobody's text is
on it, only figures.
"""

import time
from collections.abc import Sequence

from litestar import Response, get, route
from msgspec import Struct

from corral.backend.engine.messages import ModelInfo, SlotRow, Snapshot
from corral.frontend.instruments import speed
from corral.frontend.site import Site
from corral.frontend.tools.frame import tool_page
from corral.frontend.tools.plot import Plot, plots
from corral.frontend.views import status
from corral.frontend.wire import LOOK, AnyRequest, page, site_of
from corral.frontend.words import _, later, ngettext, number

NOTHING = "\N{EN DASH}"
_DOING = {
    "idle": later("idle"),
    "reading": later("reading"),
    "generating": later("generating"),
}
_STATES = {
    "loading": later("Loading the model"),
    "ready": later("Ready"),
    "restarting": later("Restarting after a crash"),
    "draining": later("Shutting down: running answers end, new ones are refused"),
    "failed": later("The model could not be loaded"),
    "closed": later("Closed"),
}


class Slot(Struct, frozen=True, kw_only=True):
    """A line of the table of slots. ``cached``, ``read`` and ``to_read`` add up to the prompt's
    tokens; ``used`` are those of prompt and answer together, of ``n_ctx`` (0: not known)."""

    id: int
    state: str
    doing: str
    prompt: str
    shown_cached: str
    cached: int
    read: int
    to_read: int
    generated: str
    speed: str
    used: int
    n_ctx: int
    use: str

    @property
    def n_prompt(self) -> int:
        """All tokens of the prompt."""
        return self.cached + self.read + self.to_read


class Fact(Struct, frozen=True):
    """A figure with its name."""

    name: str
    value: str


class Group(Struct, frozen=True):
    """Figures that belong together."""

    title: str
    facts: tuple[Fact, ...]


class Replying(Struct, frozen=True):
    """A reply that is being written in a conversation, and what it does."""

    id: int
    conversation_id: str
    doing: str


class Status(Struct, frozen=True, kw_only=True):
    """The status page. ``percent`` of loading, None when it is not; ``is_still``: the page does
    not ask again."""

    state: str
    percent: int | None
    failure: str
    slots: tuple[Slot, ...]
    replies: tuple[Replying, ...]
    load: str
    groups: tuple[Group, ...]
    plots: tuple[Plot, ...]
    is_still: bool


@route("/status", http_method=LOOK, status_code=200)
async def status_page(request: AnyRequest) -> Response[str]:
    """The status page; ``?still=1``: it does not move."""
    is_still = bool(request.query_params.get("still"))
    view = look(site_of(request), is_still=is_still)
    return await tool_page(request, "status", _("Status"), view)


@get("/status/now", sync_to_thread=False)
def status_now(request: AnyRequest) -> Response[str]:
    """What of the status page changes; it asks for this twice a second."""
    return page(request, "tools/_state.html", view=look(site_of(request)))


def look(site: Site, *, is_still: bool = False) -> Status:
    """The status page's view."""
    service = site.service
    state, snapshot, info = service.state, service.snapshot, service.info
    groups = (
        Group(_("Cache"), () if snapshot is None else cache(snapshot)),
        Group(_("Since the engine started"), () if snapshot is None else totals(snapshot)),
        Group(_("Model"), () if info is None else model(info)),
    )
    return Status(
        state=_(_STATES.get(state, state)),
        percent=round(service.load_progress * 100) if state == "loading" else None,
        failure=service.failure,
        slots=() if snapshot is None else slots(snapshot.slots, info),
        replies=tuple(
            Replying(r.id, r.message.conversation_id, status(r, service).text or _("Writing"))
            for r in site.live.all
        ),
        load="" if snapshot is None else load(snapshot, service.settings.max_queue),
        groups=tuple(group for group in groups if group.facts),
        plots=plots(site.history.samples, time.monotonic()),
        is_still=is_still,
    )


def load(snapshot: Snapshot, max_queue: int) -> str:
    """How many slots work, and how many requests wait for one."""
    n_busy = sum(slot.state != "idle" for slot in snapshot.slots)
    waiting = len(snapshot.waiting)
    queue = _("nobody waits")
    if waiting:
        queue = _("{n} of at most {most} waiting").format(n=number(waiting), most=number(max_queue))
    busy = _("{n} of {all} busy").format(n=n_busy, all=len(snapshot.slots))
    return f"{busy}, {queue}"


def slots(rows: Sequence[SlotRow], info: ModelInfo | None) -> tuple[Slot, ...]:
    """The table of slots. Idle ones have no figures: those of who was there last say nothing."""
    n_ctx = 0 if info is None else info.n_ctx
    return tuple(
        _slot(SlotRow(row.id, row.state) if row.state == "idle" else row, n_ctx) for row in rows
    )


def _slot(row: SlotRow, n_ctx: int) -> Slot:
    used = row.n_processed + row.n_generated
    generated = number(row.n_generated) if row.n_generated else NOTHING
    if row.n_generated and row.max_tokens > 0:
        generated = _of(row.n_generated, row.max_tokens)
    use = _of(used, n_ctx) if n_ctx else number(used)
    return Slot(
        id=row.id,
        state=row.state,
        doing=_(_DOING.get(row.state, row.state)),
        prompt=_of(row.n_processed, row.n_prompt) if row.n_prompt else NOTHING,
        shown_cached=number(row.n_cached),
        cached=row.n_cached,
        read=max(0, row.n_processed - row.n_cached),
        to_read=max(0, row.n_prompt - row.n_processed),
        generated=generated,
        speed=f"{speed(row.tokens_per_second)} tok/s" if row.tokens_per_second else NOTHING,
        used=used,
        n_ctx=n_ctx,
        use=use if used else NOTHING,
    )


def _of(n: int, all: int) -> str:
    return _("{n} of {all}").format(n=number(n), all=number(all))


def _tokens(n: int) -> str:
    return ngettext("{n} token", "{n} tokens", n).format(n=number(n))


def cache(snapshot: Snapshot) -> tuple[Fact, ...]:
    """What is remembered, and where. Engines of vectors remember nothing."""
    if not snapshot.cells_total:
        return ()
    percent = round(100 * snapshot.cells_used / snapshot.cells_total)
    n = snapshot.ram_prefixes
    prefixes = ngettext("{n} prefix", "{n} prefixes", n).format(n=number(n))
    use = _("{n} of {all} tokens").format(
        n=number(snapshot.cells_used), all=number(snapshot.cells_total)
    )
    return (
        Fact(_("In use"), f"{use} ({percent} %)"),
        Fact(_("Kept for later prompts"), _tokens(snapshot.cells_cached)),
        Fact(_("In host memory"), f"{prefixes}, {size(snapshot.ram_bytes)}"),
        Fact(_("On disk"), size(snapshot.disk_bytes)),
    )


def totals(snapshot: Snapshot) -> tuple[Fact, ...]:
    """What the engine has done since it started."""
    c = snapshot.counters
    asked = c.prompt_tokens + c.prompt_tokens_cached
    hit = f" ({round(100 * c.prompt_tokens_cached / asked)} %)" if asked else ""
    return (
        Fact(_("Generated"), _tokens(c.predicted_tokens)),
        Fact(_("Prompts read"), _tokens(c.prompt_tokens)),
        Fact(_("Prompts from the cache"), _tokens(c.prompt_tokens_cached) + hit),
        Fact(_("Answers set aside for a while"), number(c.preemptions)),
        Fact(_("Threads"), f"{snapshot.n_threads}"),
    )


def model(info: ModelInfo) -> tuple[Fact, ...]:
    """What is known of the model."""
    takes = [name for name, has in ((_("pictures"), info.vision), (_("sounds"), info.audio)) if has]
    kinds = (
        (_("text"), info.generates),
        (_("vectors"), info.pooling),
        (_("scores"), info.ranks),
    )
    trained = _(" (trained with {n})").format(n=number(info.n_ctx_train))
    facts = (
        Fact(_("Kind"), info.description),
        Fact(_("Architecture"), info.architecture),
        Fact(_("Weights"), ", ".join(part for part in (info.ftype, size(info.size_bytes)) if part)),
        Fact(_("Parameters"), count(info.n_params)),
        Fact(_("Context"), _tokens(info.n_ctx) + (trained if info.n_ctx_train else "")),
        Fact(_("Vocabulary"), _tokens(info.n_vocab)),
        Fact(_("Takes"), ", ".join([_("text"), *takes])),
        Fact(_("Makes"), ", ".join(name for name, has in kinds if has)),
    )
    return tuple(fact for fact in facts if fact.value)


def size(n_bytes: int) -> str:
    """Bytes as people say them."""
    value, unit = float(n_bytes), later("bytes")
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, bigger
    words = _(unit)
    return f"{number(value, 0 if unit == 'bytes' or value >= 100 else 1)} {words}"


def count(n: int) -> str:
    """A number of parameters: ``1.7 B``, ``135 M``."""
    if n >= 1_000_000_000:
        return _("{n} B").format(n=number(n / 1e9, 1))
    return _("{n} M").format(n=number(n / 1e6)) if n >= 1_000_000 else number(n)
