"""A saved prefix as a file: slot files and the disk tier. Bytes in and out; knows no model.

    magic, version, length of header | header (JSON) | token ids (int32) | state | checksum

All numbers little-endian; the checksum is of all bytes before it. llama.cpp aborts on some damaged
states and takes others for good, so nothing of a file reaches it before all of this was checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import struct
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

MAGIC, VERSION = b"CORRALKV", 1
_START = struct.Struct("<8sII")
_MAX_HEADER = 1 << 16
_DIGEST = 16
_FORBIDDEN = set('/\\:*?"<>|')


class BadState(Exception):
    """The file does not hold a state for this model; the message says why."""


class Header(Struct, frozen=True, kw_only=True):
    """What a state was computed with: the model and how its cache is laid out, and its LoRA set by
    digests of the adapters' files."""

    fingerprint: str
    adapters: tuple[tuple[str, float], ...]
    n_tokens: int
    n_state: int

    @property
    def n_bytes(self) -> int:
        """Bytes after the header, checksum included."""
        return 4 * self.n_tokens + self.n_state + _DIGEST


def check_name(name: str) -> str:
    """A file name that is only that. Raises ``BadState``."""
    if not name or len(name.encode("utf-8", "replace")) > 255:
        raise BadState("must be a file name of 1 to 255 bytes")
    if name[0] in ". " or name[-1] in ". ":
        raise BadState("must not begin or end with a dot or space")
    if any(c in _FORBIDDEN or not c.isprintable() for c in name):
        raise BadState("must be a bare file name, without separators or special characters")
    return name


def write(
    folder: Path,
    name: str,
    tokens: array[int],
    state: Any,
    *,
    fingerprint: str,
    adapters: tuple[tuple[str, float], ...],
) -> int:
    """Writes a file, all of it or nothing, and waits until it is on disk. Returns its size in
    bytes. Raises ``OSError``."""
    header = msgspec.json.encode(
        Header(
            fingerprint=fingerprint,
            adapters=adapters,
            n_tokens=len(tokens),
            n_state=len(state),
        )
    )
    parts: list[bytes | memoryview] = [
        _START.pack(MAGIC, VERSION, len(header)),
        header,
        _little(tokens),
        memoryview(state),
    ]
    digest = hashlib.blake2b(digest_size=_DIGEST)
    for part in parts:
        digest.update(part)
    parts.append(digest.digest())
    temporary = f".{secrets.token_hex(8)}.tmp"
    with _opened(folder) as folder_fd:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        fd = os.open(temporary, flags, 0o600, dir_fd=folder_fd)
        try:
            with os.fdopen(fd, "wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(fd)
            # Replaces a link of that name, and never what it points to.
            os.replace(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder_fd)
            raise
        os.fsync(folder_fd)
    return sum(len(part) for part in parts)


def read_head(folder: Path, name: str) -> tuple[Header, array[int]]:
    """Header and tokens, without the state; nothing is verified but the sizes. Raises
    ``BadState``."""
    with _file(folder, name) as file:
        return _read_head(file)


def read(folder: Path, name: str, *, fingerprint: str) -> tuple[Header, array[int], bytes]:
    """Header, tokens and state of a file that is whole and belongs to this model. Raises
    ``BadState``."""
    with _file(folder, name) as file:
        header, tokens = _read_head(file)
        if header.fingerprint != fingerprint:
            raise BadState("was saved with another model or other cache settings")
        state, expected = file.read(header.n_state), file.read(_DIGEST)
        file.seek(0)
        digest = hashlib.blake2b(digest_size=_DIGEST)
        left = os.fstat(file.fileno()).st_size - _DIGEST
        while left > 0 and (block := file.read(min(left, 1 << 22))):
            digest.update(block)
            left -= len(block)
        if len(state) != header.n_state or digest.digest() != expected:
            raise BadState("is damaged: its checksum is wrong")
    return header, tokens, state


def _read_head(file: Any) -> tuple[Header, array[int]]:
    start = file.read(_START.size)
    if len(start) < _START.size or start[:8] != MAGIC:
        raise BadState("is not a state file")
    _, version, n_header = _START.unpack(start)
    if version != VERSION:
        raise BadState(f"has version {version}; this server reads version {VERSION}")
    if n_header > _MAX_HEADER:
        raise BadState("is damaged: its header is too long")
    try:
        header = msgspec.json.decode(file.read(n_header), type=Header)
    except msgspec.MsgspecError:
        raise BadState("is damaged: its header cannot be read") from None
    size = os.fstat(file.fileno()).st_size
    if header.n_tokens < 0 or header.n_state < 0:
        raise BadState("is damaged: its header makes no sense")
    wanted = _START.size + n_header + header.n_bytes
    if size != wanted:
        raise BadState(f"is damaged: it has {size} bytes instead of {wanted}")
    tokens = array("i", file.read(4 * header.n_tokens))
    if sys.byteorder == "big":
        tokens.byteswap()
    return header, tokens


def _little(tokens: array[int]) -> bytes:
    if sys.byteorder == "big":
        tokens = tokens[:]
        tokens.byteswap()
    return tokens.tobytes()


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _file(folder: Path, name: str) -> Iterator[Any]:
    """A regular file of a folder, opened for reading. Links are not followed, and a pipe or device
    cannot make this wait."""
    with _opened(folder) as folder_fd:
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            fd = os.open(name, flags, dir_fd=folder_fd)
        except FileNotFoundError:
            raise BadState("does not exist") from None
        except OSError as error:
            raise BadState(f"cannot be opened: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise BadState("is not a file")
    with os.fdopen(fd, "rb") as file:
        yield file
