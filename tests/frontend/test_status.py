"""What the status page says: rows, facts, the history of speeds, and the lines drawn of it."""

import asyncio
from typing import Any

import pytest

from corral.backend.engine.messages import Counters, ModelInfo, SlotRow, Snapshot
from corral.frontend.tools import status
from corral.frontend.tools.history import KEPT_S, History, Sample
from corral.frontend.tools.plot import HEIGHT, WIDTH, ceiling, plots

READING = SlotRow(0, "reading", 7, n_prompt=900, n_cached=100, n_processed=400, max_tokens=50)


def snapshot(*slots: SlotRow, waiting: int = 0, generated: int = 0, read: int = 0) -> Snapshot:
    counters = Counters(predicted_tokens=generated, prompt_tokens=read)
    return Snapshot(list(slots), list(range(waiting)), 1000, 250, 40, 2, counters)


def info(**more: Any) -> ModelInfo:
    known: dict[str, Any] = {
        "path": "m.gguf",
        "architecture": "llama",
        "description": "llama 1B",
        "ftype": "Q4_0",
        "n_ctx": 4096,
        "n_ctx_train": 8192,
        "n_vocab": 32000,
        "n_embd": 64,
        "n_params": 1_234_000_000,
        "size_bytes": 3 * 2**29,
        "vocab_type": 1,
        "n_slots": 2,
        "add_bos": True,
        "bos_token": "",
        "eos_token": "",
        "chat_template": None,
    }
    return ModelInfo(**known | more)


# --- slots and queue ------------------------------------------------------------------------------


def test_a_prompt_is_what_was_cached_what_is_read_and_what_is_to_read() -> None:
    (slot,) = status.slots([READING], info())
    assert (slot.cached, slot.read, slot.to_read, slot.n_prompt) == (100, 300, 500, 900)
    assert (slot.prompt, slot.generated) == ("400 of 900", status.NOTHING)
    assert (slot.used, slot.use) == (400, "400 of 4,096")


@pytest.mark.parametrize(
    ("max_tokens", "generated"), [(500, "1,200 of 500"), (-1, "1,200"), (0, "1,200")]
)
def test_an_answer_says_how_long_it_may_get_when_there_is_a_limit(
    max_tokens: int, generated: str
) -> None:
    row = SlotRow(1, "generating", 7, 900, 0, 900, 1200, max_tokens, 38.25)
    (slot,) = status.slots([row], None)
    assert slot.generated == generated
    assert (slot.speed, slot.use) == ("38.2 tok/s", "2,100")


def test_an_idle_slot_has_no_figures_of_who_was_there_last() -> None:
    row = SlotRow(3, "idle", -1, 900, 100, 900, 20, 50, 38.2)
    (slot,) = status.slots([row], info())
    assert (slot.id, slot.n_prompt, slot.used) == (3, 0, 0)
    assert {slot.prompt, slot.generated, slot.speed, slot.use} == {status.NOTHING}


def test_the_queue_is_counted_against_its_limit() -> None:
    idle = SlotRow(1, "idle")
    assert status.load(snapshot(READING, idle), 64) == "1 of 2 busy, nobody waits"
    full = status.load(snapshot(READING, READING, waiting=3), 64)
    assert full == "2 of 2 busy, 3 of at most 64 waiting"


# --- facts ----------------------------------------------------------------------------------------


def named(facts: tuple[status.Fact, ...]) -> dict[str, str]:
    return {fact.name: fact.value for fact in facts}


def test_the_cache_says_how_full_it_is() -> None:
    facts = named(status.cache(snapshot()))
    assert facts["In use"] == "250 of 1,000 tokens (25 %)"
    assert facts["Kept for later prompts"] == "40 tokens"


def test_an_engine_of_vectors_has_no_cache_to_speak_of() -> None:
    assert status.cache(Snapshot([], [], 0, 0, 0, 2, Counters())) == ()


def test_the_totals_say_what_part_of_prompts_was_cached() -> None:
    now = Snapshot([], [], 1, 0, 0, 2, Counters(prompt_tokens=250, prompt_tokens_cached=750))
    assert named(status.totals(now))["Prompts from the cache"] == "750 tokens (75 %)"
    assert named(status.totals(snapshot()))["Prompts from the cache"] == "0 tokens"


