"""Who holds which cells of the KV cache, and who shares the longest prefix. Pure; sizes in tokens.

The bookkeeping mirrors llama.cpp's unified cache: a cell belongs to every sequence that was given
it, and is free when none has it left. Cell numbers here are labels, not physical places.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from corral.backend.engine.messages import AdapterSet


def tokens_array(tokens: list[int] | array[int]) -> NDArray[np.int32]:
    """A view of a token array (a copy of a list). Drop it before the array grows."""
    if isinstance(tokens, array):
        return np.frombuffer(tokens, dtype=np.int32)
    return np.array(tokens, dtype=np.int32)


def common_prefix(a: array[int], b: array[int]) -> int:
    """Number of leading tokens that two token arrays share."""
    n = min(len(a), len(b))
    if n == 0:
        return 0
    differs = np.frombuffer(a, np.int32, n) != np.frombuffer(b, np.int32, n)
    first = int(differs.argmax())
    return first if differs[first] else n


class Cells:
    """Which sequence holds which cells: reference counts over ``n_cells`` cells."""

    def __init__(self, n_cells: int) -> None:
        self.n_cells = n_cells
        self._refs = np.zeros(n_cells, np.int32)
        self._free = array("i", range(n_cells - 1, -1, -1))
        self._held: dict[int, array[int]] = {}

    @property
    def n_free(self) -> int:
        """Cells no sequence holds."""
        return len(self._free)

    def length(self, seq_id: int) -> int:
        """Cells a sequence holds, which is the number of its tokens in the cache."""
        return len(self._held.get(seq_id, ()))

    def grow(self, seq_id: int, n: int) -> None:
        """Gives a sequence ``n`` more cells of its own; there must be that many free."""
        assert 0 <= n <= self.n_free
        if n == 1:  # each decode step's
            cell = self._free.pop()
            self._refs[cell] += 1
            self._held.setdefault(seq_id, array("i")).append(cell)
            return
        if n == 0:
            return
        taken = self._free[-n:]
        del self._free[-n:]
        self._refs[tokens_array(taken)] += 1
        self._held.setdefault(seq_id, array("i")).extend(taken)

    def share(self, source: int, target: int, start: int, end: int) -> None:
        """Adds the source's cells ``[start, end)`` to a target that holds exactly ``start``."""
        assert self.length(target) == start and end <= self.length(source)
        shared = self._held[source][start:end]
        self._refs[tokens_array(shared)] += 1
        self._held.setdefault(target, array("i")).extend(shared)

    def cut(self, seq_id: int, start: int) -> None:
        """Takes away a sequence's cells from ``start`` on; those nobody else holds become free."""
        held = self._held.get(seq_id)
        if held is None:
            return
        gone = tokens_array(held[start:])
        self._refs[gone] -= 1
        self._free.extend(gone[self._refs[gone] == 0].tolist())
        del held[start:]
        if not held:
            del self._held[seq_id]

    def n_only_in(self, seq_ids: list[int]) -> int:
        """Cells that would become free if all these sequences let go."""
        counts = np.zeros(self.n_cells, np.int32)
        for seq_id in seq_ids:
            if seq_id in self._held:
                counts[tokens_array(self._held[seq_id])] += 1
        return int(((counts > 0) & (counts == self._refs)).sum())


class CachedPrefix:
    """The tokens of a finished sequence, still in the cache under ``seq_id``; ``adapters`` is the
    LoRA set they were computed with. ``was_saved``: copied ahead of time, see ``Room``."""

    def __init__(self, seq_id: int, tokens: array[int], adapters: AdapterSet = ()) -> None:
        self.seq_id = seq_id
        self.tokens = tokens
        self.adapters = adapters
        self.was_saved = False

    @property
    def n_computed(self) -> int:
        """Tokens in the cache: all of them."""
        return len(self.tokens)


class PrefixCache:
    """Finished sequences whose cells nobody needed yet, least recently used first.

    A prefix belongs to one LoRA set: to another it is as good as not there.
    """

    def __init__(self) -> None:
        self._entries: dict[int, CachedPrefix] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def seq_ids(self) -> list[int]:
        """The cache sequences they live in, least recently used first."""
        return list(self._entries)

    @property
    def entries(self) -> list[CachedPrefix]:
        """All of them, least recently used first."""
        return list(self._entries.values())

    def put(self, seq_id: int, tokens: array[int], adapters: AdapterSet = ()) -> list[int]:
        """Keeps a finished sequence. Returns the ids of entries it makes redundant (removed here):
        those whose tokens all lie within its own, or all of its own when it is within another."""
        alike = [entry for entry in self._entries.values() if entry.adapters == adapters]
        for entry in alike:
            if common_prefix(entry.tokens, tokens) == len(tokens):
                self.touch(entry)
                return [seq_id]
        inside = [
            entry.seq_id
            for entry in alike
            if common_prefix(entry.tokens, tokens) == len(entry.tokens)
        ]
        for redundant in inside:
            del self._entries[redundant]
        self._entries[seq_id] = CachedPrefix(seq_id, tokens, adapters)
        return inside

    def touch(self, entry: CachedPrefix) -> None:
        """Marks an entry as just used."""
        self._entries[entry.seq_id] = self._entries.pop(entry.seq_id)

    def remove(self, seq_id: int) -> None:
        """Forgets an entry; its cells are the caller's to cut."""
        del self._entries[seq_id]

    def longest(
        self, tokens: array[int], adapters: AdapterSet = ()
    ) -> tuple[CachedPrefix | None, int]:
        """The set's entry that shares most leading tokens with ``tokens``, and how many."""
        best, n_best = None, 0
        for entry in self._entries.values():
            n = common_prefix(entry.tokens, tokens) if entry.adapters == adapters else 0
            if n >= n_best and n > 0:
                best, n_best = entry, n
        return best, n_best

    def oldest(self) -> CachedPrefix:
        """The least recently used entry; there must be one."""
        return next(iter(self._entries.values()))
