"""The only door to llama.cpp: Python names over its C functions.

Everything llama.cpp would abort on is checked here first, because an abort ends the process.
One thread owns the context (``decode``, ``sample``, cache operations); the vocabulary functions
may be called from any thread. Facts are from llama.h of the pinned version.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corral.backend.engine import sampling
from corral.backend.engine.llama import state
from corral.backend.engine.llama.batch import Batch, Row
from corral.backend.engine.llama.header import read_header
from corral.backend.engine.llama.loading import (
    check_cache_types,
    fit_context,
    load_model,
    meta,
    recommended_sampling,
)
from corral.backend.engine.llama.lora import Adapters
from corral.backend.engine.llama.media import Projector
from corral.backend.engine.llama.native import (
    DecodeFailed,
    KvFull,
    LoadError,
    NotFinite,
    keep_gil,
    lib,
    log,
)
from corral.backend.engine.llama.placing import context_params, uses_gpu
from corral.backend.engine.llama.samplers import Candidates, Choice, Mask, Sampler, log_probs
from corral.backend.engine.llama.vocabulary import Vocabulary
from corral.backend.engine.media import BadMedia, Item, Part
from corral.backend.engine.messages import AdapterSet, Media, ModelInfo
from corral.backend.engine.options import DEFAULTS, LlamaOptions

__all__ = [
    "Choice",
    "DecodeFailed",
    "KvFull",
    "Llama",
    "LoadError",
    "Mask",
    "NotFinite",
    "Row",
    "Sampler",
]

#: Cells that finished prompts keep on a CPU when another request comes; the rest goes to memory.
N_IDLE_CELLS = 512


class Llama(Vocabulary):
    """A loaded model and its context: ``n_cells`` cells shared by ``n_seq_max`` sequences.

    ``n_ctx`` 0 takes the model's own context, less if the memory does not hold it. Raises
    ``LoadError``. ``on_progress`` gets 0..1 and must not raise. ``mmproj`` makes the projector of
    the model.
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
        lora: tuple[tuple[str, float], ...] = (),
        options: LlamaOptions = DEFAULTS,
        mmproj: Callable[[Any], Projector] | None = None,
        on_progress: Callable[[float], None] = lambda _: None,
    ) -> None:
        model = self._model = load_model(
            path, options, check=check_tensors, plain=plain_buffers, on_progress=on_progress
        )
        if lib.llama_model_has_encoder(model) or not lib.llama_model_has_decoder(model):
            raise LoadError(f"{path}: not a model that generates text from left to right")
        super().__init__(model)
        self._options = options
        check_cache_types(model, options)
        self.n_batch = n_batch
        self.n_seq_max = n_seq_max
        gpu = uses_gpu(options)
        if flash_attn is None:
            # On a CPU its kernel computes batches below a tile, such as decode steps with a slice
            # of a prompt, several times slower than plain attention (docs/adr/0003).
            flash_attn = gpu or options.needs_flash_attn
        self._flash_attn = flash_attn
        self.tile_rows = 64 if flash_attn else 0
        n_train = int(lib.llama_model_n_ctx_train(model))
        n_cells = fit_context(model, n_ctx or n_train, options, may_shrink=n_ctx == 0)
        self._ctx = self._new_context(n_cells, n_threads)
        self._memory = lib.llama_get_memory(self._ctx)
        self.n_cells = int(lib.llama_n_ctx(self._ctx))
        # Positions past the training context give garbage without an error.
        can_stretch = options.stretches_context and not read_header(path).has_position_table
        is_bound = n_train > 0 and not can_stretch
        self.n_ctx = min(self.n_cells, n_train) if is_bound else self.n_cells
        #: Recurrent memory holds one state per sequence: no prefix of it can be shared or kept.
        #: With a sliding window llama.cpp gives cells behind the window of their only owner to
        #: others, so what a prefix holds there is wrong without a word.
        self.can_share = not (
            lib.llama_model_is_recurrent(model)
            or lib.llama_model_is_hybrid(model)
            or lib.llama_model_n_swa(model) > 0
        )
        self.projector = None if mmproj is None else mmproj(model)
        self._adapters = Adapters(model, self._ctx, lora)
        self.adapter_digests = self._adapters.digests
        self.adapter_infos = self._adapters.infos
        #: States are good for the same file, with a cache laid out alike.
        self.fingerprint = state.fingerprint(path, self._flash_attn, *options.state_layout)
        # On a CPU each used cell slows each step, wherever it belongs (docs/memory.md).
        self.n_idle_cells = self.n_cells if gpu else min(N_IDLE_CELLS, self.n_cells)
        self._batch = Batch(n_batch)
        self._candidates = Candidates(self.n_vocab)
        self.info = self._describe(path, n_slots, n_train)
        self._get_logits = keep_gil("llama_get_logits_ith")
        self._get_logits.restype = ctypes.c_void_p
        self._row = ctypes.c_float * self.n_vocab
        self._views: dict[int, NDArray[np.float32]] = {}
        self._n_threads = n_threads

    # --- loading --------------------------------------------------------------------------------

    def _new_context(self, n_ctx: int, n_threads: int) -> Any:
        assert 1 <= self.n_seq_max <= min(256, self.n_batch)
        params = context_params(self._options)
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = self.n_batch
        params.n_seq_max = self.n_seq_max
        params.n_threads = n_threads
        params.n_threads_batch = self._options.n_threads_batch or n_threads
        params.flash_attn_type = (
            lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
            if self._flash_attn
            else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        context = lib.llama_init_from_model(self._model, params)
        if not context:
            raise LoadError(f"no context of {n_ctx} tokens: {log().reason()}")
        return context

    def _describe(self, path: Path, n_slots: int, n_train: int) -> ModelInfo:
        model = self._model
        text = ctypes.create_string_buffer(256)
        lib.llama_model_desc(model, text, 256)
        template = lib.llama_model_chat_template(model, None)
        for_tools = lib.llama_model_chat_template(model, b"tool_use")
        ftype = lib.llama_ftype_name(lib.llama_model_ftype(model))
        eos = int(lib.llama_vocab_eos(self._vocab))
        return ModelInfo(
            path=str(path),
            architecture=meta(model, "general.architecture") or "unknown",
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
            chat_template_tool_use=for_tools.decode("utf-8", "replace") if for_tools else None,
            special_tokens=self.special_tokens,
            vision=self.projector is not None and self.projector.vision,
            audio=self.projector is not None and self.projector.audio,
            audio_rate=0 if self.projector is None else self.projector.audio_rate,
            lora=self.adapter_infos,
            sampling=recommended_sampling(model, self._options),
            fim_pre=int(lib.llama_vocab_fim_pre(self._vocab)),
            fim_suf=int(lib.llama_vocab_fim_suf(self._vocab)),
            fim_mid=int(lib.llama_vocab_fim_mid(self._vocab)),
            fim_rep=int(lib.llama_vocab_fim_rep(self._vocab)),
            fim_sep=int(lib.llama_vocab_fim_sep(self._vocab)),
        )

    # --- the cache (step thread) ----------------------------------------------------------------

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Shares cells at positions ``[start, end)`` with another sequence. Copies no data."""
        assert 0 <= source < self.n_seq_max and 0 <= target < self.n_seq_max and start < end
        lib.llama_memory_seq_cp(self._memory, source, target, start, end)

    def cut(self, seq_id: int, start: int) -> None:
        """Drops a sequence's cells from position ``start`` on."""
        assert 0 <= seq_id < self.n_seq_max and start >= 0
        lib.llama_memory_seq_rm(self._memory, seq_id, start, -1)

    def save_state(self, seq_id: int) -> NDArray[np.uint8]:
        """A copy of a sequence's cells; see ``state.save``."""
        assert 0 <= seq_id < self.n_seq_max
        return state.save(self._ctx, seq_id)

    def load_state(self, seq_id: int, data: Any) -> bool:
        """Gives a sequence saved cells; see ``state.load``."""
        assert 0 <= seq_id < self.n_seq_max
        return state.load(self._ctx, seq_id, data)

    def set_adapters(self, adapters: AdapterSet) -> None:
        """Computes with these LoRA adapters and scales from the next call on."""
        self._adapters.apply(adapters)

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
            lib.llama_set_n_threads(self._ctx, n, self._options.n_threads_batch or n)

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

    # --- pictures and sounds --------------------------------------------------------------------

    @property
    def row_bytes(self) -> int:
        """Size of what takes a token's place."""
        return 4 * self.projector.width if self.projector is not None else 0

    def see(self, media: Media) -> list[Part]:
        """What a picture or sound is to the model; see ``Projector.see``. Raises ``BadMedia``."""
        if self.projector is None:
            what = "sounds" if media.kind == "audio" else "pictures"
            raise BadMedia(f"this model takes no {what}; start the server with --mmproj")
        return self.projector.see(media)

    def encode(self, item: Item) -> None:
        """See ``Projector.encode`` (step thread)."""
        assert self.projector is not None
        self.projector.encode(item)

    def decode_item(
        self, item: Item, seq_id: int, at: int, start: int, n: int, *, wants_logits: bool
    ) -> int:
        """See ``Projector.decode`` (step thread)."""
        assert self.projector is not None
        return self.projector.decode(self._ctx, item, seq_id, at, start, n, wants_logits)

    def logits(self, index: int) -> NDArray[np.float32]:
        """The logits of a row that asked for them, shape (n_vocab,). Valid until the next call."""
        address = self._get_logits(self._ctx, index)
        assert address, "row without logits"
        view = self._views.get(address)
        if view is None:  # llama.cpp gives the same few places again and again
            view = np.frombuffer(memoryview(self._row.from_address(address)), np.float32)
            self._views[address] = view
        return view

    def sampler(
        self,
        stages: list[sampling.Stage],
        prompt: array[int],
        n_probs: int = 0,
        post_sampling: bool = False,
    ) -> Sampler:
        """A request's way of choosing, with these stages; penalties have seen the prompt's end.
        ``n_probs`` > 0: each choice comes with that many of the likeliest tokens. Any thread."""
        return Sampler(
            stages,
            prompt,
            vocab=self._vocab,
            n_vocab=self.n_vocab,
            n_probs=n_probs,
            post_sampling=post_sampling,
        )

    def sample(self, sampler: Sampler, index: int, mask: Mask | None = None) -> Choice:
        """Chooses the next token from a row's logits, which it changes, and tells the sampler.
        ``mask`` bans tokens from a row of logits. Raises NotFinite."""
        return sampler.choose(self.logits(index), self._candidates, mask)

    def log_probs(self, index: int, token: int, n: int) -> Choice:
        """A token by a row's logits, and the ``n`` likeliest in its place."""
        return log_probs(self.logits(index), token, n)

    def close(self) -> None:
        """Frees context and model; the object cannot be used after."""
        if self.projector is not None:
            self.projector.close()
        lib.llama_free(self._ctx)
        lib.llama_model_free(self._model)
