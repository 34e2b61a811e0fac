"""The engine for vectors, on vectors made up from bytes."""

from typing import Any

import numpy as np
import pytest

from corral.backend.engine.core import EngineCore
from corral.backend.engine.cores import Cores
from corral.backend.engine.embedding import AdmittedEmbed, EmbeddingCore
from corral.backend.engine.fake import FakeLlama
from corral.backend.engine.fake_embedding import FakeEmbedder
from corral.backend.engine.llama import DecodeFailed, Row
from corral.backend.engine.messages import (
    Add,
    Done,
    Embed,
    Embedded,
    Failed,
    Output,
    Progress,
    Started,
)
from corral.backend.engine.pace import PromptBudget, Threads


class Bench:
    """A core and what each request got."""

    def __init__(self, model: FakeEmbedder, *, n_slots: int = 4, max_queue: int = 8) -> None:
        self.model = model
        self.now = 0.0
        self.core = EmbeddingCore(
            model,
            n_slots=n_slots,
            max_queue=max_queue,
            threads=Threads(1, fixed=1),
            clock=self._tick,
        )
        self.outputs: dict[int, list[Output]] = {}

    def _tick(self) -> float:
        self.now += 0.001
        return self.now

    def add(self, inputs: list[Any], **options: Any) -> int:
        request_id = len(self.outputs) + 1
        self.outputs[request_id] = []
        admitted = self.core.admit(Embed(id=request_id, inputs=inputs, **options))
        if isinstance(admitted, AdmittedEmbed):
            self.core.add(admitted)
        else:
            self.outputs[request_id].append(admitted)
        return request_id

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            ends = [o for o in self.outputs[output.id] if isinstance(o, Done | Failed)]
            assert not ends, f"{output} after the end"
            self.outputs[output.id].append(output)

    def step(self, room: int = 64) -> None:
        self.take(self.core.step(room))

    def run(self, room: int = 64) -> None:
        for _ in range(10_000):
            if not self.core.has_work:
                return
            self.step(room)
        raise AssertionError("requests do not end")

    def end(self, request_id: int) -> Output:
        found = [o for o in self.outputs[request_id] if isinstance(o, Done | Failed)]
        assert len(found) == 1, found
        return found[0]

    def rows(self, request_id: int) -> dict[int, Any]:
        return {
            o.index: np.frombuffer(o.data, "<f4").reshape(-1, self.model.width)
            for o in self.outputs[request_id]
            if isinstance(o, Embedded)
        }

    def done(self, request_id: int) -> bool:
        return any(isinstance(o, Done) for o in self.outputs[request_id])


def expected(text: str, pooling: str) -> Any:
    """A text's vector, from one call of a model of its own."""
    model = FakeEmbedder(pooling="none", n_batch=4096, n_input=4096)
    tokens = model.tokenize_input(text)
    (states,) = model.compute([Row(0, 0, tokens, True, True)])  # type: ignore[arg-type]
    pooled = {"mean": states.mean(0), "cls": states[0], "last": states[-1], "none": states}
    return np.atleast_2d(pooled[pooling])


TEXTS = ["a", "hello there", "x" * 200, "", "y" * 63, "z" * 64, "w" * 130, "end"] * 3


@pytest.mark.parametrize("room", [1, 7, 64])
@pytest.mark.parametrize("can_split", [True, False])
@pytest.mark.parametrize("pooling", ["none", "mean", "cls", "last"])
def test_however_inputs_fall_into_calls_the_vectors_are_the_same(
    pooling: Any, can_split: bool, room: int
) -> None:
    bench = Bench(FakeEmbedder(pooling=pooling, can_split=can_split))
    first, second = bench.add(TEXTS), bench.add(TEXTS[::-1])
    bench.run(room)
    for request_id, texts in ((first, TEXTS), (second, TEXTS[::-1])):
        found = bench.rows(request_id)
        assert sorted(found) == list(range(len(texts)))
        for i, text in enumerate(texts):
            assert np.allclose(found[i], expected(text, pooling), atol=1e-5), text
        end = bench.end(request_id)
        assert isinstance(end, Done) and end.finish == "eos"
        assert end.stats.n_prompt == sum(len(t) + 1 for t in texts)
    assert not bench.model._length  # nothing is kept
    assert max(map(sum, bench.model.calls)) <= (64 if can_split else 201)


def test_inputs_share_calls() -> None:
    bench = Bench(FakeEmbedder(n_seq_max=8))
    bench.add(["abc"] * 14)
    bench.run()
    assert bench.model.calls == [[4] * 7, [4] * 7]


def test_requests_take_turns() -> None:
    bench = Bench(FakeEmbedder(n_seq_max=32))
    large = bench.add(["x" * 15] * 400)
    bench.step()
    small = bench.add(["y" * 15] * 3)
    bench.step()
    bench.step()
    assert bench.done(small) and not bench.done(large)


