"""Answers shown in another way than they are read: reasoning twice, or nothing read at all."""

from collections.abc import Sequence

from corral.backend.chat.parser import Parser
from corral.backend.chat.types import CallArguments, CallBegin, Content, Part, Thought


class Both:
    """Reasoning apart, and in the content as well, as it was written (``deepseek-legacy``).
    ``parser`` reads reasoning and calls, ``plain`` the content, in which reasoning is text."""

    def __init__(self, parser: Parser, plain: Parser) -> None:
        self.n_calls = 0
        self._parser = parser
        self._plain = plain

    def feed(self, text: str, marks: Sequence[tuple[int, str]] = ()) -> list[Part]:
        """See ``Parser``."""
        return self._both(self._parser.feed(text, marks), self._plain.feed(text, marks))

    def finish(self) -> list[Part]:
        """See ``Parser``."""
        return self._both(self._parser.finish(), self._plain.finish())

    def _both(self, parts: list[Part], plain: list[Part]) -> list[Part]:
        self.n_calls = self._parser.n_calls
        thoughts = [part for part in parts if isinstance(part, Thought)]
        calls = [part for part in parts if isinstance(part, CallBegin | CallArguments)]
        return [*thoughts, *(part for part in plain if isinstance(part, Content)), *calls]


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
