"""What is kept of how a reply was made: what the model was sent, and the tokens it answered with.

With their probabilities where the reader asked for these beforehand, as they cost time.
"""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TypeVar

from msgspec import MsgspecError, Struct, msgpack
from msgspec.structs import replace

from corral.backend.chat.types import ChatRequest, Effective, Written
from corral.backend.choices import Generation
from corral.backend.engine.messages import TokenProbs
from corral.backend.errors import Broken
from corral.backend.store import Store, Trace
from corral.frontend.reply import Reply
from corral.frontend.together import Part

log = logging.getLogger("corral.frontend")

COOKIE = "probabilities"
#: Tokens kept with each one of an answer, the likeliest in its place.
N_PROBS = 6
#: Tokens of one answer whose probabilities are kept.
MAX_PROBS = 32_768

_wanted: ContextVar[bool] = ContextVar("probabilities", default=False)
T = TypeVar("T")


class Sent(Struct, frozen=True, kw_only=True):
    """What the model was sent. Pictures are not in it: the ``data`` of a source of the request is
    the key of its picture."""

    prompt: Written
    request: ChatRequest
    effective: Effective


class Said(Struct, frozen=True, kw_only=True):
    """The tokens of an answer. ``probs``: one for each of the first of them, when they were asked
    for. ``before``: the text that was there already, of a reply that went on; ``content``: what
    the tokens added to it."""

    tokens: list[int]
    probs: list[TokenProbs]
    seed: int
    before: str = ""
    content: str = ""


class Kept(Struct, frozen=True):
    """What is known of how a reply was made. ``said`` is None while it runs."""

    sent: Sent
    said: Said | None


def want(is_wanted: bool) -> None:
    """From now on, in what this task does, replies keep probabilities, or do not."""
    _wanted.set(is_wanted)


def is_wanted() -> bool:
    """Whether they do."""
    return _wanted.get()


def asking(request: ChatRequest) -> ChatRequest:
    """A request, which asks for probabilities where the reader wants them."""
    params = request.params
    if not is_wanted() or params.n_probs:
        return request
    return replace(request, params=replace(params, n_probs=N_PROBS))


async def keep(store: Store, reply: Reply) -> None:
    """Keeps how a reply is being made, or was. That it cannot is no reason to end one."""
    generation = reply.generation
    if isinstance(generation, Part):
        generation = generation.generation
    if not isinstance(generation, Generation) or not isinstance(generation.written, Written):
        return
    prompt, effective = generation.written, generation.effective
    try:
        # A picture's key is made of all of it, which takes a while.
        sent = await asyncio.to_thread(_sent, prompt, reply.request, effective)
        said = msgpack.encode(_said(reply)) if reply.phase == "ended" else b""
        await store.keep_trace(reply.id, Trace(sent=sent, said=said))
    except (Broken, ValueError, TypeError) as error:  # what cannot be written
        log.warning("how reply %d was made is not kept: %s", reply.id, error)


def _sent(prompt: Written, request: ChatRequest, effective: Effective) -> bytes:
    return msgpack.encode(
        Sent(prompt=prompt, request=without_pictures(request), effective=effective)
    )


def _said(reply: Reply) -> Said:
    before, content = reply.begun_with, reply.answer.content
    return Said(
        tokens=reply.tokens,
        probs=reply.probs[:MAX_PROBS],
        seed=reply.seed,
        before=before,
        content=content.removeprefix(before),
    )


def without_pictures(request: ChatRequest) -> ChatRequest:
    """A request whose pictures are known by their keys, the SHA-256 of their files."""
    keys = [replace(s, data=hashlib.sha256(s.data).hexdigest().encode()) for s in request.sources]
    return replace(request, sources=tuple(keys))


async def kept(store: Store, message_id: int) -> Kept | None:
    """How a reply was made; None when that is not kept, or not any more."""
    trace = await store.trace(message_id)
    if trace is None:
        return None
    sent = _decoded(trace.sent, Sent)
    return None if sent is None else Kept(sent, _decoded(trace.said, Said))


def _decoded(data: bytes, kind: type[T]) -> T | None:
    """None for what another version of the program wrote in another shape."""
    try:
        return msgpack.decode(data, type=kind) if data else None
    except MsgspecError:
        return None


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    n = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        n += 1
    return n
