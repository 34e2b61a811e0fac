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
from corral.frontend.wire import LOOK, AnyRequest, page, site_of

NOTHING = "\N{EN DASH}"
_STATES = {
    "loading": "Loading the model",
    "ready": "Ready",
    "restarting": "Restarting after a crash",
    "draining": "Shutting down: running answers end, new ones are refused",
    "failed": "The model could not be loaded",
    "closed": "Closed",
}


class Slot(Struct, frozen=True, kw_only=True):
    """A line of the table of slots. ``cached``, ``read`` and ``to_read`` add up to the prompt's
    tokens; ``used`` are those of prompt and answer together, of ``n_ctx`` (0: not known)."""

    id: int
    state: str
    prompt: str
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


class Status(Struct, frozen=True, kw_only=True):
    """The status page. ``percent`` of loading, None when it is not; ``is_still``: the page does
    not ask again."""

    state: str
    percent: int | None
    failure: str
    slots: tuple[Slot, ...]
    load: str
    groups: tuple[Group, ...]
    plots: tuple[Plot, ...]
    is_still: bool


@route("/status", http_method=LOOK, status_code=200)
async def status_page(request: AnyRequest) -> Response[str]:
    """The status page; ``?still=1``: it does not move."""
    is_still = bool(request.query_params.get("still"))
    view = look(site_of(request), is_still=is_still)
    return await tool_page(request, "status", "Status", view)


@get("/status/now", sync_to_thread=False)
def status_now(request: AnyRequest) -> Response[str]:
    """What of the status page changes; it asks for this twice a second."""
    return page(request, "tools/_state.html", view=look(site_of(request)))


def look(site: Site, *, is_still: bool = False) -> Status:
    """The status page's view."""
    service = site.service
    state, snapshot, info = service.state, service.snapshot, service.info
    groups = (
        Group("Cache", () if snapshot is None else cache(snapshot)),
        Group("Since the engine started", () if snapshot is None else totals(snapshot)),
        Group("Model", () if info is None else model(info)),
    )
    return Status(
        state=_STATES.get(state, state),
        percent=round(service.load_progress * 100) if state == "loading" else None,
        failure=service.failure,
        slots=() if snapshot is None else slots(snapshot.slots, info),
        load="" if snapshot is None else load(snapshot, service.settings.max_queue),
        groups=tuple(group for group in groups if group.facts),
        plots=plots(site.history.samples, time.monotonic()),
        is_still=is_still,
    )


def load(snapshot: Snapshot, max_queue: int) -> str:
    """How many slots work, and how many requests wait for one."""
    n_busy = sum(slot.state != "idle" for slot in snapshot.slots)
    waiting = len(snapshot.waiting)
    queue = f"{waiting:,} of at most {max_queue:,} waiting" if waiting else "nobody waits"
    return f"{n_busy} of {len(snapshot.slots)} busy, {queue}"


def slots(rows: Sequence[SlotRow], info: ModelInfo | None) -> tuple[Slot, ...]:
    """The table of slots. Idle ones have no figures: those of who was there last say nothing."""
    n_ctx = 0 if info is None else info.n_ctx
    return tuple(
        _slot(SlotRow(row.id, row.state) if row.state == "idle" else row, n_ctx) for row in rows
    )


def _slot(row: SlotRow, n_ctx: int) -> Slot:
    used = row.n_processed + row.n_generated
    generated = f"{row.n_generated:,}" if row.n_generated else NOTHING
    if row.n_generated and row.max_tokens > 0:
        generated += f" of {row.max_tokens:,}"
    use = f"{used:,} of {n_ctx:,}" if n_ctx else f"{used:,}"
    return Slot(
        id=row.id,
        state=row.state,
        prompt=f"{row.n_processed:,} of {row.n_prompt:,}" if row.n_prompt else NOTHING,
        cached=row.n_cached,
        read=max(0, row.n_processed - row.n_cached),
        to_read=max(0, row.n_prompt - row.n_processed),
        generated=generated,
        speed=f"{speed(row.tokens_per_second)} tok/s" if row.tokens_per_second else NOTHING,
        used=used,
        n_ctx=n_ctx,
        use=use if used else NOTHING,
    )


def cache(snapshot: Snapshot) -> tuple[Fact, ...]:
    """What is remembered, and where. Engines of vectors remember nothing."""
    if not snapshot.cells_total:
        return ()
    percent = round(100 * snapshot.cells_used / snapshot.cells_total)
    prefixes = "prefix" if snapshot.ram_prefixes == 1 else "prefixes"
    return (
        Fact("In use", f"{snapshot.cells_used:,} of {snapshot.cells_total:,} tokens ({percent} %)"),
        Fact("Kept for later prompts", f"{snapshot.cells_cached:,} tokens"),
        Fact("In host memory", f"{snapshot.ram_prefixes:,} {prefixes}, {size(snapshot.ram_bytes)}"),
        Fact("On disk", size(snapshot.disk_bytes)),
    )


def totals(snapshot: Snapshot) -> tuple[Fact, ...]:
    """What the engine has done since it started."""
    c = snapshot.counters
    asked = c.prompt_tokens + c.prompt_tokens_cached
    hit = f" ({round(100 * c.prompt_tokens_cached / asked)} %)" if asked else ""
    return (
        Fact("Generated", f"{c.predicted_tokens:,} tokens"),
        Fact("Prompts read", f"{c.prompt_tokens:,} tokens"),
        Fact("Prompts from the cache", f"{c.prompt_tokens_cached:,} tokens{hit}"),
        Fact("Answers set aside for a while", f"{c.preemptions:,}"),
        Fact("Threads", f"{snapshot.n_threads}"),
    )


def model(info: ModelInfo) -> tuple[Fact, ...]:
    """What is known of the model."""
    takes = [name for name, has in (("pictures", info.vision), ("sounds", info.audio)) if has]
    kinds = (("text", info.generates), ("vectors", info.pooling), ("scores", info.ranks))
    trained = f" (trained with {info.n_ctx_train:,})" if info.n_ctx_train else ""
    facts = (
        Fact("Kind", info.description),
        Fact("Architecture", info.architecture),
        Fact("Weights", ", ".join(part for part in (info.ftype, size(info.size_bytes)) if part)),
        Fact("Parameters", count(info.n_params)),
        Fact("Context", f"{info.n_ctx:,} tokens{trained}"),
        Fact("Vocabulary", f"{info.n_vocab:,} tokens"),
        Fact("Takes", ", ".join(["text", *takes])),
        Fact("Makes", ", ".join(name for name, has in kinds if has)),
    )
    return tuple(fact for fact in facts if fact.value)


def size(n_bytes: int) -> str:
    """Bytes as people say them."""
    value, unit = float(n_bytes), "bytes"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, bigger
    return f"{value:,.0f} {unit}" if unit == "bytes" or value >= 100 else f"{value:,.1f} {unit}"


def count(n: int) -> str:
    """A number of parameters: ``1.7 B``, ``135 M``."""
    if n >= 1_000_000_000:
        return f"{n / 1e9:,.1f} B"
    return f"{n / 1e6:,.0f} M" if n >= 1_000_000 else f"{n:,}"
