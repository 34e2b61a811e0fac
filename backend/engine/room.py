"""The cells, the prefixes that stay in them and those in host memory: what goes where, when cells
run out. Pure: it notes the cache operations to be done, and others do them in that order.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple, TypeAlias

from corral.backend.engine.media import Shifts, position
from corral.backend.engine.messages import AdapterSet
from corral.backend.engine.prefix import CachedPrefix, Cells, PrefixCache, common_prefix
from corral.backend.engine.tiers import MIN_GAIN, MIN_SAVED, RESTORE_PART, Saved, Tier


class Copy(NamedTuple):
    """Share cells at positions ``[start, end)`` of one cache sequence with another that holds those
    before."""

    source: int
    target: int
    start: int
    end: int


class Cut(NamedTuple):
    """Drop a cache sequence's cells from position ``start`` on."""

    seq_id: int
    start: int


class Save(NamedTuple):
    """Copy a cache sequence's state to host memory."""

    seq_id: int
    saved: Saved


class Load(NamedTuple):
    """Give an empty cache sequence a saved state."""

    seq_id: int
    saved: Saved


KvOp: TypeAlias = Copy | Cut | Save | Load


class Room:
    """``n_ctx`` cells in ``n_seq_max`` cache sequences, and ``tier`` behind them (None: nothing is
    kept that has no cells). ``n_idle``: cells that cached prefixes may hold when a request comes
    and there is a tier; more are moved there first, because every cell slows every step."""

    def __init__(
        self, *, n_ctx: int, n_seq_max: int, tier: Tier | None = None, n_idle: int | None = None
    ) -> None:
        self.cells = Cells(n_ctx)
        self.cache = PrefixCache()
        self.tier = tier
        self.free_seq_ids = list(range(n_seq_max - 1, -1, -1))
        self.has_changed = True  # something was let go of since the scheduler last looked
        self._n_seq_max = n_seq_max
        self._n_idle = n_ctx if n_idle is None else n_idle
        self._kv: list[KvOp] = []
        # Cache sequences with items whose positions are not the numbers of their tokens.
        self._shifts: dict[int, Shifts] = {}

    def take_kv(self) -> list[KvOp]:
        """The operations noted since the last time, in order."""
        kv, self._kv = self._kv, []
        return kv

    # --- cells ----------------------------------------------------------------------------------

    @property
    def n_at_most(self) -> int:
        """Cells that are free or become it when all cached prefixes go."""
        return self.cells.n_free + self.cells.n_only_in(self.cache.seq_ids)

    def make(self, n: int) -> bool:
        """Evicts cached prefixes until ``n`` cells are free; False when that is not enough."""
        while self.cells.n_free < n and len(self.cache):
            self.evict_oldest()
        return self.cells.n_free >= n

    def take_seq_id(self, shifts: Shifts = ()) -> int:
        """A cache sequence that holds nothing, for which a cached prefix may have to go."""
        if not self.free_seq_ids:
            self.evict_oldest()
        seq_id = self.free_seq_ids.pop()
        if shifts:
            self._shifts[seq_id] = shifts
        return seq_id

    def give_back(self, seq_id: int) -> None:
        """Frees a cache sequence that holds nothing."""
        self._shifts.pop(seq_id, None)
        self.free_seq_ids.append(seq_id)

    def is_shifted(self, seq_id: int) -> bool:
        """Whether its positions are not the numbers of its tokens."""
        return seq_id in self._shifts

    def _position(self, seq_id: int, token: int) -> int:
        shifts = self._shifts.get(seq_id)
        return token if shifts is None else position(shifts, token)

    def share(self, source: int, target: int, start: int, end: int) -> None:
        """Gives ``target`` the source's cells ``[start, end)``."""
        first, last = self._position(target, start), self._position(target, end)
        self._kv.append(Copy(source, target, first, last))
        self.cells.share(source, target, start, end)

    def cut(self, seq_id: int, start: int) -> None:
        """Takes a cache sequence's cells from ``start`` on away."""
        self._kv.append(Cut(seq_id, self._position(seq_id, start)))
        self.cells.cut(seq_id, start)

    def drop(self, seq_id: int) -> None:
        """Takes all its cells; the cache sequence is free."""
        self.cut(seq_id, 0)
        self.give_back(seq_id)
        self.has_changed = True

    # --- cached prefixes ------------------------------------------------------------------------

    def keep(self, seq_id: int, tokens: array[int], adapters: AdapterSet) -> None:
        """Makes a finished sequence a cached prefix, in place of those within it."""
        for redundant in self.cache.put(seq_id, tokens, adapters):
            self.drop(redundant)

    def evict(self, seq_id: int) -> None:
        """Lets a cached prefix go for good."""
        self.cache.remove(seq_id)
        self.drop(seq_id)

    def evict_oldest(self) -> None:
        """Lets the least recently used one go, to host memory if there is any."""
        entry = self.cache.oldest()
        self.save(entry.seq_id, entry.tokens, entry.adapters)
        self.evict(entry.seq_id)

    # --- host memory ----------------------------------------------------------------------------

    def save(self, seq_id: int, tokens: array[int], adapters: AdapterSet) -> bool:
        """Has a cache sequence's state copied to host memory, unless that is not worth it: it is
        short, or there already, or nearly all of it has cells elsewhere; nor can it be where
        positions are not the numbers of tokens. Whether it is there."""
        if self.tier is None or len(tokens) < MIN_SAVED or seq_id in self._shifts:
            return False
        if self.tier.covers(tokens, adapters):
            return True
        if self._has_other(seq_id, tokens, adapters):
            return False
        saved = self.tier.put(tokens, adapters)
        if saved is not None:
            self._kv.append(Save(seq_id, saved))
        return saved is not None

    def _has_other(self, seq_id: int, tokens: array[int], adapters: AdapterSet) -> bool:
        """Whether a cached prefix in other cells holds nearly all of the same."""
        others = [e for e in self.cache.entries if e.seq_id != seq_id and e.adapters == adapters]
        return any(common_prefix(e.tokens, tokens) > len(tokens) - MIN_SAVED for e in others)

    def park(self) -> None:
        """Moves cached prefixes to host memory, least recently used first, until the rest holds
        few cells. Those that share theirs with running sequences stay: that costs nothing."""
        if self.tier is None or self._n_idle >= self.cells.n_cells:
            return
        for entry in self.cache.entries:
            if self.cells.n_only_in(self.cache.seq_ids) <= self._n_idle:
                return
            if self.cells.n_only_in([entry.seq_id]) < MIN_SAVED:
                continue
            # Of copies computed apart each but the last goes without being saved.
            is_copy = self._has_other(entry.seq_id, entry.tokens, entry.adapters)
            if is_copy or self._save_entry(entry):
                self.evict(entry.seq_id)

    def save_ahead(self) -> bool:
        """With nothing else to do: has one cached prefix copied that would be later. False when
        there is none."""
        tier = self.tier
        if tier is None:
            return False
        is_much = self.cells.n_only_in(self.cache.seq_ids) > self._n_idle
        if not tier.wants_all and not is_much:
            return False
        n_before = len(self._kv)
        for entry in self.cache.entries:
            # Once each: without room for all they would drive each other out for ever.
            if not entry.was_saved and self._save_entry(entry):
                entry.was_saved = True
                if len(self._kv) > n_before:
                    return True
        return False

    def _save_entry(self, entry: CachedPrefix) -> bool:
        return self.save(entry.seq_id, entry.tokens, entry.adapters)

    def find_saved(
        self, tokens: array[int], adapters: AdapterSet, n_known: int, limit: int
    ) -> tuple[Saved | None, int]:
        """The saved prefix worth restoring for a sequence whose first ``n_known`` tokens have
        cells, and how many tokens it will then know: at most ``limit``."""
        if self.tier is None:
            return None, n_known
        saved, n = self.tier.longest(tokens, adapters)
        n = min(n, limit)
        if saved is None or n - n_known < max(MIN_GAIN, len(saved.tokens) // RESTORE_PART):
            return None, n_known
        return saved, n

    def restore(self, saved: Saved, seq_id: int, end: int) -> None:
        """Gives a cache sequence that holds its first tokens those up to ``end`` from host memory.
        There must be room for all of the saved prefix: what is not needed goes at once."""
        assert self.tier is not None
        self.tier.touch(saved)
        self.tier.n_restores += 1
        has_room = self.make(len(saved.tokens))
        assert has_room
        start = self.cells.length(seq_id)
        self.tier.n_restored_tokens += end - start
        if start == 0:
            self._kv += [Load(seq_id, saved), Cut(seq_id, end)]
        else:
            # What is shared stays shared: only the rest comes from the copy.
            helper = self.take_seq_id()
            self._kv += [Load(helper, saved), Copy(helper, seq_id, start, end), Cut(helper, 0)]
            self.give_back(helper)
        self.cells.grow(seq_id, end - start)

    def adopt(self, saved: Saved) -> int | None:
        """Makes a saved prefix, which need not be in the tier, a cached one. Its cache sequence, or
        None when there is no room beside what runs. To be undone with ``evict`` if it fails."""
        n = len(saved.tokens)
        if n > self.n_at_most:
            return None
        seq_id = self.take_seq_id()
        self.make(n)
        self._kv.append(Load(seq_id, saved))
        self.cells.grow(seq_id, n)
        self.keep(seq_id, saved.tokens, saved.adapters)
        return seq_id

    def clear(self) -> None:
        """Empties all cache sequences that are not running, whatever the books say."""
        for seq_id in self.cache.seq_ids:
            self.evict(seq_id)
        self._kv = [Cut(seq_id, 0) for seq_id in range(self._n_seq_max)]
