"""What measured step times say: how many prompt tokens a step may take, and how many threads.

Pure: times are given, never taken. All times in milliseconds.
"""

#: Longest step beside running streams, in units of a step without prompts, when no target is set.
#: Readers of a stream see the gap; five times the usual is where it starts to look like a stall.
GAP_FACTOR = 4.3
#: Prompt tokens computed beside running streams before anything has been measured.
FIRST_CHUNK = 16
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


class PromptBudget:
    """Prompt tokens per step such that running streams hardly notice (``target_ms`` 0: automatic).

    ``tile_rows``: rows from which the runner computes in tiles of that many (0: it does not).
    """

    def __init__(self, *, n_batch: int, target_ms: float = 0.0, tile_rows: int = 0) -> None:
        self._n_batch = n_batch
        self._tile_rows = tile_rows
        self._alone_ms = Average(0.25)
        self._target_ms = target_ms
        self._decode_ms: dict[int, Average] = {}
        self._token_ms = Average(0.25)

    def observe(self, *, n_decode: int, n_prompt: int, ms: float) -> None:
        """A step of ``n_decode`` single tokens and ``n_prompt`` prompt tokens took ``ms``."""
        if n_prompt == 0 and n_decode:
            self._decode_ms.setdefault(n_decode, Average(0.1)).add(ms)
        elif n_decode and n_prompt:
            self._token_ms.add(max(ms - self._step_ms(n_decode), 0.1 * ms) / n_prompt)
        elif n_prompt >= min(ALONE_CHUNK, self._n_batch):
            self._alone_ms.add(ms / n_prompt)

    def tokens(self, n_decode: int) -> int:
        """The budget of the next step with ``n_decode`` generating sequences."""
        if n_decode == 0:
            alone = int(ALONE_MS / self._alone_ms.value) if self._alone_ms.value else 0
            return min(self._n_batch, max(ALONE_CHUNK, alone // 64 * 64))
        step_ms, token_ms = self._step_ms(n_decode), self._token_ms.value
        if not step_ms or token_ms is None:
            return min(self._n_batch, FIRST_CHUNK)
        target_ms = self._target_ms or GAP_FACTOR * step_ms
        n = int((target_ms - step_ms) / token_ms)
        tile = self._tile_rows
        if tile and n >= tile:
            n -= n % tile
        elif tile and n + n_decode >= tile:
            # One call below the tile size is cheaper than two.
            n = tile - 1 - n_decode
        return max(1, min(n, self._n_batch))

    def _step_ms(self, n_decode: int) -> float:
        """Expected time of a step without prompts: measured, or scaled from the nearest width."""
        known = self._decode_ms.get(n_decode)
        if known is not None and known.value is not None:
            return known.value
        measured = {n: a.value for n, a in self._decode_ms.items() if a.value is not None}
        if not measured:
            return 0.0
        nearest = min(measured, key=lambda n: abs(n - n_decode))
        return measured[nearest] * max(1.0, n_decode / nearest)


class Threads:
    """How many compute threads to use, learnt from step times while serving.

    On cores shared with other work, threads that wait for each other at barriers can be many times
    slower than one. So the count is a bandit's choice: the best known, with a short trial of a
    neighbour every ``period`` steps, and at once when steps take much longer than they used to.
    Times are compared per row of the batch, within one class of batch width.
    """

    def __init__(self, n_max: int, *, fixed: int = 0, period: int = 64) -> None:
        self._choices = [n_max]
        while self._choices[-1] > 1:
            self._choices.append(self._choices[-1] // 2)
        self._period = period
        self._fixed = fixed
        self._at = 0
        self._trial: int | None = None
        self._trial_left = 0
        self._steps = 0
        self._slow = 0
        self._direction = 1
        self._times: dict[tuple[int, int], Average] = {}
        self._class = 0

    @property
    def n(self) -> int:
        """Threads to use for the next step."""
        if self._fixed:
            return self._fixed
        return self._choices[self._at if self._trial is None else self._trial]

    def observe(self, *, n_rows: int, ms: float) -> None:
        """A call of ``n_rows`` rows took ``ms`` with the current number of threads."""
        if self._fixed or len(self._choices) == 1:
            return
        self._class = min(n_rows.bit_length(), 8)
        index = self._at if self._trial is None else self._trial
        average = self._times.setdefault((index, self._class), Average(0.3))
        usual, per_row = average.value, ms / n_rows
        average.add(per_row)
        if self._trial is not None:
            self._judge_trial(per_row)
            return
        self._steps += 1
        # Four times the usual, twice running: something else wants the cores.
        self._slow = self._slow + 1 if usual is not None and per_row > 4 * usual else 0
        if self._slow >= 2:
            self._slow = 0
            self._start_trial(down=True)
        elif self._steps >= self._period:
            self._start_trial(down=False)

    def _start_trial(self, *, down: bool) -> None:
        self._steps = 0
        neighbours = [self._at + 1] if down else [self._at + self._direction, self._at - self._direction]
        self._direction = -self._direction
        for index in neighbours:
            if 0 <= index < len(self._choices):
                self._trial, self._trial_left = index, 3
                self._times.pop((index, self._class), None)
                return

    def _judge_trial(self, per_row: float) -> None:
        assert self._trial is not None
        tried, current = self._times.get((self._trial, self._class)), self._times.get((self._at, self._class))
        self._trial_left -= 1
        if current is None or current.value is None or tried is None or tried.value is None:
            self._trial = None if self._trial_left <= 0 else self._trial
            return
        if per_row > 3 * current.value:
            self._trial = None  # clearly worse: do not pay for the rest of the trial
        elif self._trial_left <= 0:
            if tried.value < 0.93 * current.value:
                self._at = self._trial
            self._trial = None
