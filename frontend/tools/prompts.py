"""A prompt cut up so that it can be seen whose text is whose, and which of it is what. Pure."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate, groupby, pairwise
from typing import Literal, TypeAlias

from msgspec import Struct

from corral.backend.chat.types import Written
from corral.frontend.markdown import escape_code
from corral.frontend.words import _, ngettext, number

#: Characters drawn at the beginning and at the end of a long prompt, and on both sides of a place
#: that is marked.
SHOWN_ENDS, SHOWN_AROUND = 8_000, 2_000
#: Prompts up to this length are drawn whole; a longer one only when asked for, if not above that.
MAX_CHARS, MAX_WHOLE = 24_000, 500_000

Kind: TypeAlias = Literal["markup", "control", "person", "picture", "edge", "differs", "hidden"]


class Piece(Struct, frozen=True, kw_only=True):
    """A stretch of a prompt. ``html``: its text; of ``edge`` (the cache ends here), ``differs``
    (from the turn before) and ``hidden`` words about it."""

    kind: Kind
    html: str
    is_cached: bool = False


class Cut(Struct, frozen=True, kw_only=True):
    """A prompt's text and tokens. ``starts``: the character that each token begins with;
    ``controls``: where control tokens stand; ``pictures``: how many tokens each place has."""

    prompt: Written
    tokens: tuple[int, ...]
    starts: tuple[int, ...]
    controls: tuple[tuple[int, int], ...]
    pictures: tuple[int, ...]

    def place(self, n: int) -> int:
        """The character before which ``n`` tokens stand."""
        return self.starts[n] if n < len(self.starts) else len(self.prompt.text)


def cut(
    prompt: Written, tokens: Sequence[int], pieces: Sequence[bytes], names: Collection[str]
) -> Cut:
    """A prompt with its tokens: those of pictures are negative, ``pieces`` are of the others.
    ``names``: the texts of control tokens."""
    data = prompt.text.encode("utf-8", "surrogatepass")
    texts, at = iter(pieces), 0
    spans, is_control = list[tuple[int, int]](), list[bool]()
    for token in tokens:
        start = end = at
        piece = b""
        if token >= 0:
            piece = next(texts)
            start, end = _place(data, piece, at)
        spans.append((start, end))
        is_control.append(start < end and piece.decode("utf-8", "replace") in names)
        at = end
    # From bytes to characters: how many are complete there.
    sizes = list(accumulate(len(c.encode("utf-8", "surrogatepass")) for c in prompt.text))
    where = [(bisect_right(sizes, a), bisect_right(sizes, b)) for a, b in spans]
    return Cut(
        prompt=prompt,
        tokens=tuple(tokens),
        starts=tuple(start for start, end in where),
        controls=tuple(w for w, holds in zip(where, is_control, strict=True) if holds),
        pictures=_pictures(tokens, len(prompt.places)),
    )


def _place(data: bytes, piece: bytes, at: int) -> tuple[int, int]:
    """Where a token's text stands; nowhere, when the vocabulary put it there (BOS)."""
    if data.startswith(piece, at):
        return at, at + len(piece)
    if piece.startswith(b" ") and data.startswith(piece[1:], at):
        return at, at + len(piece) - 1
    # Some tokens take the white space before them with them.
    start = len(data) - len(data[at : at + 64].lstrip()) - len(data[at + 64 :])
    return (start, start + len(piece)) if data.startswith(piece, start) else (at, at)


def _pictures(tokens: Sequence[int], n_places: int) -> tuple[int, ...]:
    """How many tokens each picture has; of pictures that touch, the first has those of all."""
    runs = [len(list(run)) for is_media, run in groupby(tokens, lambda t: t < 0) if is_media]
    return tuple(runs[:n_places]) + (0,) * (n_places - len(runs))


def draw(
    found: Cut, *, n_cached: int = 0, differs_at: int | None = None, is_whole: bool = False
) -> tuple[Piece, ...]:
    """The prompt as it is drawn. The first ``n_cached`` tokens were in the cache; number
    ``differs_at`` is the first that the turn before did not have."""
    text = found.prompt.text
    cached_at = found.place(n_cached) if n_cached else 0
    marks: dict[int, list[Piece]] = {}
    if 0 < n_cached < len(found.tokens):
        words = ngettext("{n} token from the cache", "{n} tokens from the cache", n_cached)
        edge = Piece(kind="edge", html=words.format(n=number(n_cached)))
        marks.setdefault(cached_at, []).append(edge)
    if differs_at is not None and differs_at < len(found.tokens):
        differs = Piece(kind="differs", html=_("as in the turn before up to here"))
        marks.setdefault(found.place(differs_at), []).append(differs)
    for place, n in zip(found.prompt.places, found.pictures, strict=True):
        picture = Piece(kind="picture", html=_picture(n), is_cached=place < cached_at)
        marks.setdefault(place, []).append(picture)
    hidden = [] if is_whole or len(text) <= MAX_CHARS else _hidden(len(text), sorted(marks))
    edges = {0, len(text), cached_at, *marks, *(p for span in hidden for p in span)}
    edges |= {p for span in (*found.prompt.foreign, *found.controls) for p in span}
    drawn, hidden_starts = list[Piece](), dict(hidden)
    skipped_to = 0
    for start, end in pairwise([*sorted(edges), len(text)]):
        drawn += marks.pop(start, ())
        if start in hidden_starts:
            skipped_to = hidden_starts[start]
            words = ngettext("{n} character", "{n} characters", skipped_to - start)
            drawn.append(Piece(kind="hidden", html=words.format(n=number(skipped_to - start))))
        if start < end and start >= skipped_to:
            kind = _kind(found, start)
            html = escape_code(text[start:end])
            drawn.append(Piece(kind=kind, html=html, is_cached=start < cached_at))
    return tuple(drawn)


def _picture(n_tokens: int) -> str:
    words = ngettext("picture, {n} token", "picture, {n} tokens", n_tokens)
    return words.format(n=number(n_tokens)) if n_tokens else _("picture")


def _kind(found: Cut, at: int) -> Kind:
    """Whose the character is."""
    if _is_in(found.prompt.foreign, at):
        return "person"
    return "control" if _is_in(found.controls, at) else "markup"


def _is_in(spans: Sequence[tuple[int, int]], at: int) -> bool:
    i = bisect_right(spans, (at, 1 << 62)) - 1
    return i >= 0 and spans[i][0] <= at < spans[i][1]


def _hidden(n: int, marks: Sequence[int]) -> list[tuple[int, int]]:
    """What is left out of a text of ``n`` characters."""
    shown = [(0, SHOWN_ENDS), *((m - SHOWN_AROUND, m + SHOWN_AROUND) for m in marks)]
    found, at = list[tuple[int, int]](), 0
    for start, end in sorted([*shown, (n - SHOWN_ENDS, n)]):
        if start > at:
            found.append((at, start))
        at = max(at, end)
    return found


def excerpt(pieces: Sequence[bytes]) -> str:
    """A few tokens as text within a sentence."""
    text = b"".join(pieces).decode("utf-8", "replace").replace("\n", "↵")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)[:60]
