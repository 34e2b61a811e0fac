"""A conversation as the model gets it. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from corral.backend.chat import types as chat
from corral.backend.chat.types import ChatRequest, Source
from corral.backend.store import Message
from corral.frontend.tuning import Tuning


def to_request(
    messages: Sequence[Message],
    files: Mapping[str, bytes] | None = None,
    settings: Tuning | None = None,
) -> ChatRequest:
    """The request that continues a conversation; ``files`` are its pictures' by key, ``settings``
    those in force in it (see ``tuning.of``). Raises Refused naming the setting.

    Replies without text are left out, and what the user said in a row is one message: many
    templates insist that the roles alternate. Pictures come before the text they were sent with.
    Reasoning goes where the template reads it; calls are not sent back, as nothing answered them.
    """
    turns: list[list[Message]] = []
    for m in messages:
        if m.role == "assistant" and not m.content:
            continue
        if turns and turns[-1][0].role == m.role:
            turns[-1].append(m)
        else:
            turns.append([m])
    sources: list[Source] = []
    sent = tuple(_joined(turn, files or {}, sources) for turn in turns)
    # Apart from the text, whatever the server's default is: the page has a place for it.
    request = ChatRequest(messages=sent, sources=tuple(sources), reasoning_format="auto")
    return request if settings is None else settings.applied(request)


def _joined(
    turn: Sequence[Message], files: Mapping[str, bytes], sources: list[Source]
) -> chat.Message:
    """What one side said in a row. Adds the pictures to ``sources``."""
    reasoning = "\n\n".join(m.reasoning for m in turn if m.reasoning)
    fields = {"reasoning_content": reasoning} if reasoning else {}
    if not any(m.pictures for m in turn):
        content = "\n\n".join(m.content for m in turn)
        return chat.Message(role=turn[0].role, content=content, fields=fields)
    parts: list[dict[str, Any]] = []
    for m in turn:
        for picture in m.pictures:
            parts.append({"type": "media", "index": len(sources)})
            sources.append(Source(kind="image", data=files[picture.key], param=picture.name))
        if m.content:
            parts.append({"type": "text", "text": m.content})
    return chat.Message(role=turn[0].role, content=parts, fields=fields)
