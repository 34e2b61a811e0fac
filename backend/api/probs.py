"""Log probabilities in the shapes of three APIs. Pure functions.

A token that is no UTF-8 by itself is shown as OpenAI does, ``bytes:\\xe2\\x80``; the member
``bytes`` is exact.
JSON has no infinity, so what cannot happen is the number that each API uses for it.
"""

import codecs
import math
from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from corral.backend.engine.messages import TokenProbs

#: The log probability of what cannot happen: OpenAI's and llama-server's.
NEVER, NEVER_NATIVE = -9999.0, -3.4028234663852886e38


class TopLogprob(Struct, frozen=True, kw_only=True):
    """A likely token in the place of the chosen one."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct, frozen=True, kw_only=True):
    """A chosen token and the likeliest in its place, likeliest first."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, frozen=True, kw_only=True):
    """One entry for each token of the answer."""

    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(Struct, frozen=True, kw_only=True):
    """One entry for each token. ``top_logprobs`` are by text and include the chosen token; a first
    token of the prompt has none. ``text_offset`` counts characters of ``text``."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class NativeTop(Struct, frozen=True, kw_only=True):
    """A likely token; ``prob`` after sampling, ``logprob`` before."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | UnsetType = UNSET
    prob: float | UnsetType = UNSET


class NativeProb(Struct, frozen=True, kw_only=True):
    """A chosen token and the likeliest in its place, with members as in ``NativeTop``."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | UnsetType = UNSET
    prob: float | UnsetType = UNSET
    top_logprobs: list[NativeTop] | UnsetType = UNSET
    top_probs: list[NativeTop] | UnsetType = UNSET


class Shape(Struct, frozen=True):
    """What was asked for: ``n_top`` tokens in place of each, ``is_post`` as the samplers left them,
    which makes the engine's numbers probabilities."""

    n_top: int
    is_post: bool = False

    def log(self, number: float) -> float:
        """The engine's number as a log probability that JSON can hold."""
        if self.is_post:
            return max(math.log(number), NEVER) if number > 0 else NEVER
        return max(number, NEVER)


def token_text(piece: bytes) -> str:
    """A token as text; see the module."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def for_chat(probs: Sequence[TokenProbs], shape: Shape) -> ChatLogprobs:
    """As chat completions show them."""
    content = []
    for p in probs:
        top = [
            TopLogprob(token=token_text(piece), logprob=shape.log(number), bytes=list(piece))
            for _, piece, number in p.top[: shape.n_top]
        ]
        entry = TokenLogprob(
            token=token_text(p.piece),
            logprob=shape.log(_number(p)),
            bytes=list(p.piece),
            top_logprobs=top,
        )
        content.append(entry)
    return ChatLogprobs(content=content)


def for_text(probs: Sequence[TokenProbs], shape: Shape, *, start: int = 0) -> TextLogprobs:
    """As text completions show them. ``start``: characters of the text before the first token."""
    return TextLogprobs(
        tokens=[token_text(p.piece) for p in probs],
        token_logprobs=[None if p.logprob is None else shape.log(p.logprob) for p in probs],
        top_logprobs=[_by_text(p, shape) for p in probs] if shape.n_top else None,
        text_offset=_offsets(probs, start),
    )


def _by_text(p: TokenProbs, shape: Shape) -> dict[str, float] | None:
    if p.logprob is None:
        return None
    found = {token_text(p.piece): shape.log(p.logprob)}
    for _, piece, number in p.top[: shape.n_top]:
        # Two tokens may have one text; the likelier comes first.
        found.setdefault(token_text(piece), shape.log(number))
    return found


def _offsets(probs: Sequence[TokenProbs], start: int) -> list[int]:
    """Where each token begins; within a character, where that character is."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offsets = []
    for p in probs:
        offsets.append(start)
        start += len(decoder.decode(p.piece))
    return offsets


def for_native(probs: Sequence[TokenProbs], shape: Shape) -> list[NativeProb]:
    """As llama-server shows them."""
    return [_native(p, shape) for p in probs]


def _native(p: TokenProbs, shape: Shape) -> NativeProb:
    token, data, number = token_text(p.piece), list(p.piece), _number(p)
    if shape.is_post:
        likely = [
            NativeTop(id=id, token=token_text(piece), bytes=list(piece), prob=prob)
            for id, piece, prob in p.top[: shape.n_top]
            if prob > 0
        ]
        return NativeProb(id=p.token, token=token, bytes=data, prob=number, top_probs=likely)
    top = [
        NativeTop(
            id=id,
            token=token_text(piece),
            bytes=list(piece),
            logprob=max(logprob, NEVER_NATIVE),
        )
        for id, piece, logprob in p.top[: shape.n_top]
    ]
    logprob = max(number, NEVER_NATIVE)
    return NativeProb(id=p.token, token=token, bytes=data, logprob=logprob, top_logprobs=top)


def _number(p: TokenProbs) -> float:
    """Only a prompt's first token has none, and those are never shown here."""
    return -math.inf if p.logprob is None else p.logprob
