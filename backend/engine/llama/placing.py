"""Where llama.cpp puts a model, in the structs it wants for that: devices, buffers, the cache."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from corral.backend.engine.llama import overrides
from corral.backend.engine.llama.native import LoadError, lib
from corral.backend.engine.options import LlamaOptions

#: ggml-backend.h: the kind of device that is the CPU.
_CPU = 0
#: The types a cache may have (``ggml_type``), the bytes of a block of it, and its values.
CACHE_TYPES: dict[str, tuple[int, int, int]] = {
    "f32": (lib.GGML_TYPE_F32, 4, 1),
    "f16": (lib.GGML_TYPE_F16, 2, 1),
    "bf16": (30, 2, 1),  # ggml.h's number; the bindings have no name for it
    "q8_0": (lib.GGML_TYPE_Q8_0, 34, 32),
    "q4_0": (lib.GGML_TYPE_Q4_0, 18, 32),
    "q4_1": (lib.GGML_TYPE_Q4_1, 20, 32),
    "iq4_nl": (lib.GGML_TYPE_IQ4_NL, 18, 32),
    "q5_0": (lib.GGML_TYPE_Q5_0, 22, 32),
    "q5_1": (lib.GGML_TYPE_Q5_1, 24, 32),
}
_SPLIT_MODES = {
    "none": lib.LLAMA_SPLIT_MODE_NONE,
    "layer": lib.LLAMA_SPLIT_MODE_LAYER,
    "row": lib.LLAMA_SPLIT_MODE_ROW,
}
_LOAD_MODES = {
    "auto": lib.LLAMA_LOAD_MODE_AUTO,
    "none": lib.LLAMA_LOAD_MODE_NONE,
    "mmap": lib.LLAMA_LOAD_MODE_MMAP,
    "mlock": lib.LLAMA_LOAD_MODE_MLOCK,
    "mmap+mlock": lib.LLAMA_LOAD_MODE_MMAP_MLOCK,
    "dio": lib.LLAMA_LOAD_MODE_DIRECT_IO,
}
_ROPE_SCALINGS = {
    None: lib.LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED,
    "none": lib.LLAMA_ROPE_SCALING_TYPE_NONE,
    "linear": lib.LLAMA_ROPE_SCALING_TYPE_LINEAR,
    "yarn": lib.LLAMA_ROPE_SCALING_TYPE_YARN,
}
#: Names of the weights of experts, and of feed-forward layers without.
_EXPERTS, _FEED_FORWARD = r"\.ffn_(up|down|gate|gate_up)_(ch)?exps", r"\.ffn_(up|down|gate)\."
#: No model has more layers (llama.cpp's own limit).
MAX_LAYERS = 512


class Device(NamedTuple):
    """Something that computes, and the memory it has in bytes. ``handle`` is llama.cpp's."""

    name: str
    description: str
    is_cpu: bool
    free: int
    total: int
    handle: int


