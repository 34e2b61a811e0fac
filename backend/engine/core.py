"""The engine without its process: ``step()`` is plan, run, commit. Owned by one thread; no sockets.

``admit`` alone may be called from another thread: it reads two counters that only grow.
"""

import logging
import math
import time
from collections.abc import Callable
from collections.abc import Sequence as Several

from corral.backend.engine.admission import Admission, Admitted
from corral.backend.engine.answering import Answering
from corral.backend.engine.llama import DecodeFailed, KvFull, Row
from corral.backend.engine.media import BadMedia, position
from corral.backend.engine.memory import Memory
from corral.backend.engine.messages import (
    Add,
    Constraint,
    Counters,
    Delta,
    Failed,
    Media,
    Output,
    Progress,
    Prompt,
    SlotRow,
    Snapshot,
    Step,
    Verdict,
)
from corral.backend.engine.pace import PromptBudget, Threads
from corral.backend.engine.runner import Runner
from corral.backend.engine.scheduler import Chunk, Plan, Scheduler
from corral.backend.engine.sequence import Sequence
from corral.backend.engine.tiers import Tier

log = logging.getLogger("corral.engine")


#: Seconds between snapshots while requests only go on. They cost a few per cent of a fast step.
SNAPSHOT_S = 0.1


def _row(s: Sequence, n: int) -> Row:
    at = s.n_computed
    return Row(
        s.seq_id,
        position(s.shifts, at) if s.shifts else at,
        s.tokens[at : at + n],
        n == s.n_left,
        s.add.prompt_probs,
    )


def _count_rows(plan: Plan) -> tuple[int, int]:
    """A plan's decode rows and prompt rows."""
    chunks = [chunk for call in plan.calls for chunk in call]
    n_decode = sum(not c.sequence.is_reading for c in chunks)
    return n_decode, sum(c.n for c in chunks) - n_decode