def test_a_long_input_leaves_room_for_short_ones() -> None:
    bench = Bench(FakeEmbedder(n_seq_max=32))
    long = bench.add(["x" * 500])
    bench.step()
    short = bench.add(["abc"] * 4)
    bench.step()
    assert bench.done(short) and not bench.done(long)
    assert bench.model.calls[1] == [32, 4, 4, 4, 4]
    bench.run()
    assert bench.done(long)


def test_only_one_input_is_half_done_at_a_time() -> None:
    bench = Bench(FakeEmbedder())
    for _ in range(3):
        bench.add(["x" * 300] * 2)
    while bench.core.has_work:
        bench.step()
        assert len(bench.model._length) <= 1
    assert all(isinstance(bench.end(i), Done) for i in (1, 2, 3))


def test_an_input_that_must_be_whole_is_not_starved_by_short_ones() -> None:
    bench = Bench(FakeEmbedder(can_split=False, n_seq_max=32))
    bench.add(["ab"] * 1000)
    long = bench.add(["x" * 100])
    for _ in range(4):
        bench.step()
    assert bench.done(long)


def test_waiting_requests_start_in_order_and_the_queue_has_an_end() -> None:
    bench = Bench(FakeEmbedder(), n_slots=1, max_queue=2)
    ids = [bench.add(["x" * 60]) for _ in range(4)]
    refused = bench.end(ids[3])
    assert isinstance(refused, Failed) and refused.code == "queue_full"
    assert bench.core.snapshot().waiting == ids[:3]
    order = []
    while bench.core.has_work:
        bench.step()
        order += [i for i in ids[:3] if bench.done(i) and i not in order]
    assert order == ids[:3]
    more = bench.add(["more"])
    bench.run()
    assert bench.done(more)


def test_an_aborted_request_is_gone_at_once_and_its_half_done_input_forgotten() -> None:
    bench = Bench(FakeEmbedder(), n_slots=1)
    running, waiting = bench.add(["x" * 300]), bench.add(["y"])
    bench.step()
    assert bench.model._length
    assert bench.core.abort(running) and bench.core.abort(waiting)
    assert not bench.core.abort(running) and not bench.core.abort(99)
    bench.take(bench.core.drain())
    for request_id in (running, waiting):
        end = bench.end(request_id)
        assert isinstance(end, Done) and end.finish == "cancelled"
    assert not bench.model._length and not bench.core.has_work
    again = bench.add(["x" * 300])
    bench.run()
    assert np.allclose(bench.rows(again)[0], expected("x" * 300, "mean"), atol=1e-5)


@pytest.mark.parametrize("length", [3, 200])
def test_a_call_that_is_refused_fails_only_the_request_at_fault(length: int) -> None:
    bench = Bench(FakeEmbedder())
    bench.model.bad_token = 7
    bad, good = bench.add([[1] * length + [7] + [1] * length] * 3), bench.add(["fine"] * 3)
    bench.run()
    assert isinstance(bench.end(bad), Failed)
    assert isinstance(bench.end(good), Done) and len(bench.rows(good)) == 3
    assert not bench.model._length
    assert bench.core.snapshot().waiting == [] and not bench.core.has_work


def test_a_broken_context_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(FakeEmbedder())

    def broken(rows: list[Row]) -> Any:
        raise DecodeFailed(-3)

    monkeypatch.setattr(bench.model, "compute", broken)
    bench.add(["a", "b"])
    with pytest.raises(DecodeFailed):
        bench.step()


def test_numbers_that_are_none_fail_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(FakeEmbedder())
    monkeypatch.setattr(bench.model, "compute", lambda rows: [np.full((1, 8), np.nan)] * len(rows))
    failed = bench.add(["a", "b"])
    bench.run()
    end = bench.end(failed)
    assert isinstance(end, Failed) and end.code == "engine_error"


@pytest.mark.parametrize(
    ("inputs", "code", "param"),
    [
        ([], "invalid", "inputs"),
        (["a", []], "invalid", "inputs[1]"),
        (["a", [1, 259]], "invalid", "inputs[1]"),
        (["a", [-1]], "invalid", "inputs[1]"),
        (["a", "x" * 512], "context_length_exceeded", "inputs[1]"),
    ],
)
def test_one_bad_input_refuses_all_before_any_work(
    inputs: list[Any], code: str, param: str
) -> None:
    bench = Bench(FakeEmbedder())
    end = bench.end(bench.add(inputs))
    assert isinstance(end, Failed)
    assert (end.code, end.param) == (code, param)
    assert not bench.core.has_work and not bench.model.calls


