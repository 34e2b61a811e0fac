"""The state of one cache sequence as bytes, and what such bytes are good for.

llama.cpp checks sizes, types and its magic, but takes flipped bytes, and the state of another model
of the same shape, for good. So callers keep a checksum and a fingerprint beside the bytes.
"""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corral.backend.engine.llama.native import lib

_Bytes = ctypes.POINTER(ctypes.c_uint8)
#: A fingerprint reads this much of the beginning, where the metadata is, and samples the rest.
_HEAD, _SAMPLES, _SAMPLE = 1 << 20, 64, 1 << 12


def save(context: Any, seq_id: int) -> NDArray[np.uint8]:
    """A copy of a sequence's state; empty when llama.cpp gives none."""
    size = int(lib.llama_state_seq_get_size_ext(context, seq_id, 0))
    data = np.empty(size, np.uint8)
    pointer = data.ctypes.data_as(_Bytes)
    n = int(lib.llama_state_seq_get_data_ext(context, pointer, size, seq_id, 0))
    return data if n == size else data[:0]


def load(context: Any, seq_id: int, data: Any) -> bool:
    """Gives a sequence a saved state in place of its own. False when llama.cpp refuses it or has
    not that many cells; the sequence is empty then."""
    view = np.frombuffer(data, np.uint8)
    if len(view) == 0:
        return False
    # The argument is not written to, but its type in the bindings is not const.
    pointer = ctypes.cast(view.ctypes.data, _Bytes)
    return int(lib.llama_state_seq_set_data_ext(context, pointer, len(view), seq_id, 0)) > 0


def file_digest(path: Path) -> str:
    """What a file is, whatever its name: its size, its beginning, and samples of the rest. The
    whole of a large model would take half a minute to read."""
    digest = hashlib.blake2b(digest_size=16)
    size = path.stat().st_size
    digest.update(size.to_bytes(8, "little"))
    with path.open("rb") as file:
        digest.update(file.read(_HEAD))
        for i in range(_SAMPLES):
            file.seek(size * i // _SAMPLES)
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def fingerprint(path: Path, *layout: object) -> str:
    """A model and the ``layout`` of its cache: states are good where both are the same."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(file_digest(path).encode())
    digest.update(repr((*layout, int(lib.LLAMA_STATE_SEQ_VERSION))).encode())
    return digest.hexdigest()
