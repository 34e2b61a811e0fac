"""Pictures and sounds in a conversation: where they stand in what a template writes. Pure."""

import re
import secrets
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from corral.backend.chat.types import Message, Written
from corral.backend.errors import Refused

#: How a picture or a sound is shown in text (llama-server's marker). Text that holds it is text.
MARKER: Final = "<__media__>"


def shown(prompt: Written) -> str:
    """A prompt as text, with ``MARKER`` for what is no text."""
    starts, ends = (0, *prompt.places), (*prompt.places, len(prompt.text))
    return MARKER.join(prompt.text[a:b] for a, b in zip(starts, ends, strict=True))


def media_index(part: dict[str, Any]) -> int | None:
    """The number of the source that a part of a message shows; None: it is text."""
    return part["index"] if part.get("type") == "media" else None


class Places:
    """Stands in for the ``n`` pictures and sounds of a conversation with marks that nobody can
    guess, and finds these in what the template made of it."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._secret = secrets.token_hex(12)

    def mark(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with marks as texts."""
        return [self._mark(message) for message in messages] if self._n else list(messages)

    def find(self, prompt: Written) -> Written:
        """The prompt without marks, and with the places where they stood. Raises Refused when the
        template leaves one out, shows one twice, or changes their order."""
        if not self._n:
            return prompt
        found = list(re.finditer(f"media{self._secret}n([0-9]+)z", prompt.text))
        if [int(mark[1]) for mark in found] != list(range(self._n)):
            message = "the chat template does not show each picture and sound once, in order"
            raise Refused(message, kind="template_error", param="messages")
        spans = [mark.span() for mark in found]
        starts, ends = (0, *(end for _, end in spans)), (*(s for s, _ in spans), len(prompt.text))
        text = "".join(prompt.text[a:b] for a, b in zip(starts, ends, strict=True))
        foreign = [(_moved(start, spans), _moved(end, spans)) for start, end in prompt.foreign]
        places = tuple(_moved(start, spans) for start, _ in spans)
        return Written(text, tuple((a, b) for a, b in foreign if a < b), places)

    def _mark(self, message: Message) -> Message:
        if not isinstance(message.content, list):
            return message
        return replace(message, content=[self._part(part) for part in message.content])

    def _part(self, part: dict[str, Any]) -> dict[str, Any]:
        i = media_index(part)
        return part if i is None else {"type": "text", "text": f"media{self._secret}n{i}z"}

    def is_mark(self, text: str) -> bool:
        """Whether a text is one of the marks."""
        return bool(self._n) and text.startswith(f"media{self._secret}n")


def _moved(at: int, removed: Sequence[tuple[int, int]]) -> int:
    """A place in a text once some ranges of it are gone."""
    return at - sum(min(end, at) - start for start, end in removed if start < at)
