"""From settings to how llama.cpp loads the model; what contradicts itself is refused."""

from corral.backend.engine.options import LlamaOptions
from corral.backend.errors import Refused
from corral.backend.settings import Settings
from corral.backend.values_llama import LoadMode


def llama_options(settings: Settings) -> LlamaOptions:
    """The options that the engine is started with. Raises ``Refused`` naming a flag."""
    options = LlamaOptions(
        n_gpu_layers=settings.n_gpu_layers,
        split_mode=settings.split_mode,
        tensor_split=settings.tensor_split,
        main_gpu=settings.main_gpu,
        devices=settings.devices,
        n_cpu_moe=-1 if settings.cpu_moe else settings.n_cpu_moe,
        n_cpu_ffn=settings.n_cpu_ffn,
        override_tensors=settings.override_tensors,
        load_mode=_load_mode(settings),
        repack=settings.repack,
        host_buffers=not settings.no_host,
        override_kv=settings.override_kv,
        cache_type_k=settings.cache_type_k,
        cache_type_v=settings.cache_type_v,
        kv_offload=settings.kv_offload,
        op_offload=settings.op_offload,
        rope_scaling=settings.rope_scaling,
        rope_freq_base=settings.rope_freq_base,
        rope_freq_scale=_rope_freq_scale(settings),
        yarn_ext_factor=settings.yarn_ext_factor,
        yarn_attn_factor=settings.yarn_attn_factor,
        yarn_beta_slow=settings.yarn_beta_slow,
        yarn_beta_fast=settings.yarn_beta_fast,
        yarn_orig_ctx=settings.yarn_orig_ctx,
        n_threads_batch=settings.n_threads_batch,
        numa=settings.numa,
        warmup=settings.warmup,
    )
    if options.needs_flash_attn and settings.flash_attn is False:
        raise Refused(
            f"--cache-type-v {options.cache_type_v} needs flash attention, which --flash-attn off "
            "excludes",
            param="cache_type_v",
        )
    return options


def _load_mode(settings: Settings) -> LoadMode:
    if settings.mmap is None and not settings.mlock:
        return settings.load_mode
    if settings.load_mode != "auto":
        raise Refused("--load-mode says it all; leave out --mmap and --mlock", param="load_mode")
    if settings.mmap is False:
        return "mlock" if settings.mlock else "none"
    return "mmap+mlock" if settings.mlock else "mmap"


def _rope_freq_scale(settings: Settings) -> float:
    if settings.rope_scale and settings.rope_freq_scale:
        raise Refused(
            "--rope-freq-scale is one over --rope-scale; set one of them", param="rope_scale"
        )
    return 1 / settings.rope_scale if settings.rope_scale else settings.rope_freq_scale
