"""A small vocabulary with tokens of several letters, and how a text fares under a constraint."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from corral.backend.engine.constraint import Constrained, Vocabulary, compile_constraint
from corral.backend.engine.messages import Constraint, ConstraintKind

END, START = 0, 1
_LONGER = (
    *('{"', '":', '": ', '", "', '"}', "},", "]}", "[]", ", ", "\n  ", "\n    ", '"\n', " the"),
    *("true", "false", "null", "ab", "abc", "end", "and", "00", "12", "2024", "-0", "é", "ün"),
    *("日本", "\\n", '\\"', "    ", "<|", "|>", "name", "age", "object", "  "),
)


class Letters:
    """All bytes, some longer tokens, and special ones (two, and ``controls``), spelled with the
    longest pieces."""

    def __init__(self, controls: Sequence[str] = ()) -> None:
        texts = [bytes([b]) for b in range(256)] + [t.encode() for t in _LONGER]
        self.pieces = [b"<|eos|>", b"<|bos|>", *(c.encode() for c in controls), *texts]
        self.n_vocab = len(self.pieces)
        self.n_special = START + 1 + len(controls)
        self._by_piece = {p: t for t, p in enumerate(self.pieces) if t >= self.n_special}
        self._longest = max(map(len, self.pieces))

    @property
    def eog_tokens(self) -> frozenset[int]:
        return frozenset({END})

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return self.pieces[token] if special or token >= self.n_special else b""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        assert not add_special and not parse_special
        data, tokens, at = text.encode(), [], 0
        while at < len(data):
            size = next(
                n for n in range(self._longest, 0, -1) if data[at : at + n] in self._by_piece
            )
            tokens.append(self._by_piece[data[at : at + size]])
            at += size
        return tokens


class Kit:
    """Compiles constraints over one vocabulary and tries texts on them."""

    def __init__(self, controls: Sequence[str] = ()) -> None:
        self.letters = Letters(controls)
        self.vocabulary = Vocabulary(self.letters)

    def compile(self, kind: ConstraintKind, source: str) -> Constrained:
        return compile_constraint(Constraint(kind, source), self.vocabulary)

    def tokens(self, text: str) -> list[int]:
        return self.letters.tokenize(text, add_special=False, parse_special=False)

    def follow(self, start: Constrained, text: str) -> Constrained | None:
        """The state behind a text, token by token as a step does; None when a token is refused."""
        state = start.copy()
        for token in self.tokens(text):
            if state.must_stop or not state.allows(token):
                return None
            state.accept(token)
        return state

    def accepts(self, start: Constrained, text: str) -> bool:
        """Whether the text may be the whole answer."""
        state = self.follow(start, text)
        return state is not None and state.may_stop

    def draw(self, start: Constrained, rng: np.random.Generator, n_max: int) -> str | None:
        """An answer drawn at random, forced tokens included; None when it grows too long. Short
        closing tokens are likelier, as they are for a model that wants to end."""
        state, tokens = start.copy(), list[int]()
        likely = np.zeros(self.letters.n_vocab, np.float32)
        likely[[t for t, p in enumerate(self.letters.pieces) if p in b'"]}']] = 0.6
        while len(tokens) < n_max:
            if state.must_stop or (state.may_stop and rng.random() < 0.5):
                return b"".join(self.letters.pieces[t] for t in tokens).decode()
            for token in state.forced():
                assert state.allows(token)
                state.accept(token)
                tokens.append(token)
            if state.must_stop or state.may_stop:
                continue
            logits = rng.random(self.letters.n_vocab, dtype=np.float32) + likely
            state.apply(logits)
            token = int(logits.argmax())
            assert np.isfinite(logits[token])
            state.accept(token)
            tokens.append(token)
        return None

    def walk(self, start: Constrained, rng: np.random.Generator, n_max: int) -> list[int] | None:
        """Tokens drawn at random, closing ones likelier, with an even chance to end wherever that
        is allowed; None when it grows too long."""
        state, tokens = start.copy(), list[int]()
        closing = [t for t, p in enumerate(self.letters.pieces) if p in b'"]}\n']
        while len(tokens) < n_max:
            if state.must_stop or (state.may_stop and rng.random() < 0.5):
                return tokens
            logits = rng.random(self.letters.n_vocab, dtype=np.float32)
            logits[closing] += 0.6
            state.apply(logits)
            logits[END] = -np.inf
            token = int(logits.argmax())
            if not np.isfinite(logits[token]):
                assert state.may_stop
                return tokens
            state.accept(token)
            tokens.append(token)
        return None

    def after(self, start: Constrained, tokens: Sequence[int]) -> Constrained | None:
        """The state behind some tokens; None when one is refused."""
        state = start.copy()
        for token in tokens:
            if state.must_stop or not state.allows(token):
                return None
            state.accept(token)
        return state

    def said(self, tokens: Sequence[int]) -> tuple[str, list[tuple[int, str]]]:
        """Tokens as an answer: its text, and the special ones, each with the place it has in it."""
        text, marks = b"", list[tuple[int, str]]()
        for token in tokens:
            piece = self.letters.pieces[token]
            if token < self.letters.n_special:
                marks.append((len(text.decode()), piece.decode()))
            else:
                text += piece
        return text.decode(), marks


@pytest.fixture(scope="session")
def new_kit() -> Callable[[tuple[str, ...]], Kit]:
    """Makes a kit whose vocabulary has more special tokens."""
    return functools.cache(Kit)


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()
