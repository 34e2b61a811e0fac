"""What a GGUF file says of itself before the model is loaded: which kind of model it is.

llama.cpp has no function that tells an embedding model from a generating one; its file does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from corral.backend.engine.llama.ggufile import File, check_file
from corral.backend.engine.messages import Pooling
from corral.backend.values_llama import Override

#: ``pooling_type`` in the order of llama.h's enum; -1 and 0 are no pooling.
POOLINGS: tuple[Pooling, ...] = ("none", "mean", "cls", "last", "rank")

#: The last matrix of a classification head; the one tensor that all rankers have.
_HEADS = (b"cls.output.weight", b"cls.weight")


class Header(NamedTuple):
    """``pooling`` None: the file names none. ``has_head``: it can score a pair of texts.
    ``has_position_table``: positions are rows of a matrix, and none is beyond its end."""

    architecture: str
    pooling: Pooling | None
    is_causal: bool
    has_head: bool
    has_position_table: bool

    @property
    def is_embedding_model(self) -> bool:
        """Whether the model is made for vectors or scores, not for generating text."""
        is_encoder = not self.is_causal or self.architecture == "t5encoder"
        return is_encoder or self.pooling not in (None, "none")


def read_header(path: Path, overrides: Sequence[Override] = ()) -> Header:
    """The header of a GGUF file, with what is given in place of its values. Raises ``LoadError``
    for what is no such file; one broken further on is left to the loader, which says how."""
    check_file(path)
    file, given = File(path), dict(overrides)
    try:
        arch = str(given.get("general.architecture") or file.text("general.architecture") or "")
        key = f"{arch}.pooling_type"
        kind = given.get(key, file.number(key))
        causal = given.get(f"{arch}.attention.causal", file.flag(f"{arch}.attention.causal"))
        return Header(
            architecture=arch,
            pooling=POOLINGS[kind] if isinstance(kind, int) and 0 <= kind < len(POOLINGS) else None,
            is_causal=causal is not False,
            has_head=any(file.has_tensor(name) for name in _HEADS),
            has_position_table=file.has_tensor(b"position_embd.weight"),
        )
    finally:
        file.close()
