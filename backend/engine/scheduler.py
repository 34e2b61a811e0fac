"""Decides who computes how many tokens in a step. Knows no model, clock or socket.

Rules, in order:

(1) Followers first take what their leader has computed since the last step.
(2) Waiting requests get slots, oldest first, while their tokens fit beside what runs; one that does
    not fit lets a bounded number of smaller ones pass.
(3) Every generating sequence gets its one token. When cells run out, cached prefixes go first,
    then the youngest running sequence is preempted: it waits and is recomputed later.
(4) What is left of the budget goes to prompts: a quarter to the oldest, so that none starves, the
    rest to those with least left to read.
(5) A step computes sequences of one LoRA set; sets take turns (``turns``), and 3 and 4 are about
    the one whose turn it is.

A *follower* is a sequence whose prompt begins like that of an older one that is still being read:
it computes nothing itself until its leader has passed their common part, and takes that by sharing
cells. Prefixes are shared, followed and restored within one LoRA set only.
"""

from __future__ import annotations

import itertools
from array import array
from collections import deque
from typing import NamedTuple

from corral.backend.engine.messages import AdapterSet
from corral.backend.engine.prefix import CachedPrefix, common_prefix
from corral.backend.engine.room import KvOp, Room
from corral.backend.engine.sequence import Sequence
from corral.backend.engine.tiers import Saved, Tier
from corral.backend.engine.turns import Turns

#: A prompt waits for another's computation only when that saves at least this many tokens.
MIN_FOLLOW = 16
#: Cells that must stay free for each running sequence when another is let in.
HEADROOM = 16
#: A request that does not fit yet lets smaller ones among the next few pass, but not for ever.
LOOK_AHEAD, MAX_OVERTAKEN = 4, 16


class Chunk(NamedTuple):
    """Compute the next ``n`` known tokens of a sequence."""

    sequence: Sequence
    n: int


class Plan(NamedTuple):
    """One step: cache operations in order, then calls of at most ``n_batch`` rows each, computed
    with ``adapters``; rows of an item have a call of their own. Before them the item that comes
    next in ``encode`` is to be encoded."""

    kv: list[KvOp]
    calls: list[list[Chunk]]
    started: list[Sequence]
    adapters: AdapterSet = ()
    encode: Sequence | None = None


class Held(NamedTuple):
    """What was last computed in a slot; its cells may be gone."""

    tokens: array[int]
    adapters: AdapterSet


def _n_own(sequence: Sequence, leader: tuple[Sequence, int] | None) -> int:
    """Known tokens for which a sequence needs cells of its own: those no leader computes for it."""
    return sequence.n_left if leader is None else len(sequence.tokens) - leader[1]


def _whole(sequence: Sequence, n: int) -> int:
    """``n`` tokens of what comes next, or all of it where it cannot be computed in parts."""
    placed = sequence.item if n else None
    return n if placed is None or not placed.item.is_whole else len(placed.item.tokens)


