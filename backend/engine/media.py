"""Pictures and sounds among a prompt's tokens. Pure.

Each becomes one or more *items*, which a projector encodes into rows of numbers that the model
reads in place of tokens. In the books an item has tokens too: negative ones, made from what was
sent, so that equal pictures have equal tokens and prefixes are found, shared and saved as ever.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from corral.backend.engine.messages import Media, Prompt, Written


class BadMedia(Exception):
    """What was sent cannot be read; the message says why."""


class Item:
    """Something that is encoded at once: ``rows``, of shape (tokens, width of the model's input),
    is None until it is. ``n_pos``: positions it takes. ``is_whole``: it is computed in one call.
    ``chunk`` is the projector's own."""

    def __init__(self, tokens: array[int], *, n_pos: int, is_whole: bool, chunk: Any) -> None:
        self.tokens = tokens
        self.n_pos = n_pos
        self.is_whole = is_whole
        self.chunk = chunk
        self.rows: NDArray[np.float32] | None = None


#: What a picture becomes: tokens that stand around it, and items.
Part: TypeAlias = list[int] | Item


def item_tokens(key: str, n: int) -> array[int]:
    """The ``n`` tokens of an item known by ``key``. Two keys have none in common but by chance, at
    one in 2**31 for each."""
    numbers = np.frombuffer(hashlib.shake_256(key.encode()).digest(4 * n), np.int32)
    return array("i", (numbers | np.int32(-(2**31))).tobytes())


class Placed(NamedTuple):
    """An item and the number of the token it begins with."""

    start: int
    item: Item

    @property
    def end(self) -> int:
        """The number of the token behind it."""
        return self.start + len(self.item.tokens)


class Layout:
    """Where in a sequence's tokens items stand, in order. ``shifts``: for each item that takes
    another number of positions than of tokens, the token behind it and by how much the positions
    from there on differ from the numbers of tokens."""

    def __init__(self, placed: Sequence[Placed]) -> None:
        self.placed = tuple(placed)
        self._starts = [p.start for p in placed]
        self.shifts: Shifts = ()
        shift = 0
        for p in placed:
            if p.item.n_pos != len(p.item.tokens):
                shift += p.item.n_pos - len(p.item.tokens)
                self.shifts += ((p.end, shift),)

    def at(self, token: int) -> Placed | None:
        """The item that holds this token; None: it is text."""
        i = bisect_right(self._starts, token) - 1
        return self.placed[i] if i >= 0 and token < self.placed[i].end else None

    def n_alike(self, token: int) -> int:
        """Tokens from this one to the next place where an item begins or ends."""
        placed = self.at(token)
        if placed is not None:
            return placed.end - token
        i = bisect_right(self._starts, token)
        return self._starts[i] - token if i < len(self._starts) else 1 << 30


Shifts: TypeAlias = tuple[tuple[int, int], ...]


def position(shifts: Shifts, token: int) -> int:
    """The position of a token that is not within an item; see ``Layout.shifts``."""
    for end, shift in reversed(shifts):
        if token >= end:
            return token + shift
    return token


class Words(Protocol):
    """What reading prompts needs of a model; part of ``runner.Runner``."""

    # ruff: noqa: D102  documented in llama.Llama

    def tokenize_prompt(self, prompt: Prompt) -> list[int]: ...
    def tokenize_stretches(self, prompt: Written) -> list[list[int]]: ...
    def see(self, media: Media) -> list[Part]: ...
    @property
    def row_bytes(self) -> int: ...


class Reading:
    """Prompts with pictures and sounds, as tokens. Owned by one thread. What these became is kept,
    up to ``max_bytes``: a conversation shows the same ones again in each of its turns."""

    def __init__(self, words: Words, *, max_bytes: int) -> None:
        self._words = words
        self._max_bytes = max_bytes
        self._seen: OrderedDict[tuple[str, str], list[Part]] = OrderedDict()
        self._n_bytes = 0

    def read(self, prompt: Prompt, media: Sequence[Media]) -> tuple[list[int], Layout | None]:
        """The tokens of a prompt, and where its items are. Raises ``BadMedia``."""
        if not media:
            if isinstance(prompt, Written) and prompt.places:
                raise BadMedia("the prompt has places for pictures and sounds, and there are none")
            return self._words.tokenize_prompt(prompt), None
        if not isinstance(prompt, Written) or len(prompt.places) != len(media):
            raise BadMedia(f"the prompt has no place for each of {len(media)} pictures and sounds")
        first, *stretches = self._words.tokenize_stretches(prompt)
        tokens, placed = list(first), list[Placed]()
        for one, stretch in zip(media, stretches, strict=True):
            for part in self._see(one):
                if isinstance(part, Item):
                    placed.append(Placed(len(tokens), part))
                    tokens += part.tokens
                else:
                    tokens += part
            tokens += stretch
        if placed and placed[-1].item.is_whole and placed[-1].end == len(tokens):
            raise BadMedia("for this model some text must follow a picture or sound")
        return tokens, Layout(placed)

    def _see(self, media: Media) -> list[Part]:
        key = media.kind, media.key
        parts = self._seen.pop(key, None)
        if parts is None:
            parts = self._words.see(media)
            self._n_bytes += self._size(parts)
        self._seen[key] = parts
        while self._n_bytes > self._max_bytes and len(self._seen) > 1:
            _, old = self._seen.popitem(last=False)
            self._n_bytes -= self._size(old)
        return parts

    def _size(self, parts: list[Part]) -> int:
        n_rows = sum(len(part.tokens) for part in parts if isinstance(part, Item))
        return n_rows * self._words.row_bytes


def stretches(prompt: Written) -> list[Written]:
    """The texts before, between and behind a prompt's places."""
    found = []
    for start, end in pairwise((0, *prompt.places, len(prompt.text))):
        foreign = (
            (max(a, start) - start, min(b, end) - start)
            for a, b in prompt.foreign
            if a < end and b > start
        )
        found.append(Written(prompt.text[start:end], tuple(foreign)))
    return found
