"""LoRA adapters: loading them, and applying some to a context, which is to all its sequences."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path
from typing import Any

from corral.backend.engine.llama.ggufile import check_file
from corral.backend.engine.llama.native import LoadError, lib, log
from corral.backend.engine.llama.state import file_digest
from corral.backend.engine.messages import AdapterSet, LoraInfo


class Adapters:
    """The adapters of one model and context, by the order in which they were given. Close it before
    the context is freed."""

    def __init__(self, model: Any, context: Any, files: tuple[tuple[str, float], ...]) -> None:
        self._context = context
        self._pointers: list[Any] = []
        self._applied: AdapterSet = ()
        self.digests: list[str] = []
        self.infos: list[LoraInfo] = []
        for name, scale in files:
            pointer = _load(model, Path(name))
            self._pointers.append(pointer)
            self.digests.append(file_digest(Path(name)))
            self.infos.append(_describe(pointer, len(self.infos), name, scale))

    def apply(self, adapters: AdapterSet) -> None:
        """Computes with this set from the next call on."""
        if adapters == self._applied:
            return
        n = len(adapters)
        pointers = (lib.llama_adapter_lora_p_ctypes * max(1, n))()
        scales = (ctypes.c_float * max(1, n))()
        for i, (adapter_id, scale) in enumerate(adapters):
            pointers[i] = self._pointers[adapter_id]
            scales[i] = scale
        rc = lib.llama_set_adapters_lora(
            self._context, pointers if n else None, n, scales if n else None
        )
        assert rc == 0
        self._applied = adapters

    def close(self) -> None:
        """Takes them off the context; the model frees them with itself."""
        self.apply(())


def _load(model: Any, path: Path) -> Any:
    check_file(path)
    pointer = lib.llama_adapter_lora_init(model, str(path).encode())
    if not pointer:
        raise LoadError(f"{path}: not a LoRA adapter for this model: {log().reason()}")
    return pointer


def _describe(pointer: Any, adapter_id: int, path: str, scale: float) -> LoraInfo:
    n = int(lib.llama_adapter_get_alora_n_invocation_tokens(pointer))
    tokens = lib.llama_adapter_get_alora_invocation_tokens(pointer) if n else None
    return LoraInfo(
        id=adapter_id,
        path=path,
        scale=scale,
        task_name=_meta(pointer, "adapter.lora.task_name"),
        prompt_prefix=_meta(pointer, "adapter.lora.prompt_prefix"),
        invocation_tokens=[int(tokens[i]) for i in range(n)] if tokens else [],
    )


def _meta(pointer: Any, key: str) -> str:
    buffer = ctypes.create_string_buffer(4096)
    with contextlib.suppress(UnicodeDecodeError):
        if lib.llama_adapter_meta_val_str(pointer, key.encode(), buffer, 4096) >= 0:
            return buffer.value.decode()
    return ""
