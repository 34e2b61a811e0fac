"""A line over time as points of an SVG. Pure."""

import math
from collections.abc import Sequence

from msgspec import Struct

from corral.frontend.instruments import speed
from corral.frontend.tools.history import KEPT_S, Sample
from corral.frontend.words import _, number

WIDTH, HEIGHT = 600, 80


class Plot(Struct, frozen=True, kw_only=True):
    """A plot of ``WIDTH`` x ``HEIGHT``; ``line`` are the points of its line, ``area`` of what is
    under it, both empty without samples; ``top``: the figure at the upper edge."""

    title: str
    label: str
    now: str
    top: str
    line: str
    area: str
    kind: str
    width: int = WIDTH
    height: int = HEIGHT


def plots(samples: Sequence[Sample], now_s: float) -> tuple[Plot, ...]:
    """Tokens generated, and prompt tokens read, per second, over the last ``KEPT_S``."""
    seen = [s for s in samples if now_s - s.at_s <= KEPT_S]
    return (
        _plot(_("Generated"), "generated", [(s.at_s, s.generated) for s in seen], now_s),
        _plot(_("Prompts read"), "read", [(s.at_s, s.read) for s in seen], now_s),
    )


def _plot(title: str, kind: str, values: list[tuple[float, float]], now_s: float) -> Plot:
    highest = max((value for _, value in values), default=0.0)
    now = values[-1][1] if values else 0.0
    top = ceiling(highest)
    points = [
        f"{WIDTH * (1 - (now_s - at_s) / KEPT_S):.1f},{HEIGHT * (1 - value / top):.1f}"
        for at_s, value in values
    ]
    area = ""
    if points:
        left, right = (points[i].partition(",")[0] for i in (0, -1))
        area = f"{left},{HEIGHT} {' '.join(points)} {right},{HEIGHT}"
    label = _(
        "{what}, tokens per second in the last {n} minutes: now {now}, at most {most}"
    ).format(what=title, n=KEPT_S // 60, now=speed(now), most=speed(highest))
    return Plot(
        title=title,
        label=label,
        now=speed(now),
        top=number(top),
        line=" ".join(points),
        area=area,
        kind=kind,
    )


def ceiling(highest: float) -> float:
    """The next of 1, 2 and 5 times a power of ten; at least 10."""
    if highest <= 10:
        return 10.0
    power = 10.0 ** math.floor(math.log10(highest))
    return float(next(power * k for k in (1, 2, 5, 10) if power * k >= highest))
