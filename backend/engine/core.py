"""The engine without its process: ``step()`` is plan, run, commit. Owned by one thread; no sockets.

``admit`` alone may be called from another thread: it reads two counters that only grow.
"""

import logging
import math
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from corral.backend.engine import sampling
from corral.backend.engine.llama import DecodeFailed, KvFull, NotFinite, Row
from corral.backend.engine.messages import (
    Add,
    Counters,
    Delta,
    Done,
    Failed,
    FinishKind,
    Output,
    Progress,
    Sampling,
    SlotRow,
    Snapshot,
    Started,
    Stats,
    Step,
)
from corral.backend.engine.pace import PromptBudget, Threads
from corral.backend.engine.scheduler import Chunk, Copy, Plan, Scheduler
from corral.backend.engine.sequence import Sequence

log = logging.getLogger("corral.engine")


#: Seconds between snapshots while requests only go on. They cost a few per cent of a fast step.
SNAPSHOT_S = 0.05


class Runner(Protocol):
    """What the engine needs of a model: ``llama.Llama``, or ``fake.FakeLlama``."""

    # ruff: noqa: D102  documented in llama.Llama

    n_ctx: int
    n_cells: int
    n_seq_max: int
    n_batch: int
    n_vocab: int
    can_share: bool
    tile_rows: int

    @property
    def eog_tokens(self) -> frozenset[int]: ...
    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...
    def tokenize_prompt(self, prompt: str | list[int | str]) -> list[int]: ...
    def piece(self, token: int, *, special: bool = False) -> bytes: ...
    def copy(self, source: int, target: int, start: int, end: int) -> None: ...
    def cut(self, seq_id: int, start: int) -> None: ...
    def set_threads(self, n: int) -> None: ...
    def decode(self, rows: list[Row]) -> list[int]: ...
    def sampler(self, stages: list[sampling.Stage], prompt: Any) -> Any: ...
    def sample(self, sampler: Any, index: int) -> int: ...


class Admitted(NamedTuple):
    """A request that was tokenised, fits and has a place in the queue."""

    add: Add
    tokens: list[int]
    bias: list[tuple[int, float]]


