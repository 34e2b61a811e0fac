"""What a reply says so far: its text, its reasoning apart from that, and its calls.

Owned by one reply; it only grows.
"""

import time
from collections.abc import Sequence

from corral.backend.chat.types import CallArguments, CallBegin, Content, Part, Thought
from corral.backend.store import Call
from corral.frontend.growing import Document


class Answer:
    """A growing answer. ``document`` is its text as HTML. One that goes on begins with the
    ``content`` and ``reasoning`` it had."""

    def __init__(self, content: str = "", reasoning: str = "") -> None:
        self.document = Document()
        self.document.feed(content)
        self.is_thinking = False
        self._content = [content] if content else []
        self._thoughts = [reasoning] if reasoning else []
        self._calls: dict[int, tuple[str, list[str]]] = {}
        self._thought_s = 0.0  # of thoughts that are over
        self._since_s = 0.0  # when the one that is not began

    def take(self, parts: Sequence[Part]) -> None:
        """More of it."""
        for part in parts:
            if isinstance(part, Thought) != self.is_thinking:
                self._turn()
            match part:
                case Content():
                    self._content.append(part.text)
                    self.document.feed(part.text)
                case Thought():
                    self._thoughts.append(part.text)
                case CallBegin():
                    self._calls[part.index] = (part.name, [])
                case CallArguments():
                    self._calls[part.index][1].append(part.text)

    def _turn(self) -> None:
        """Begins to think, or ends it."""
        if self.is_thinking:
            self._thought_s += time.monotonic() - self._since_s
        elif self._thoughts:
            self._thoughts.append("\n\n")
        self._since_s = time.monotonic()
        self.is_thinking = not self.is_thinking

    @property
    def content(self) -> str:
        """The text."""
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        """All thoughts."""
        self._thoughts = ["".join(self._thoughts)] if self._thoughts else []
        return self._thoughts[0] if self._thoughts else ""

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls, in the order in which they began."""
        return tuple(Call(name=n, arguments="".join(a)) for n, a in self._calls.values())

    @property
    def thought_ms(self) -> float:
        """How long it has been thinking."""
        now_s = time.monotonic() - self._since_s if self.is_thinking else 0.0
        return (self._thought_s + now_s) * 1e3
