"""Which prefixes stay in host memory once their cells are needed. Pure: it holds bytes that others
copied, and knows no model or file. Owned by the step thread; no locks.

A saved prefix is a whole sequence: its tokens, the LoRA set they were computed with, and the bytes
of its state. Restoring takes about a thousandth of the time of computing it again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from corral.backend.engine.messages import AdapterSet
from corral.backend.engine.prefix import common_prefix

#: Shorter prefixes are not worth a copy: computing them takes about as long as finding them.
MIN_SAVED = 64
#: A saved prefix is restored when it knows this many tokens more than the cells do, and more than
#: one in ``RESTORE_PART`` of its own: all of it is copied, however little is of use.
MIN_GAIN, RESTORE_PART = 32, 16


class Saved:
    """A prefix in host memory. ``data`` is None until its state was copied out of the cache."""

    __slots__ = ("adapters", "data", "tokens")

    def __init__(self, tokens: array[int], adapters: AdapterSet, data: Any = None) -> None:
        self.tokens = tokens
        self.adapters = adapters
        self.data = data

    @property
    def n_bytes(self) -> int:
        """Size of the state; 0 until it was copied."""
        return 0 if self.data is None else len(self.data)


class Tier:
    """Saved prefixes of at most ``max_bytes`` of state together, least recently used first out.

    ``wants_all``: also prefixes that have their cells are to be saved when there is time, because
    a disk below keeps what is put here.
    """

    def __init__(self, max_bytes: int, *, wants_all: bool = False) -> None:
        self.max_bytes = max_bytes
        self.wants_all = wants_all
        self.n_bytes = 0
        self.n_saves = self.n_restores = self.n_restored_tokens = 0
        self._on_saved: Callable[[Saved], None] = lambda saved: None
        self._on_dropped: Callable[[Saved], None] = lambda saved: None
        self._entries: dict[int, Saved] = {}  # by id(), least recently used first
        self._bytes_per_token = 0.0

    def listen(
        self, *, on_saved: Callable[[Saved], None], on_dropped: Callable[[Saved], None]
    ) -> None:
        """Tells what is saved and dropped to what keeps it for longer, which wants all."""
        self.wants_all = True
        self._on_saved, self._on_dropped = on_saved, on_dropped

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, saved: Saved) -> bool:
        return id(saved) in self._entries

    def longest(self, tokens: array[int], adapters: AdapterSet) -> tuple[Saved | None, int]:
        """The prefix of this set that shares most leading tokens with ``tokens``, and how many."""
        best, n_best = None, 0
        for saved in self._entries.values():
            if saved.adapters == adapters:
                n = common_prefix(saved.tokens, tokens)
                if n > n_best or (best is not None and n == n_best > 0 and _shorter(saved, best)):
                    best, n_best = saved, n
        return best, n_best

    def covers(self, tokens: array[int], adapters: AdapterSet) -> bool:
        """Whether all of ``tokens`` are within a saved prefix, which counts as used then."""
        saved, n = self.longest(tokens, adapters)
        if saved is None or n < len(tokens):
            return False
        self.touch(saved)
        return True

    def touch(self, saved: Saved) -> None:
        """Marks a prefix as just used."""
        if saved in self:
            self._entries[id(saved)] = self._entries.pop(id(saved))

    def put(self, tokens: array[int], adapters: AdapterSet) -> Saved | None:
        """A place for a prefix, to be given its state with ``fill``; None when it is too large.
        Those whose tokens all lie within it go."""
        if len(tokens) * self._bytes_per_token > self.max_bytes:
            return None
        for other in [s for s in self._entries.values() if s.adapters == adapters]:
            if common_prefix(other.tokens, tokens) == len(other.tokens):
                self.remove(other)
        saved = Saved(tokens, adapters)
        self._entries[id(saved)] = saved
        return saved

    def fill(self, saved: Saved, data: Any, *, is_new: bool = True) -> None:
        """The state of a prefix; others go until all fit. Not ``is_new``: it came from below."""
        saved.data = data
        self._bytes_per_token = saved.n_bytes / max(1, len(saved.tokens))
        if saved not in self:
            return
        self.n_bytes += saved.n_bytes
        if is_new:
            self.n_saves += 1
            self._on_saved(saved)
        for other in list(self._entries.values()):
            if self.n_bytes <= self.max_bytes:
                break
            if other.data is not None:
                self.remove(other)

    def remove(self, saved: Saved) -> None:
        """Forgets a prefix. Whoever has it at hand may still use its state."""
        if self._entries.pop(id(saved), None) is not None:
            self.n_bytes -= saved.n_bytes
            self._on_dropped(saved)

    def remove_pending(self) -> None:
        """Forgets those whose state was not copied, and will not be."""
        for saved in [s for s in self._entries.values() if s.data is None]:
            self.remove(saved)

    def erase(self, tokens: array[int], adapters: AdapterSet) -> None:
        """Forgets exactly this prefix, if it is here."""
        saved, _ = self.longest(tokens, adapters)
        if saved is not None and saved.tokens == tokens:
            self.remove(saved)


def _shorter(a: Saved, b: Saved) -> bool:
    return len(a.tokens) < len(b.tokens)
