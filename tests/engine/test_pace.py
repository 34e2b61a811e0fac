import itertools
import random
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.backend.engine.pace import (
    ALONE_CHUNK,
    ALONE_MS,
    GAP_FACTOR,
    LOOK_PERIOD,
    PromptBudget,
    Threads,
    Typical,
)

Cost = Callable[[int, int], float]


# --- the prompt budget ------------------------------------------------------------------


def _linear(n_decode: int, n_prompt: int) -> float:
    """A small model on two cores: milliseconds of a step."""
    return 6.0 + 4.0 * n_decode + 2.5 * n_prompt


def _bent(n_decode: int, n_prompt: int) -> float:
    """Reading the weights dominates narrow steps: the first tokens are free."""
    return 40.0 + 2.0 * n_decode + 3.0 * max(0, n_prompt + n_decode - 20)


def _quick(n_decode: int, n_prompt: int) -> float:
    """An accelerator."""
    return 5.0 + 0.05 * n_decode + 0.02 * n_prompt


def _steps(budget: PromptBudget, cost: Cost, n_decode: int, n: int) -> Iterator[tuple[int, float]]:
    """``n`` steps beside streams while there is always more to read: tokens and milliseconds."""
    for _ in range(n):
        n_prompt = budget.tokens(n_decode)
        ms = cost(n_decode, n_prompt)
        budget.observe(n_decode=n_decode, n_prompt=n_prompt, ms=ms)
        yield n_prompt, ms


@pytest.mark.parametrize("cost", [_linear, _bent])
@pytest.mark.parametrize("n_decode", [1, 4, 8])
@pytest.mark.parametrize("has_streamed", [True, False])
def test_steps_beside_streams_come_to_take_the_target(
    cost: Cost, n_decode: int, has_streamed: bool
) -> None:
    budget = PromptBudget(n_batch=512)
    if has_streamed:
        for _ in range(5):
            budget.observe(n_decode=n_decode, n_prompt=0, ms=cost(n_decode, 0))
    taken = list(_steps(budget, cost, n_decode, 40))
    target = GAP_FACTOR * cost(n_decode, 0)
    assert all(ms < 1.5 * target for _, ms in taken)
    late = [ms for n, ms in taken[20:] if n > 1]
    assert len(late) >= 19
    assert all(0.75 * target < ms < 1.25 * target for ms in late)


@pytest.mark.parametrize("target_ms", [40.0, 120.0])
def test_a_target_that_was_set_is_kept(target_ms: float) -> None:
    budget = PromptBudget(n_batch=512, target_ms=target_ms)
    late = list(_steps(budget, _linear, 2, 40))[20:]
    assert all(0.85 * target_ms < ms <= 1.01 * target_ms for n, ms in late if n > 1)


def test_a_quick_machine_reads_whole_batches_beside_streams() -> None:
    budget = PromptBudget(n_batch=512)
    assert [n for n, _ in _steps(budget, _quick, 4, 40)][-1] == 512


def test_the_budget_grows_at_most_twofold_a_step() -> None:
    budget = PromptBudget(n_batch=4096)
    numbers = [n for n, _ in _steps(budget, _quick, 1, 20)]
    assert all(b <= 2 * max(a, 16) for a, b in itertools.pairwise(numbers))


def test_a_single_stall_moves_nothing() -> None:
    budget = PromptBudget(n_batch=512)
    for _ in range(7):
        budget.observe(n_decode=2, n_prompt=0, ms=_linear(2, 0))
    list(_steps(budget, _linear, 2, 20))
    before = budget.tokens(2)
    budget.observe(n_decode=2, n_prompt=0, ms=50 * _linear(2, 0))
    assert budget.tokens(2) == before
    # What concerns the tokens is felt for a step.
    budget.observe(n_decode=2, n_prompt=before, ms=50 * _linear(2, before))
    after = [n for n, _ in _steps(budget, _linear, 2, 2)]
    assert before // 2 <= after[0] <= before
    assert after[1] == before


