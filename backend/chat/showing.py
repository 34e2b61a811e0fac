"""Answers shown in another way than they are read: reasoning twice, or nothing read at all."""

from collections.abc import Sequence
from typing import Any, Final

from corral.backend.chat.parser import Parser
from corral.backend.chat.types import Content, Part, Thought


class Both:
    """Reasoning apart, and in the content as well, with its tags (``deepseek-legacy``)."""

    def __init__(self, parser: Parser, tags: tuple[str, str], *, is_open: bool) -> None:
        self.n_calls = 0
        self._parser = parser
        self._tags: Final = tags
        self._is_thinking = False
        self._is_open = is_open  # the prompt has the opening tag

    def feed(self, text: str, marks: Any = ()) -> list[Part]:
        """See ``Parser``."""
        return self._double(self._parser.feed(text, marks))

    def finish(self) -> list[Part]:
        """See ``Parser``."""
        return self._double(self._parser.finish())

    def _double(self, parts: list[Part]) -> list[Part]:
        self.n_calls = self._parser.n_calls
        doubled: list[Part] = []
        for part in parts:
            is_thought = isinstance(part, Thought)
            if is_thought != self._is_thinking:
                self._is_thinking = is_thought
                tag = "" if is_thought and self._is_open else self._tags[not is_thought]
                self._is_open = False
                if tag:
                    doubled.append(Content(tag))
            doubled.append(part)
            if isinstance(part, Thought):
                doubled.append(Content(part.text))
        return doubled


class Unread:
    """Reads nothing: all of an answer is content, tags and all."""

    n_calls = 0

    def feed(self, text: str, marks: Sequence[tuple[int, str]] = ()) -> list[Part]:
        """See ``Parser``."""
        pieces, start = list[str](), 0
        for at, tag in marks:
            pieces += [text[start:at], tag]
            start = at
        whole = "".join([*pieces, text[start:]])
        return [Content(whole)] if whole else []

    def finish(self) -> list[Part]:
        """See ``Parser``."""
        return []
