"""The only door to llama.cpp: Python names over its C functions.

Everything llama.cpp would abort on is checked here first, because an abort ends the process.
One thread owns the context (``decode``, ``sample``, cache operations); the vocabulary functions
may be called from any thread. Facts are from llama.h of the pinned version.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import math
import os
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp.llama_cpp as lib
import numpy as np
from numpy.typing import NDArray

from corral.backend.engine import sampling
from corral.backend.engine.messages import ModelInfo

_GIB = 1 << 30
#: Files are little-endian and begin with these bytes (GGUF specification).
GGUF_MAGIC = b"GGUF"


class LoadError(Exception):
    """The model cannot be served; the message says why and is meant for people."""


class KvFull(Exception):
    """No cells for the batch. Nothing has changed."""


class DecodeFailed(Exception):
    """llama_decode refused the batch (``rc`` -1: nothing changed) or broke (below: fatal)."""

    def __init__(self, rc: int) -> None:
        super().__init__(f"llama_decode returned {rc}")
        self.rc = rc


class NotFinite(Exception):
    """The logits hold no number to choose by."""


class Row(NamedTuple):
    """Tokens of one sequence for one call, at positions ``start`` and on."""

    seq_id: int
    start: int
    tokens: array[int]
    wants_logits: bool


class Sampler:
    """A sampler chain and its random state. Close it; llama.cpp owns the parts."""

    def __init__(
        self, pointer: Any, *, greedy_only: bool, bias: tuple[tuple[int, float], ...] = ()
    ) -> None:
        self.pointer = pointer
        self.greedy_only = greedy_only
        #: Added to the logits before the chain sees them: cheaper than a stage over them all.
        total: dict[int, float] = {}
        for token, value in bias:
            total[token] = total.get(token, 0.0) + value
        self.bias_ids = np.fromiter(total, np.int64, len(total))
        self.bias_values = np.fromiter(total.values(), np.float32, len(total))

    def close(self) -> None:
        """Frees the chain."""
        if self.pointer is not None:
            lib.llama_sampler_free(self.pointer)
            self.pointer = None


class _Log:
    """llama.cpp's log: warnings and errors to stderr, the last errors kept for messages."""

    def __init__(self) -> None:
        self.errors: collections.deque[str] = collections.deque(maxlen=20)
        self._level = 0
        # A ctypes callback that is collected while C still holds it crashes: keep it.
        self._callback = lib.llama_log_callback(self._on_log)
        lib.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _on_log(self, level: int, text: bytes, _data: Any) -> None:
        line = text.decode("utf-8", "replace").strip()
        if level != 5:  # 5 continues the line before
            self._level = level
        if not line.strip("."):
            return
        if self._level >= 4:
            self.errors.append(line)
        if self._level >= 3:
            print(line, file=sys.stderr, flush=True)  # noqa: T201

    def reason(self) -> str:
        """The errors seen last, innermost first, without llama.cpp's function names."""
        lines = [e.split(": ", 1)[1] if ": " in e else e for e in self.errors]
        return "; ".join(dict.fromkeys(lines)) or "no reason given"


@functools.cache
def _log() -> _Log:
    """The process's log: llama.cpp has one callback for all models."""
    return _Log()


def _keep_gil(name: str) -> Any:
    """A C function called without giving up the GIL. For calls of a few microseconds: winning the
    GIL back from a busy thread costs up to a switch interval each time."""
    source = getattr(lib, name)
    function = getattr(_gil_lib, name)
    function.argtypes, function.restype = source.argtypes, source.restype
    return function


_gil_lib = ctypes.PyDLL(lib._lib._name)


def _check_file(path: Path) -> None:
    """Raises ``LoadError`` for what can be told without llama.cpp, in plainer words."""
    if not path.exists():
        raise LoadError(f"{path}: no such file")
    if not path.is_file():
        raise LoadError(f"{path}: not a file")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror}") from None
    if magic != GGUF_MAGIC:
        raise LoadError(f"{path}: not a GGUF file")


