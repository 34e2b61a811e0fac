from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from corral.backend.engine.prefix import Cells, PrefixCache, common_prefix

SEQ_IDS = st.integers(0, 4)
N_CELLS = 24


class CellsAgainstSets(RuleBasedStateMachine):
    """``Cells`` against lists of plain objects, each with an identity of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = Cells(N_CELLS)
        self.model: dict[int, list[object]] = {i: [] for i in range(5)}

    def _used(self) -> set[object]:
        return {cell for held in self.model.values() for cell in held}

    @rule(seq_id=SEQ_IDS, n=st.integers(0, 12))
    def grow(self, seq_id: int, n: int) -> None:
        n = min(n, N_CELLS - len(self._used()))
        self.cells.grow(seq_id, n)
        self.model[seq_id] += [object() for _ in range(n)]

    @precondition(lambda self: any(self.model.values()))
    @rule(source=SEQ_IDS, other=SEQ_IDS, n=st.integers(0, 12))
    def share(self, source: int, other: int, n: int) -> None:
        start = len(self.model[other])
        end = min(start + n, len(self.model[source]))
        if source != other and end > start:
            self.cells.share(source, other, start, end)
            self.model[other] += self.model[source][start:end]

    @rule(seq_id=SEQ_IDS, start=st.integers(0, 12))
    def cut(self, seq_id: int, start: int) -> None:
        self.cells.cut(seq_id, start)
        del self.model[seq_id][start:]

    @invariant()
    def agrees(self) -> None:
        assert self.cells.n_free == N_CELLS - len(self._used())
        for seq_id, held in self.model.items():
            assert self.cells.length(seq_id) == len(held)

    @rule(seq_ids=st.lists(SEQ_IDS, unique=True))
    def would_be_freed(self, seq_ids: list[int]) -> None:
        others = {c for i, held in self.model.items() if i not in seq_ids for c in held}
        assert self.cells.n_only_in(seq_ids) == len(self._used() - others)


CellsAgainstSets.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestCells = CellsAgainstSets.TestCase

TOKENS = st.lists(st.integers(0, 2), max_size=8).map(lambda ids: array("i", ids))


@given(TOKENS, TOKENS)
def test_common_prefix_counts_the_leading_tokens_two_arrays_share(
    a: array[int], b: array[int]
) -> None:
    n = common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


@given(st.lists(TOKENS.filter(len), max_size=8), TOKENS)
def test_the_longest_kept_prefix_is_found_whatever_was_put_before(
    finished: list[array[int]], wanted: array[int]
) -> None:
    cache = PrefixCache()
    for seq_id, tokens in enumerate(finished):
        cache.put(seq_id, tokens)
    entry, n = cache.longest(wanted)
    assert n == max((common_prefix(t, wanted) for t in finished), default=0)
    assert (entry is None) == (n == 0)
    assert entry is None or entry.tokens[:n] == wanted[:n]


@given(st.lists(TOKENS.filter(len), max_size=8))
def test_no_kept_prefix_lies_within_another(finished: list[array[int]]) -> None:
    cache, held = PrefixCache(), set[int]()
    for seq_id, tokens in enumerate(finished):
        held.add(seq_id)
        held -= set(cache.put(seq_id, tokens))
        assert held == set(cache.seq_ids)
    kept = {finished[i].tobytes() for i in held}
    assert len(kept) == len(held)
    assert not any(a != b and b.startswith(a) for a in kept for b in kept)


def test_a_longer_answer_replaces_the_shorter_one_it_continues() -> None:
    cache = PrefixCache()
    assert cache.put(1, array("i", [1, 2])) == []
    assert cache.put(2, array("i", [1, 2, 3])) == [1]
    assert cache.put(3, array("i", [1])) == [3]
    assert cache.seq_ids == [2]


def test_the_least_recently_used_prefix_is_the_oldest() -> None:
    cache = PrefixCache()
    for seq_id in (1, 2, 3):
        cache.put(seq_id, array("i", [seq_id]))
    entry, _ = cache.longest(array("i", [1, 9]))
    assert entry is not None
    cache.touch(entry)
    assert cache.oldest().seq_id == 2
    cache.remove(2)
    assert cache.oldest().seq_id == 3


def test_a_prefix_put_again_counts_as_used() -> None:
    cache = PrefixCache()
    cache.put(1, array("i", [1, 2]))
    cache.put(2, array("i", [5]))
    assert cache.put(3, array("i", [1])) == [3]
    assert cache.oldest().seq_id == 2
