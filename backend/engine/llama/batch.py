"""Batches as llama.cpp reads them, over arrays that live as long as it needs them."""

from __future__ import annotations

import ctypes
from array import array
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from corral.backend.engine.llama.native import lib


class Row(NamedTuple):
    """Tokens of one sequence for one call, at positions ``start`` and on. ``all_logits``: every
    token's row is wanted, not only the last."""

    seq_id: int
    start: int
    tokens: array[int]
    wants_logits: bool
    all_logits: bool = False


class Batch:
    """A llama_batch over numpy arrays that this object keeps alive; up to ``size`` tokens."""

    def __init__(self, size: int) -> None:
        self._token = np.zeros(size, np.int32)
        self._pos = np.zeros(size, np.int32)
        self._n_seq = np.ones(size, np.int32)
        self._seq = np.zeros(size, np.int32)
        self._out = np.zeros(size, np.int8)
        self._seq_pointers = np.zeros(size + 1, np.uint64)  # the last one stays NULL
        self._seq_pointers[:size] = self._seq.ctypes.data + 4 * np.arange(size, dtype=np.uint64)
        self._size = size

        def pointer(values: NDArray[Any], kind: Any) -> Any:
            return values.ctypes.data_as(ctypes.POINTER(kind))

        i32 = ctypes.c_int32
        self.c = lib.llama_batch(
            0,
            pointer(self._token, i32),
            None,
            pointer(self._pos, i32),
            pointer(self._n_seq, i32),
            pointer(self._seq_pointers, ctypes.POINTER(i32)),
            pointer(self._out, ctypes.c_int8),
        )

    def fill(self, rows: list[Row]) -> list[int]:
        """Sets the batch to ``rows``; returns the index of each row's last token."""
        end, last = 0, []
        for seq_id, start, tokens, wants_logits, all_logits in rows:
            begin, end = end, end + len(tokens)
            assert begin < end <= self._size
            if end - begin == 1:  # a decode step's
                self._token[begin] = tokens[0]
                self._pos[begin] = start
                self._seq[begin] = seq_id
                self._out[begin] = wants_logits or all_logits
                last.append(begin)
                continue
            self._token[begin:end] = tokens
            self._pos[begin:end] = np.arange(start, start + len(tokens), dtype=np.int32)
            self._seq[begin:end] = seq_id
            self._out[begin:end] = all_logits
            self._out[end - 1] = wants_logits or all_logits
            last.append(end - 1)
        assert end > 0
        self.c.n_tokens = end
        return last


class EmbeddingBatch:
    """As ``Batch``, with rows of ``width`` numbers in place of tokens, all of one sequence."""

    def __init__(self, size: int, width: int) -> None:
        self._rows = np.zeros((size, width), np.float32)
        self._like = Batch(size)
        rows = self._rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        c = self._like.c
        self.c = lib.llama_batch(0, None, rows, c.pos, c.n_seq_id, c.seq_id, c.logits)

    def fill(self, rows: NDArray[np.float32], seq_id: int, start: int, wants_logits: bool) -> None:
        """Sets the batch to ``rows`` at positions ``start`` and on."""
        n = len(rows)
        self._rows[:n] = rows
        row = Row(seq_id, start, array("i", bytes(4 * n)), wants_logits)
        self._like.fill([row])
        self.c.n_tokens = n