def test_lasting_change_is_noticed_within_a_few_steps() -> None:
    budget = PromptBudget(n_batch=512, target_ms=100)
    list(_steps(budget, _linear, 2, 30))

    def slower(n_decode: int, n_prompt: int) -> float:
        return 3 * _linear(n_decode, n_prompt)

    taken = [ms for n, ms in _steps(budget, slower, 2, 30) if n > 1]
    assert taken[0] > 200
    assert all(ms < 125 for ms in taken[8:])


def test_the_cost_of_a_bare_step_is_looked_at_again_while_prompts_never_end() -> None:
    # The streams' steps get five times quicker: what was a small gap is a long one now.
    def slow(n_decode: int, n_prompt: int) -> float:
        return 5 * (6.0 + 4.0 * n_decode) + 2.5 * n_prompt

    budget = PromptBudget(n_batch=512)
    list(_steps(budget, slow, 2, LOOK_PERIOD))
    taken = [ms for n, ms in _steps(budget, _linear, 2, 6 * LOOK_PERIOD) if n > 1]
    assert taken[0] > 2 * GAP_FACTOR * _linear(2, 0)
    assert taken[-1] < 1.25 * GAP_FACTOR * _linear(2, 0)


def test_many_streams_are_not_taken_for_many_times_one() -> None:
    budget = PromptBudget(n_batch=512)
    for _ in range(5):
        budget.observe(n_decode=1, n_prompt=0, ms=_linear(1, 0))
    list(_steps(budget, _linear, 1, 10))
    assert all(ms < 1.25 * GAP_FACTOR * _linear(8, 0) for _, ms in _steps(budget, _linear, 8, 20))


def test_looking_costs_next_to_nothing() -> None:
    budget = PromptBudget(n_batch=512)
    numbers = [n for n, _ in _steps(budget, _linear, 2, 1000)]
    assert numbers.count(1) <= 1000 / LOOK_PERIOD + 1


def test_in_tiles_the_budget_is_whole_tiles_or_one_call_below() -> None:
    budget = PromptBudget(n_batch=512, tile_rows=64)
    for n_decode in (1, 4, 9):
        for n, _ in _steps(budget, _quick, n_decode, 50):
            assert n % 64 == 0 if n >= 64 else n + n_decode < 64


def test_prompts_alone_are_read_in_large_chunks_of_bounded_time() -> None:
    budget = PromptBudget(n_batch=512)
    assert budget.tokens(0) == ALONE_CHUNK
    for ms_per_token, expected in ((0.01, 512), (2.0, 192), (100.0, ALONE_CHUNK)):
        for _ in range(8):
            n = budget.tokens(0)
            budget.observe(n_decode=0, n_prompt=n, ms=n * ms_per_token)
        assert budget.tokens(0) == expected
        assert expected == ALONE_CHUNK or expected * ms_per_token <= ALONE_MS


@given(
    st.lists(
        st.tuples(
            st.integers(0, 8),
            st.integers(0, 512),
            st.one_of(st.just(0.0), st.floats(1e-6, 1e6)),
        ),
        max_size=60,
    ),
    st.integers(0, 70),
    st.sampled_from([4, 64, 512]),
    st.sampled_from([0, 64]),
    st.sampled_from([0.0, 1.0, 50.0]),
)
def test_the_budget_is_never_nothing_nor_more_than_a_batch(
    seen: list[tuple[int, int, float]], n_decode: int, n_batch: int, tile: int, target: float
) -> None:
    budget = PromptBudget(n_batch=n_batch, target_ms=target, tile_rows=tile)
    for n, n_prompt, ms in seen:
        budget.observe(n_decode=n, n_prompt=n_prompt, ms=ms)
        assert 1 <= budget.tokens(n_decode) <= n_batch
    assert 1 <= budget.tokens(n_decode) <= n_batch