class EngineCore:
    """Runs requests on a model, ``n_slots`` at a time with ``max_queue`` waiting.

    ``clock`` gives seconds; tests pass their own. ``on_started`` gets the outputs up to a request's
    ``Started`` before its first step is computed; without it they come with the step.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        n_slots: int,
        max_queue: int,
        budget: PromptBudget,
        threads: Threads,
        clock: Callable[[], float] = time.perf_counter,
        on_started: Callable[[list[Output]], None] | None = None,
        tier: Tier | None = None,
        media_bytes: int = 256 << 20,
    ) -> None:
        self.runner = runner
        self.scheduler = Scheduler(
            n_slots=n_slots,
            n_ctx=runner.n_cells,
            n_seq_max=runner.n_seq_max,
            n_batch=runner.n_batch,
            can_share=runner.can_share,
            tile_rows=runner.tile_rows,
            tier=tier,
            n_idle=runner.n_idle_cells,
        )
        self.memory = Memory(runner, self.scheduler)
        self.n_slots = n_slots
        self._admission = Admission(runner, n_slots, media_bytes=media_bytes)
        self._max_open = n_slots + max_queue
        self._budget = budget
        self._threads = threads
        self._clock = clock
        self._on_started = on_started
        self._answers = Answering(runner, self.scheduler, clock)
        self._n_admitted = 0  # written by the thread that calls admit()
        self._n_orders = 0
        self._snapshot_at = -math.inf

    # --- requests come ----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Builds now what the first constrained request would hold every stream up for."""
        self._admission.prepare()

    def admit(self, add: Add) -> Admitted | Failed:
        """Tokenises a request and decides whether it may come in. For one other thread to call."""
        if not add.joins and self._n_admitted - self._answers.n_ended >= self._max_open:
            return Failed(add.id, "queue_full", "all slots are busy and the queue is full")
        admitted = self._admission.admit(add)
        self._n_admitted += isinstance(admitted, Admitted)
        return admitted

    def check(self, constraint: Constraint, then: Callable[[Verdict], None]) -> None:
        """See ``Admission.check``; for ``admit``'s thread."""
        self._admission.check(constraint, then)

    def prompt_tokens(self, prompt: Prompt, media: Several[Media]) -> list[int]:
        """A prompt's tokens; for ``admit``'s thread. Raises ``BadMedia``."""
        return self._admission.tokens(prompt, media)

    def add(self, admitted: Admitted) -> None:
        """Queues a request that ``admit`` let in."""
        add, tokens, seed, sampler, constraint, marks, reasoning, layout = admitted
        self._n_orders += 1
        sequence = Sequence(
            add,
            tokens,
            order=self._n_orders,
            now=self._clock(),
            sampler=sampler,
            seed=seed,
            constraint=constraint,
            adapters=self.memory.adapters_for(add.lora),
            marks=marks,
            reasoning=reasoning,
            layout=layout,
        )
        self._answers.by_id[add.id] = sequence
        self.scheduler.add(sequence)

    def abort(self, request_id: int) -> bool:
        """Ends a request, waiting or running, as ``Done("cancelled")``. False if unknown."""
        sequence = self._answers.by_id.get(request_id)
        if sequence is None:
            return False
        self._answers.end(sequence, "cancelled")
        return True

    def end_thinking(self, request_id: int) -> bool:
        """Lets a request's reasoning end now. False when it is unknown or does not reason."""
        sequence = self._answers.by_id.get(request_id)
        return bool(sequence and sequence.reasoning and sequence.reasoning.stop())

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would do anything."""
        return bool(self._answers.by_id or self._answers.outputs)

    # --- a step -----------------------------------------------------------------------------------

    def step(self) -> list[Output]:
        """Computes one step and returns what came of it, each request's outputs in order."""
        began = self._clock()
        scheduler = self.scheduler
        reads = scheduler.may_read
        plan = scheduler.plan(self._budget.tokens(scheduler.n_generating) if reads else 0)
        if not self.memory.carry_out(plan.kv):
            return self.drain()
        self._begin(plan)
        if plan.started and self._on_started is not None:
            # Before computing: if that ends the process, the server knows whose work it was.
            self._on_started(self.drain())
        if plan.encode is not None:
            began += self._encode(plan.encode)
        n_decode, n_prompt = _count_rows(plan) if reads else (sum(map(len, plan.calls)), 0)
        for i, chunks in enumerate(plan.calls):
            if not self._run(chunks):
                for rest in plan.calls[i + 1 :]:
                    self.scheduler.rollback(rest)
                break
        else:
            ms = (self._clock() - began) * 1e3
            self._budget.observe(n_decode=n_decode, n_prompt=n_prompt, ms=ms)
        self.memory.slots.poll()
        self._answers.totals.steps += 1
        for sequence in self.scheduler.running if reads else ():
            if sequence.is_reading and sequence.n_generated == 0:
                self._answers.report_progress(sequence)
        return self.drain()

    def drain(self) -> list[Output]:
        """What ended or began since the last step."""
        return self._answers.drain()

    def _begin(self, plan: Plan) -> None:
        self.runner.set_adapters(plan.adapters)
        for sequence in plan.started:
            self._answers.begin(sequence)

    def _encode(self, sequence: Sequence) -> float:
        """Has the item that comes next encoded. Seconds that it took."""
        began, placed = self._clock(), sequence.item
        assert placed is not None
        try:
            self.runner.encode(placed.item)
        except BadMedia as error:
            self._answers.fail(sequence, f"a picture or sound failed: {error}")
        return self._clock() - began

    def _run(self, chunks: list[Chunk]) -> bool:
        """One call: compute, commit, sample. False when it changed nothing."""
        n_rows = sum(n for _, n in chunks)
        is_tight = n_rows > len(chunks) and not all(s.is_reading for s, _ in chunks)
        self.runner.set_threads(self._threads.choose(n_rows, is_tight=is_tight))
        began = self._clock()
        indexes = self._compute(chunks)
        if indexes is None:
            return False
        self._threads.observe(n_rows=n_rows, ms=(self._clock() - began) * 1e3)
        self._answers.totals.decode_calls += 1
        self._answers.totals.busy_slots += len(chunks)
        for (sequence, n), index in zip(chunks, indexes, strict=True):
            if sequence.add.prompt_probs:
                self._answers.report_prompt(sequence, n, index)
        self.scheduler.commit(chunks)
        for (sequence, _), index in zip(chunks, indexes, strict=True):
            if sequence.n_left == 0:
                self._answers.take(sequence, index)
        return True

    def _compute(self, chunks: list[Chunk]) -> list[int] | None:
        """Each chunk's index of logits; None when nothing was computed, and what that means for
        the sequences is settled."""
        first = chunks[0].sequence
        try:
            if first.layout is not None and first.item is not None:
                return [self._compute_item(*chunks[0])]
            return self.runner.decode([_row(s, n) for s, n in chunks])
        except KvFull:
            log.warning("cache full against all accounts; letting go of something")
            self.scheduler.rollback(chunks)
            if not self.scheduler.relieve():
                self._answers.fail(
                    chunks[0].sequence, "the cache has no room, though nothing else is in it"
                )
        except DecodeFailed as error:
            if error.rc < -1:
                raise  # the context is broken: end the process, the pool starts another
            if len(chunks) > 1:
                # Nothing has changed. Each for itself: only those at fault shall fail.
                for chunk in chunks:
                    if chunk.sequence.is_running:
                        self._run([chunk])
            else:
                self.scheduler.rollback(chunks)
                self._answers.fail(chunks[0].sequence, str(error))
        return None

    def _compute_item(self, sequence: Sequence, n: int) -> int:
        placed, at = sequence.item, sequence.n_computed
        assert placed is not None
        return self.runner.decode_item(
            placed.item,
            sequence.seq_id,
            position(sequence.shifts, at),
            at - placed.start,
            n,
            wants_logits=n == sequence.n_left,
        )

    # --- looking in -------------------------------------------------------------------------------

    def report(self, outputs: list[Output]) -> Step | None:
        """A step's outputs for the server, with a snapshot when one is due: after ``SNAPSHOT_S``,
        whenever a request begins or ends, and at rest. None when there is nothing to say."""
        now = self._clock()
        due = not self.has_work or now - self._snapshot_at >= SNAPSHOT_S
        for output in outputs:
            due = due or not isinstance(output, (Delta, Progress))
        if due:
            self._snapshot_at = now
        return Step(outputs, self.snapshot() if due else None) if outputs or due else None

    def snapshot(self) -> Snapshot:
        """Slots, queue, cells and totals as they are now."""
        rows = [SlotRow(i, "idle") for i in range(self.n_slots)]
        for sequence in self.scheduler.running:
            rows[sequence.slot] = self._slot_row(sequence)
        t, cells = self._answers.totals, self.scheduler.cells
        return Snapshot(
            slots=rows,
            waiting=[s.id for s in self.scheduler.waiting],
            cells_total=cells.n_cells,
            cells_used=cells.n_cells - cells.n_free,
            cells_cached=self.scheduler.n_cached_only,
            n_threads=self._threads.n,
            counters=Counters(
                t.prompt_tokens,
                t.prompt_tokens_cached,
                t.prompt_s,
                t.predicted_tokens,
                t.predicted_s,
                t.decode_calls,
                t.busy_slots,
                self.scheduler.n_preempted,
                t.steps,
                *self.memory.counts,
            ),
            **self.memory.sizes,
        )

    def _slot_row(self, sequence: Sequence) -> SlotRow:
        reading = sequence.first_token_s is None
        since = sequence.started_s if reading else sequence.first_token_s
        n = sequence.n_computed - sequence.n_cached if reading else sequence.n_generated - 1
        until = self._clock() if reading else sequence.last_token_s
        seconds = until - since if since is not None else 0.0
        return SlotRow(
            id=sequence.slot,
            state="reading" if reading else "generating",
            task=sequence.id,
            n_prompt=sequence.n_prompt,
            n_cached=sequence.n_cached,
            n_processed=min(sequence.n_computed, sequence.n_prompt),
            n_generated=sequence.n_generated,
            max_tokens=sequence.add.max_tokens,
            tokens_per_second=n / seconds if seconds > 0 and n > 0 else 0.0,
        )
