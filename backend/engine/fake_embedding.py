"""Vectors without a model: deterministic, from the bytes of a text. Beside ``fake.FakeLlama``."""

from __future__ import annotations

import time
import zlib

import numpy as np
from numpy.typing import NDArray

from corral.backend.engine.llama import DecodeFailed, Row
from corral.backend.engine.messages import Pooling

_N_VOCAB = 259
#: Ends every input, as [SEP] does; 258 of the fake's vocabulary.
_END = 258
_SEPARATOR = 257


class FakeEmbedder:
    """Each token has a vector that depends on it and its place, so that a wrong start or a mixed-up
    sequence shows. Without pooling the vectors are the tokens'; a score counts shared words."""

    def __init__(
        self,
        *,
        pooling: Pooling = "mean",
        width: int = 8,
        n_input: int = 512,
        n_batch: int = 64,
        n_seq_max: int = 8,
        can_split: bool = True,
        step_ms: float = 0.0,
    ) -> None:
        self.pooling = pooling
        self.width = 1 if pooling == "rank" else width
        self.n_input = n_input
        self.n_batch = n_batch if can_split else max(n_batch, n_input)
        self.n_call = n_batch
        self.n_seq_max = n_seq_max
        self.n_vocab = _N_VOCAB
        self.can_split = can_split
        self.step_ms = step_ms
        self.calls: list[list[int]] = []  # tokens of each row of each call, for tests that count
        self.bad_token: int | None = None  # a call with it is refused
        self._length: dict[int, int] = {}

    def tokenize_input(self, prompt: str | list[int | str], limit: int | None = None) -> list[int]:
        """The bytes, and an end."""
        parts = [prompt] if isinstance(prompt, str) else prompt
        tokens: list[int] = []
        for part in parts:
            tokens += [part] if isinstance(part, int) else part.encode("utf-8", "replace")
        tail = [_END] if parts and isinstance(parts[-1], str) else []
        return tokens[: None if limit is None else max(0, limit - len(tail))] + tail

    def tokenize_pair(self, query: str, document: str, limit: int | None = None) -> list[int]:
        """The bytes of both, a separator between."""
        head = [*query.encode("utf-8", "replace"), _SEPARATOR]
        text = list(document.encode("utf-8", "replace"))
        return head + text[: None if limit is None else max(0, limit - len(head) - 1)] + [_END]

    def set_threads(self, n: int) -> None:
        """Nothing to set."""

    def compute(self, rows: list[Row]) -> list[NDArray[np.float32]]:
        """As ``EmbeddingModel.compute``, with its refusals."""
        if self.step_ms:
            time.sleep(self.step_ms / 1e3)
        assert rows and sum(len(r.tokens) for r in rows) <= self.n_batch
        assert len({r.seq_id for r in rows}) == len(rows) <= self.n_seq_max
        if any(self.bad_token in r.tokens for r in rows):
            raise DecodeFailed(-1)
        found = []
        for row in rows:
            assert 0 <= row.seq_id < self.n_seq_max
            assert row.start == self._length.get(row.seq_id, 0)
            if self.can_split:
                self._length[row.seq_id] = row.start + len(row.tokens)
            if self.pooling == "rank":
                found.append(np.array([[_score(list(row.tokens))]], np.float32))
                continue
            vectors = np.stack([self._vector(row.start + i, t) for i, t in enumerate(row.tokens)])
            found.append(vectors if row.all_logits else vectors[-1:])
        self.calls.append([len(r.tokens) for r in rows])
        return found

    def _vector(self, place: int, token: int) -> NDArray[np.float32]:
        digest = zlib.crc32(bytes((token & 255, token >> 8, place & 255, place >> 8 & 255)))
        return np.random.default_rng(digest).normal(size=self.width).astype(np.float32)

    def forget(self, seq_id: int) -> None:
        """Drops the sequence."""
        self._length.pop(seq_id, None)


def _score(tokens: list[int]) -> float:
    at = tokens.index(_SEPARATOR) if _SEPARATOR in tokens else len(tokens)
    query, document = (bytes(t for t in part if t < 256) for part in (tokens[:at], tokens[at:]))
    asked, found = set(query.lower().split()), set(document.lower().split())
    return len(asked & found) / max(1, len(asked | found))
