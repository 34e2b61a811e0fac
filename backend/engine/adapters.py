"""LoRA adapters of a request: what may be asked, and what it comes to. Pure."""

import math
from collections.abc import Iterable

from corral.backend.engine.messages import AdapterSet

#: Scales are multiplied into activations as 32-bit floats.
MAX_SCALE = 1e6


def lora_problem(n_adapters: int, adapter_id: int, scale: float) -> str | None:
    """Why this cannot be part of a set; None if it can."""
    if not 0 <= adapter_id < n_adapters:
        known = f"they are numbered from 0 to {n_adapters - 1}" if n_adapters else "none is loaded"
        return f"there is no LoRA adapter {adapter_id}; {known}"
    if not math.isfinite(scale) or abs(scale) > MAX_SCALE:
        return f"the scale of LoRA adapter {adapter_id} must be a number from -1e6 to 1e6"
    return None


def adapter_set(scales: Iterable[tuple[int, float]]) -> AdapterSet:
    """Scales as a set: those of 0 are as good as absent."""
    return tuple(sorted((i, float(scale)) for i, scale in scales if scale != 0))
