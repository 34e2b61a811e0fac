"""Choosing tokens: llama.cpp's samplers on as few candidates as they need to see."""

from __future__ import annotations

import ctypes
import math
import struct
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from corral.backend.engine import sampling
from corral.backend.engine.llama.native import NotFinite, keep_gil, lib

#: Bans tokens by setting their logits, shape (n_vocab,), to -inf.
Mask: TypeAlias = Callable[[NDArray[np.float32]], None]
Logits: TypeAlias = NDArray[np.float32]

#: llama_token_data of llama.h.
_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
#: llama_token_data_array of llama.h: data, size, selected, sorted.
_ARRAY = struct.Struct("@PNn?7x")
#: Into how many the vocabulary is dealt when its largest logits are looked for.
_N_HEAPS = 256
_apply = keep_gil("llama_sampler_apply")
_accept = keep_gil("llama_sampler_accept")


class Choice(NamedTuple):
    """A chosen token; its log probability, and the likeliest tokens with theirs, when asked for:
    probabilities, if they are those after sampling."""

    token: int
    value: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


class Candidates:
    """The array llama.cpp's samplers work on. One for all requests of a context."""

    def __init__(self, n_vocab: int) -> None:
        self._rows = np.zeros(n_vocab, _TOKEN_DATA)
        self._ids, self._logits = self._rows["id"], self._rows["logit"]
        self._all = np.arange(n_vocab, dtype=np.int32)
        self._n_even = n_vocab // _N_HEAPS * _N_HEAPS
        self._maxima = np.zeros(_N_HEAPS, np.float32)
        self._is_chosen = np.zeros(n_vocab, np.bool_)
        self._address = self._rows.ctypes.data
        array_ = lib.llama_token_data_array()
        assert ctypes.sizeof(array_) == _ARRAY.size
        self._memory = memoryview(array_).cast("B")
        self.pointer = ctypes.pointer(array_)

    def take_all(self, logits: Logits) -> None:
        """Every token."""
        self._ids[:] = self._all
        self._logits[:] = logits
        self._reset(len(logits))

    def take_top(self, logits: Logits, k: int) -> None:
        """At least the ``k`` largest logits, in the vocabulary's order: what llama.cpp's top-k
        keeps of them is what it keeps of all.

        The vocabulary is dealt into ``_N_HEAPS`` heaps; the k-th largest of their maxima is no more
        than the k-th largest logit, and seldom far from it.
        """
        n_even = self._n_even
        if k > _N_HEAPS or not n_even:
            return self.take_all(logits)
        maxima = self._maxima
        np.maximum.reduce(logits[:n_even].reshape(-1, _N_HEAPS), 0, out=maxima)
        maxima.sort()
        bound = maxima.item(-k)
        if not bound > -math.inf:  # fewer than k choices, or NaN
            return self.take_all(logits)
        chosen = np.greater_equal(logits, bound, self._is_chosen).nonzero()[0]
        n = len(chosen)
        self._ids[:n] = chosen
        self._logits[:n] = logits[chosen]
        self._reset(n)
        return None

    def _reset(self, size: int) -> None:
        _ARRAY.pack_into(self._memory, 0, self._address, size, -1, False)

    def selected(self) -> int:
        """The token a chain has selected, -1 if none."""
        address, size, selected, _ = _ARRAY.unpack_from(self._memory)
        if not 0 <= selected < size:
            return -1
        at = address + selected * _TOKEN_DATA.itemsize  # may be memory of a sampler's own
        return int(ctypes.c_int32.from_address(at).value)

    def left(self) -> NDArray[Any]:
        """What a chain has left, likeliest first: ``id``, ``logit``, ``p``."""
        address, size, _, _ = _ARRAY.unpack_from(self._memory)
        kept = self._at(address, size)
        return kept[np.argsort(-kept["p"], kind="stable")]

    def _at(self, address: int, size: int) -> NDArray[Any]:
        """Samplers may leave the candidates in memory of their own."""
        memory = (ctypes.c_char * (_TOKEN_DATA.itemsize * size)).from_address(address)
        return np.frombuffer(memoryview(memory), _TOKEN_DATA)