class _Rule(ctypes.Structure):
    """``llama_model_tensor_buft_override``."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(lib._lib, name)
    function.restype, function.argtypes = result, arguments
    return function


def devices() -> list[Device]:
    """All that this build of llama.cpp can compute with."""
    pointer = ctypes.c_void_p
    sizes = (ctypes.POINTER(ctypes.c_size_t),) * 2
    count = _function("ggml_backend_dev_count", ctypes.c_size_t)
    get = _function("ggml_backend_dev_get", pointer, ctypes.c_size_t)
    name = _function("ggml_backend_dev_name", ctypes.c_char_p, pointer)
    description = _function("ggml_backend_dev_description", ctypes.c_char_p, pointer)
    kind = _function("ggml_backend_dev_type", ctypes.c_int, pointer)
    memory = _function("ggml_backend_dev_memory", None, pointer, *sizes)
    found = []
    for i in range(count()):
        handle = get(i)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory(handle, ctypes.byref(free), ctypes.byref(total))
        found.append(
            Device(
                name=name(handle).decode("utf-8", "replace"),
                description=description(handle).decode("utf-8", "replace"),
                is_cpu=kind(handle) == _CPU,
                free=free.value,
                total=total.value,
                handle=handle,
            )
        )
    return found


def uses_gpu(options: LlamaOptions) -> bool:
    """Whether anything but the CPU computes."""
    has_gpu = bool(lib.llama_supports_gpu_offload())
    return has_gpu and options.devices != () and options.n_gpu_layers != 0


def model_params(options: LlamaOptions) -> tuple[Any, list[Any]]:
    """``llama_model_params``, and what must outlive them. Raises ``LoadError``."""
    params, kept = lib.llama_model_default_params(), []
    chosen = _chosen(options)
    if options.devices is not None:
        handles = (ctypes.c_void_p * (len(chosen) + 1))(*(d.handle for d in chosen), None)
        params.devices = ctypes.cast(handles, ctypes.c_void_p)
        kept.append(handles)
    if rules := _rules(options):
        params.tensor_buft_overrides = ctypes.cast(rules, ctypes.c_void_p)
        kept.append(rules)
    if options.tensor_split:
        shares = (ctypes.c_float * lib.llama_max_devices())(*options.tensor_split)
        params.tensor_split = ctypes.cast(shares, ctypes.POINTER(ctypes.c_float))
        kept.append(shares)
    if options.override_kv:
        params.kv_overrides = overrides.array(options.override_kv)
    params.n_gpu_layers = options.n_gpu_layers
    if chosen:  # one that has nothing to split is refused modes that it does not need
        params.split_mode = _SPLIT_MODES[options.split_mode]
        params.main_gpu = options.main_gpu
    params.load_mode = _LOAD_MODES[options.load_mode]
    params.use_extra_bufts = options.repack
    params.no_host = not options.host_buffers
    return params, kept


def _chosen(options: LlamaOptions) -> list[Device]:
    """The devices beside the CPU that may be used."""
    found = {d.name: d for d in devices() if not d.is_cpu}
    names = list(found) if options.devices is None else options.devices
    for name in names:
        if name not in found:
            known = ", ".join(found) or "none"
            raise LoadError(f"--device {name}: no such device; there are: {known}")
    if names and options.main_gpu >= len(names):
        raise LoadError(f"--main-gpu {options.main_gpu}: there are {len(names)} devices, from 0")
    if len(options.tensor_split) > max(len(names), 1):
        raise LoadError(
            f"--tensor-split: {len(options.tensor_split)} shares for {len(names)} devices"
        )
    return [found[name] for name in names]


def _rules(options: LlamaOptions) -> Any:
    """Which weights go to which buffers, ended by an empty pattern; None without any."""
    cpu = _function("ggml_backend_cpu_buffer_type", ctypes.c_void_p)()
    rules = []
    if options.override_tensors:
        buffers = _buffer_types()
        for pattern, name in options.override_tensors:
            if name not in buffers:
                known = ", ".join(buffers)
                raise LoadError(f"--override-tensor {name}: no such buffer; there are: {known}")
            rules.append((pattern, buffers[name]))
    rules += [(p, cpu) for p in _patterns(options.n_cpu_moe, _EXPERTS)]
    rules += [(p, cpu) for p in _patterns(options.n_cpu_ffn, _FEED_FORWARD)]
    if not rules:
        return None
    array = (_Rule * (len(rules) + 1))()
    for row, (pattern, buffer_type) in zip(array, rules, strict=False):
        row.pattern, row.buffer_type = pattern.encode(), buffer_type
    return array


def _patterns(n_layers: int, weights: str) -> list[str]:
    """Patterns for these weights of the first layers, or of all."""
    return [weights] if n_layers < 0 else [rf"blk\.{i}{weights}" for i in range(n_layers)]


def _buffer_types() -> dict[str, int]:
    of = _function("ggml_backend_dev_buffer_type", ctypes.c_void_p, ctypes.c_void_p)
    name = _function("ggml_backend_buft_name", ctypes.c_char_p, ctypes.c_void_p)
    return {name(of(d.handle)).decode(): of(d.handle) for d in devices()}


def context_params(options: LlamaOptions) -> Any:
    """``llama_context_params`` with the options of positions and cache filled in."""
    params = lib.llama_context_default_params()
    params.type_k = CACHE_TYPES[options.cache_type_k][0]
    params.type_v = CACHE_TYPES[options.cache_type_v][0]
    params.offload_kqv = options.kv_offload
    params.op_offload = options.op_offload
    params.rope_scaling_type = _ROPE_SCALINGS[options.rope_scaling]
    params.rope_freq_base = options.rope_freq_base
    params.rope_freq_scale = options.rope_freq_scale
    params.yarn_ext_factor = options.yarn_ext_factor
    params.yarn_attn_factor = options.yarn_attn_factor
    params.yarn_beta_slow = options.yarn_beta_slow
    params.yarn_beta_fast = options.yarn_beta_fast
    params.yarn_orig_ctx = options.yarn_orig_ctx
    params.kv_unified = True
    # A sliding window smaller than the context could not be rewound or shared.
    params.swa_full = True
    params.no_perf = True
    return params
