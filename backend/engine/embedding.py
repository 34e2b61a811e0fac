"""The engine for vectors and scores: requests of many inputs, computed a few hundred tokens a call.

The verbs are ``EngineCore``'s. Owned by one thread; ``admit`` alone is for another one.
"""

from __future__ import annotations

import collections
import logging
import time
from array import array
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from corral.backend.engine.llama import DecodeFailed, Row
from corral.backend.engine.messages import (
    Counters,
    Done,
    Embed,
    Embedded,
    Failed,
    FinishKind,
    Output,
    Pooling,
    Progress,
    SlotRow,
    Snapshot,
    Started,
    Stats,
    Step,
)
from corral.backend.engine.pace import Threads
from corral.backend.engine.pooling import joined, pooled
from corral.backend.engine.rounds import Job, Piece, Rounds

log = logging.getLogger("corral.engine")


class Embedder(Protocol):
    """What this needs of a model: ``llama.embedding.EmbeddingModel``, or the fake."""

    # ruff: noqa: D102  documented in llama.embedding

    pooling: Pooling
    width: int
    n_input: int
    n_batch: int
    n_call: int
    n_seq_max: int
    n_vocab: int
    can_split: bool

    def tokenize_input(
        self, prompt: str | list[int | str], limit: int | None = None
    ) -> list[int]: ...
    def tokenize_pair(self, query: str, document: str, limit: int | None = None) -> list[int]: ...
    def set_threads(self, n: int) -> None: ...
    def compute(self, rows: list[Row]) -> list[NDArray[np.float32]]: ...
    def forget(self, seq_id: int) -> None: ...


class AdmittedEmbed(NamedTuple):
    """A request whose inputs were tokenised and all fit."""

    embed: Embed
    tokens: list[array[int]]

    @property
    def n_prompt(self) -> int:
        """Tokens of all inputs."""
        return sum(map(len, self.tokens))


