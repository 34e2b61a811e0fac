"""What the engine remembers beyond a request: LoRA sets in force, and the tiers behind the cells.

Owned by the step thread: it carries out cache operations between steps. Files, which take long, are
read and written on other threads.
"""

from __future__ import annotations

import logging
from array import array
from pathlib import Path
from typing import Any

from corral.backend.engine.adapters import adapter_set, lora_problem
from corral.backend.engine.disk import DiskTier
from corral.backend.engine.llama import LoadError
from corral.backend.engine.llama.loading import available_bytes
from corral.backend.engine.messages import AdapterSet, Call, EngineConfig, Reply
from corral.backend.engine.room import Copy, Cut, KvOp, Load, Save
from corral.backend.engine.scheduler import Scheduler
from corral.backend.engine.slots import Cache, CallFailed, Job, Slots, Threads
from corral.backend.engine.tiers import Saved, Tier

log = logging.getLogger("corral.engine")


class Memory:
    """See the module. Alone it keeps no files, and does everything at once."""

    def __init__(self, cache: Cache, scheduler: Scheduler) -> None:
        self._cache = cache
        self._scheduler = scheduler
        self._room = scheduler.room
        self._disk: DiskTier | None = None
        self._threads = Threads()
        self._digests = cache.adapter_digests
        self.in_force: AdapterSet = adapter_set((i.id, i.scale) for i in cache.adapter_infos)
        self.slots = Slots(cache, scheduler, self.settle, self._threads)

    def connect(self, threads: Threads) -> None:
        """Replies go out, and files are read and written, through these from now on."""
        self._threads = self.slots.threads = threads

    def configure(self, config: EngineConfig) -> None:
        """Folders, tiers and adapters as asked for. Raises ``LoadError``."""
        if config.lora_init_without_apply:
            self.in_force = ()
        if config.slot_save_path:
            folder = self.slots.folder = Path(config.slot_save_path)
            if not folder.is_dir():
                raise LoadError(f"--slot-save-path: {folder} is not a folder")
        if not self._scheduler.can_share:
            return
        if config.cache_ram_mib:
            self._room.tier = Tier(_bytes_of(config.cache_ram_mib))
        if config.cache_disk:
            self.keep_on_disk(Path(config.cache_disk), config.cache_disk_mib << 20)

    def keep_on_disk(self, folder: Path, max_bytes: int) -> None:
        """Also keeps prefixes in files. Raises ``LoadError``."""
        tier = self._room.tier
        if tier is None:
            raise LoadError("--cache-disk goes through host memory: it needs --cache-ram")
        try:
            disk = self._disk = self.slots.disk = DiskTier(
                folder, max_bytes, fingerprint=self._cache.fingerprint, digests=self._digests
            )
        except OSError as error:
            raise LoadError(f"--cache-disk: {folder}: {error.strerror}") from None

        def store(saved: Saved) -> None:
            disk.note_loaded(saved, is_loaded=True)
            self._threads.writes(lambda: disk.store(saved))

        tier.listen(
            on_saved=store,
            on_dropped=lambda saved: disk.note_loaded(saved, is_loaded=False),
        )

    # --- LoRA sets ------------------------------------------------------------------------------

    def adapters_for(self, lora: tuple[tuple[int, float], ...] | None) -> AdapterSet:
        """The set for a request that names these, or nothing."""
        return self.in_force if lora is None else adapter_set(lora)

    def _set_lora(self, scales: list[tuple[int, float]]) -> None:
        seen: set[int] = set()
        for i, (adapter_id, scale) in enumerate(scales):
            if adapter_id in seen:
                raise CallFailed(f"LoRA adapter {adapter_id} is named twice", f"[{i}].id")
            seen.add(adapter_id)
            if problem := lora_problem(len(self._digests), adapter_id, scale):
                raise CallFailed(problem, f"[{i}]")
        self.in_force = adapter_set(scales)

    def _rows(self) -> list[dict[str, Any]]:
        scales = dict(self.in_force)
        return [
            {
                "id": info.id,
                "path": info.path,
                "scale": scales.get(info.id, 0.0),
                "task_name": info.task_name,
                "prompt_prefix": info.prompt_prefix,
                "invocation_tokens": info.invocation_tokens,
            }
            for info in self._cache.adapter_infos
        ]

    # --- looking in -----------------------------------------------------------------------------

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """The last members of ``messages.Counters``."""
        tier, disk = self._room.tier, self._disk
        saves, restores, tokens = (
            (0, 0, 0) if tier is None else (tier.n_saves, tier.n_restores, tier.n_restored_tokens)
        )
        return saves, restores, tokens, 0 if disk is None else disk.n_hits

    @property
    def sizes(self) -> dict[str, int]:
        """Members of ``messages.Snapshot``."""
        tier, disk = self._room.tier, self._disk
        return {
            "ram_bytes": 0 if tier is None else tier.n_bytes,
            "ram_prefixes": 0 if tier is None else len(tier),
            "disk_bytes": 0 if disk is None else disk.n_bytes,
        }

    # --- the plan's operations ------------------------------------------------------------------

    def carry_out(self, kv: list[KvOp]) -> bool:
        """Does a plan's cache operations. False when a saved state could not be restored: nothing
        is where the books say then, so all that runs starts over, and the plan is void."""
        for operation in kv:
            match operation:
                case Copy():
                    self._cache.copy(*operation)
                case Cut():
                    self._cache.cut(*operation)
                case Save(seq_id, saved):
                    self._save(seq_id, saved)
                case Load(seq_id, saved):
                    if not self._cache.load_state(seq_id, saved.data):
                        log.error("a saved prefix of %d tokens was refused", len(saved.tokens))
                        self._start_over(saved)
                        return False
        return True

    def _save(self, seq_id: int, saved: Saved) -> None:
        tier = self._room.tier
        assert tier is not None
        tier.fill(saved, self._cache.save_state(seq_id))
        if saved.n_bytes == 0:
            tier.remove(saved)

    def _start_over(self, saved: Saved) -> None:
        if self._room.tier is not None:
            self._room.tier.remove(saved)
            self._room.tier.remove_pending()
        self._scheduler.start_over()
        self.settle()

    def settle(self) -> bool:
        """Does what cache operations are noted already."""
        return self.carry_out(self._room.take_kv())

    def save_ahead(self) -> bool:
        """With nothing else to do: copies one cached prefix. False when there is none to copy."""
        return self._room.save_ahead() and self.settle()

    def fetch(
        self, tokens: list[int], lora: tuple[tuple[int, float], ...] | None, then: Job
    ) -> bool:
        """Has a prefix read from disk for a prompt, if that is worth it, and then does ``then``.
        False when there is nothing to wait for. For the text thread."""
        disk = self._disk
        entry = None if disk is None else disk.find(array("i", tokens), self.adapters_for(lora))
        if disk is None or entry is None:
            return False

        def read() -> None:
            saved = disk.load(entry)
            if saved is not None:
                self._threads.post(lambda: self.take_in(saved))
            then()

        self._threads.reads(read)
        return True

    def after_fetches(self, then: Job) -> None:
        """Does ``then`` when all reads asked for so far are done; at once where there are none."""
        if self._disk is None:
            then()
        else:
            self._threads.reads(then)

    def take_in(self, saved: Saved) -> None:
        """Puts what was read from disk into host memory."""
        tier = self._room.tier
        if tier is None or tier.covers(saved.tokens, saved.adapters):
            return
        place = tier.put(saved.tokens, saved.adapters)
        if place is not None:
            tier.fill(place, saved.data, is_new=False)

    # --- calls ----------------------------------------------------------------------------------

    METHODS = frozenset(("lora", "set_lora", "slot_save", "slot_restore", "slot_erase"))

    def call(self, call: Call) -> None:
        """Answers a call of ``METHODS``, now or once its slot is idle and its file done."""
        try:
            match call.method:
                case "lora":
                    self._threads.reply(Reply(call.id, self._rows()))
                case "set_lora":
                    self._set_lora([(int(i), float(s)) for i, s in call.args["scales"]])
                    self._threads.reply(Reply(call.id, True))
                case _:
                    self.slots.take(call)
        except CallFailed as error:
            self._threads.refuse(call, error)


def _bytes_of(mib: int) -> int:
    """A limit in MiB as bytes, but never more than half of what the machine has free."""
    wanted = mib << 20 if mib > 0 else 1 << 62
    available = available_bytes()
    return wanted if available is None else min(wanted, available // 2)