def test_the_typical_value_ignores_stalls_and_follows_changes() -> None:
    typical = Typical()
    assert typical.value is None
    for x in (1.0, 1.0, 1.0, 99.0, 1.0, 99.0):
        typical.add(x)
    assert typical.value == 1.0
    for _ in range(4):
        typical.add(5.0)
    assert typical.value == 5.0


# --- the number of threads --------------------------------------------------------------


class Machine:
    """Cores shared with ``hogs``, other programs that compute all the time.

    A call's parts wait for each other at barriers: with more threads than free cores, the slowest
    thread runs ``stall`` times slower, in the fraction ``often`` of calls.
    """

    def __init__(self, n_cores: int, *, stall: float = 10.0, often: float = 1.0) -> None:
        self.n_cores = n_cores
        self.n_free = n_cores
        self.stall = stall
        self.often = often
        self._random = random.Random(1)

    def ms(self, n_threads: int, n_rows: int) -> float:
        ms = (8.0 + 2.0 * n_rows) * (0.2 + 0.8 / n_threads) * self._random.uniform(0.9, 1.1)
        is_stalled = n_threads > self.n_free and self._random.random() < self.often
        return ms * self.stall if is_stalled else ms


def _calls(threads: Threads, machine: Machine, n: int, rows: Sequence[int] = (1,)) -> float:
    """``n`` calls; the time they took, in units of what the best fixed number takes on average."""
    taken = 0.0
    for i in range(n):
        n_rows = rows[i % len(rows)]
        ms = machine.ms(threads.choose(n_rows), n_rows)
        threads.observe(n_rows=n_rows, ms=ms)
        taken += ms
    choices = {machine.n_cores >> i or 1 for i in range(8)}
    best = min(sum(machine.ms(t, rows[i % len(rows)]) for i in range(300)) for t in choices)
    return (taken / n) / (best / 300)


@pytest.mark.parametrize("n_cores", [2, 6, 16, 64])
def test_alone_all_cores_are_used(n_cores: int) -> None:
    threads, machine = Threads(n_cores), Machine(n_cores)
    _calls(threads, machine, 300)
    assert _calls(threads, machine, 1000) < 1.2
    assert threads.n == n_cores


@pytest.mark.parametrize(("n_cores", "n_free", "best"), [(2, 1, 1), (8, 6, 4), (16, 2, 2)])
def test_threads_drop_within_a_few_calls_when_a_neighbour_comes(
    n_cores: int, n_free: int, best: int
) -> None:
    threads, machine = Threads(n_cores), Machine(n_cores)
    _calls(threads, machine, 500)
    machine.n_free = n_free
    n_calls = 0
    while threads.n != best:
        _calls(threads, machine, 1)
        n_calls += 1
        assert n_calls <= 15


def test_the_best_number_is_found_beyond_others_that_are_no_better() -> None:
    threads, machine = Threads(16), Machine(16)
    _calls(threads, machine, 500)
    machine.n_free = 1  # 8, 4 and 2 are as bad as 16
    _calls(threads, machine, 250)
    assert threads.n == 1


@pytest.mark.parametrize("n_cores", [2, 8, 16])
def test_threads_return_when_the_neighbour_leaves(n_cores: int) -> None:
    threads, machine = Threads(n_cores), Machine(n_cores)
    _calls(threads, machine, 300)
    machine.n_free = 1
    _calls(threads, machine, 2000)
    assert threads.n == 1
    machine.n_free = n_cores
    _calls(threads, machine, 700)
    assert threads.n == n_cores


@pytest.mark.parametrize("often", [0.2, 0.5, 1.0])
def test_stalls_in_a_part_of_the_calls_are_noticed_too(often: float) -> None:
    threads, machine = Threads(2), Machine(2, often=often)
    machine.n_free = 1
    _calls(threads, machine, 300)
    assert _calls(threads, machine, 1000) < 1.35


