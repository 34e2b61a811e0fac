"""From computed tokens to an answer: what is sampled next, what it means, and what goes out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from corral.backend.engine.constraint import Constrained, ConstraintFailed
from corral.backend.engine.llama import Choice, Mask, NotFinite
from corral.backend.engine.messages import (
    Delta,
    Done,
    Failed,
    FinishKind,
    Output,
    Progress,
    PromptProbs,
    Started,
    Stats,
    TokenProbs,
)
from corral.backend.engine.runner import Runner
from corral.backend.engine.scheduler import Scheduler
from corral.backend.engine.sequence import Sequence


class Totals:
    """Counters behind the snapshot; see ``messages.Counters``."""

    def __init__(self) -> None:
        self.prompt_tokens = self.prompt_tokens_cached = self.predicted_tokens = 0
        self.prompt_s = self.predicted_s = 0.0
        self.decode_calls = self.busy_slots = self.steps = 0


class Answering:
    """The sequences that have not ended, by request id, and the outputs not yet handed out."""

    def __init__(self, runner: Runner, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.by_id: dict[int, Sequence] = {}
        self.totals = Totals()
        self.outputs: list[Output] = []
        self.n_ended = 0
        self._clock = clock

    def drain(self) -> list[Output]:
        """The outputs since the last time."""
        outputs, self.outputs = self.outputs, []
        return outputs

    def begin(self, sequence: Sequence) -> None:
        """A sequence got its slot."""
        if sequence.started_s is None:
            sequence.started_s = self._clock()
            self.outputs.append(Started(sequence.id, sequence.slot, sequence.n_cached))
            self.report_progress(sequence, n_computed=sequence.n_cached)

    def take(self, sequence: Sequence, index: int) -> None:
        """All known tokens are computed: sample the next and see what it means."""
        now = sequence.last_token_s = self._clock()
        if sequence.first_token_s is None:
            sequence.first_token_s = now
            self.report_progress(sequence)
            self._count_prompt(sequence)
        if sequence.add.max_tokens == 0:
            return self.end(sequence, "limit")
        constraint = None if sequence.constraint is None else sequence.binding
        if constraint is not None and constraint.must_stop:
            return self.end(sequence, "eos")
        mask = None if constraint is None else _mask(sequence, constraint)
        try:
            choice = self._written(sequence, index) or self.runner.sample(
                sequence.sampler, index, mask
            )
            if constraint is not None and _begins_reasoning(sequence, constraint, choice.token):
                constraint = None
            if constraint is not None:
                constraint.accept(choice.token)
        except NotFinite:
            what = "no token is left to choose" if mask else "the model produced no usable numbers"
            return self.fail(sequence, what)
        except ConstraintFailed as error:
            return self.fail(sequence, f"the answer cannot be constrained further: {error}")
        self._append(sequence, choice)
        if constraint is not None and sequence.is_running:
            self._follow_constraint(sequence)
        return None

    def _written(self, sequence: Sequence, index: int) -> Choice | None:
        """The token that is written in the model's place to end its reasoning; None: none."""
        reasoning = sequence.reasoning
        if reasoning is None:
            return None
        constraint = sequence.binding
        token = reasoning.next(is_whole=sequence.text.is_whole)
        if token is None:
            return None
        if constraint is not None and not constraint.allows(token):
            return None
        sequence.sampler.accept(token)
        n_probs = sequence.add.sampling.n_probs
        return self.runner.log_probs(index, token, n_probs) if n_probs else Choice(token)

    def _follow_constraint(self, sequence: Sequence) -> None:
        """Appends what the constraint leaves no choice about, and ends an answer it completes."""
        constraint = sequence.constraint
        assert constraint is not None
        try:
            # With probabilities every token is chosen, since each has its own.
            forced = [] if sequence.add.sampling.n_probs else constraint.forced()
            for token in forced:
                constraint.accept(token)
                sequence.sampler.accept(token)
                self._append(sequence, Choice(token))
                if not sequence.is_running:
                    return None
        except ConstraintFailed as error:
            return self.fail(sequence, f"the answer cannot be constrained further: {error}")
        if constraint.must_stop:
            self.end(sequence, "eos")
        return None

    def _append(self, sequence: Sequence, choice: Choice) -> None:
        """One more token of the answer, and what it ends."""
        token, add = choice.token, sequence.add
        sequence.tokens.append(token)
        self.totals.predicted_tokens += 1
        if token in self.runner.eog_tokens:
            return self.end(sequence, "eos")
        sequence.unsent.append(token)
        if add.sampling.n_probs:
            sequence.unsent_probs.append(self._with_pieces(choice))
        if sequence.reasoning is not None:
            sequence.reasoning.take(token)
        if token in sequence.marks:
            self._send_mark(sequence, sequence.marks[token])
        else:
            self._send_text(sequence, sequence.text.feed(self.runner.piece(token)))
        if sequence.text.stop is not None:
            return self.end(sequence, "word")
        if sequence.lines.has_ended or 0 < add.max_tokens <= sequence.n_generated:
            return self.end(sequence, "limit")
        if len(sequence.tokens) >= self.runner.n_ctx:
            # Positions of pictures cannot be moved (llama-server does not shift with them either).
            if not add.context_shift or sequence.layout is not None:
                return self.end(sequence, "limit", truncated=True)
            self._shift(sequence)
        return None

    def _shift(self, sequence: Sequence) -> None:
        """Makes room in a full context: forgets tokens behind those to keep (llama-server's rule
        for how many)."""
        add, n = sequence.add, len(sequence.tokens)
        n_keep = sequence.n_prompt if add.n_keep < 0 else add.n_keep
        n_keep = min(n_keep, n - 4)
        if n_keep == 0 and sequence.tokens[0] == self.runner.bos_token:
            n_keep = 1
        n_discard = min(add.n_discard or (n - n_keep) // 2, n - n_keep - 1)
        self.scheduler.forget(sequence, n_keep, max(1, n_discard))

    # --- what goes out ----------------------------------------------------------------------------

    def _send_text(self, sequence: Sequence, text: str) -> None:
        if text and sequence.lines.is_needed:
            assert sequence.first_token_s is not None
            ms = (sequence.last_token_s - sequence.first_token_s) * 1e3
            text = sequence.lines.feed(text, ms)
        if text:
            self._send(sequence, text)

    def _send_mark(self, sequence: Sequence, tag: str) -> None:
        """A tag ends what may become a stop string: all text before it goes out with it."""
        before = sequence.text.flush()
        if sequence.text.stop is None:
            self._send(sequence, before, [(len(before), tag)])
        else:
            self._send(sequence, before)

    def _send(self, sequence: Sequence, text: str, marks: Iterable[tuple[int, str]] = ()) -> None:
        delta = Delta(sequence.id, text, sequence.unsent, sequence.unsent_probs, list(marks))
        self.outputs.append(delta)
        sequence.unsent, sequence.unsent_probs = [], []

    def _with_pieces(self, choice: Choice) -> TokenProbs:
        top = [(t, self.runner.piece(t, special=True), value) for t, value in choice.top]
        piece = self.runner.piece(choice.token, special=True)
        return TokenProbs(choice.token, piece, choice.value, top)

    def report_prompt(self, sequence: Sequence, n: int, last: int) -> None:
        """The prompt tokens that the ``n`` rows up to index ``last`` tell the probabilities of."""
        tokens, start = sequence.tokens, sequence.n_computed
        n_probs, probs = sequence.add.sampling.n_probs, list[TokenProbs]()
        if sequence.n_prompt_probs == 0:
            piece = self.runner.piece(tokens[0], special=True)
            probs.append(TokenProbs(tokens[0], piece, None, []))
        for at in range(max(start + 1, sequence.n_prompt_probs), start + n + 1):
            if at < sequence.n_prompt:
                index = last - (n - 1) + (at - 1 - start)
                choice = self.runner.log_probs(index, tokens[at], n_probs)
                probs.append(self._with_pieces(choice))
        sequence.n_prompt_probs += len(probs)
        if probs:
            self.outputs.append(PromptProbs(sequence.id, probs))

    def report_progress(self, sequence: Sequence, n_computed: int | None = None) -> None:
        """How much of the prompt is done, if that is more than was reported."""
        done = sequence.n_computed if n_computed is None else n_computed
        if done <= sequence.n_reported or sequence.started_s is None:
            return
        sequence.n_reported = done
        ms = (self._clock() - sequence.started_s) * 1e3
        self.outputs.append(Progress(sequence.id, sequence.n_prompt, sequence.n_cached, done, ms))

    def end(self, sequence: Sequence, finish: FinishKind, *, truncated: bool = False) -> None:
        """The answer is over."""
        stop = sequence.text.stop or ""
        tail = sequence.text.flush()
        if tail and sequence.lines.is_needed:
            tail = "" if sequence.lines.has_ended else sequence.lines.feed(tail, 0.0)
        if tail or sequence.unsent:
            self._send(sequence, tail)
        stats = self._stats(sequence, truncated)
        self._leave(sequence, keep=True)
        self.outputs.append(Done(sequence.id, finish, stop, stats))

    def fail(self, sequence: Sequence, message: str) -> None:
        """The answer cannot go on."""
        self._leave(sequence, keep=False)
        self.outputs.append(Failed(sequence.id, "engine_error", message))

    def _leave(self, sequence: Sequence, *, keep: bool) -> None:
        if sequence.first_token_s is not None:
            self.totals.predicted_s += sequence.last_token_s - sequence.first_token_s
        self.scheduler.finish(sequence, keep=keep)
        sequence.sampler.close()
        del self.by_id[sequence.id]
        self.n_ended += 1

    def _count_prompt(self, sequence: Sequence) -> None:
        assert sequence.started_s is not None and sequence.first_token_s is not None
        self.totals.prompt_tokens += sequence.n_prompt - sequence.n_cached
        self.totals.prompt_tokens_cached += sequence.n_cached
        self.totals.prompt_s += sequence.first_token_s - sequence.started_s

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
            truncated=truncated or sequence.n_discarded > 0,
            n_discarded=sequence.n_discarded,
        )


def _mask(sequence: Sequence, constraint: Constrained) -> Mask:
    """Bans what a constraint does not allow, but for the beginning of reasoning."""
    if not sequence.may_reason:
        return constraint.apply
    assert sequence.reasoning is not None
    first = sequence.reasoning.first

    def apply(logits: NDArray[np.float32]) -> None:
        logit = logits[first]
        constraint.apply(logits)
        if first >= 0:
            logits[first] = logit

    return apply


def _begins_reasoning(sequence: Sequence, constraint: Constrained, token: int) -> bool:
    """Whether the token begins reasoning and no answer; then the rest of its tag comes next."""
    reasoning = sequence.reasoning
    if reasoning is None or not sequence.may_reason or token != reasoning.first:
        return False
    if constraint.allows(token):
        return False
    reasoning.begin()
    return True