def test_progress_and_counts_add_up() -> None:
    bench = Bench(FakeEmbedder())
    request_id = bench.add(["x" * 100] * 5)
    bench.step()
    (row,) = (r for r in bench.core.snapshot().slots if r.state != "idle")
    assert (row.task, row.n_prompt) == (request_id, 505) and 0 < row.n_processed <= 64
    bench.run()
    outputs = bench.outputs[request_id]
    assert isinstance(outputs[0], Started)
    done = [o.processed for o in outputs if isinstance(o, Progress)]
    assert done == sorted(done) and all(n < 505 for n in done)
    counters = bench.core.snapshot().counters
    assert counters.prompt_tokens == 505
    assert counters.decode_calls == counters.steps == len(bench.model.calls)
    assert all(r.state == "idle" for r in bench.core.snapshot().slots)


# --- beside generation --------------------------------------------------------------------------


def cores(
    *, generation: bool = True, vectors: bool = True, scores: bool = True, **options: Any
) -> Cores:
    runner = FakeLlama(n_ctx=256, n_slots=2, n_seq_max=8)
    budget = PromptBudget(n_batch=64)

    def make(pooling: Any) -> EmbeddingCore:
        model = FakeEmbedder(pooling=pooling, can_split=pooling != "rank")
        return EmbeddingCore(model, n_slots=2, max_queue=4, threads=Threads(1, fixed=1))

    core = EngineCore(runner, n_slots=2, max_queue=4, budget=budget, threads=Threads(1, fixed=1))
    return Cores(
        generation=core if generation else None,
        vectors=make("mean") if vectors else None,
        scores=make("rank") if scores else None,
        **options,
    )


def test_answers_vectors_and_scores_go_on_together() -> None:
    both = cores()
    commands = [
        Add(id=1, prompt="abc", max_tokens=30),
        Embed(id=2, inputs=["x" * 60] * 20),
        Embed(id=3, inputs=["some words"] * 20, query="words"),
    ]
    for command in commands:
        admitted = both.admit(command)
        assert not isinstance(admitted, Failed)
        both.add(admitted)
    kinds: list[set[int]] = []
    while both.has_work:
        report = both.report(both.step())
        assert report is not None
        kinds.append({o.id for o in report.outputs})
    assert {1, 2, 3} <= kinds[0] | kinds[1]
    end = both.snapshot()
    assert len(end.slots) == 2 and all(r.state == "idle" for r in end.slots)
    assert end.counters.prompt_tokens == 3 + 20 * 61 + 20 * len("words|some words|")
    assert end.counters.predicted_tokens > 0


def test_calls_are_small_beside_answers_and_full_without() -> None:
    both = cores(scores=False, room=lambda n_generating: 8 + n_generating)
    for command in (Add(id=1, prompt="abc", max_tokens=5), Embed(id=2, inputs=["x" * 60] * 20)):
        admitted = both.admit(command)
        assert not isinstance(admitted, Failed)
        both.add(admitted)
    while both.has_work:
        both.step()
    assert both._vectors is not None and isinstance(both._vectors.model, FakeEmbedder)
    sizes = [sum(call) for call in both._vectors.model.calls]
    assert sizes[:3] == [9, 9, 9] and max(sizes) == 64


def test_vectors_beside_answers_show_as_rows_behind_the_slots() -> None:
    both = cores()
    admitted = both.admit(Embed(id=2, inputs=["x" * 400]))
    assert isinstance(admitted, AdmittedEmbed)
    both.add(admitted)
    both.step()
    assert [(r.id, r.task) for r in both.snapshot().slots if r.state != "idle"] == [(2, 2)]
    assert both.abort(2) and not both.abort(2)
    (end,) = both.drain()
    assert isinstance(end, Done) and not both.has_work


@pytest.mark.parametrize(
    ("missing", "command", "code"),
    [
        ("generation", Add(id=1, prompt="a"), "unsupported"),
        ("scores", Embed(id=1, inputs=["a"], query="b"), "not_supported"),
    ],
)
def test_what_the_model_cannot_do_is_refused(missing: str, command: Any, code: str) -> None:
    refused = cores(**{missing: False}).admit(command)
    assert isinstance(refused, Failed) and refused.code == code
    nothing = cores(vectors=False, scores=False).admit(Embed(id=1, inputs=["a"]))
    assert isinstance(nothing, Failed) and "--embeddings" in nothing.message


def test_a_model_that_only_ranks_says_what_it_makes_of_a_text() -> None:
    one = cores(generation=False, vectors=False)
    admitted = one.admit(Embed(id=1, inputs=["a"]))
    assert isinstance(admitted, AdmittedEmbed)
    one.add(admitted)
    outputs = one.step()
    assert [len(o.data) for o in outputs if isinstance(o, Embedded)] == [4]