def _available_bytes() -> int | None:
    """Memory that can still be used, by the system's and the cgroup's account; None if unknown."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            used = int(Path("/sys/fs/cgroup/memory.current").read_text())
            found.append(int(limit) - used)
    except (OSError, ValueError):
        pass
    return min(found) if found else None


class Llama:
    """A loaded model and its context: ``n_cells`` cells shared by ``n_seq_max`` sequences.

    ``n_ctx`` 0 takes the model's own context, less if the memory does not hold it. Raises
    ``LoadError``. ``on_progress`` gets 0..1 and must not raise.
    """

    def __init__(
        self,
        path: Path,
        *,
        n_ctx: int,
        n_slots: int,
        n_seq_max: int,
        n_batch: int,
        n_threads: int,
        check_tensors: bool = False,
        plain_buffers: bool = False,
        flash_attn: bool | None = None,
        on_progress: Callable[[float], None] = lambda _: None,
    ) -> None:
        _check_file(path)
        self._log = _log()
        lib.llama_backend_init()
        self._model = self._load(path, check_tensors, plain_buffers, on_progress)
        self._vocab = lib.llama_model_get_vocab(self._model)
        self.n_vocab = int(lib.llama_vocab_n_tokens(self._vocab))
        self.n_batch = n_batch
        self.n_seq_max = n_seq_max
        if flash_attn is None:
            # On a CPU its kernel computes batches below a tile, such as decode steps with a slice
            # of a prompt, several times slower than plain attention (docs/adr/0003).
            flash_attn = bool(lib.llama_supports_gpu_offload())
        self._flash_attn = flash_attn
        self.tile_rows = 64 if flash_attn else 0
        n_train = int(lib.llama_model_n_ctx_train(self._model))
        self._ctx = self._new_context(self._fit_context(n_ctx or n_train, n_ctx == 0), n_threads)
        self._memory = lib.llama_get_memory(self._ctx)
        self.n_cells = int(lib.llama_n_ctx(self._ctx))
        # Positions past the training context give garbage without an error.
        self.n_ctx = min(self.n_cells, n_train) if n_train > 0 else self.n_cells
        #: Recurrent memory holds one state per sequence: no prefix of it can be shared or kept.
        self.can_share = not (
            lib.llama_model_is_recurrent(self._model) or lib.llama_model_is_hybrid(self._model)
        )
        self._batch = _Batch(n_batch)
        self._pieces: dict[int, bytes] = {}
        self._eog = frozenset(
            t for t in range(self.n_vocab) if lib.llama_vocab_is_eog(self._vocab, t)
        )
        self._bos = int(lib.llama_vocab_bos(self._vocab))
        self._add_bos = bool(lib.llama_vocab_get_add_bos(self._vocab)) and self._bos >= 0
        self.info = self._describe(path, n_slots, n_train)
        self._get_logits = _keep_gil("llama_get_logits_ith")
        self._get_logits.restype = ctypes.c_void_p
        self._row = ctypes.c_float * self.n_vocab
        self._views: dict[int, NDArray[np.float32]] = {}
        self._sample = _keep_gil("llama_sampler_sample")
        self._n_threads = n_threads

    # --- loading --------------------------------------------------------------------------------

    def _load(
        self, path: Path, check: bool, plain: bool, on_progress: Callable[[float], None]
    ) -> Any:
        def progress(value: float, _data: Any) -> bool:
            on_progress(float(value))
            return True

        params = lib.llama_model_default_params()
        params.check_tensors = check
        params.use_extra_bufts = not plain
        callback = lib.llama_progress_callback(progress)
        params.progress_callback = callback
        model = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not model:
            raise LoadError(f"{path}: cannot be loaded: {self._log.reason()}")
        if lib.llama_model_has_encoder(model) or not lib.llama_model_has_decoder(model):
            raise LoadError(f"{path}: not a model that generates text from left to right")
        return model

    def _kv_bytes_per_token(self) -> int:
        """Bytes of f16 keys and values per cell, from the metadata."""
        arch = self.meta("general.architecture") or ""
        n_head = max(1, int(lib.llama_model_n_head(self._model)))
        head = int(lib.llama_model_n_embd(self._model)) // n_head
        key = int(self.meta(f"{arch}.attention.key_length") or head)
        value = int(self.meta(f"{arch}.attention.value_length") or head)
        n_kv = int(lib.llama_model_n_layer(self._model)) * int(
            lib.llama_model_n_head_kv(self._model)
        )
        return 2 * n_kv * (key + value)

    def _fit_context(self, n_ctx: int, may_shrink: bool) -> int:
        """``n_ctx``, or what the memory holds when it may shrink: llama.cpp is killed, or takes
        half a minute to fail, when asked for far more than there is."""
        per_token, available = max(1, self._kv_bytes_per_token()), _available_bytes()
        if available is None or n_ctx * per_token <= available * 0.8:
            return n_ctx
        fits = int(available * 0.5) // per_token // 256 * 256
        if not may_shrink or fits < 256:
            raise LoadError(
                f"a context of {n_ctx} tokens needs {n_ctx * per_token / _GIB:.1f} GiB for the "
                f"cache and {available / _GIB:.1f} GiB are free; set --ctx-size to less"
            )
        print(f"context reduced to {fits} tokens to fit the memory", file=sys.stderr)  # noqa: T201
        return fits

    def _new_context(self, n_ctx: int, n_threads: int) -> Any:
        assert 1 <= self.n_seq_max <= min(256, self.n_batch)
        params = lib.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = self.n_batch
        params.n_seq_max = self.n_seq_max
        params.n_threads = params.n_threads_batch = n_threads
        params.flash_attn_type = (
            lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
            if self._flash_attn
            else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        params.kv_unified = True
        # A sliding window smaller than the context could not be rewound or shared.
        params.swa_full = True
        params.no_perf = True
        context = lib.llama_init_from_model(self._model, params)
        if not context:
            raise LoadError(f"no context of {n_ctx} tokens: {self._log.reason()}")
        return context

    def _describe(self, path: Path, n_slots: int, n_train: int) -> ModelInfo:
        model = self._model
        text = ctypes.create_string_buffer(256)
        lib.llama_model_desc(model, text, 256)
        template = lib.llama_model_chat_template(model, None)
        ftype = lib.llama_ftype_name(lib.llama_model_ftype(model))
        eos = int(lib.llama_vocab_eos(self._vocab))
        return ModelInfo(
            path=str(path),
            architecture=self.meta("general.architecture") or "unknown",
            description=text.value.decode("utf-8", "replace"),
            ftype=ftype.decode() if ftype else "unknown",
            n_ctx=self.n_ctx,
            n_ctx_train=n_train,
            n_vocab=self.n_vocab,
            n_embd=int(lib.llama_model_n_embd(model)),
            n_params=int(lib.llama_model_n_params(model)),
            size_bytes=int(lib.llama_model_size(model)),
            vocab_type=int(lib.llama_vocab_type(self._vocab)),
            n_slots=n_slots,
            add_bos=self._add_bos,
            bos_token=self._text(self._bos),
            eos_token=self._text(eos),
            chat_template=template.decode("utf-8", "replace") if template else None,
        )

    def meta(self, key: str) -> str | None:
        """A scalar of the GGUF's metadata as text, or None."""
        buffer = ctypes.create_string_buffer(1024)
        n = lib.llama_model_meta_val_str(self._model, key.encode(), buffer, 1024)
        return buffer.value.decode("utf-8", "replace") if n >= 0 else None

    # --- vocabulary (any thread) ----------------------------------------------------------------

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of ``text``. Lone surrogates become ``?``: other bytes than valid UTF-8 make
        some tokenizers abort."""
        data = text.encode("utf-8", "replace")
        size = len(data) + 16
        buffer = (ctypes.c_int32 * size)()
        n = lib.llama_tokenize(
            self._vocab, data, len(data), buffer, size, add_special, parse_special
        )
        if n < 0:
            buffer = (ctypes.c_int32 * -n)()
            n = lib.llama_tokenize(
                self._vocab, data, len(data), buffer, -n, add_special, parse_special
            )
        return buffer[:n]

    def tokenize_prompt(self, prompt: str | list[int | str]) -> list[int]:
        """Token ids of a prompt: special tokens in text count, and there is exactly one BOS in
        front when the model wants one and the prompt begins with text."""
        parts = [prompt] if isinstance(prompt, str) else prompt
        tokens: list[int] = []
        for part in parts:
            if isinstance(part, int):
                tokens.append(part)
            else:
                tokens += self.tokenize(part, add_special=False, parse_special=True)
        wants_bos = self._add_bos and (not parts or isinstance(parts[0], str))
        if wants_bos and tokens[:1] != [self._bos]:
            tokens.insert(0, self._bos)
        return tokens

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes a token stands for; nothing for control tokens unless ``special``."""
        if not special and token in self._pieces:
            return self._pieces[token]
        assert 0 <= token < self.n_vocab
        size = 64
        buffer = ctypes.create_string_buffer(size)
        n = lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
        if n < 0:
            size = -n
            buffer = ctypes.create_string_buffer(size)
            n = lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
        data = buffer.raw[: max(n, 0)]
        if not special:
            self._pieces[token] = data
        return data

    def is_eog(self, token: int) -> bool:
        """Whether a token ends the generation."""
        return token in self._eog

    @property
    def eog_tokens(self) -> frozenset[int]:
        """All tokens that end the generation."""
        return self._eog

    def _text(self, token: int) -> str:
        return self.piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    # --- the cache (step thread) ----------------------------------------------------------------

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Shares cells at positions ``[start, end)`` with another sequence. Copies no data."""
        assert 0 <= source < self.n_seq_max and 0 <= target < self.n_seq_max and start < end
        lib.llama_memory_seq_cp(self._memory, source, target, start, end)

    def cut(self, seq_id: int, start: int) -> None:
        """Drops a sequence's cells from position ``start`` on."""
        assert 0 <= seq_id < self.n_seq_max and start >= 0
        lib.llama_memory_seq_rm(self._memory, seq_id, start, -1)

    def warm_up(self) -> None:
        """Computes a token alone and several together, and forgets them: the first calls allocate,
        and a CPU that cannot run the kernels shows here and not in somebody's request."""
        token = max(self._bos, 0)
        self.decode([Row(0, 0, array("i", [token]), True)])
        self.decode([Row(0, 1, array("i", [token] * min(32, self.n_batch)), True)])
        self.cut(0, 0)

    # --- computing (step thread) ----------------------------------------------------------------

    def set_threads(self, n: int) -> None:
        """Compute threads from the next call on."""
        if n != self._n_threads:
            self._n_threads = n
            lib.llama_set_n_threads(self._ctx, n, n)

    def decode(self, rows: list[Row]) -> list[int]:
        """Computes one batch of at most ``n_batch`` tokens. Returns each row's index for
        ``sample``. Raises ``KvFull`` or ``DecodeFailed``."""
        indexes = self._batch.fill(rows)
        rc = lib.llama_decode(self._ctx, self._batch.c)
        if rc == 1:
            raise KvFull
        if rc != 0:
            raise DecodeFailed(rc)
        return indexes

    def sampler(self, stages: list[sampling.Stage], prompt: array[int]) -> Sampler:
        """A chain with these stages; penalties have seen the end of ``prompt``."""
        pointer = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        bias: tuple[tuple[int, float], ...] = ()
        if stages and isinstance(stages[0], sampling.Bias):
            bias, stages = stages[0].pairs, stages[1:]
        for stage in stages:
            lib.llama_sampler_chain_add(pointer, self._stage(stage))
            if isinstance(stage, sampling.Penalties):
                for token in prompt[-stage.last_n :]:
                    lib.llama_sampler_accept(pointer, token)
        return Sampler(pointer, greedy_only=stages == [sampling.Greedy()], bias=bias)

    def _stage(self, stage: sampling.Stage) -> Any:
        match stage:
            case sampling.Penalties(last_n, repeat, frequency, presence):
                return lib.llama_sampler_init_penalties(
                    self.n_vocab, last_n, repeat, frequency, presence
                )
            case sampling.TopK(k):
                return lib.llama_sampler_init_top_k(k)
            case sampling.TopP(p):
                return lib.llama_sampler_init_top_p(p, 1)
            case sampling.MinP(p):
                return lib.llama_sampler_init_min_p(p, 1)
            case sampling.Temperature(t):
                return lib.llama_sampler_init_temp(t)
            case sampling.Draw(seed):
                return lib.llama_sampler_init_dist(seed)
            case _:
                return lib.llama_sampler_init_greedy()

    def logits(self, index: int) -> NDArray[np.float32]:
        """The logits of a row that asked for them, shape (n_vocab,). Valid until the next call."""
        address = self._get_logits(self._ctx, index)
        assert address, "row without logits"
        view = self._views.get(address)
        if view is None:  # llama.cpp gives the same few places again and again
            view = np.frombuffer(memoryview(self._row.from_address(address)), np.float32)
            self._views[address] = view
        return view

    def sample(self, sampler: Sampler, index: int) -> int:
        """Chooses the next token from a row's logits, and tells the sampler. Raises NotFinite."""
        logits = self.logits(index)
        if len(sampler.bias_ids):
            logits[sampler.bias_ids] += sampler.bias_values
        if sampler.greedy_only:
            token = int(logits.argmax())
        else:
            token = int(self._sample(sampler.pointer, self._ctx, index))
        if not math.isfinite(logits[token]):
            raise NotFinite  # among NaN, or with everything banned, any choice is as bad
        return token

    def close(self) -> None:
        """Frees context and model; the object cannot be used after."""
        lib.llama_free(self._ctx)
        lib.llama_model_free(self._model)


class _Batch:
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
        for seq_id, start, tokens, wants_logits in rows:
            begin, end = end, end + len(tokens)
            assert begin < end <= self._size
            self._token[begin:end] = tokens
            self._pos[begin:end] = np.arange(start, start + len(tokens), dtype=np.int32)
            self._seq[begin:end] = seq_id
            self._out[begin:end] = 0
            self._out[end - 1] = wants_logits
            last.append(end - 1)
        assert end > 0
        self.c.n_tokens = end
        return last