def test_the_model_says_what_it_is_and_what_it_takes() -> None:
    facts = named(status.model(info(vision=True)))
    assert facts["Parameters"] == "1.2 B"
    assert facts["Weights"] == "Q4_0, 1.5 GiB"
    assert facts["Context"] == "4,096 tokens (trained with 8,192)"
    assert (facts["Takes"], facts["Makes"]) == ("text, pictures", "text")


@pytest.mark.parametrize(
    ("n_bytes", "words"),
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1024, "1.0 KiB"),
        (300 * 2**20, "300 MiB"),
        (5000 * 2**40, "5,000 TiB"),
    ],
)
def test_sizes_are_written_in_the_unit_that_fits(n_bytes: int, words: str) -> None:
    assert status.size(n_bytes) == words


# --- history --------------------------------------------------------------------------------------


def test_a_sample_is_what_was_done_since_the_last_one_per_second() -> None:
    history = History()
    history.take(snapshot(generated=10, read=100), 1.0)
    assert not history.samples
    history.take(snapshot(generated=40, read=100), 3.0)
    history.take(snapshot(generated=40, read=150), 4.0)
    assert list(history.samples) == [Sample(3.0, 15.0, 0.0), Sample(4.0, 0.0, 50.0)]


def test_a_prompt_counts_while_it_is_read_and_not_again_when_it_has_been() -> None:
    history = History()
    history.take(snapshot(), 0.0)
    history.take(snapshot(READING), 1.0)
    generating = SlotRow(0, "generating", 7, n_prompt=900, n_cached=100, n_processed=900)
    history.take(snapshot(generating, read=800), 2.0)
    assert [s.read for s in history.samples] == [300.0, 500.0]


def test_a_new_engine_begins_anew_and_never_below_nothing() -> None:
    history = History()
    for at_s, now in enumerate((snapshot(generated=900), None, snapshot(generated=5))):
        history.take(now, float(at_s))
    history.take(snapshot(generated=2), 3.0)
    assert [s.generated for s in history.samples] == [0.0, 5.0, 0.0]


def test_no_more_is_kept_than_a_plot_shows() -> None:
    history = History()
    for at_s in range(2 * KEPT_S):
        history.take(snapshot(generated=at_s), float(at_s))
    assert len(history.samples) == KEPT_S


async def test_watching_looks_until_it_is_cancelled() -> None:
    seen = asyncio.Event()

    def look() -> None:
        seen.set()

    watching = asyncio.create_task(History().watch(look))
    await asyncio.wait_for(seen.wait(), 10)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching


# --- plot -----------------------------------------------------------------------------------------


def points(line: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in line.split())]


def test_now_is_at_the_right_and_the_scale_at_the_top() -> None:
    samples = [Sample(700.0, 0.0, 20.0), Sample(850.0, 25.0, 0.0), Sample(1000.0, 50.0, 0.0)]
    generated, read = plots(samples, 1000.0)
    assert points(generated.line) == [(0, HEIGHT), (WIDTH / 2, HEIGHT / 2), (WIDTH, 0)]
    assert (generated.top, generated.now) == ("50", "50.0")
    assert points(generated.area)[0] == (0, HEIGHT)
    assert points(generated.area)[-1] == (WIDTH, HEIGHT)
    assert points(read.line)[0] == (0, 0)
    assert read.label == (
        "Prompts read, tokens per second in the last 5 minutes: now 0.0, at most 20.0"
    )


def test_what_is_older_than_the_plot_is_not_drawn() -> None:
    samples = [Sample(0.0, 900.0, 0.0), Sample(400.0, 4.0, 0.0)]
    generated, _ = plots(samples, 500.0)
    assert len(points(generated.line)) == 1
    assert generated.top == "10"


def test_without_samples_there_is_a_plot_without_a_line() -> None:
    for plot in plots([], 5.0):
        assert (plot.line, plot.area, plot.now) == ("", "", "0.0")


@pytest.mark.parametrize(
    ("highest", "top"),
    [(0, 10), (10, 10), (10.1, 20), (20, 20), (21, 50), (99, 100), (100, 100), (4001, 5000)],
)
def test_the_scale_ends_at_a_round_figure_that_holds_all(highest: float, top: float) -> None:
    assert ceiling(highest) == top
