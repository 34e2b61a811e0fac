"""The tokens of an answer with how likely each was, and what stood against it. Pure."""

import math
from collections.abc import Collection, Sequence

from msgspec import Struct

from corral.backend.engine.messages import TokenProbs
from corral.frontend.tools.visible import Part, hexed, parts
from corral.frontend.traces import Said
from corral.frontend.words import _, number

#: Tokens on one page.
PAGE = 400
#: From which probability on a token is in each class, the surest first; the last has the rest.
CLASSES = (0.9, 0.7, 0.4, 0.1, 0.0)


class Option(Struct, frozen=True, kw_only=True):
    """A token that might stand at a place. ``pick`` names it in a form: empty when the answer
    cannot go on from it, ``why`` not. ``is_chosen``: it is the one that stands there."""

    parts: tuple[Part, ...]
    share: str
    is_chosen: bool
    pick: str
    why: str = ""

    @property
    def label(self) -> str:
        """Its text for a name."""
        return "".join(part.text for part in self.parts)


class Chip(Struct, frozen=True, kw_only=True):
    """Token ``n`` of an answer; ``level``: its class, 1 the surest."""

    n: int
    at: str
    parts: tuple[Part, ...]
    share: str
    level: int
    ends_line: bool
    options: tuple[Option, ...]


class Span(Struct, frozen=True):
    """Where the text of an answer stands among the bytes of its tokens: ``start`` to ``end``, -1
    when it is not there in one piece; ``offsets``: the byte that each token begins with."""

    raw: bytes
    start: int
    end: int
    offsets: tuple[int, ...]


def span(said: Said) -> Span:
    """Where the text is. Before it may be reasoning, after it a stop string."""
    raw = b"".join(p.piece for p in said.probs)
    content = said.content.encode("utf-8", "surrogatepass")
    start = raw.rfind(content) if content else -1
    offsets, at = [], 0
    for p in said.probs:
        offsets.append(at)
        at += len(p.piece)
    return Span(raw, start, start + len(content) if start >= 0 else -1, tuple(offsets))


def text_with(said: Said, where: Span, n: int, piece: bytes) -> str | None:
    """The answer up to token ``n``, and ``piece`` in its place. None when that is no text: within a
    character, or outside what the answer says."""
    at = where.offsets[n]
    if where.start < 0 or at >= where.end:
        return None
    begun = where.raw[where.start : at]
    if at < where.start:
        # Blanks that begin an answer are left out of it; what comes before is no text of it.
        if where.raw[at : where.start].strip() or at + len(said.probs[n].piece) <= where.start:
            return None
        piece = piece.lstrip()
    try:
        return said.before + (begun + piece).decode()
    except UnicodeDecodeError:
        return None


def picked(said: Said, pick: str, controls: Collection[str]) -> str | None:
    """The text that a form asks for by ``pick``: the token's number, and the number of the one in
    its place. None when there is no such text."""
    n, _dot, k = pick.partition(".")
    if not all(part.isascii() and part.isdecimal() and len(part) < 8 for part in (n, k)):
        return None
    if int(n) >= len(said.probs) or int(k) >= len(said.probs[int(n)].top):
        return None
    piece = said.probs[int(n)].top[int(k)][1]
    if piece.decode("utf-8", "replace") in controls:
        return None
    return text_with(said, span(said), int(n), piece)


def chips(
    said: Said, controls: Collection[str], first: int = 0, most: int = PAGE
) -> tuple[Chip, ...]:
    """The tokens from number ``first`` on. ``controls``: texts that are tokens of special
    meaning."""
    where = span(said)
    return tuple(
        _chip(said, where, n, controls) for n in range(first, min(first + most, len(said.probs)))
    )


def _chip(said: Said, where: Span, n: int, controls: Collection[str]) -> Chip:
    p = said.probs[n]
    chance = _chance(p.logprob)
    return Chip(
        n=n,
        at=number(n + 1),
        parts=_parts(p.piece),
        share=_share(chance),
        level=level(chance),
        ends_line=p.piece.endswith(b"\n"),
        options=_options(said, where, n, controls),
    )


def _options(said: Said, where: Span, n: int, controls: Collection[str]) -> tuple[Option, ...]:
    p = said.probs[n]
    found = [_option(said, where, n, k, controls) for k in range(len(p.top))]
    if not any(option.is_chosen for option in found):
        found.append(_chosen(p.piece, p.logprob))
    return tuple(found)


def _chosen(piece: bytes, logprob: float | None) -> Option:
    share = _share(_chance(logprob))
    return Option(parts=_parts(piece), share=share, is_chosen=True, pick="", why=_("chosen"))


def _option(said: Said, where: Span, n: int, k: int, controls: Collection[str]) -> Option:
    """The token number ``k`` of those that might stand at place ``n``."""
    id, piece, logprob = said.probs[n].top[k]
    if id == said.probs[n].token:
        return _chosen(piece, logprob)
    why = ""
    if piece.decode("utf-8", "replace") in controls:
        why = _("control token")
    elif text_with(said, where, n, piece) is None:
        is_said = where.start <= where.offsets[n] < where.end
        why = _("part of a character") if is_said else _("not in the text")
    pick = "" if why else f"{n}.{k}"
    share = _share(_chance(logprob))
    return Option(parts=_parts(piece), share=share, is_chosen=False, pick=pick, why=why)


def _parts(piece: bytes) -> tuple[Part, ...]:
    try:
        return parts(piece.decode())
    except UnicodeDecodeError:
        return (Part(hexed(piece), is_mark=True),)


def _chance(logprob: float | None) -> float:
    return 0.0 if logprob is None else math.exp(min(logprob, 0.0))


def _share(chance: float) -> str:
    percent = chance * 100
    if 0 < percent < 0.1:
        return f"< {number(0.1, 1)} %"
    return f"{number(percent, 0 if percent >= 10 else 1)} %"


def level(chance: float) -> int:
    """The class of a probability, 1 the surest."""
    return next(i for i, least in enumerate(CLASSES, 1) if chance >= least)


def perplexity(probs: Sequence[TokenProbs]) -> float:
    """How many tokens the model wavered between, on average (the exponential of the mean negative
    log probability)."""
    logs = [p.logprob for p in probs if p.logprob is not None]
    return math.exp(-sum(logs) / len(logs)) if logs else 1.0
