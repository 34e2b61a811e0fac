"""The instruments in the header, from what the engine last published. Pure."""

from msgspec import Struct

from corral.backend.engine.messages import Snapshot


class Strip(Struct, frozen=True, kw_only=True):
    """The header's instruments. ``every``: how long until the next look."""

    slots: tuple[str, ...]
    slots_label: str
    speed: str
    every: str


def speed(per_s: float) -> str:
    """Tokens per second: one decimal while that says something."""
    return f"{per_s:,.1f}" if per_s < 100 else f"{per_s:,.0f}"


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
        "loading": f"loading {round(load_progress * 100)} %",
        "restarting": "restarting",
        "draining": "shutting down",
        "failed": "model failed",
        "closed": "closed",
    }
    is_busy = is_replying or state != "ready" or n["idle"] < len(states)
    label = f"Slots: {n['generating']} generating, {n['reading']} reading prompt, {n['idle']} idle"
    return Strip(
        slots=tuple(states),
        slots_label=label + (f"; {waiting} waiting" if waiting else ""),
        speed=words.get(state) or (f"{speed(per_s)} tok/s" if per_s else _activity(n)),
        every="500ms" if is_busy else "2s",
    )


def _activity(n: dict[str, int]) -> str:
    return "reading" if n["reading"] else "generating" if n["generating"] else "idle"