def test_cores_that_were_never_there_are_found_missing_soon() -> None:
    # As in a container that may use two of its host's cores.
    threads, machine = Threads(64), Machine(64)
    machine.n_free = 2
    _calls(threads, machine, 150)
    assert threads.n == 2


@pytest.mark.parametrize("n_free", [1, 2])
def test_trials_cost_little_once_all_is_known(n_free: int) -> None:
    threads, machine = Threads(2), Machine(2)
    machine.n_free = n_free
    _calls(threads, machine, 2000)
    n_best = threads.n
    n_trials, slowed = 0, 0.0
    for _ in range(4000):
        n_threads = threads.choose(1)
        ms = machine.ms(n_threads, 1)
        threads.observe(n_rows=1, ms=ms)
        n_trials += n_threads != n_best
        slowed += max(0.0, ms / machine.ms(n_best, 1) - 1) if n_threads != n_best else 0.0
    assert 0 < n_trials < 200
    assert slowed / 4000 < 0.06


def test_calls_of_different_widths_are_not_compared_with_each_other() -> None:
    threads, machine = Threads(4), Machine(4)
    _calls(threads, machine, 300)
    # Steps with prompts take ten times as long: no reason to use fewer threads.
    n_fewer = 0
    for i in range(3000):
        n_rows = 60 if i % 55 >= 50 else 1
        n_threads = threads.choose(n_rows)
        threads.observe(n_rows=n_rows, ms=machine.ms(n_threads, n_rows))
        n_fewer += n_threads < 4
    assert n_fewer < 80


def test_a_width_that_no_longer_comes_does_not_hold_up_trials() -> None:
    threads, machine = Threads(2), Machine(2)
    while threads.choose(1) == 2:
        _calls(threads, machine, 1)
    machine.n_free = 1  # in the middle of a trial, and now all calls are wider
    _calls(threads, machine, 400, rows=[30])
    assert threads.n == 1


def test_a_change_that_has_nothing_to_do_with_threads_is_taken_as_it_is() -> None:
    threads, machine = Threads(4), Machine(4)
    _calls(threads, machine, 300)

    class Longer(Machine):
        def ms(self, n_threads: int, n_rows: int) -> float:
            return 6 * super().ms(n_threads, n_rows)

    _calls(threads, Longer(4), 100)
    assert _calls(threads, Longer(4), 1000) < 1.2
    assert threads.n == 4


def test_a_fixed_number_stays() -> None:
    threads, machine = Threads(8, fixed=3), Machine(8)
    machine.n_free = 1
    _calls(threads, machine, 500)
    assert threads.n == threads.choose(1) == 3


@given(
    st.integers(1, 80),
    st.lists(
        st.tuples(st.integers(1, 512), st.one_of(st.just(0.0), st.floats(1e-6, 1e7))), max_size=300
    ),
)
def test_the_number_is_always_from_one_to_all(n_max: int, calls: list[tuple[int, float]]) -> None:
    threads = Threads(n_max, period=2, longest=4)
    for n_rows, ms in calls:
        assert 1 <= threads.choose(n_rows) <= n_max
        threads.observe(n_rows=n_rows, ms=ms)
        assert 1 <= threads.n <= n_max


def test_no_trial_slows_a_call_in_which_streams_wait_for_a_prompt() -> None:
    threads = Threads(4)
    for _ in range(2000):
        assert threads.choose(28, is_tight=True) == 4
        threads.observe(n_rows=28, ms=100.0)
    tried = set()
    for _ in range(400):
        tried.add(threads.choose(28))
        threads.observe(n_rows=28, ms=100.0)
    assert tried > {4}


def test_a_slowdown_is_looked_into_even_while_streams_wait_for_a_prompt() -> None:
    threads = Threads(4)
    for _ in range(50):
        threads.choose(28, is_tight=True)
        threads.observe(n_rows=28, ms=100.0)
    tried = set()
    for _ in range(20):
        tried.add(threads.choose(28, is_tight=True))
        threads.observe(n_rows=28, ms=1000.0)
    assert tried > {4}