class _Counts:
    """Tokens among the last ``n``, and the logits they cost. Formula of llama.cpp's penalties
    sampler (repetition: Keskar et al. 2019; frequency and presence: OpenAI's)."""

    def __init__(self, stage: sampling.Penalties, n_vocab: int) -> None:
        self._stage = stage
        self._counts = np.zeros(n_vocab, np.int32)
        self._window = array("i", [-1]) * stage.last_n
        self._at = 0
        self._ids = np.zeros(16, np.int64)
        self._n_ids = 0

    def add(self, token: int) -> None:
        """Another token; the oldest leaves the window."""
        gone, self._window[self._at] = self._window[self._at], token
        self._at = (self._at + 1) % len(self._window)
        if gone >= 0:
            self._counts[gone] -= 1
        self._counts[token] += 1
        if self._n_ids == len(self._ids):
            self._tidy()
        self._ids[self._n_ids] = token
        self._n_ids += 1

    def _tidy(self) -> None:
        ids = np.unique(self._ids[: self._n_ids])
        ids = ids[self._counts[ids] > 0]
        self._n_ids = len(ids)
        self._ids = np.zeros(max(16, 2 * len(ids)), np.int64)
        self._ids[: len(ids)] = ids

    def apply(self, logits: Logits) -> None:
        """Lowers the logits of the tokens in the window."""
        self._tidy()
        ids, stage = self._ids[: self._n_ids], self._stage
        values, counts = logits[ids], self._counts[ids].astype(np.float32)
        repeat = np.float32(stage.repeat)
        values = np.where(values <= 0, values * repeat, values / repeat)
        values -= counts * np.float32(stage.frequency) + np.float32(stage.presence)
        logits[ids] = values


