"""Models and contexts: what can be told before llama.cpp is asked, and its answer in words."""

import ctypes
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corral.backend.engine.llama import overrides
from corral.backend.engine.llama.ggufile import File, check_file
from corral.backend.engine.llama.native import LoadError, lib, log
from corral.backend.engine.llama.placing import CACHE_TYPES, model_params
from corral.backend.engine.options import LlamaOptions

_GIB = 1 << 30
_NUMA = {
    "distribute": lib.GGML_NUMA_STRATEGY_DISTRIBUTE,
    "isolate": lib.GGML_NUMA_STRATEGY_ISOLATE,
    "numactl": lib.GGML_NUMA_STRATEGY_NUMACTL,
}


def available_bytes() -> int | None:
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


def load_model(
    path: Path,
    options: LlamaOptions,
    *,
    check: bool,
    plain: bool,
    on_progress: Callable[[float], None],
) -> Any:
    """The model in a file (``llama_model *``). Raises ``LoadError``."""
    check_file(path)
    reason = log().reason
    lib.llama_backend_init()
    if options.numa is not None:
        lib.llama_numa_init(_NUMA[options.numa])
    if options.override_kv:
        file = File(path)
        try:
            overrides.check(file, options.override_kv)
        finally:
            file.close()
    params, kept = model_params(options)

    def progress(value: float, _data: Any) -> bool:
        on_progress(float(value))
        return True

    params.check_tensors = check
    params.use_extra_bufts = options.repack and not plain
    callback = lib.llama_progress_callback(progress)
    params.progress_callback = callback
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    kept.clear()
    if not model:
        raise LoadError(f"{path}: cannot be loaded: {reason()}")
    return model


def meta(model: Any, key: str) -> str | None:
    """A scalar of the GGUF's metadata as text, or None."""
    buffer = ctypes.create_string_buffer(1024)
    n = lib.llama_model_meta_val_str(model, key.encode(), buffer, 1024)
    return buffer.value.decode("utf-8", "replace") if n >= 0 else None


#: Settings a model's maker may recommend: our name, and the key under ``general.sampling``.
_RECOMMENDED = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "repeat_last_n": "penalty_last_n",
    "repeat_penalty": "penalty_repeat",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}


def recommended_sampling(model: Any, options: LlamaOptions) -> dict[str, float]:
    """The sampling settings in the GGUF's metadata (llama.cpp's ``general.sampling.*``)."""
    found: dict[str, float] = {}
    given = dict(options.override_kv)
    for name, key in _RECOMMENDED.items():
        text = given.get(f"general.sampling.{key}", meta(model, f"general.sampling.{key}"))
        try:
            value = float(text) if text else math.nan
        except ValueError:
            continue
        if math.isfinite(value):
            found[name] = value
    return found


def _head_sizes(model: Any) -> tuple[int, int]:
    """How many numbers a head's key and value have, from the metadata."""
    arch = meta(model, "general.architecture") or ""
    size = int(lib.llama_model_n_embd(model)) // max(1, int(lib.llama_model_n_head(model)))
    key = int(meta(model, f"{arch}.attention.key_length") or size)
    return key, int(meta(model, f"{arch}.attention.value_length") or size)


def _kv_bytes_per_token(model: Any, options: LlamaOptions) -> int:
    """Bytes of keys and values per cell."""
    n_kv = int(lib.llama_model_n_layer(model)) * int(lib.llama_model_n_head_kv(model))
    types = (options.cache_type_k, options.cache_type_v)
    return sum(
        -(-n_kv * size * CACHE_TYPES[kind][1] // CACHE_TYPES[kind][2])
        for size, kind in zip(_head_sizes(model), types, strict=True)
    )


def check_cache_types(model: Any, options: LlamaOptions) -> None:
    """Raises ``LoadError`` when a type's blocks do not divide the heads: llama.cpp would fail late,
    or read across their ends."""
    types = {"-ctk": options.cache_type_k, "-ctv": options.cache_type_v}
    for size, (flag, kind) in zip(_head_sizes(model), types.items(), strict=True):
        if size % CACHE_TYPES[kind][2]:
            raise LoadError(
                f"{flag} {kind}: the model's heads are {size} wide, which blocks of "
                f"{CACHE_TYPES[kind][2]} do not divide; use f16, bf16 or f32"
            )


def fit_context(model: Any, n_ctx: int, options: LlamaOptions, *, may_shrink: bool) -> int:
    """``n_ctx``, or what the memory holds when it may shrink: llama.cpp is killed, or takes
    half a minute to fail, when asked for far more than there is."""
    per_token, available = max(1, _kv_bytes_per_token(model, options)), available_bytes()
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