class Scheduler:
    """Waiting and running sequences, and the cells they hold.

    ``n_ctx`` cells are shared by up to ``n_slots`` running sequences and the cached prefixes, in at
    most ``n_seq_max`` cache sequences (> ``n_slots`` + 1). ``can_share`` False: the model's memory
    cannot be shared or rewound, every prompt is computed alone. ``tile_rows``: rows in one call
    from which attention goes in tiles (0: never); there, decode rows of several sequences make
    every tile pay for the cells of all, so they get a call of their own. ``tier`` and ``n_idle``:
    see ``Room``.
    """

    def __init__(
        self,
        *,
        n_slots: int,
        n_ctx: int,
        n_seq_max: int,
        n_batch: int,
        can_share: bool = True,
        tile_rows: int = 0,
        tier: Tier | None = None,
        n_idle: int | None = None,
    ) -> None:
        assert n_slots + 2 <= n_seq_max and n_slots <= n_batch
        self.n_slots = n_slots
        self.n_ctx = n_ctx
        self.n_batch = n_batch
        self.can_share = can_share
        self.tile_rows = tile_rows
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.turns = Turns()
        self.room = Room(
            n_ctx=n_ctx, n_seq_max=n_seq_max, tier=tier if can_share else None, n_idle=n_idle
        )
        self.cells = self.room.cells
        self.cache = self.room.cache
        self.n_preempted = 0
        self.held_by_slot: dict[int, Held] = {}
        self._free_slots = list(range(n_slots - 1, -1, -1))

    # --- what happens to requests ---------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence."""
        self.waiting.append(sequence)
        self.room.has_changed = True

    def finish(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Takes a sequence out, waiting or running; what it computed stays as a cached prefix if
        ``keep``."""
        if not sequence.is_running:
            self.waiting.remove(sequence)
            self.room.has_changed = True  # those behind it may fit where it did not
            return
        self._release_followers(sequence)
        seq_id, tokens = sequence.seq_id, sequence.tokens[: sequence.n_computed]
        held = Held(tokens, sequence.adapters)
        keep = keep and self.can_share and len(tokens) > 0
        if keep:
            self.held_by_slot[sequence.slot] = held
        else:
            self.held_by_slot.pop(sequence.slot, None)
        self._leave_slot(sequence)
        self.cells.cut(seq_id, len(tokens))
        if keep:
            self.room.keep(seq_id, *held)
        else:
            self.room.drop(seq_id)

    def relieve(self) -> bool:
        """After the cache was full against all accounts: lets go of something. False when nothing
        is left that could make room for the oldest."""
        if len(self.cache):
            self.room.evict_oldest()
        elif len(self.running) > 1:
            self._preempt_youngest()
        else:
            return False
        return True

    def forget(self, sequence: Sequence, start: int, n: int) -> None:
        """Takes ``n`` tokens out of a running sequence, from ``start`` on: what followed them moves
        up and is computed again, since its cells may belong to others as well."""
        self.room.cut(sequence.seq_id, start)
        del sequence.tokens[start : start + n]
        sequence.n_computed = min(sequence.n_computed, start)
        sequence.n_discarded += n

    # --- one step -------------------------------------------------------------------------------

    @property
    def may_read(self) -> bool:
        """Whether the next step may compute prompts."""
        return bool(self.waiting) or any(s.is_reading for s in self.running)

    @property
    def n_generating(self) -> int:
        """Sequences that get one token in the next step; while it is another set's turn to read,
        those that wait for theirs: the step must be short for them as well."""
        generating = [s for s in self.running if not s.is_reading]
        turn = self.turns.choose(self.running) if generating else ()
        return sum(s.adapters == turn for s in generating) or len(generating)

    @property
    def n_cached_only(self) -> int:
        """Cells held by cached prefixes alone: free as soon as they are needed."""
        held = sum(self.cells.length(s.seq_id) for s in self.running)
        if not held:
            return self.cells.n_cells - self.cells.n_free
        return self.cells.n_only_in(self.cache.seq_ids)

    def plan(self, budget: int) -> Plan:
        """The next step; ``budget`` is the most prompt tokens to compute in it."""
        if (steady := self._plan_steady()) is not None:
            return steady
        for sequence in self.running:
            self._follow(sequence)
        started = self._admit()
        decodes, prompts = self._plan_turn(budget)
        encode = self._plan_encode()
        while self.running and not decodes and not prompts and encode is None:
            # Cells are missing, or everybody whose turn it was has been set back.
            if any(s.adapters == self.turns.current for s in self.running):
                self._preempt_youngest()
            decodes, prompts = self._plan_turn(budget)
            encode = self._plan_encode()
        self.turns.count(len(decodes) + sum(c.n for c in prompts))
        items = [[c] for c in prompts if c.sequence.item is not None]
        if items:
            prompts = [c for c in prompts if c.sequence.item is None]
        n_rows = len(decodes) + sum(c.n for c in prompts)
        apart = n_rows > self.n_batch or 0 < self.tile_rows <= n_rows
        calls = [c for c in ([decodes, prompts] if apart else [decodes + prompts]) if c]
        started = [s for s in started if s.is_running]
        return Plan(self.room.take_kv(), calls + items, started, self.turns.current, encode)

    def _plan_steady(self) -> Plan | None:
        """The plan of most steps, in few words: one set of adapters, nothing to read, nobody who
        could be let in, room for all."""
        running, turns = self.running, self.turns
        if not running or self.room.has_changed or self.cells.n_free < len(running):
            return None
        for s in running:
            if s.adapters != turns.current or s.leader is not None or s.is_reading:
                return None
        for s in running:
            self.cells.grow(s.seq_id, 1)
        turns.count(len(running))
        return Plan(self.room.take_kv(), [[Chunk(s, 1) for s in running]], [], turns.current)

    def _plan_turn(self, budget: int) -> tuple[list[Chunk], list[Chunk]]:
        self.turns.choose(self.running)
        return self._plan_decodes(), self._plan_prompts(budget)

    def start_over(self) -> None:
        """After the cache turned out to hold other things than the books say: everybody's cells go,
        and all is computed again. Plans not carried out are void."""
        while self.running:
            self._preempt_youngest(save=False)
        self.room.clear()
        self.room.has_changed = True

    def commit(self, chunks: list[Chunk]) -> list[Sequence]:
        """Notes that a call was computed. Returns the sequences whose last token has logits now."""
        for sequence, n in chunks:
            sequence.n_computed += n
        return [s for s, _ in chunks if s.n_left == 0]

    def rollback(self, chunks: list[Chunk]) -> None:
        """Notes that a call changed nothing."""
        for sequence, _ in chunks:
            self.cells.cut(sequence.seq_id, sequence.n_computed)

    # --- (1) following --------------------------------------------------------------------------

    def _follow(self, sequence: Sequence) -> None:
        if sequence.leader is None:
            return
        leader, n_common = sequence.leader
        self._share(leader, sequence, min(leader.n_computed, n_common))
        if sequence.n_computed >= n_common:
            sequence.leader = None

    def _share(self, source: Sequence | CachedPrefix, target: Sequence, end: int) -> None:
        start = target.n_computed
        if end <= start:
            return
        self.room.share(source.seq_id, target.seq_id, start, end)
        self._know(target, end)

    def _know(self, target: Sequence, end: int) -> None:
        """Notes that a sequence has its first ``end`` tokens without computing the last of them."""
        start, target.n_computed = target.n_computed, end
        if target.n_generated == 0:
            target.n_cached += end - start

    def _release_followers(self, leader: Sequence) -> None:
        """Before a leader goes: its followers take what there is and look for another leader."""
        for sequence in self.running:
            if sequence.leader is not None and sequence.leader[0] is leader:
                self._follow(sequence)
                sequence.leader = self._find_leader(sequence, sequence.n_computed, besides=leader)

    def _find_leader(
        self, sequence: Sequence, n_known: int, besides: Sequence | None = None
    ) -> tuple[Sequence, int] | None:
        """Who is reading the most tokens that this sequence needs beyond its first ``n_known``."""
        if not (self.can_share and sequence.add.cache_prompt):
            return None
        best, leader = n_known + MIN_FOLLOW - 1, None
        for other in self.running:
            if other is besides or other.order >= sequence.order or not other.is_reading:
                continue
            if other.adapters != sequence.adapters:
                continue
            n = min(common_prefix(other.tokens, sequence.tokens), len(sequence.tokens) - 1)
            if n > best and n > other.n_computed:
                best, leader = n, (other, n)
        return leader

    # --- (2) admission --------------------------------------------------------------------------

    def _admit(self) -> list[Sequence]:
        started: list[Sequence] = []
        if self.running and not self.room.has_changed:
            return started
        blocked: list[Sequence] = []
        candidates = (s for s in self.waiting if self._has_slot_for(s))
        for sequence in list(itertools.islice(candidates, len(self._free_slots) + LOOK_AHEAD)):
            if not self._free_slots or len(blocked) > LOOK_AHEAD:
                break
            if self._try_admit(sequence):
                started.append(sequence)
                self.waiting.remove(sequence)
                for other in blocked:
                    other.n_overtaken += 1
            elif sequence.n_overtaken >= MAX_OVERTAKEN:
                break
            else:
                blocked.append(sequence)
        if started:
            self.room.park()
        self.room.has_changed = False
        return started

    def _has_slot_for(self, sequence: Sequence) -> bool:
        slot = sequence.add.id_slot
        return slot < 0 or slot in self._free_slots

    def _try_admit(self, sequence: Sequence) -> bool:
        if not self._has_slot_for(sequence):  # taken since the candidates were listed
            return False
        source, n_shared = self._longest_prefix(sequence)
        if isinstance(source, CachedPrefix):
            self.cache.touch(source)
        sequence.seq_id = self.room.take_seq_id(sequence.shifts)
        if source is not None:
            # On the books only: what follows needs to know which cells are no longer evictable.
            self.cells.share(source.seq_id, sequence.seq_id, 0, n_shared)
        saved, n_known = self._saved_prefix(sequence, n_shared)
        leader = self._find_leader(sequence, n_known)
        n_own = len(sequence.tokens) - n_shared
        fits = min(n_own, _n_own(sequence, leader)) + self._n_promised <= self.room.n_at_most
        self.cells.cut(sequence.seq_id, 0)
        if self.running and not fits:
            self.room.give_back(sequence.seq_id)
            sequence.seq_id = -1
            return False
        slot = sequence.add.id_slot
        sequence.slot = self._free_slots.pop(self._free_slots.index(slot) if slot >= 0 else -1)
        self.running.append(sequence)
        self.running.sort(key=lambda s: s.order)
        if source is not None:
            self._share(source, sequence, n_shared)
            if isinstance(source, CachedPrefix) and n_shared == len(source.tokens):
                self.room.evict(source.seq_id)
        if saved is not None:
            self.room.restore(saved, sequence.seq_id, n_known)
            self._know(sequence, n_known)
        sequence.leader = leader
        return True

    @property
    def _n_promised(self) -> int:
        """Cells that those who run will still need."""
        return sum(_n_own(s, s.leader) + HEADROOM for s in self.running)

    def _saved_prefix(self, sequence: Sequence, n_shared: int) -> tuple[Saved | None, int]:
        """What host memory has beyond the ``n_shared`` tokens with cells, and how many are known
        then; only if there is room, for a moment, for all of it."""
        if not sequence.add.cache_prompt:
            return None, n_shared
        limit = len(sequence.tokens) - 1
        saved, n = self.room.find_saved(sequence.tokens, sequence.adapters, n_shared, limit)
        if saved is None or len(saved.tokens) > self.room.n_at_most:
            return None, n_shared
        return saved, n

    def _longest_prefix(self, sequence: Sequence) -> tuple[Sequence | CachedPrefix | None, int]:
        """Who has computed most of this sequence's leading tokens, and how many. At least one token
        is left to compute: its logits are needed."""
        if not (self.can_share and sequence.add.cache_prompt):
            return None, 0
        limit = len(sequence.tokens) - 1
        best: Sequence | CachedPrefix | None
        best, n_best = self.cache.longest(sequence.tokens, sequence.adapters)
        n_best = min(n_best, limit)
        for other in self.running:
            if other.adapters != sequence.adapters:
                continue
            n = min(common_prefix(other.tokens, sequence.tokens), other.n_computed, limit)
            if n > n_best:
                best, n_best = other, n
        return (best, n_best) if n_best > 0 else (None, 0)

    @property
    def _in_turn(self) -> list[Sequence]:
        return [s for s in self.running if s.adapters == self.turns.current]

    # --- (3) generating -------------------------------------------------------------------------

    def _plan_decodes(self) -> list[Chunk]:
        while True:
            generating = [s for s in self._in_turn if not s.is_reading]
            if self.room.make(len(generating)):
                break
            self._preempt_youngest()
        for sequence in generating:
            self.cells.grow(sequence.seq_id, 1)
        return [Chunk(s, 1) for s in generating]

    # --- (4) reading ----------------------------------------------------------------------------

    def _plan_prompts(self, budget: int) -> list[Chunk]:
        readers = [s for s in self._readers if not s.is_blind]
        if not readers:
            return []
        budget = min(budget, self.n_batch)
        granted = dict.fromkeys(readers, 0)
        if len(readers) > 1:
            first = readers[0]
            granted[first] = min(first.n_left, first.max_chunk, max(1, budget // 4))
        left = budget - granted[readers[0]]
        for sequence in sorted(readers, key=self._remaining):
            n = min(min(sequence.n_left, sequence.max_chunk) - granted[sequence], left)
            granted[sequence] += n
            left -= n
        chunks = []
        for sequence, n in granted.items():
            n = _whole(sequence, n)
            self.room.make(n)
            n = min(n, self.cells.n_free)
            if n and n == _whole(sequence, n):
                self.cells.grow(sequence.seq_id, n)
                chunks.append(Chunk(sequence, n))
        return chunks

    @property
    def _readers(self) -> list[Sequence]:
        return [s for s in self._in_turn if s.is_reading and s.leader is None]

    def _plan_encode(self) -> Sequence | None:
        """Whose item to encode: the oldest's, one in a step, since it takes long."""
        return next((s for s in self._readers if s.is_blind), None)

    def _remaining(self, sequence: Sequence) -> int:
        """Tokens left to read; a leader is as urgent as its most urgent follower."""
        remaining = sequence.n_left
        for other in self.running:
            if other.leader is not None and other.leader[0] is sequence:
                n_common = other.leader[1]
                to_common = n_common - sequence.n_computed
                remaining = min(remaining, to_common + len(other.tokens) - n_common)
        return remaining

    # --- leaving --------------------------------------------------------------------------------

    def _leave_slot(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free_slots.append(sequence.slot)
        self._free_slots.sort(reverse=True)
        sequence.slot = sequence.seq_id = -1
        sequence.leader = None
        self.room.has_changed = True

    def _preempt_youngest(self, *, save: bool = True) -> None:
        """Back to the queue's head with the youngest: its tokens stay, its cells go."""
        sequence = self.running[-1]
        self._release_followers(sequence)
        seq_id = sequence.seq_id
        self._leave_slot(sequence)
        if save and sequence.add.cache_prompt:
            computed = sequence.tokens[: sequence.n_computed]
            self.room.save(seq_id, computed, sequence.adapters)
        self.room.drop(seq_id)
        sequence.n_computed = 0
        if sequence.n_generated == 0:
            sequence.n_cached = 0
        self.waiting.appendleft(sequence)
        self.n_preempted += 1
        # It would be let in again at once, and preempted again: wait until somebody leaves.
        self.room.has_changed = False
