"""How llama.cpp loads a model and lays out its cache: what crosses the seam of llama-server's flags
for that. Every value was checked when the flags were read."""

from msgspec import Struct

from corral.backend.values_llama import (
    CacheType,
    LoadMode,
    Numa,
    Override,
    RopeScaling,
    SplitMode,
)


class LlamaOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options in llama.cpp's terms; each default is what it does by itself.

    ``n_gpu_layers`` -1: all. ``tensor_split``: shares of the devices, empty: by their memory.
    ``devices``: names, empty: no device but the CPU, None: all there are. ``n_cpu_moe``,
    ``n_cpu_ffn``: layers whose experts, or dense feed-forward weights, stay with the CPU, -1: all.
    ``override_tensors``: a pattern of tensor names, and the buffer type they go to.
    ``rope_*`` and ``yarn_orig_ctx`` 0, ``yarn_*`` -1, ``rope_scaling`` None: as the model says.
    ``n_threads_batch``: threads of calls with more than one token, 0: as for one."""

    n_gpu_layers: int = -1
    split_mode: SplitMode = "layer"
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0
    devices: tuple[str, ...] | None = None
    n_cpu_moe: int = 0
    n_cpu_ffn: int = 0
    override_tensors: tuple[tuple[str, str], ...] = ()
    load_mode: LoadMode = "auto"
    repack: bool = True
    host_buffers: bool = True
    override_kv: tuple[Override, ...] = ()
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    kv_offload: bool = True
    op_offload: bool = True
    rope_scaling: RopeScaling | None = None
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0
    yarn_ext_factor: float = -1.0
    yarn_attn_factor: float = -1.0
    yarn_beta_slow: float = -1.0
    yarn_beta_fast: float = -1.0
    yarn_orig_ctx: int = 0
    n_threads_batch: int = 0
    numa: Numa | None = None
    warmup: bool = True

    @property
    def needs_flash_attn(self) -> bool:
        """Quantised values are only read by the kernel of flash attention."""
        return self.cache_type_v not in ("f32", "f16", "bf16")

    @property
    def _rope(self) -> tuple[object, ...]:
        given = (self.rope_freq_base, self.rope_freq_scale, self.yarn_orig_ctx)
        yarn = (
            *(self.yarn_ext_factor, self.yarn_attn_factor),
            *(self.yarn_beta_slow, self.yarn_beta_fast),
        )
        own = (None if n < 0 else n for n in yarn)
        return self.rope_scaling, *(n or None for n in given), *own

    @property
    def stretches_context(self) -> bool:
        """Whether other positions than the model's own were asked for, so that a context longer
        than it was trained with is meant."""
        scaling, *others = self._rope
        return scaling not in (None, "none") or any(value is not None for value in others)

    @property
    def state_layout(self) -> tuple[object, ...]:
        """What saved states of the cache are only good with: its types, positions, metadata."""
        return self.cache_type_k, self.cache_type_v, self._rope, self.override_kv


#: Everything as llama.cpp does it by itself.
DEFAULTS = LlamaOptions()
