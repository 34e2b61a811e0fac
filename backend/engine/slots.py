"""Slots as clients see them: what was last computed in one can be saved to a file, restored and
erased. Owned by the step thread; files are read and written on others.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from corral.backend.engine import statefile
from corral.backend.engine.adapters import adapter_set
from corral.backend.engine.disk import DiskTier
from corral.backend.engine.messages import AdapterSet, Call, LoraInfo, Reply
from corral.backend.engine.scheduler import Held, Scheduler
from corral.backend.engine.statefile import BadState
from corral.backend.engine.tiers import Saved

#: Actions that may wait for their slots at the same time.
MAX_PENDING = 64

Job: TypeAlias = Callable[[], None]


class Cache(Protocol):
    """What this needs of a model; part of ``core.Runner``."""

    # ruff: noqa: D102  documented in llama.Llama

    n_vocab: int
    fingerprint: str
    adapter_digests: list[str]
    adapter_infos: list[LoraInfo]

    def copy(self, source: int, target: int, start: int, end: int) -> None: ...
    def cut(self, seq_id: int, start: int) -> None: ...
    def save_state(self, seq_id: int) -> Any: ...
    def load_state(self, seq_id: int, data: Any) -> bool: ...


class CallFailed(Exception):
    """A call that is refused: ``code`` as in ``errors.KINDS``, and the field at fault."""

    def __init__(self, message: str, param: str = "", code: str = "invalid") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class Threads(NamedTuple):
    """Who does what: ``reads`` and ``writes`` do jobs elsewhere, each in order, ``post`` does one
    on the step thread, between steps; ``reply`` answers calls from any thread. The defaults do all
    at once and answer nobody."""

    reply: Callable[[Reply], None] = lambda reply: None
    reads: Callable[[Job], None] = lambda job: job()
    writes: Callable[[Job], None] = lambda job: job()
    post: Callable[[Job], None] = lambda job: job()

    def refuse(self, call: Call, error: CallFailed) -> None:
        """Answers a call with an error."""
        self.reply(Reply(call.id, error=str(error), param=error.param, code=error.code))


class Slots:
    """See the module. ``folder`` None: they cannot be saved. ``settle`` carries out the cache
    operations noted so far; false when that failed and all starts over."""

    def __init__(
        self, cache: Cache, scheduler: Scheduler, settle: Callable[[], bool], threads: Threads
    ) -> None:
        self.folder: Path | None = None
        self.disk: DiskTier | None = None
        self.threads = threads
        self._cache = cache
        self._scheduler = scheduler
        self._room = scheduler.room
        self._settle = settle
        self._digests = cache.adapter_digests
        self._pending: deque[Call] = deque()

    def take(self, call: Call) -> None:
        """Does an action, now or once its slot is idle. Raises ``CallFailed`` when it cannot be."""
        slot, n_slots = call.args["slot"], self._scheduler.n_slots
        if not 0 <= slot < n_slots:
            message = f"there is no slot {slot}; they are numbered from 0 to {n_slots - 1}"
            raise CallFailed(message, "id_slot")
        if call.method != "slot_erase":
            if self.folder is None:
                message = "slots are not saved here: the server runs without --slot-save-path"
                raise CallFailed(message, code="not_supported")
            try:
                statefile.check_name(call.args["filename"])
            except BadState as error:
                raise CallFailed(f"filename {error}", "filename") from None
        if not self._scheduler.can_share:
            raise CallFailed("slots of this kind of model hold nothing", code="not_supported")
        if len(self._pending) >= MAX_PENDING:
            raise CallFailed("too many slot actions are waiting", code="queue_full")
        self._pending.append(call)
        self.poll()

    def poll(self) -> None:
        """Does the actions whose slots are idle now, in order. To be called after every step."""
        if not self._pending:
            return
        busy = {s.slot for s in self._scheduler.running}
        for call in [c for c in self._pending if c.args["slot"] not in busy]:
            self._pending.remove(call)
            try:
                {
                    "slot_save": self._save_slot,
                    "slot_restore": self._restore_slot,
                    "slot_erase": self._erase_slot,
                }[call.method](call)
            except CallFailed as error:
                self.threads.refuse(call, error)

    def _save_slot(self, call: Call) -> None:
        began, slot, name = time.perf_counter(), call.args["slot"], call.args["filename"]
        held = self._scheduler.held_by_slot.get(slot)
        saved = None if held is None else self._find(held)
        if held is None or saved is None:
            raise CallFailed(f"slot {slot} holds nothing to save", "id_slot")
        folder, tokens, adapters = self.folder, saved.tokens, self._names(held.adapters)
        assert folder is not None

        def write() -> None:
            try:
                n_written = statefile.write(
                    folder,
                    name,
                    tokens,
                    saved.data,
                    fingerprint=self._cache.fingerprint,
                    adapters=adapters,
                )
            except OSError as error:
                message = f"the file cannot be written: {error.strerror}"
                self.threads.refuse(call, CallFailed(message, "filename"))
                return
            ms = (time.perf_counter() - began) * 1e3
            value = {"n_saved": len(tokens), "n_written": n_written, "ms": ms}
            self.threads.reply(Reply(call.id, value))

        self.threads.writes(write)

    def _find(self, held: Held) -> Saved | None:
        """The state of what a slot held: from the cells, or host memory; None when it is gone."""
        tokens, adapters = held
        self._settle()
        entry, n = self._room.cache.longest(tokens, adapters)
        if entry is not None and n == len(tokens):
            if self._room.is_shifted(entry.seq_id):
                message = "a slot with this model's pictures in it cannot be saved"
                raise CallFailed(message, "id_slot", "not_supported")
            if len(entry.tokens) == n:
                return Saved(tokens, adapters, self._cache.save_state(entry.seq_id))
            return Saved(tokens, adapters, self._part(entry.seq_id, n))
        tier = self._room.tier
        saved, n = (None, 0) if tier is None else tier.longest(tokens, adapters)
        return saved if saved is not None and n == len(tokens) and saved.n_bytes else None

    def _part(self, seq_id: int, n: int) -> Any:
        """The state of a cache sequence's first ``n`` tokens."""
        helper = self._room.take_seq_id()
        self._settle()
        self._cache.copy(seq_id, helper, 0, n)
        data = self._cache.save_state(helper)
        self._cache.cut(helper, 0)
        self._room.free_seq_ids.append(helper)
        return data

    def _restore_slot(self, call: Call) -> None:
        began, slot, name = time.perf_counter(), call.args["slot"], call.args["filename"]
        folder = self.folder
        assert folder is not None

        def read() -> None:
            try:
                saved, n_read = self._read(folder, name)
            except BadState as error:
                self.threads.refuse(call, CallFailed(f"the file {error}", "filename"))
                return
            self.threads.post(lambda: self._adopt(call, slot, saved, n_read, began))

        self.threads.reads(read)

    def _read(self, folder: Path, name: str) -> tuple[Saved, int]:
        """A state file that this model can take. Raises ``BadState``."""
        header, _ = statefile.read_head(folder, name)
        n_cells = self._room.cells.n_cells
        if header.n_tokens > n_cells:
            raise BadState(f"holds {header.n_tokens} tokens; the context holds {n_cells}")
        fingerprint = self._cache.fingerprint
        header, tokens, state = statefile.read(folder, name, fingerprint=fingerprint)
        # Those below 0 are of pictures and sounds.
        if len(tokens) == 0 or not all(t < self._cache.n_vocab for t in tokens):
            raise BadState("holds no tokens of this model")
        adapters = _ids(header.adapters, self._digests)
        if adapters is None:
            raise BadState("was saved with a LoRA adapter that is not loaded")
        return Saved(tokens, adapters, state), header.n_bytes

    def _adopt(self, call: Call, slot: int, saved: Saved, n_read: int, began: float) -> None:
        tokens, adapters = saved.tokens, saved.adapters
        entry, n = self._room.cache.longest(tokens, adapters)
        if entry is not None and n == len(tokens):
            self._room.cache.touch(entry)
        else:
            seq_id = self._room.adopt(saved)
            if seq_id is None:
                message = "the context has no room for it beside the requests that run"
                return self.threads.refuse(call, CallFailed(message, "filename"))
            if not self._settle():
                return self.threads.refuse(call, CallFailed("the file was refused", "filename"))
        self._scheduler.held_by_slot[slot] = Held(tokens, adapters)
        ms = (time.perf_counter() - began) * 1e3
        self.threads.reply(Reply(call.id, {"n_restored": len(tokens), "n_read": n_read, "ms": ms}))
        return None

    def _erase_slot(self, call: Call) -> None:
        held = self._scheduler.held_by_slot.pop(call.args["slot"], None)
        n_erased = 0
        if held is not None:
            tokens, adapters = held
            n_erased = len(tokens)
            for entry in self._room.cache.entries:
                if entry.adapters == adapters and entry.tokens == tokens:
                    self._room.evict(entry.seq_id)
            if self._room.tier is not None:
                self._room.tier.erase(tokens, adapters)
            if self.disk is not None:
                disk, names = self.disk, self._names(adapters)
                self.threads.writes(lambda: disk.erase(tokens, names))
            self._settle()
        self.threads.reply(Reply(call.id, {"n_erased": n_erased}))

    def _names(self, adapters: AdapterSet) -> tuple[tuple[str, float], ...]:
        return tuple((self._digests[i], scale) for i, scale in adapters)


def _ids(names: tuple[tuple[str, float], ...], digests: list[str]) -> AdapterSet | None:
    """A set in a file's words as one of this engine; None when an adapter is not loaded."""
    if any(digest not in digests for digest, _ in names):
        return None
    return adapter_set((digests.index(digest), scale) for digest, scale in names)
