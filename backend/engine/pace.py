"""What measured step times say: how many prompt tokens a step may take, and how many threads.

Pure: times are given, never taken. All times in milliseconds.
"""

import collections
import math

#: Longest step beside running streams, in units of a step without prompts, when no target is set.
#: Readers of a stream see the gap; five times the usual is where it starts to look like a stall.
GAP_FACTOR = 4.3
#: Prompt tokens computed beside running streams before their cost is known.
FIRST_CHUNK = 16
#: Steps with prompts in a row after which one goes nearly without, to see what that takes now.
LOOK_PERIOD = 64
#: Prompt tokens per step when nobody is generating: never fewer, and more only while such a step
#: stays below this many milliseconds. A request that arrives meanwhile waits for its end.
ALONE_CHUNK, ALONE_MS = 128, 400.0


class Average:
    """An exponential average that starts at its first value."""

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self.value: float | None = None

    def add(self, x: float) -> None:
        """Moves towards ``x``."""
        self.value = x if self.value is None else self.value + self._weight * (x - self.value)


class Typical:
    """The median of the last seven values: a single stall does not move it, a change does soon."""

    def __init__(self) -> None:
        self._recent: collections.deque[float] = collections.deque(maxlen=7)
        self.last = 0.0

    def add(self, x: float) -> None:
        """Takes a value in, and forgets the eighth last."""
        self._recent.append(x)
        self.last = x

    @property
    def value(self) -> float | None:
        """The median; None before the first value."""
        n = len(self._recent)
        return sorted(self._recent)[(n - 1) // 2] if n else None


class PromptBudget:
    """Prompt tokens per step such that running streams hardly notice (``target_ms`` 0: automatic).

    A step of ``n`` streams takes a(n), a prompt token in it b more. Both are measured, a(n) in
    steps without prompts; where such do not come by themselves one is made, with a single token.
    ``tile_rows``: rows from which the runner computes in tiles of that many (0: it does not).
    """

    def __init__(self, *, n_batch: int, target_ms: float = 0.0, tile_rows: int = 0) -> None:
        self._n_batch = n_batch
        self._tile_rows = tile_rows
        self._target_ms = target_ms
        self._alone_ms = Typical()
        self._decode_ms: dict[int, Typical] = {}
        self._token_ms = Typical()
        self._n_mixed = 0  # since the last step without prompts
        self._last = FIRST_CHUNK  # prompt tokens of the last step that had some

    def observe(self, *, n_decode: int, n_prompt: int, ms: float) -> None:
        """A step of ``n_decode`` single tokens and ``n_prompt`` prompt tokens took ``ms``."""
        if n_decode and n_prompt <= 1:
            # To the model a prompt token is a row like any other: one is a stream more.
            usual = self._decode_ms.get(n_decode + n_prompt)
            if usual is None:
                usual = self._decode_ms[n_decode + n_prompt] = Typical()
            usual.add(ms)
            self._n_mixed = 0
        if n_decode and n_prompt:
            self._n_mixed += n_prompt > 1
            self._last = max(n_prompt, self._last // 2)
            self._token_ms.add(max(ms - self._step_ms(n_decode), 0.1 * ms) / n_prompt)
        elif n_prompt >= min(ALONE_CHUNK, self._n_batch):
            self._alone_ms.add(ms / n_prompt)

    def tokens(self, n_decode: int) -> int:
        """The budget of the next step with ``n_decode`` generating sequences; at least 1."""
        if n_decode == 0:
            alone = int(ALONE_MS / self._alone_ms.value) if self._alone_ms.value else 0
            return min(self._n_batch, max(ALONE_CHUNK, alone // 64 * 64))
        if self._n_mixed >= LOOK_PERIOD or not self._is_measured(n_decode):
            return 1
        step_ms, token_ms = self._step_ms(n_decode), self._token_ms.value
        if token_ms is None:
            return min(self._n_batch, FIRST_CHUNK)
        target_ms = self._target_ms or GAP_FACTOR * step_ms
        # Too much is felt at once, so the last step counts when it was a slow one; but a stall must
        # not stop the reading, nor a lucky one make the next too long: twice or half at most.
        n = int((target_ms - step_ms) / max(token_ms, self._token_ms.last, 1e-6))
        n = min(max(n, self._last // 2), 2 * self._last, self._n_batch)
        tile = self._tile_rows
        if tile and n >= tile:
            n -= n % tile
        elif tile and n + n_decode >= tile:
            # One call below the tile size is cheaper than two.
            n = tile - 1 - n_decode
        return max(1, n)

    def _is_measured(self, n_decode: int) -> bool:
        """Whether about this many streams have been seen: as many, or one more or less."""
        return any(n in self._decode_ms for n in (n_decode, n_decode + 1, n_decode - 1))

    def _step_ms(self, n_decode: int) -> float:
        """Expected time of a step without prompts: measured, or scaled from the nearest width."""
        measured = {n: t.value for n, t in self._decode_ms.items() if t.value is not None}
        if not measured:
            return 0.0
        nearest = min(measured, key=lambda n: abs(n - n_decode))
        return measured[nearest] * max(1.0, n_decode / nearest)


#: A call that takes this many times the usual is slow; a second one soon after is no accident.
SLOW = 2.5
#: Calls of a trial, and how much quicker they must be on average to win it.
TRIAL_CALLS, WORTH_IT = 4, 0.93


class _Trial:
    """Another number of threads takes turns with the current one, in calls of one width."""

    def __init__(self, at: int, kind: int, *, is_urgent: bool) -> None:
        self.at = at
        self.kind = kind
        self.is_urgent = is_urgent
        self.has_turn = True
        self.n = 0
        self.sum = 0.0
        self.n_other = 0  # calls of other widths meanwhile


class Threads:
    """How many compute threads to use, learnt from call times while serving.

    On cores shared with other work, threads that wait for each other at barriers can be many times
    slower than one. So the count is a bandit's choice among ``n_max``, half of it, and so on to 1:
    the best known, with short trials of others, nearest first, and of fewer at once when calls get
    slow. A trial that wins is followed by one further on. They come every ``period`` calls; each
    time all others have lost, twice as seldom, up to every ``longest`` calls. Times are compared
    per row, within calls of about the same width.
    """

    def __init__(self, n_max: int, *, fixed: int = 0, period: int = 8, longest: int = 256) -> None:
        self._choices = [fixed or n_max]
        while not fixed and self._choices[-1] > 1:
            self._choices.append(self._choices[-1] // 2)
        self._at = 0
        self._period, self._wait, self._longest = period, period, longest
        self._n_calls = 0  # since the last trial
        self._n_lost = 0  # trials since the last that won
        self._slowness = 0.0
        self._step = 1  # where the next trial looks, from where we are: 1, -1, 2, -2 …
        self._trial: _Trial | None = None
        self._usual: dict[int, Average] = {}  # ms per row with the current number, by width
        self._kind = 0
        self._is_tight = False

    @property
    def n(self) -> int:
        """The number found best so far."""
        return self._choices[self._at]

    def choose(self, n_rows: int, *, is_tight: bool = False) -> int:
        """Threads for the next call, of ``n_rows`` rows. A tight one, where streams wait for
        a slice of a prompt, is no place for a trial that nothing calls for."""
        if len(self._choices) == 1:
            return self._choices[0]
        self._kind = round(4 * math.log2(n_rows))  # widths within some ten percent of each other
        self._is_tight = is_tight
        trial = self._trial
        is_tried = trial is not None and trial.has_turn and self._suits(trial)
        return self._choices[trial.at if trial is not None and is_tried else self._at]

    def _suits(self, trial: _Trial) -> bool:
        return trial.kind == self._kind and (trial.is_urgent or not self._is_tight)

    def observe(self, *, n_rows: int, ms: float) -> None:
        """The call that ``choose`` was last asked about took ``ms``."""
        if len(self._choices) == 1:
            return
        trial, per_row = self._trial, ms / n_rows
        if trial is None:
            self._watch(per_row)
        elif not self._suits(trial):
            trial.n_other += 1
            if trial.n_other > self._longest:
                self._trial = None  # that width does not come any more
        elif trial.has_turn:
            trial.has_turn = False
            self._judge(trial, per_row)
        else:
            trial.has_turn = True
            self._usual[trial.kind].add(per_row)

    def _watch(self, per_row: float) -> None:
        usual = self._usual.setdefault(self._kind, Average(1 / 16))
        is_slow = usual.value is not None and per_row > SLOW * usual.value
        usual.add(per_row)
        self._n_calls += 1
        self._slowness = self._slowness + 1 if is_slow else max(0.0, self._slowness - 1 / 8)
        if self._slowness >= 1.5 and self._at + 1 < len(self._choices):
            self._slowness = 0.0
            self._begin_trial(1, is_urgent=True)
        elif self._n_calls >= self._wait and not self._is_tight:
            self._begin_trial(self._step)

    def _begin_trial(self, step: int, *, is_urgent: bool = False) -> None:
        self._step = step
        self._n_calls = 0
        self._trial = _Trial(self._at + step, self._kind, is_urgent=is_urgent)

    def _judge(self, trial: _Trial, per_row: float) -> None:
        trial.n += 1
        trial.sum += per_row
        mean, usual = trial.sum / trial.n, self._usual[trial.kind].value
        assert usual is not None
        if trial.n >= TRIAL_CALLS or (trial.n > 1 and mean < usual / 2):
            self._end_trial(trial, has_won=mean < WORTH_IT * usual)
        elif per_row > SLOW * usual:
            self._end_trial(trial, has_won=False)  # clearly worse: not worth the rest

    def _end_trial(self, trial: _Trial, *, has_won: bool) -> None:
        self._trial = None
        if has_won:
            self._at = trial.at
            self._usual = {trial.kind: Average(1 / 16)}
            self._usual[trial.kind].add(trial.sum / trial.n)
            self._wait, self._n_lost = self._period, 0
            self._step = 1 if self._step > 0 else -1
            if self._is_choice(self._step):
                self._begin_trial(self._step, is_urgent=trial.is_urgent)
                return
        elif trial.is_urgent and self._is_choice(self._step + 1):
            self._begin_trial(self._step + 1, is_urgent=True)
            return
        else:
            if trial.is_urgent:  # something has changed: look more often again
                self._wait, self._n_lost = min(self._wait, 4 * self._period), 0
            self._n_lost += 1
            if self._n_lost % (len(self._choices) - 1) == 0:
                self._wait = min(2 * self._wait, self._longest)
        self._step = self._next_step()

    def _is_choice(self, step: int) -> bool:
        return 0 <= self._at + step < len(self._choices)

    def _next_step(self) -> int:
        """Where to look after the last place: nearest first, fewer threads before more."""
        steps = [s for i in range(1, len(self._choices)) for s in (i, -i) if self._is_choice(s)]
        return (
            steps[(steps.index(self._step) + 1) % len(steps)] if self._step in steps else steps[0]
        )
