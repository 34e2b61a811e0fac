import math

import msgspec
import pytest

from corral.backend.api.timings import merged, wire_timings
from corral.backend.chat.types import Timings


def test_rates_of_the_prompt_count_only_computed_tokens() -> None:
    t = wire_timings(Timings(100, 60, 5, prompt_ms=200.0, predicted_ms=80.0))
    assert (t.cache_n, t.prompt_n) == (60, 40)
    assert t.prompt_per_token_ms == pytest.approx(5.0)
    assert t.prompt_per_second == pytest.approx(200.0)


def test_rates_of_generation_leave_out_the_first_token() -> None:
    t = wire_timings(Timings(100, 60, 5, prompt_ms=200.0, predicted_ms=80.0))
    assert t.predicted_n == 5
    assert t.predicted_per_token_ms == pytest.approx(20.0)
    assert t.predicted_per_second == pytest.approx(50.0)


@pytest.mark.parametrize(
    "timings",
    [
        Timings(0, 0, 0, 0.0, 0.0),
        Timings(1, 0, 1, 0.0, 0.0),
        Timings(5, 5, 1, 1.0, 0.0),
        Timings(5, 0, 9, 5e-324, 5e-324),
    ],
)
def test_unknown_rates_are_zero_and_never_null_or_infinite(timings: Timings) -> None:
    values = msgspec.to_builtins(wire_timings(timings)).values()
    assert all(isinstance(v, (int, float)) and math.isfinite(v) for v in values)


def test_several_answers_count_each_prompt_once_and_all_that_was_generated() -> None:
    parts = [
        (0, Timings(10, 4, 5, 30.0, 50.0, 2.0)),
        (0, Timings(10, 9, 6, 1.0, 70.0, 1.0, n_discarded=3)),
        (1, Timings(7, 0, 2, 20.0, 10.0, 9.0)),
    ]
    assert merged(parts) == Timings(17, 4, 13, 30.0, 70.0, 1.0, n_discarded=3)
    assert merged(parts[:1]) == parts[0][1]


def test_forgotten_tokens_are_told_when_there_are_any() -> None:
    assert (
        msgspec.to_builtins(wire_timings(Timings(1, 0, 1, 0, 0, n_discarded=7)))["n_discarded"] == 7
    )
    assert "n_discarded" not in msgspec.to_builtins(wire_timings(Timings(1, 0, 1, 0, 0)))
