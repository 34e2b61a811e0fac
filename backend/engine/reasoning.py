"""How much of an answer is reasoning, and when the engine ends it in the model's place. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from corral.backend.engine.messages import Thinking


class Words(Protocol):
    """What this needs of a model; part of ``core.Runner``."""

    # ruff: noqa: D102  documented in llama.Llama

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...
    def piece(self, token: int, *, special: bool = False) -> bytes: ...


class _Tag:
    """Recognises a tag: by its token when it is one, else by its text."""

    def __init__(self, words: Words, text: str) -> None:
        tokens = words.tokenize(text, add_special=False, parse_special=True)
        self._token = tokens[0] if len(tokens) == 1 else -1
        self._bytes = text.encode()
        self._tail = b""

    @property
    def has_begun(self) -> bool:
        """Whether what came last may be the tag's beginning."""
        n = min(len(self._tail), len(self._bytes) - 1)
        return any(self._tail.endswith(self._bytes[:i]) for i in range(1, n + 1))

    def ends_with(self, token: int, piece: bytes) -> bool:
        """Whether the tag is complete with this token."""
        if self._token >= 0:
            return token == self._token
        whole = self._tail + piece
        if self._bytes in whole:
            self._tail = b""
            return True
        self._tail = whole[-(len(self._bytes) - 1) :] if len(self._bytes) > 1 else b""
        return False


class Reasoning:
    """Follows one answer's reasoning. Owned by the step thread, once the text thread made it."""

    def __init__(self, asked: Thinking, words: Words) -> None:
        self._words = words
        self._start, self._end = _Tag(words, asked.start), _Tag(words, asked.end)
        self._opening = deque(words.tokenize(asked.start, add_special=False, parse_special=True))
        #: The token that reasoning begins with.
        self.first = self._opening[0] if self._opening else -1
        self._is_opening = False
        self._budget = asked.budget
        self._n = 0
        self._closing = words.tokenize(
            asked.message + asked.end, add_special=False, parse_special=True
        )
        self._then = words.tokenize(asked.then, add_special=False, parse_special=True)
        self._due: deque[int] = deque()
        self.is_open = asked.is_open
        if self.is_open and asked.budget == 0:
            self.stop()

    def begin(self) -> None:
        """``first`` was chosen, and is taken next: what follows is the rest of the opening tag."""
        self._is_opening = True

    @property
    def is_free(self) -> bool:
        """What comes next is no answer yet."""
        return self.is_open or self._is_opening or bool(self._due)

    def stop(self) -> bool:
        """Lets the closing tag come next. False when there is no reasoning to end."""
        if not self.is_open:
            return False
        if not self._due:
            self._due.extend(self._closing)
        return True

    def next(self, *, is_whole: bool = True) -> int | None:
        """The token to write now in place of one the model would choose; None: none. It begins
        neither within a code point (``is_whole`` False) nor within a closing tag of the model's."""
        if self._is_opening:
            return self._opening[0]
        if not self._due:
            return None
        if not self.is_open:
            return self._due[0]
        has_begun = len(self._due) < len(self._closing)
        return self._due[0] if has_begun or (is_whole and not self._end.has_begun) else None

    def take(self, token: int) -> None:
        """Another token of the answer."""
        if self._is_opening:
            self._opening.popleft()
            self._is_opening = bool(self._opening)
        elif self._due and token == self._due[0]:
            self._due.popleft()
        piece = self._words.piece(token, special=True)
        if not self.is_open:
            self.is_open = self._start.ends_with(token, piece)
            self._n = 0
            if self.is_open and self._budget == 0:
                self.stop()
        elif self._end.ends_with(token, piece):
            self.is_open = False
            self._due = deque(self._then)
        else:
            self._n += 1
            if 0 <= self._budget <= self._n:
                self.stop()


def marked(words: Words, tags: Iterable[str]) -> dict[int, str]:
    """The tags that are one token of the vocabulary, by that token."""
    found = {}
    for tag in tags:
        tokens = words.tokenize(tag, add_special=False, parse_special=True)
        if len(tokens) == 1 and words.piece(tokens[0], special=True) == tag.encode():
            found[tokens[0]] = tag
    return found
