import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.backend.engine.messages import (
    Abort,
    Accepted,
    Add,
    Call,
    Counters,
    Delta,
    Done,
    Failed,
    FrameReader,
    LoadFailed,
    Loading,
    Progress,
    Reply,
    Sampling,
    SlotRow,
    Snapshot,
    Started,
    Stats,
    Step,
    decode_command,
    decode_report,
    frame,
)

STATS = Stats(3, 1, 5, 0.5, 1.5, 2.5, 7, 2, True)
COMMANDS = [
    Add(id=1, prompt="é😀", stop=("a", "b")),
    Add(
        id=2**40,
        prompt=[1, "x", 2],
        sampling=Sampling(seed=0, logit_bias=((1, 0.5), ("no", float("-inf")))),
        max_tokens=0,
        cache_prompt=False,
    ),
    Abort(3),
    Call(4, "tokenize", {"content": ["a", 1], "add_special": True}),
]
REPORTS = [
    Loading(0.25),
    LoadFailed("no"),
    Reply(1, [b"\xff", b""]),
    Reply(2, error="why"),
    Step(
        [
            Accepted(1, 2),
            Started(1, 0, 3),
            Progress(1, 10, 3, 5, 0.5),
            Delta(1, "", [5, 6]),
            Done(1, "word", "x", STATS),
            Failed(2, "invalid", "no", {"n_ctx": 5}),
        ],
        Snapshot([SlotRow(0, "idle")], [4], 10, 5, 2, 1, Counters(steps=3)),
    ),
]


@given(st.lists(st.sampled_from(COMMANDS), max_size=5), st.lists(st.integers(0, 5000), max_size=20))
def test_any_split_of_the_stream_gives_the_same_messages(commands: Any, cuts: list[int]) -> None:
    stream = b"".join(frame(c) for c in commands)
    places = [0, *sorted(c % (len(stream) + 1) for c in cuts), len(stream)]
    reader, bodies = FrameReader(), []
    for a, b in itertools.pairwise(places):
        bodies += reader.feed(stream[a:b])
    assert [decode_command(body) for body in bodies] == commands


@pytest.mark.parametrize("report", REPORTS, ids=lambda r: type(r).__name__)
def test_reports_arrive_as_they_were_sent(report: Any) -> None:
    (body,) = FrameReader().feed(frame(report))
    assert decode_report(body) == report


def test_an_unfinished_frame_waits_for_its_rest() -> None:
    reader, data = FrameReader(), frame(Abort(1))
    assert reader.feed(data[:-1]) == []
    assert reader.feed(data[-1:] + data) == [data[4:], data[4:]]
