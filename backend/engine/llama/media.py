"""The door to llama.cpp's libmtmd: pictures and sounds become rows that a model reads as tokens.

``see`` belongs to the thread that tokenises, ``encode`` and ``decode`` to the one that owns the
context. Facts are from mtmd.h and mtmd-helper.h of the pinned version.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from corral.backend.engine.llama.batch import EmbeddingBatch
from corral.backend.engine.llama.native import DecodeFailed, KvFull, LoadError, lib, log, mtmd
from corral.backend.engine.media import BadMedia, Item, Part, item_tokens
from corral.backend.engine.messages import Media

#: A sound, or what follows in it the last whole _CUT_S, is made this long with silence. llama.cpp
#: ends the process over one sample (mtmd.cpp), and over parts of a sound that make no two frames.
_SHORTEST_S = 0.1
#: Seconds after which some projectors cut a sound.
_CUT_S = 30
#: Stands for the one picture or sound in the prompts that libmtmd gets, which hold nothing else.
_MARKER = b"<__corral_media__>"


class _Chunk:
    """A ``mtmd_input_chunk`` of our own."""

    def __init__(self, borrowed: Any) -> None:
        self.pointer = mtmd.mtmd_input_chunk_copy(borrowed)

    def __del__(self) -> None:
        mtmd.mtmd_input_chunk_free(self.pointer)


class Projector:
    """A loaded projector for a model (``llama_model *``). ``vision``, ``audio``: what it takes;
    ``audio_rate``: samples a second. Raises ``LoadError``."""

    def __init__(
        self,
        path: Path,
        model: Any,
        *,
        n_batch: int,
        n_threads: int,
        use_gpu: bool = False,
        image_min_tokens: int = -1,
        image_max_tokens: int = -1,
    ) -> None:
        log()  # before the library speaks
        _listen()
        params = mtmd.mtmd_context_params_default()
        params.use_gpu = use_gpu
        params.print_timings = False
        params.warmup = False
        params.n_threads = n_threads
        params.media_marker = _MARKER
        params.image_min_tokens = image_min_tokens
        params.image_max_tokens = image_max_tokens
        context = mtmd.mtmd_init_from_file(str(path).encode(), model, params)
        if not context:
            raise LoadError(f"{path}: not a projector for this model: {log().reason()}")
        self._context = context
        self._n_batch = n_batch
        self.width = int(lib.llama_model_n_embd_inp(model))
        self.vision = bool(mtmd.mtmd_support_vision(context))
        self.audio = bool(mtmd.mtmd_support_audio(context))
        self.audio_rate = max(0, int(mtmd.mtmd_get_audio_sample_rate(context)))
        self._is_mrope = bool(mtmd.mtmd_decode_use_mrope(context))
        stat = path.stat()
        #: Other pictures' rows are no good.
        self._identity = f"{stat.st_size}-{stat.st_mtime_ns}-{image_min_tokens}-{image_max_tokens}"
        self._batch = EmbeddingBatch(n_batch, self.width)

    # --- what becomes of a picture (text thread) --------------------------------------------------

    def see(self, media: Media) -> list[Part]:
        """The tokens and items of a picture or sound. Raises ``BadMedia``."""
        if not (self.audio if media.kind == "audio" else self.vision):
            what = "sounds" if media.kind == "audio" else "pictures"
            raise BadMedia(f"this model takes no {what}")
        chunks = mtmd.mtmd_input_chunks_init()
        try:
            self._tokenize(media, chunks)
            n = mtmd.mtmd_input_chunks_size(chunks)
            return [
                self._part(mtmd.mtmd_input_chunks_get(chunks, i), f"{media.key}/{i}")
                for i in range(n)
            ]
        finally:
            mtmd.mtmd_input_chunks_free(chunks)

    def _tokenize(self, media: Media, chunks: Any) -> None:
        bitmap = _bitmap(media, self.audio_rate)
        log().errors.clear()  # those of others are none of this one's reasons
        try:
            text = mtmd.mtmd_input_text(_MARKER, len(_MARKER), False, True)
            bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
            rc = mtmd.mtmd_tokenize(self._context, chunks, ctypes.byref(text), bitmaps, 1)
        finally:
            mtmd.mtmd_bitmap_free(bitmap)
        if rc != 0:
            raise BadMedia(f"the projector cannot take it: {log().reason()}")

    def _part(self, chunk: Any, key: str) -> Part:
        n = int(mtmd.mtmd_input_chunk_get_n_tokens(chunk))
        if mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
            size = ctypes.c_size_t()
            tokens = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(size))
            return [int(tokens[i]) for i in range(size.value)]
        is_non_causal = bool(mtmd.mtmd_decode_use_non_causal(self._context, chunk))
        if is_non_causal and n > self._n_batch:
            # llama.cpp ends the process over this one.
            raise BadMedia(f"it takes {n} tokens at once; start the server with --batch-size {n}")
        return Item(
            item_tokens(f"{self._identity}/{key}", n),
            n_pos=int(mtmd.mtmd_input_chunk_get_n_pos(chunk)),
            is_whole=self._is_mrope or is_non_causal,
            chunk=_Chunk(chunk),
        )

    # --- computing (step thread) ------------------------------------------------------------------

    def encode(self, item: Item) -> None:
        """Gives an item its rows. Raises ``BadMedia`` when that fails."""
        log().errors.clear()
        if mtmd.mtmd_encode_chunk(self._context, item.chunk.pointer) != 0:
            raise BadMedia(f"it cannot be encoded: {log().reason()}")
        n = len(item.tokens)
        found = mtmd.mtmd_get_output_embd(self._context)
        # The next one overwrites them.
        rows = np.ctypeslib.as_array(found, (n * self.width,)).reshape(n, self.width).copy()
        if not np.isfinite(rows).all():
            raise BadMedia("its encoding holds no usable numbers")
        item.rows = rows
        if not item.is_whole:
            item.chunk = None  # holds the pixels

    def decode(
        self, context: Any, item: Item, seq_id: int, at: int, start: int, n: int, wants_logits: bool
    ) -> int:
        """Computes rows ``[start, start + n)`` of an item at positions ``at`` and on; the index of
        the last one's logits. One that ``is_whole`` must be, and gives none. Raises ``KvFull`` or
        ``DecodeFailed``; then nothing of it is left in the cache."""
        assert item.rows is not None and 0 <= start < start + n <= len(item.rows)
        if item.is_whole:
            assert start == 0 and n == len(item.rows) and not wants_logits
            rc = self._decode_whole(context, item, seq_id, at)
        else:
            self._batch.fill(item.rows[start : start + n], seq_id, at, wants_logits)
            rc = lib.llama_decode(context, self._batch.c)
        if rc != 0:
            lib.llama_memory_seq_rm(lib.llama_get_memory(context), seq_id, at, -1)
            raise KvFull if rc == 1 else DecodeFailed(rc)
        return n - 1

    def _decode_whole(self, context: Any, item: Item, seq_id: int, at: int) -> int:
        assert item.rows is not None
        rows = item.rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        end = lib.llama_pos(at)
        callback = mtmd.mtmd_helper_post_decode_callback()
        rc = mtmd.mtmd_helper_decode_image_chunk(
            *(self._context, context, item.chunk.pointer, rows, at, seq_id, self._n_batch),
            *(ctypes.byref(end), callback, None),
        )
        return int(rc)

    def close(self) -> None:
        """Frees it; before the model."""
        mtmd.mtmd_free(self._context)


def _bitmap(media: Media, audio_rate: int) -> Any:
    """A ``mtmd_bitmap`` with the same content; the caller frees it."""
    size = len(media.data)
    if media.kind == "audio":
        assert size > 0 and size % 4 == 0
        n = size // 4 + _silence(size // 4, audio_rate)
        samples = (ctypes.c_float * n)()
        ctypes.memmove(samples, media.data, size)
        return mtmd.mtmd_bitmap_init_from_audio(n, samples)
    # The length is not checked there.
    assert 0 < size == 3 * media.width * media.height
    pixels = (ctypes.c_uint8 * size).from_buffer_copy(media.data)
    return mtmd.mtmd_bitmap_init(media.width, media.height, pixels)


def _silence(n_samples: int, rate: int) -> int:
    """Samples of silence that a sound needs behind it."""
    n_last = n_samples % (_CUT_S * rate)
    return max(0, int(_SHORTEST_S * rate) - n_last) if n_last else 0


def _listen() -> None:
    """Has libmtmd's log go where llama.cpp's goes."""
    mtmd.mtmd_helper_log_set(log().callback, ctypes.c_void_p(0))
