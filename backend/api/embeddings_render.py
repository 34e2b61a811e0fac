"""From vectors and scores to the wire. Pure."""

import base64

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from corral.backend.api.embeddings_schema import (
    Document,
    Embedding,
    EmbeddingList,
    EmbeddingsBody,
    InputUsage,
    NativeEmbedding,
    Ranked,
    RankedText,
    Ranking,
    RerankBody,
)
from corral.backend.vectors import Vectors

#: What the largest number becomes when vectors are scaled to fit 16-bit integers (llama.cpp's).
_MAX_INT16 = 32760.0


def normalized(rows: NDArray[np.float32], kind: int) -> NDArray[np.float32]:
    """Each row scaled: ``kind`` -1 as it is, 0 so that the largest number is 32760, p to a p-norm
    of 1. A row of zeros stays one."""
    if kind < 0:
        return rows
    largest = np.abs(rows).max(1, keepdims=True, initial=0).astype(np.float64)
    scale = np.where(largest > 0, largest, 1.0)
    if kind == 0:
        return (rows * (_MAX_INT16 / scale)).astype(np.float32)
    # By the largest first: its powers would leave the range of numbers.
    parts = rows / scale
    norms = (np.abs(parts) ** kind).sum(1, keepdims=True) ** (1 / kind)
    return (parts / np.where(norms > 0, norms, 1.0)).astype(np.float32)


def _shaped(vectors: Vectors, body: EmbeddingsBody, *, kind: int) -> list[NDArray[np.float32]]:
    kind = kind if body.embd_normalize is None else body.embd_normalize
    return [normalized(rows[:, : body.dimensions], kind) for rows in vectors.rows]


def _base64(row: NDArray[np.float32]) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def openai(vectors: Vectors, body: EmbeddingsBody, *, kind: int) -> EmbeddingList:
    """OpenAI's reply. ``kind`` is how vectors are normalized unless the body says."""
    is_text = body.encoding_format == "base64"
    data = [
        Embedding(
            index=i,
            embedding=_base64(rows[0]) if is_text else rows[0].tolist(),
            encoding_format="base64" if is_text else UNSET,
        )
        for i, rows in enumerate(_shaped(vectors, body, kind=kind))
    ]
    return EmbeddingList(model=vectors.model, data=data, usage=_usage(vectors))


def native(vectors: Vectors, body: EmbeddingsBody, *, kind: int) -> list[NativeEmbedding]:
    """llama-server's reply."""
    is_text = body.encoding_format == "base64"
    return [
        NativeEmbedding(
            index=i, embedding=[_base64(row) for row in rows] if is_text else rows.tolist()
        )
        for i, rows in enumerate(_shaped(vectors, body, kind=kind))
    ]


def ranking(scores: Vectors, body: RerankBody) -> Ranking | list[RankedText]:
    """The documents best first, those of one score in their order; in TEI's shape if its member was
    used."""
    values: list[float] = [rows[0, 0].item() for rows in scores.rows]
    texts: list[str] = body.all_texts
    best = sorted(range(len(values)), key=lambda i: -values[i])[: body.top_n]
    if body.texts is not None:
        return [
            RankedText(index=i, score=values[i], text=texts[i] if body.return_text else UNSET)
            for i in best
        ]
    results = [
        Ranked(
            index=i,
            relevance_score=values[i],
            document=Document(texts[i]) if body.return_documents else UNSET,
        )
        for i in best
    ]
    return Ranking(model=scores.model, results=results, usage=_usage(scores))


def _usage(vectors: Vectors) -> InputUsage:
    return InputUsage(prompt_tokens=vectors.n_tokens, total_tokens=vectors.n_tokens)


def default_kind(pooling: str | None, configured: int) -> int:
    """How vectors are normalized by default: not those of single tokens, and no scores."""
    return -1 if pooling in ("none", "rank", None) else configured