class _Totals:
    """Counters behind the snapshot; see ``messages.Counters``."""

    def __init__(self) -> None:
        self.prompt_tokens = self.prompt_tokens_cached = self.predicted_tokens = 0
        self.prompt_s = self.predicted_s = 0.0
        self.decode_calls = self.busy_slots = self.steps = 0


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
    ) -> None:
        self.runner = runner
        self.scheduler = Scheduler(
            n_slots=n_slots,
            n_ctx=runner.n_cells,
            n_seq_max=runner.n_seq_max,
            n_batch=runner.n_batch,
            can_share=runner.can_share,
            tile_rows=runner.tile_rows,
        )
        self.n_slots = n_slots
        self._max_open = n_slots + max_queue
        self._budget = budget
        self._threads = threads
        self._clock = clock
        self._on_started = on_started
        self._by_id: dict[int, Sequence] = {}
        self._totals = _Totals()
        self._outputs: list[Output] = []
        self._n_admitted = 0  # written by the thread that calls admit()
        self._n_ended = 0  # written by the step thread
        self._n_orders = 0
        self._snapshot_at = -math.inf

    # --- requests come ----------------------------------------------------------------------------

    def admit(self, add: Add) -> Admitted | Failed:
        """Tokenises a request and decides whether it may come in. For one other thread to call."""
        if self._n_admitted - self._n_ended >= self._max_open:
            return Failed(add.id, "queue_full", "all slots are busy and the queue is full")
        tokens = self.runner.tokenize_prompt(add.prompt)
        n, n_ctx, n_vocab = len(tokens), self.runner.n_ctx, self.runner.n_vocab
        if n == 0:
            return Failed(add.id, "invalid", "the prompt holds no tokens", param="prompt")
        bias = self._resolve_bias(add.sampling)
        if any(not 0 <= t < n_vocab for t in tokens):
            message = f"token ids must be from 0 to {n_vocab - 1}"
            return Failed(add.id, "invalid", message, param="prompt")
        if any(not 0 <= t < n_vocab for t, _ in bias):
            message = f"token ids must be from 0 to {n_vocab - 1}"
            return Failed(add.id, "invalid", message, param="logit_bias")
        if n >= n_ctx:
            message = f"the prompt has {n} tokens; the context holds {n_ctx}, answer included"
            extra = {"n_prompt_tokens": n, "n_ctx": n_ctx}
            return Failed(add.id, "context_length_exceeded", message, extra, "prompt")
        self._n_admitted += 1
        return Admitted(add, tokens, bias)

    def _resolve_bias(self, asked: Sampling) -> list[tuple[int, float]]:
        bias: list[tuple[int, float]] = []
        for token, value in asked.logit_bias:
            if isinstance(token, int):
                bias.append((token, value))
            else:
                ids = self.runner.tokenize(token, add_special=False, parse_special=True)
                bias += [(t, value) for t in ids]
        if asked.ignore_eos:
            bias += [(t, -math.inf) for t in sorted(self.runner.eog_tokens)]
        return bias

    def add(self, admitted: Admitted) -> None:
        """Queues a request that ``admit`` let in."""
        add, tokens, bias = admitted
        self._n_orders += 1
        sequence = Sequence(add, tokens, order=self._n_orders, now=self._clock())
        seed = add.sampling.seed
        sequence.seed = random.getrandbits(31) if seed is None else seed
        stages = sampling.chain(add.sampling, bias, seed=sequence.seed, n_ctx=self.runner.n_ctx)
        sequence.sampler = self.runner.sampler(stages, sequence.tokens)
        self._by_id[add.id] = sequence
        self.scheduler.add(sequence)

    def abort(self, request_id: int) -> bool:
        """Ends a request, waiting or running, as ``Done("cancelled")``. False if unknown."""
        sequence = self._by_id.get(request_id)
        if sequence is None:
            return False
        self._end(sequence, "cancelled")
        return True

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would do anything."""
        return bool(self._by_id or self._outputs)

    # --- a step -----------------------------------------------------------------------------------

    def step(self) -> list[Output]:
        """Computes one step and returns what came of it, each request's outputs in order."""
        began = self._clock()
        plan = self.scheduler.plan(self._budget.tokens(self.scheduler.n_generating))
        self._begin(plan)
        if plan.started and self._on_started is not None:
            # Before computing: if that ends the process, the server knows whose work it was.
            self._on_started(self.drain())
        n_decode = sum(not c.sequence.is_reading for call in plan.calls for c in call)
        n_prompt = sum(c.n for call in plan.calls for c in call) - n_decode
        for i, chunks in enumerate(plan.calls):
            if not self._run(chunks):
                for rest in plan.calls[i + 1 :]:
                    self.scheduler.rollback(rest)
                break
        else:
            ms = (self._clock() - began) * 1e3
            self._budget.observe(n_decode=n_decode, n_prompt=n_prompt, ms=ms)
        self._totals.steps += 1
        for sequence in self.scheduler.running:
            if sequence.is_reading and sequence.n_generated == 0:
                self._report_progress(sequence)
        return self.drain()

    def drain(self) -> list[Output]:
        """What ended or began since the last step."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def _begin(self, plan: Plan) -> None:
        for operation in plan.kv:
            if isinstance(operation, Copy):
                self.runner.copy(*operation)
            else:
                self.runner.cut(*operation)
        for sequence in plan.started:
            if sequence.started_s is None:
                sequence.started_s = self._clock()
                self._outputs.append(Started(sequence.id, sequence.slot, sequence.n_cached))
                self._report_progress(sequence, n_computed=sequence.n_cached)

    def _run(self, chunks: list[Chunk]) -> bool:
        """One call: compute, commit, sample. False when it changed nothing."""
        rows = [
            Row(s.seq_id, s.n_computed, s.tokens[s.n_computed : s.n_computed + n], n == s.n_left)
            for s, n in chunks
        ]
        n_rows = sum(n for _, n in chunks)
        is_tight = n_rows > len(chunks) and not all(s.is_reading for s, _ in chunks)
        self.runner.set_threads(self._threads.choose(n_rows, is_tight=is_tight))
        began = self._clock()
        try:
            indexes = self.runner.decode(rows)
        except KvFull:
            log.warning("cache full against all accounts; letting go of something")
            self.scheduler.rollback(chunks)
            if not self.scheduler.relieve():
                self._fail(
                    chunks[0].sequence, "the cache has no room, though nothing else is in it"
                )
            return False
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
                self._fail(chunks[0].sequence, str(error))
            return False
        self._threads.observe(n_rows=n_rows, ms=(self._clock() - began) * 1e3)
        self._totals.decode_calls += 1
        self._totals.busy_slots += len(chunks)
        self.scheduler.commit(chunks)
        for (sequence, _), index in zip(chunks, indexes, strict=True):
            if sequence.n_left == 0:
                self._take(sequence, index)
        return True

    def _take(self, sequence: Sequence, index: int) -> None:
        """All known tokens are computed: sample the next and see what it means."""
        now = sequence.last_token_s = self._clock()
        if sequence.first_token_s is None:
            sequence.first_token_s = now
            self._report_progress(sequence)
            self._count_prompt(sequence)
        max_tokens = sequence.add.max_tokens
        if max_tokens == 0:
            return self._end(sequence, "limit")
        try:
            token = self.runner.sample(sequence.sampler, index)
        except NotFinite:
            return self._fail(sequence, "the model produced no usable numbers")
        sequence.tokens.append(token)
        self._totals.predicted_tokens += 1
        if token in self.runner.eog_tokens:
            return self._end(sequence, "eos")
        sequence.unsent.append(token)
        text = sequence.text.feed(self.runner.piece(token))
        if text:
            self._send(sequence, text)
        if sequence.text.stop is not None:
            return self._end(sequence, "word")
        if 0 < max_tokens <= sequence.n_generated:
            return self._end(sequence, "limit")
        if len(sequence.tokens) >= self.runner.n_ctx:
            return self._end(sequence, "limit", truncated=True)
        return None

    # --- what goes out ----------------------------------------------------------------------------

    def _send(self, sequence: Sequence, text: str) -> None:
        self._outputs.append(Delta(sequence.id, text, sequence.unsent))
        sequence.unsent = []

    def _report_progress(self, sequence: Sequence, n_computed: int | None = None) -> None:
        done = sequence.n_computed if n_computed is None else n_computed
        if done <= sequence.n_reported or sequence.started_s is None:
            return
        sequence.n_reported = done
        ms = (self._clock() - sequence.started_s) * 1e3
        self._outputs.append(Progress(sequence.id, sequence.n_prompt, sequence.n_cached, done, ms))

    def _end(self, sequence: Sequence, finish: FinishKind, *, truncated: bool = False) -> None:
        stop = sequence.text.stop or ""
        tail = sequence.text.flush()
        if tail or sequence.unsent:
            self._send(sequence, tail)
        stats = self._stats(sequence, truncated)
        self._leave(sequence, keep=True)
        self._outputs.append(Done(sequence.id, finish, stop, stats))

    def _fail(self, sequence: Sequence, message: str) -> None:
        self._leave(sequence, keep=False)
        self._outputs.append(Failed(sequence.id, "engine_error", message))

    def _leave(self, sequence: Sequence, *, keep: bool) -> None:
        if sequence.first_token_s is not None:
            self._totals.predicted_s += sequence.last_token_s - sequence.first_token_s
        self.scheduler.finish(sequence, keep=keep)
        sequence.sampler.close()
        del self._by_id[sequence.id]
        self._n_ended += 1

    def _count_prompt(self, sequence: Sequence) -> None:
        assert sequence.started_s is not None and sequence.first_token_s is not None
        self._totals.prompt_tokens += sequence.n_prompt - sequence.n_cached
        self._totals.prompt_tokens_cached += sequence.n_cached
        self._totals.prompt_s += sequence.first_token_s - sequence.started_s

    def _stats(self, sequence: Sequence, truncated: bool) -> Stats:
        now = self._clock()
        started = now if sequence.started_s is None else sequence.started_s
        first = now if sequence.first_token_s is None else sequence.first_token_s
        last = max(sequence.last_token_s, first)
        return Stats(
            n_prompt=sequence.n_prompt,
            n_cached=sequence.n_cached,
            n_generated=sequence.n_generated,
            queue_ms=(started - sequence.arrived_s) * 1e3,
            prompt_ms=(first - started) * 1e3,
            predicted_ms=(last - first) * 1e3,
            seed=sequence.seed,
            slot=sequence.slot,
            truncated=truncated,
        )

    # --- looking in -------------------------------------------------------------------------------

    def report(self, outputs: list[Output]) -> Step | None:
        """A step's outputs for the server, with a snapshot when one is due: after ``SNAPSHOT_S``,
        whenever a request begins or ends, and at rest. None when there is nothing to say."""
        now = self._clock()
        notable = any(not isinstance(o, Delta | Progress) for o in outputs)
        due = notable or not self.has_work or now - self._snapshot_at >= SNAPSHOT_S
        if due:
            self._snapshot_at = now
        return Step(outputs, self.snapshot() if due else None) if outputs or due else None

    def snapshot(self) -> Snapshot:
        """Slots, queue, cells and totals as they are now."""
        rows = [SlotRow(i, "idle") for i in range(self.n_slots)]
        for sequence in self.scheduler.running:
            rows[sequence.slot] = self._slot_row(sequence)
        t, cells = self._totals, self.scheduler.cells
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
            ),
        )

    def _slot_row(self, sequence: Sequence) -> SlotRow:
        reading = sequence.first_token_s is None
        since = sequence.started_s if reading else sequence.first_token_s
        n = sequence.n_computed - sequence.n_cached if reading else sequence.n_generated - 1
        until = self._clock() if reading else sequence.last_token_s
        seconds = until - since if since is not None else 0.0
        return SlotRow(
            id=sequence.slot,
            state="reading" if sequence.is_reading else "generating",
            task=sequence.id,
            n_prompt=sequence.n_prompt,
            n_cached=sequence.n_cached,
            n_processed=min(sequence.n_computed, sequence.n_prompt),
            n_generated=sequence.n_generated,
            max_tokens=sequence.add.max_tokens,
            tokens_per_second=n / seconds if seconds > 0 and n > 0 else 0.0,
        )
