from collections.abc import Callable, Iterable
from typing import Any

import pytest

from corral.backend.engine.core import Admitted, EngineCore
from corral.backend.engine.fake import FakeLlama
from corral.backend.engine.messages import Add, Delta, Done, Failed, Output, Prompt, Started
from corral.backend.engine.pace import PromptBudget, Threads
from corral.backend.engine.tiers import Tier

#: Adapters that are loaded, and not in force unless a request names them.
LORA = (("a.gguf", 0.0), ("b.gguf", 0.0))


class FixedBudget(PromptBudget):
    """The same number of prompt tokens in every step."""

    def __init__(self, n: int) -> None:
        super().__init__(n_batch=n)
        self._n = n

    def tokens(self, n_decode: int) -> int:
        return self._n


class Answer:
    """What came of one request."""

    def __init__(self, n_prompt: int) -> None:
        self.n_prompt = n_prompt
        self.outputs: list[Output] = []

    @property
    def text(self) -> str:
        return "".join(o.text for o in self.outputs if isinstance(o, Delta))

    @property
    def tokens(self) -> list[int]:
        return [t for o in self.outputs if isinstance(o, Delta) for t in o.tokens]

    @property
    def ends(self) -> list[Output]:
        return [o for o in self.outputs if isinstance(o, Done | Failed)]

    @property
    def done(self) -> Done:
        (end,) = self.ends
        assert isinstance(end, Done), end
        return end

    @property
    def failed(self) -> Failed:
        (end,) = self.ends
        assert isinstance(end, Failed), end
        return end

    @property
    def has_started(self) -> bool:
        return any(isinstance(o, Started) for o in self.outputs)


class Bench:
    """An ``EngineCore`` on the fake model, and what each request got from it."""

    def __init__(
        self,
        runner: FakeLlama,
        *,
        n_slots: int = 4,
        max_queue: int = 64,
        budget: int = 16,
        tier: Tier | None = None,
    ) -> None:
        self.runner = runner
        self.now = 0.0
        self.core = EngineCore(
            runner,
            n_slots=n_slots,
            max_queue=max_queue,
            budget=FixedBudget(budget),
            threads=Threads(1),
            clock=self._tick,
            tier=tier,
        )
        self.scheduler = self.core.scheduler
        self.answers: dict[int, Answer] = {}

    def _tick(self) -> float:
        self.now += 0.001
        return self.now

    def add(self, prompt: Prompt, **fields: Any) -> int:
        """Gives the engine a request; its outputs gather in ``answers``."""
        request_id = len(self.answers) + 1
        admitted = self.core.admit(Add(id=request_id, prompt=prompt, **fields))
        if isinstance(admitted, Admitted):
            self.answers[request_id] = Answer(len(admitted.tokens))
            self.core.add(admitted)
        else:
            self.answers[request_id] = Answer(0)
            self.answers[request_id].outputs.append(admitted)
        return request_id

    def abort(self, request_id: int) -> None:
        self.core.abort(request_id)
        self._take(self.core.drain())

    def step(self, n: int = 1) -> None:
        for _ in range(n):
            self._take(self.core.step())

    def run(self, limit: int = 10_000) -> None:
        """Steps until nothing is left to do."""
        while self.core.has_work:
            limit -= 1
            assert limit >= 0, "requests do not end"
            self.step()

    def _take(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            answer = self.answers[output.id]
            assert not answer.ends, f"{output} after the end"
            answer.outputs.append(output)

    def settle(self) -> None:
        """Does the cache operations that wait for the next step; they change no decision."""
        assert self.core.memory.settle()

    def check(self) -> None:
        """What holds after every step."""
        self.settle()
        s, cells = self.scheduler, self.scheduler.cells
        assert cells.n_cells - cells.n_free == self.runner.n_used()
        for sequence in s.running:
            assert cells.length(sequence.seq_id) == sequence.n_computed
            assert 0 <= sequence.n_computed < len(sequence.tokens) <= self.runner.n_ctx
        slots = [q.slot for q in s.running] + s._free_slots
        assert sorted(slots) == list(range(self.core.n_slots))
        seq_ids = [q.seq_id for q in s.running] + s.cache.seq_ids + s.room.free_seq_ids
        assert sorted(seq_ids) == list(range(self.runner.n_seq_max))
        open_ids = {q.id for q in s.running} | {q.id for q in s.waiting}
        assert open_ids == {i for i, a in self.answers.items() if not a.ends}
        assert self.core._n_admitted - self.core._answers.n_ended == len(open_ids)

    def check_idle(self) -> None:
        """Nothing is left behind, and all cells come back when the cached prefixes go."""
        self.check()
        s = self.scheduler
        assert not s.running and not s.waiting
        assert s.n_cached_only == s.cells.n_cells - s.cells.n_free
        while len(s.cache):
            s.room.evict_oldest()
        self.check()
        assert s.cells.n_free == s.cells.n_cells


@pytest.fixture
def bench() -> Callable[..., Bench]:
    """Makes a ``Bench``; ``runner`` or its arguments may be given."""

    def make(
        runner: FakeLlama | None = None,
        *,
        n_slots: int = 4,
        max_queue: int = 64,
        budget: int = 16,
        tier: Tier | None = None,
        **fields: Any,
    ) -> Bench:
        if runner is None:
            runner = FakeLlama(
                **{"n_ctx": 512, "n_slots": n_slots, "n_seq_max": n_slots + 8, "lora": LORA}
                | fields
            )
        return Bench(runner, n_slots=n_slots, max_queue=max_queue, budget=budget, tier=tier)

    return make


@pytest.fixture
def alone() -> Callable[..., Answer]:
    """What a request gets from an engine that has nothing else to do."""
    seen: dict[Any, Answer] = {}

    def run(prompt: str, *, n_ctx: int = 512, **fields: Any) -> Answer:
        key = (prompt, n_ctx, tuple(sorted(fields.items())))
        if key not in seen:
            fake = FakeLlama(n_ctx=n_ctx, n_slots=1, n_seq_max=3, lora=LORA)
            one = Bench(fake, n_slots=1, budget=64)
            request_id = one.add(prompt, **fields)
            one.run()
            seen[key] = one.answers[request_id]
        return seen[key]

    return run
