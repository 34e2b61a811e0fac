"""From the vectors of an input's tokens to one vector of it, also when they come in parts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from corral.backend.engine.messages import Pooling


def joined(
    pooling: Pooling, parts: list[NDArray[Any]], vectors: NDArray[np.float32]
) -> list[NDArray[Any]]:
    """What must be kept until an input's last part, given what was and the next part's vectors,
    shape (n, width), which are not kept themselves."""
    match pooling:
        case "mean":  # a sum is enough
            return [sum(parts, vectors.sum(0, np.float64, keepdims=True))]
        case "cls":
            return parts or [vectors[:1].copy()]
        case "last":
            return [vectors[-1:].copy()]
        case _:
            return [*parts, vectors.copy()]


def pooled(pooling: Pooling, vectors: NDArray[Any], n_tokens: int) -> NDArray[Any]:
    """One vector, of all its tokens' or of what was kept of them. Without pooling, and of what a
    classification head says, there is nothing to do."""
    match pooling:
        case "mean":
            mean: NDArray[Any] = vectors.sum(0, np.float64) / n_tokens
            return mean
        case "cls":
            return vectors[:1]
        case "last":
            return vectors[-1:]
        case _:
            return vectors
