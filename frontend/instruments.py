"""The instruments in the header, from what the engine last published. Pure."""

from msgspec import Struct

from corral.backend.engine.messages import Snapshot
from corral.frontend.words import _, number


class Strip(Struct, frozen=True, kw_only=True):
    """The header's instruments. ``every``: how long until the next look."""

    slots: tuple[str, ...]
    slots_label: str
    speed: str
    every: str


def speed(per_s: float) -> str:
    """Tokens per second: one decimal while that says something."""
    return number(per_s, 1 if per_s < 100 else 0)


def strip(
    state: str, load_progress: float, snapshot: Snapshot | None, *, is_replying: bool
) -> Strip:
    """The header's instruments from the engine's last snapshot. ``is_replying``: a reply of ours
    is running, though the engine may not have published anything of it yet."""
    slots = snapshot.slots if snapshot is not None else []
    states = [s.state for s in slots]
    n = {kind: states.count(kind) for kind in ("generating", "reading", "idle")}
    per_s = sum(s.tokens_per_second for s in slots if s.state == "generating")
    waiting = len(snapshot.waiting) if snapshot is not None else 0
    words = {
        "loading": _("loading {percent} %").format(percent=round(load_progress * 100)),
        "restarting": _("restarting"),
        "draining": _("shutting down"),
        "failed": _("model failed"),
        "closed": _("closed"),
    }
    is_busy = is_replying or state != "ready" or n["idle"] < len(states)
    label = _("Slots: {generating} generating, {reading} reading prompt, {idle} idle").format(**n)
    if waiting:
        label += "; " + _("{n} waiting").format(n=waiting)
    rate = _("{n} tok/s").format(n=speed(per_s)) if per_s else _activity(n)
    return Strip(
        slots=tuple(states),
        slots_label=label,
        speed=words.get(state) or rate,
        every="500ms" if is_busy else "2s",
    )


def _activity(n: dict[str, int]) -> str:
    return _("reading") if n["reading"] else _("generating") if n["generating"] else _("idle")