class Sampler:
    """One request's chain and its state. Close it; llama.cpp owns the parts."""

    def __init__(
        self,
        stages: list[sampling.Stage],
        prompt: array[int],
        *,
        vocab: Any,
        n_vocab: int,
        n_probs: int = 0,
        post_sampling: bool = False,
    ) -> None:
        self._vocab, self._n_vocab = vocab, n_vocab
        self._n_probs, self._is_post = n_probs, post_sampling
        self._bias_ids, self._bias_values = np.zeros(0, np.int64), np.zeros(0, np.float32)
        self._counts: _Counts | None = None
        if stages and isinstance(stages[0], sampling.Bias):
            self._set_bias(stages[0])
            stages = stages[1:]
        if stages and isinstance(stages[0], sampling.Penalties):
            # On the few tokens they concern, in place of a walk over the whole vocabulary.
            self._counts = _Counts(stages[0], n_vocab)
            for token in prompt[-stages[0].last_n :]:
                self._counts.add(token)
            stages = stages[1:]
        self._is_greedy = stages == [sampling.Greedy()]
        self._k = stages[0].k if stages and isinstance(stages[0], sampling.TopK) else 0
        self._pointer = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        #: Samplers that remember tokens must be told of each.
        self._remembers = False
        for stage in stages:
            lib.llama_sampler_chain_add(self._pointer, self._native(stage))
            if isinstance(stage, sampling.Penalties | sampling.Dry):
                self._remembers = True
                for token in prompt[-stage.last_n :]:
                    lib.llama_sampler_accept(self._pointer, token)
            self._remembers |= isinstance(stage, sampling.AdaptiveP)

    def _set_bias(self, stage: sampling.Bias) -> None:
        # Added to the logits before the chain sees them: cheaper than a stage over them all.
        total: dict[int, float] = {}
        for token, value in stage.pairs:
            total[token] = total.get(token, 0.0) + value
        self._bias_ids = np.fromiter(total, np.int64, len(total))
        self._bias_values = np.fromiter(total.values(), np.float32, len(total))

    def close(self) -> None:
        """Frees the chain."""
        if self._pointer is not None:
            lib.llama_sampler_free(self._pointer)
            self._pointer = None

    def choose(self, logits: Logits, candidates: Candidates, mask: Mask | None = None) -> Choice:
        """The next token, from logits of shape (n_vocab,), which are changed. Raises NotFinite."""
        raw = logits.copy() if self._n_probs and not self._is_post else None
        if mask is not None:
            mask(logits)
        if len(self._bias_ids):
            logits[self._bias_ids] += self._bias_values
        if self._counts is not None:
            self._counts.apply(logits)
        if self._is_greedy:
            token = int(logits.argmax())
        else:
            if self._k:
                candidates.take_top(logits, self._k)
            else:
                candidates.take_all(logits)
            _apply(self._pointer, candidates.pointer)
            token = candidates.selected()
        if token < 0 or not math.isfinite(logits.item(token)):
            raise NotFinite  # among NaN, or with everything banned, any choice is as bad
        self.accept(token)
        if not self._n_probs:
            return Choice(token)
        if raw is not None:
            return log_probs(raw, token, self._n_probs)
        if self._is_greedy:
            return Choice(token, 1.0, ((token, 1.0),))
        return self._after(token, candidates.left())

    def _after(self, token: int, left: NDArray[Any]) -> Choice:
        """The choice with the probabilities the samplers left."""
        left = left[left["p"] > 0]
        mine = left["p"][left["id"] == token]
        top = left[: self._n_probs]
        pairs = zip(top["id"].tolist(), top["p"].tolist(), strict=True)
        return Choice(token, float(mine[0]) if len(mine) else 0.0, tuple(pairs))

    def accept(self, token: int) -> None:
        """Tells the samplers of a token they did not choose."""
        if self._counts is not None:
            self._counts.add(token)
        if self._remembers:
            _accept(self._pointer, token)

    def _native(self, stage: sampling.Stage) -> Any:
        match stage:
            case sampling.Penalties(last_n, repeat, frequency, presence):
                return lib.llama_sampler_init_penalties(
                    self._n_vocab, last_n, repeat, frequency, presence
                )
            case sampling.Dry():
                return self._dry(stage)
            case sampling.TopNSigma(n):
                return lib.llama_sampler_init_top_n_sigma(n)
            case sampling.TopK(k):
                return lib.llama_sampler_init_top_k(k)
            case sampling.Infill():
                return lib.llama_sampler_init_infill(self._vocab)
            case sampling.Temperature(t, width, exponent):
                return lib.llama_sampler_init_temp_ext(t, width, exponent)
            case sampling.Typical() | sampling.TopP() | sampling.MinP() | sampling.Xtc():
                return _cutting(stage)
            case _:
                return self._selecting(stage)

    def _dry(self, stage: sampling.Dry) -> Any:
        breakers = [b.encode() for b in stage.breakers]
        return lib.llama_sampler_init_dry(
            self._vocab,
            stage.multiplier,
            stage.base,
            stage.allowed_length,
            stage.last_n,
            (ctypes.c_char_p * len(breakers))(*breakers),
            len(breakers),
        )

    def _selecting(self, stage: sampling.Stage) -> Any:
        match stage:
            case sampling.Draw(seed):
                return lib.llama_sampler_init_dist(seed)
            case sampling.Mirostat(1, tau, eta, seed):
                # 100: the tokens its estimate looks at, as everywhere.
                return lib.llama_sampler_init_mirostat(self._n_vocab, seed, tau, eta, 100)
            case sampling.Mirostat(_, tau, eta, seed):
                return lib.llama_sampler_init_mirostat_v2(seed, tau, eta)
            case sampling.AdaptiveP(target, decay, seed):
                return lib.llama_sampler_init_adaptive_p(target, decay, seed)
            case _:
                return lib.llama_sampler_init_greedy()


def _cutting(stage: sampling.Stage) -> Any:
    match stage:
        case sampling.Typical(p, keep):
            return lib.llama_sampler_init_typical(p, keep)
        case sampling.TopP(p, keep):
            return lib.llama_sampler_init_top_p(p, keep)
        case sampling.MinP(p, keep):
            return lib.llama_sampler_init_min_p(p, keep)
        case sampling.Xtc(probability, threshold, keep, seed):
            return lib.llama_sampler_init_xtc(probability, threshold, keep, seed)
    raise AssertionError(stage)


def log_probs(logits: Logits, token: int, n: int) -> Choice:
    """A token and the ``n`` likeliest with their log probabilities: the softmax over all logits,
    summed in float64."""
    peak = float(logits.max())
    total = np.log(np.exp(logits - peak, dtype=np.float32).sum(dtype=np.float64)) + peak
    mine = float(logits[token] - total)
    if n == 0:
        return Choice(token, mine)
    n = min(n, len(logits))
    top = np.argpartition(logits, -n)[-n:]
    top = top[np.lexsort((top, -logits[top]))]
    values = (logits[top].astype(np.float64) - total).tolist()
    pairs = tuple(zip(top.tolist(), values, strict=True))
    return Choice(token, mine, pairs)
