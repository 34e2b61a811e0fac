"""Vectors of texts: a context that keeps nothing from one input to the next.

llama.cpp is asked for the vectors of tokens and pooling is done here, because it pools within one
call only and a long input may take several. A classification head is its own business.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from corral.backend.engine.llama import Llama
from corral.backend.engine.llama.batch import Batch, Row
from corral.backend.engine.llama.header import POOLINGS, Header
from corral.backend.engine.llama.inputs import Inputs
from corral.backend.engine.llama.loading import check_cache_types, fit_context, load_model, meta
from corral.backend.engine.llama.native import DecodeFailed, LoadError, lib, log
from corral.backend.engine.llama.placing import context_params, uses_gpu
from corral.backend.engine.messages import ModelInfo, Pooling
from corral.backend.engine.options import DEFAULTS, LlamaOptions

#: Inputs in one call.
N_ROWS = 64
#: Longest input a model that must see it whole takes by default: its buffers grow with it.
N_WHOLE = 8192
#: Tokens in one call. On a CPU more are no faster, and nobody else gets a turn meanwhile.
N_CALL_CPU, N_CALL_GPU = 128, 512


class EmbeddingModel(Inputs):
    """A model (``llama_model *``) with a context for vectors. Raises ``LoadError``.

    ``n_input``: tokens of the longest input. ``can_split``: an input may come in several calls, in
    order, as the model reads from left to right. ``n_batch``: most tokens in a call; ``n_call``: as
    many as are good in one. ``pooling`` None takes the file's own; ``n_ctx`` and ``n_ubatch`` 0
    what the model allows.
    """

    def __init__(
        self,
        model: Any,
        header: Header,
        *,
        pooling: Pooling | None,
        n_ctx: int,
        n_batch: int,
        n_ubatch: int,
        n_threads: int,
        flash_attn: bool | None = None,
        options: LlamaOptions = DEFAULTS,
    ) -> None:
        super().__init__(model)
        self._model, self._options = model, options
        self.pooling: Pooling = pooling or header.pooling or "none"
        if self.pooling == "rank" and not header.has_head:
            raise LoadError("the model has no classification head, so it cannot rank documents")
        self.can_split = header.is_causal and self.pooling != "rank"
        n_train = int(lib.llama_model_n_ctx_train(model))
        longest = n_ctx or n_train
        if header.has_position_table or not options.stretches_context:
            longest = min(longest, n_train)
        if self.can_split:
            check_cache_types(model, options)
            self.n_batch = n_ubatch or n_batch
            cells = fit_context(model, longest + self.n_batch, options, may_shrink=n_ctx == 0)
            self.n_input = min(longest, cells - self.n_batch)
        else:
            self.n_input = min(longest, n_ubatch or (n_ctx or N_WHOLE))
            cells = self.n_batch = max(self.n_input, min(n_batch, n_ubatch or n_batch))
        if self.n_input < 1:
            raise LoadError("the context has no room for an input; set --ctx-size to more")
        gpu = uses_gpu(options)
        self.n_call = N_CALL_GPU if gpu else N_CALL_CPU
        self.n_seq_max = min(N_ROWS, self.n_batch)
        if flash_attn is None:
            # Without it the texts of a call that do not look at each other are multiplied all the
            # same: three times slower at 512 tokens, and buffers that grow with the square.
            flash_attn = not self.can_split or gpu or options.needs_flash_attn
        self._ctx = self._new_context(cells, n_threads, flash_attn=flash_attn)
        self._memory = lib.llama_get_memory(self._ctx)
        self._batch = Batch(self.n_batch)
        self._n_threads = n_threads
        is_rank = self.pooling == "rank"
        width = lib.llama_model_n_cls_out if is_rank else lib.llama_model_n_embd_out
        self.width = int(width(model))

    def _new_context(self, n_ctx: int, n_threads: int, *, flash_attn: bool) -> Any:
        params = context_params(self._options)
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = self.n_batch
        params.n_seq_max = self.n_seq_max
        params.n_threads = n_threads
        params.n_threads_batch = self._options.n_threads_batch or n_threads
        params.embeddings = True
        params.pooling_type = POOLINGS.index("rank" if self.pooling == "rank" else "none")
        # On is a wish: not all shapes of heads have a kernel for it.
        params.flash_attn_type = (
            lib.LLAMA_FLASH_ATTN_TYPE_AUTO if flash_attn else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        context = lib.llama_init_from_model(self._model, params)
        if not context:
            raise LoadError(f"no context for inputs of {self.n_input} tokens: {log().reason()}")
        return context

    @classmethod
    def load(
        cls,
        path: Path,
        header: Header,
        *,
        check_tensors: bool = False,
        plain_buffers: bool = False,
        options: LlamaOptions = DEFAULTS,
        on_progress: Callable[[float], None] = lambda _: None,
        **more: Any,
    ) -> Self:
        """A model from a file, for vectors or scores only; ``more`` is the constructor's."""
        model = load_model(
            path, options, check=check_tensors, plain=plain_buffers, on_progress=on_progress
        )
        return cls(model, header, options=options, **more)

    @classmethod
    def beside(cls, llama: Llama, header: Header, **more: Any) -> Self:
        """The model that also generates, with a second context of its own."""
        return cls(llama._model, header, **more)

    def describe(self, path: str, n_slots: int) -> ModelInfo:
        """What is known of a model that only computes vectors."""
        model = self._model
        text = ctypes.create_string_buffer(256)
        lib.llama_model_desc(model, text, 256)
        ftype = lib.llama_ftype_name(lib.llama_model_ftype(model))
        return ModelInfo(
            path=path,
            architecture=meta(model, "general.architecture") or "unknown",
            description=text.value.decode("utf-8", "replace"),
            ftype=ftype.decode() if ftype else "unknown",
            n_ctx=self.n_input,
            n_ctx_train=int(lib.llama_model_n_ctx_train(model)),
            n_vocab=self.n_vocab,
            n_embd=int(lib.llama_model_n_embd(model)),
            n_params=int(lib.llama_model_n_params(model)),
            size_bytes=int(lib.llama_model_size(model)),
            vocab_type=int(lib.llama_vocab_type(self._vocab)),
            n_slots=n_slots,
            add_bos=self._add_bos,
            bos_token=self._text(self._bos),
            eos_token=self._text(int(lib.llama_vocab_eos(self._vocab))),
            chat_template=None,
            generates=False,
        )

    # --- computing (step thread) ----------------------------------------------------------------

    def warm_up(self) -> None:
        """Computes something once; see ``Llama.warm_up``."""
        token = max(self._bos, 0)
        self.compute([Row(0, 0, array("i", [token] * min(8, self.n_input)), True)])
        self.forget(0)

    def set_threads(self, n: int) -> None:
        """Compute threads from the next call on."""
        if n != self._n_threads:
            self._n_threads = n
            lib.llama_set_n_threads(self._ctx, n, self._options.n_threads_batch or n)

    def compute(self, rows: list[Row]) -> list[NDArray[np.float32]]:
        """One call. For each row its tokens' vectors, shape (n, width): all of them with
        ``all_logits``, otherwise the last; of a model that ranks, the scores of the whole row.
        Valid until the next call. Raises ``DecodeFailed``."""
        assert sum(len(r.tokens) for r in rows) <= self.n_batch and len(rows) <= self.n_seq_max
        # A context for vectors gives all of them, asked or not, and complains when not asked.
        self._batch.fill([row._replace(all_logits=True) for row in rows])
        rc = lib.llama_decode(self._ctx, self._batch.c)
        if rc != 0:
            raise DecodeFailed(rc)
        if self.pooling == "rank":
            get = lib.llama_get_embeddings_seq
            return [self._array(get(self._ctx, row.seq_id), 1) for row in rows]
        n = sum(len(row.tokens) for row in rows)
        vectors = self._array(lib.llama_get_embeddings(self._ctx), n)
        found, end = [], 0
        for row in rows:
            begin, end = end, end + len(row.tokens)
            found.append(vectors[begin if row.all_logits else end - 1 : end])
        return found

    def _array(self, pointer: Any, n: int) -> NDArray[np.float32]:
        assert pointer, "no vectors"
        return np.ctypeslib.as_array(pointer, (n, self.width))

    def forget(self, seq_id: int) -> None:
        """Drops what is kept of an input between its calls."""
        assert 0 <= seq_id < self.n_seq_max
        if self._memory:
            lib.llama_memory_seq_rm(self._memory, seq_id, -1, -1)

    def close(self, *, with_model: bool = False) -> None:
        """Frees the context, and the model when nobody else has it."""
        lib.llama_free(self._ctx)
        if with_model:
            lib.llama_model_free(self._model)
