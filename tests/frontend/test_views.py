"""What the page says: numbers and words."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from corral.backend.chat.types import ChatRequest, Content, Reading, Text, Timings
from corral.backend.engine.messages import Counters, SlotRow, Snapshot
from corral.backend.store import Figures, Message, Outcome
from corral.frontend import views
from corral.frontend.instruments import strip
from corral.frontend.reply import Reply


def reply() -> Reply:
    message = Message(id=1, conversation_id="c", parent_id=None, role="assistant", content="")
    return Reply(message, ChatRequest(messages=()))


def model(**more: Any) -> Any:
    return SimpleNamespace(waiting_ahead=lambda _: more.get("ahead"), load_progress=0.5)


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        (
            Reading(8201, 2048, 5120, 2345.0),
            "Reading prompt · 5,120 of 8,201 tokens (2,048 cached) · 1,310 tok/s · about 2 s left",
        ),
        (Reading(800, 0, 100, 400.0), "Reading prompt · 100 of 800 tokens · 250 tok/s"),
        (
            Reading(100_000, 0, 10_000, 60_000.0),
            "Reading prompt · 10,000 of 100,000 tokens · 167 tok/s · about 9 min left",
        ),
        (Reading(800, 800, 800, 0.0), "Reading prompt · 800 of 800 tokens (800 cached)"),
    ],
)
def test_reading_says_how_far_how_fast_and_how_long(reading: Reading, words: str) -> None:
    running = reply()
    running.take(reading)
    parts = (reading.processed, reading.total, reading.cached)
    assert views.status(running, model()) == views.Status(words, *parts)


@pytest.mark.parametrize(
    ("ahead", "words"),
    [
        (2, "Waiting for a slot, 2 ahead"),
        (0, "Waiting for a slot, next in line"),
        (None, "Reading prompt"),
    ],
)
def test_waiting_says_the_place(ahead: int | None, words: str) -> None:
    running = reply()
    running.generation = cast(Any, SimpleNamespace(id=3))
    running.enter("waiting")
    assert views.status(running, model(ahead=ahead)).text == words


def test_writing_says_how_much_and_how_fast() -> None:
    running = reply()
    running.take(Text("a", [1], Timings(9, 0, 101, 5.0, 2000.0), parts=(Content("a"),)))
    assert views.status(running, model()).text == "101 tok · 50.0 tok/s"


def answered(outcome: Outcome, content: str = "text") -> views.Turn:
    message = Message(
        id=1,
        conversation_id="c",
        parent_id=None,
        role="assistant",
        content=content,
        outcome=outcome,
        figures=Figures(n_generated=486, predicted_ms=12723.0, first_ms=412.0),
    )
    return views.turn(message)


def test_a_finished_reply_has_its_figures() -> None:
    turn = answered(Outcome(status="done"))
    assert turn.figures == "486 tok · 38.2 tok/s"
    assert turn.again == "Regenerate" and not turn.note


@pytest.mark.parametrize(
    ("outcome", "content", "note"),
    [
        (Outcome(status="stopped"), "x", "Stopped"),
        (Outcome(status="done", is_cut=True), "x", "Cut off at the limit of tokens"),
        (Outcome(status="done", is_cut=True, is_full=True), "x", "Cut off: the context is full"),
        (Outcome(status="done"), " ", "The model ended its reply without a word"),
    ],
)
def test_a_reply_that_is_not_whole_says_why(outcome: Outcome, content: str, note: str) -> None:
    assert answered(outcome, content).note == note


def snapshot(*slots: SlotRow, waiting: int = 0) -> Snapshot:
    return Snapshot(list(slots), list(range(waiting)), 100, 0, 0, 1, Counters())


def test_the_strip_adds_up_the_slots() -> None:
    slots = (
        SlotRow(0, "generating", tokens_per_second=20.0),
        SlotRow(1, "generating", tokens_per_second=18.2),
        SlotRow(2, "reading"),
        SlotRow(3, "idle"),
    )
    shown = strip("ready", 1.0, snapshot(*slots, waiting=2), is_replying=False)
    assert shown.speed == "38.2 tok/s"
    assert shown.slots == ("generating", "generating", "reading", "idle")
    assert shown.slots_label == "Slots: 2 generating, 1 reading prompt, 1 idle; 2 waiting"
    assert shown.every == "500ms"


def test_the_strip_is_asked_for_rarely_while_nothing_happens() -> None:
    shown = strip("ready", 1.0, snapshot(SlotRow(0, "idle")), is_replying=False)
    assert (shown.speed, shown.every) == ("idle", "2s")
    assert strip("ready", 1.0, snapshot(), is_replying=True).every == "500ms"


def test_the_strip_says_how_far_the_model_is_loaded() -> None:
    shown = strip("loading", 0.42, None, is_replying=False)
    assert (shown.speed, shown.every, shown.slots) == ("loading 42 %", "500ms", ())