class EmbeddingCore:
    """Computes inputs, of ``n_slots`` requests in turn, with ``max_queue`` waiting."""

    def __init__(
        self,
        model: Embedder,
        *,
        n_slots: int,
        max_queue: int,
        threads: Threads,
        clock: Callable[[], float] = time.perf_counter,
        on_started: Callable[[list[Output]], None] | None = None,
    ) -> None:
        self.model = model
        self.n_slots = n_slots
        self._max_open = n_slots + max_queue
        self._threads = threads
        self._clock = clock
        self._on_started = on_started
        self._waiting: collections.deque[Job] = collections.deque()
        # Sequence 0 is for the input that comes in parts.
        self._rounds = Rounds(n_pieces=max(1, model.n_seq_max - 1), can_split=model.can_split)
        self._running = self._rounds.running
        self._outputs: list[Output] = []
        self._n_admitted = 0  # written by the thread that calls admit()
        self._n_ended = 0  # written by the step thread
        self._n_tokens = self._n_calls = self._n_busy = self._n_steps = 0
        self._busy_s = 0.0

    # --- requests come ----------------------------------------------------------------------------

    def admit(self, embed: Embed) -> AdmittedEmbed | Failed:
        """Tokenises all inputs; one that cannot be computed refuses the request."""
        if self._n_admitted - self._n_ended >= self._max_open:
            return Failed(embed.id, "queue_full", "all slots are busy and the queue is full")
        if not embed.inputs:
            return Failed(embed.id, "invalid", "there is no input", param="inputs")
        found: list[array[int]] = []
        limit = self.model.n_input if embed.truncate else None
        for i, given in enumerate(embed.inputs):
            if embed.query is None:
                tokens = self.model.tokenize_input(given, limit)
            else:
                assert isinstance(given, str)
                tokens = self.model.tokenize_pair(embed.query, given, limit)
            problem = self._problem(embed.id, f"inputs[{i}]", tokens)
            if problem is not None:
                return problem
            found.append(array("i", tokens))
        self._n_admitted += 1
        return AdmittedEmbed(embed, found)

    def _problem(self, request_id: int, at: str, tokens: list[int]) -> Failed | None:
        n, limit = len(tokens), self.model.n_input
        if n == 0:
            return Failed(request_id, "invalid", "holds no tokens", param=at)
        if not all(0 <= t < self.model.n_vocab for t in tokens):
            message = f"token ids must be from 0 to {self.model.n_vocab - 1}"
            return Failed(request_id, "invalid", message, param=at)
        if n > limit:
            message = f"has {n} tokens; {limit} can be computed at most"
            extra = {"n_prompt_tokens": n, "n_ctx": limit}
            return Failed(request_id, "context_length_exceeded", message, extra, at)
        return None

    def add(self, admitted: AdmittedEmbed) -> None:
        """Queues a request that ``admit`` let in."""
        self._waiting.append(Job(admitted.embed.id, admitted.tokens, self._clock()))

    def abort(self, request_id: int) -> bool:
        """Ends a request, waiting or running, as ``Done("cancelled")``. False if unknown."""
        for job in (*self._running, *self._waiting):
            if job.id == request_id:
                self._end(job, "cancelled")
                return True
        return False

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would do anything."""
        return bool(self._running or self._waiting or self._outputs)

    # --- a step -----------------------------------------------------------------------------------

    def step(self, room: int | None = None) -> list[Output]:
        """One call, of about ``room`` tokens if that is less than the model likes best; returns
        what came of it."""
        self._start_waiting()
        most = min(self.model.n_call, self.model.n_batch)
        pieces = self._rounds.plan(most if room is None else max(1, min(room, most)))
        if pieces:
            self._n_steps += 1
            self._run(pieces)
        return self.drain()

    def drain(self) -> list[Output]:
        """What ended or began since the last step."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def _start_waiting(self) -> None:
        has_started = False
        while self._waiting and len(self._running) < self.n_slots:
            job = self._waiting.popleft()
            job.started_s = self._clock()
            job.slot = min(set(range(self.n_slots)) - {j.slot for j in self._running})
            self._running.append(job)
            self._outputs.append(Started(job.id, job.slot, 0))
            has_started = True
        if has_started and self._on_started is not None:
            # Before computing: if that ends the process, the server knows whose work it was.
            self._on_started(self.drain())

    def _run(self, pieces: list[Piece]) -> None:
        """Computes pieces and commits them."""
        rows, used = [], 1
        for piece in pieces:
            seq_id = used if piece.is_whole and self.model.n_seq_max > 1 else 0
            used += seq_id > 0
            tokens = piece.job.tokens[piece.number][piece.start : piece.start + piece.n]
            rows.append(Row(seq_id, piece.start, tokens, True, self.model.pooling != "last"))
        n_rows = sum(p.n for p in pieces)
        self.model.set_threads(self._threads.choose(n_rows))
        began = self._clock()
        try:
            found = self.model.compute(rows)
        except DecodeFailed as error:
            self._recover(pieces, error)
            return
        seconds = self._clock() - began
        self._threads.observe(n_rows=n_rows, ms=seconds * 1e3)
        self._n_calls += 1
        self._n_tokens += n_rows
        self._n_busy += len({p.job.id for p in pieces})
        self._busy_s += seconds
        for piece, row, vectors in zip(pieces, rows, found, strict=True):
            self._commit(piece, vectors)
            if piece.is_last:
                self.model.forget(row.seq_id)
        for job in {p.job.id: p.job for p in pieces}.values():
            self._report(job)

    def _recover(self, pieces: list[Piece], error: DecodeFailed) -> None:
        if error.rc < -1:
            raise error  # the context is broken: end the process, the pool starts another
        if len(pieces) > 1:
            # Nothing has changed. Each for itself: only those at fault shall fail.
            for piece in pieces:
                if piece.job in self._running:
                    self._run([piece])
        else:
            self._fail(pieces[0].job, str(error))

    def _commit(self, piece: Piece, vectors: NDArray[np.float32]) -> None:
        job, number, _, n = piece
        if job not in self._running:
            return  # it failed on an input before this one
        job.n_computed += n
        if not piece.is_whole:
            job.parts = joined(self.model.pooling, job.parts, vectors)
            self._rounds.split = None if piece.is_last else piece
            if not piece.is_last:
                return
            vectors, job.parts = np.concatenate(job.parts), []
        n_tokens = len(job.tokens[number])
        result = pooled(self.model.pooling, vectors, n_tokens)
        if not np.isfinite(result).all():
            self._fail(job, "the model produced no usable numbers")
            return
        data = np.ascontiguousarray(result, "<f4").tobytes()
        self._outputs.append(Embedded(job.id, number, n_tokens, data))
        job.n_open -= 1

    # --- what goes out ----------------------------------------------------------------------------

    def _report(self, job: Job) -> None:
        if job not in self._running:
            return
        if job.n_open == 0:
            self._end(job, "eos")
            return
        assert job.started_s is not None
        ms = (self._clock() - job.started_s) * 1e3
        self._outputs.append(Progress(job.id, job.n_prompt, 0, job.n_computed, ms))

    def _end(self, job: Job, finish: FinishKind) -> None:
        now = self._clock()
        started = now if job.started_s is None else job.started_s
        stats = Stats(
            n_prompt=job.n_prompt,
            n_cached=0,
            n_generated=0,
            queue_ms=(started - job.arrived_s) * 1e3,
            prompt_ms=(now - started) * 1e3,
            predicted_ms=0.0,
            seed=0,
            slot=job.slot,
            truncated=False,
        )
        self._leave(job)
        self._outputs.append(Done(job.id, finish, "", stats))

    def _fail(self, job: Job, message: str) -> None:
        self._leave(job)
        self._outputs.append(Failed(job.id, "engine_error", message))

    def _leave(self, job: Job) -> None:
        if job not in self._running:
            self._waiting.remove(job)
        elif self._rounds.leave(job):
            self.model.forget(0)
        self._n_ended += 1

    # --- looking in -------------------------------------------------------------------------------

    def report(self, outputs: list[Output]) -> Step | None:
        """A step's outputs for the server with a snapshot, or None when there is nothing to say."""
        return Step(outputs, self.snapshot())

    def snapshot(self) -> Snapshot:
        """Slots, queue and totals as they are now."""
        rows = [SlotRow(i, "idle") for i in range(self.n_slots)]
        for job in self._running:
            seconds = self._clock() - (job.started_s or 0.0)
            rows[job.slot] = SlotRow(
                id=job.slot,
                state="reading",
                task=job.id,
                n_prompt=job.n_prompt,
                n_processed=job.n_computed,
                max_tokens=0,
                tokens_per_second=job.n_computed / seconds if seconds > 0 else 0.0,
            )
        counters = Counters(
            prompt_tokens=self._n_tokens,
            prompt_seconds=self._busy_s,
            decode_calls=self._n_calls,
            busy_slots=self._n_busy,
            steps=self._n_steps,
        )
        return Snapshot(
            slots=rows,
            waiting=[job.id for job in self._waiting],
            cells_total=0,
            cells_used=0,
            cells_cached=0,
            n_threads=self._threads.n,
            counters=counters,
        )
