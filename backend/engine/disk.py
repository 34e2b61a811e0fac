"""The disk tier: prefixes in files that survive a restart, least recently used first out.

Used by two threads, so behind a lock: one looks up what is worth reading, the other reads, writes
and deletes. A file is read and written without the lock. Files of other models count towards the
limit, and are otherwise left alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from array import array
from pathlib import Path

from corral.backend.engine import statefile
from corral.backend.engine.messages import AdapterSet
from corral.backend.engine.prefix import common_prefix
from corral.backend.engine.statefile import BadState
from corral.backend.engine.tiers import MIN_GAIN, RESTORE_PART, Saved

log = logging.getLogger("corral.engine")

Names = tuple[tuple[str, float], ...]
_SUFFIX = ".prefix"


class Entry:
    """One file. ``is_loaded``: host memory has it as well."""

    def __init__(self, name: str, tokens: array[int], adapters: AdapterSet, n_bytes: int) -> None:
        self.name = name
        self.tokens = tokens
        self.adapters = adapters
        self.n_bytes = n_bytes
        self.is_loaded = False


class DiskTier:
    """Files of at most ``max_bytes`` in ``folder``, which is made. ``digests`` are those of the
    adapters' files, by id. Raises ``OSError`` when the folder cannot be used."""

    def __init__(
        self, folder: Path, max_bytes: int, *, fingerprint: str, digests: list[str]
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._fingerprint = fingerprint
        self._digests = digests
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}  # by file name, least recently used first
        self._loaded: set[str] = set()
        self.n_hits = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._scan()

    @property
    def n_bytes(self) -> int:
        """Bytes of all files."""
        with self._lock:
            return sum(entry.n_bytes for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def _scan(self) -> None:
        for path in self._folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)  # what a crash left half written
        found = [p for p in self._folder.glob(f"*{_SUFFIX}") if p.is_file() and not p.is_symlink()]
        for path in sorted(found, key=lambda p: p.stat().st_mtime):
            n_bytes = path.stat().st_size
            tokens, adapters = array("i"), None
            if path.name.startswith(self._fingerprint[:16]):
                try:
                    header, tokens = statefile.read_head(self._folder, path.name)
                except BadState as error:
                    self._delete(path.name, f"{error}")
                    continue
                adapters = self._ids(header.adapters)
            # Nothing is found in those of other models, or with adapters that are not loaded.
            tokens = tokens if adapters is not None else array("i")
            self._entries[path.name] = Entry(path.name, tokens, adapters or (), n_bytes)
        self._trim()

    def _ids(self, names: Names) -> AdapterSet | None:
        if any(digest not in self._digests for digest, _ in names):
            return None
        return tuple(sorted((self._digests.index(digest), scale) for digest, scale in names))

    def _names(self, adapters: AdapterSet) -> Names:
        return tuple((self._digests[i], scale) for i, scale in adapters)

    # --- looking up -----------------------------------------------------------------------------

    def find(self, tokens: array[int], adapters: AdapterSet) -> Entry | None:
        """The file worth reading for a prompt; None when there is none, or host memory has as much
        of it."""
        best, n_best = None, 0
        with self._lock:
            for entry in self._entries.values():
                if entry.adapters == adapters and len(entry.tokens) > 0:
                    n = common_prefix(entry.tokens, tokens)
                    if n > n_best or (n == n_best > 0 and entry.is_loaded):
                        best, n_best = entry, n
        if best is None or best.is_loaded:
            return None
        return best if n_best >= max(MIN_GAIN, len(best.tokens) // RESTORE_PART) else None

    def note_loaded(self, saved: Saved, *, is_loaded: bool) -> None:
        """Host memory took a prefix in, or let it go."""
        name = self._name(saved.tokens, self._names(saved.adapters))
        with self._lock:
            if is_loaded:
                self._loaded.add(name)
            else:
                self._loaded.discard(name)
            if name in self._entries:
                self._entries[name].is_loaded = is_loaded

    # --- files (one thread) ---------------------------------------------------------------------

    def load(self, entry: Entry) -> Saved | None:
        """Reads a file. One that is damaged is deleted, and None comes of it."""
        try:
            header, tokens, state = statefile.read(
                self._folder, entry.name, fingerprint=self._fingerprint
            )
        except (BadState, OSError) as error:
            self._delete(entry.name, str(error))
            return None
        if tokens != entry.tokens or self._ids(header.adapters) != entry.adapters:
            self._delete(entry.name, "it is not what its name says")
            return None
        self.n_hits += 1
        with self._lock:
            self._loaded.add(entry.name)
            entry.is_loaded = True
            if entry.name in self._entries:
                self._entries[entry.name] = self._entries.pop(entry.name)
        with contextlib.suppress(OSError):
            os.utime(self._folder / entry.name)
        return Saved(tokens, entry.adapters, state)

    def store(self, saved: Saved) -> None:
        """Writes a prefix, in place of those within it."""
        names = self._names(saved.adapters)
        name = self._name(saved.tokens, names)
        if saved.n_bytes == 0 or saved.n_bytes > self._max_bytes or name in self._entries:
            return
        try:
            n_bytes = statefile.write(
                self._folder,
                name,
                saved.tokens,
                saved.data,
                fingerprint=self._fingerprint,
                adapters=names,
            )
        except OSError as error:
            log.warning("a prefix cannot be kept on disk: %s", error.strerror)
            return
        entry = Entry(name, saved.tokens, saved.adapters, n_bytes)
        with self._lock:
            entry.is_loaded = name in self._loaded
            self._entries[name] = entry
            within = [
                other.name
                for other in self._entries.values()
                if other is not entry
                and other.adapters == entry.adapters
                and 0 < len(other.tokens) == common_prefix(other.tokens, entry.tokens)
            ]
        for other in within:
            self._delete(other)
        self._trim()

    def erase(self, tokens: array[int], names: Names) -> None:
        """Deletes exactly this prefix, if it is here."""
        name = self._name(tokens, names)
        if name in self._entries:
            self._delete(name)

    def _trim(self) -> None:
        while self.n_bytes > self._max_bytes and self._entries:
            self._delete(next(iter(self._entries)))

    def _delete(self, name: str, because: str = "") -> None:
        if because:
            log.warning("%s in the prefix cache %s; deleted", name, because)
        with self._lock:
            self._entries.pop(name, None)
        with contextlib.suppress(OSError):
            (self._folder / name).unlink(missing_ok=True)

    def _name(self, tokens: array[int], names: Names) -> str:
        digest = hashlib.blake2b(repr(names).encode(), digest_size=16)
        digest.update(tokens.tobytes())
        return f"{self._fingerprint[:16]}-{digest.hexdigest()}{_SUFFIX}"
