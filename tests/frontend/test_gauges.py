"""Figures of replies and of the context."""

import pytest

from corral.backend.store import Figures
from corral.frontend import gauges


@pytest.mark.parametrize(
    ("used", "percent", "warning"),
    [
        (0, 0, ""),
        (3481, 85, ""),
        (3482, 85, "nearly full"),
        (4094, 100, "nearly full"),
        (4095, 100, "full"),
        (5000, 100, "full"),
    ],
)
def test_the_gauge_warns_near_the_end(used: int, percent: int, warning: str) -> None:
    gauge = gauges.gauge(used, 4096)
    assert gauge.warning == warning
    assert gauge.words == f"Context: {used:,} of 4,096 tokens, {percent} %"
    assert gauge.text == f"{used:,} / 4,096" and gauge.used <= gauge.n_ctx


def test_all_figures_of_a_reply() -> None:
    figures = Figures(
        n_prompt=1200,
        n_cached=1000,
        n_generated=50,
        prompt_ms=400.0,
        predicted_ms=2500.0,
        first_ms=450.0,
        thought_ms=1200.0,
    )
    assert gauges.line(figures) == "50 tok · 20.0 tok/s"
    assert [(f.name, f.value) for f in gauges.figures(figures)] == [
        ("Prompt", "1,200 tokens"),
        ("From the cache", "1,000 tokens"),
        ("Read", "200 in 0.40 s · 500 tok/s"),
        ("Written", "50 in 2.50 s · 20.0 tok/s"),
        ("First word after", "0.45 s"),
        ("Of that reasoning", "1.2 s"),
    ]


def test_a_reply_that_never_was_has_none() -> None:
    assert gauges.line(Figures()) == "" and gauges.figures(Figures()) == ()
