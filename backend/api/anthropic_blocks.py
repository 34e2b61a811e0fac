"""Anthropic's messages and their blocks, as a chat template reads them.

Results of tools lie in the user's messages there; a template wants each as a message of its own.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from corral.backend.api import media_parts
from corral.backend.api.generation import unsupported
from corral.backend.chat.types import Message
from corral.backend.errors import Refused


def to_messages(
    system: str | Sequence[dict[str, Any]] | None, messages: Sequence[dict[str, Any]]
) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """The conversation, and what the client calls each message of it. Raises ``Refused`` naming
    the place for what is malformed or not built."""
    said: list[Message] = []
    places: list[str] = []
    if system is not None:
        text = system if isinstance(system, str) else _texts(system, "system")
        said.append(Message(role="system", content=text))
        places.append("system")
    for i, given in enumerate(messages):
        said += _message(given, f"messages[{i}]")
        places += [f"messages[{i}]"] * (len(said) - len(places))
    return tuple(said), tuple(places)


def _expected(at: str, what: str) -> Refused:
    return Refused(f"{at}: expected {what}", param=at)


def _message(given: dict[str, Any], at: str) -> list[Message]:
    role, content = given.get("role"), given.get("content")
    if role not in ("user", "assistant", "system"):
        raise _expected(f"{at}.role", "user, assistant or system")
    if isinstance(content, str):
        return [Message(role=role, content=content)]
    if not isinstance(content, list):
        raise _expected(f"{at}.content", "a text or a list of blocks")
    if role == "assistant":
        return [_assistant(content, f"{at}.content")]
    if role == "system":
        return [Message(role=role, content=_texts(content, f"{at}.content"))]
    return _user(content, f"{at}.content")


def _user(blocks: Sequence[Any], at: str) -> list[Message]:
    results, parts = [], []
    for i, block in enumerate(blocks):
        if _type(block, f"{at}[{i}]") == "tool_result":
            results.append(_result(block, f"{at}[{i}]"))
        else:
            parts.append(_part(block, f"{at}[{i}]"))
    # Results come first: they answer the calls of the turn before.
    if not parts:
        return results
    return [*results, Message(role="user", content=media_parts.content(parts))]


def _assistant(blocks: Sequence[Any], at: str) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        where = f"{at}[{i}]"
        match _type(block, where):
            case "thinking":
                thoughts.append(_member(block, "thinking", where))
            case "redacted_thinking":
                pass  # sealed by another server; nobody here could read it
            case "tool_use":
                calls.append(_call(block, where))
            case _:
                texts.append(_text(block, where))
    fields: dict[str, Any] = {}
    if thoughts:
        fields["reasoning_content"] = "\n".join(thoughts)
    if calls:
        fields["tool_calls"] = calls
    return Message(role="assistant", content="\n".join(texts), fields=fields)


def _call(block: dict[str, Any], at: str) -> dict[str, Any]:
    given = block.get("input")
    if not isinstance(given, dict):
        raise _expected(f"{at}.input", "an object")
    arguments = msgspec.json.encode(given).decode()
    function = {"name": _member(block, "name", at), "arguments": arguments}
    return {"id": _member(block, "id", at), "type": "function", "function": function}


def _result(block: dict[str, Any], at: str) -> Message:
    content = block.get("content", "")
    if not isinstance(content, str):
        content = _parts(content, f"{at}.content")
    fields: dict[str, Any] = {"tool_call_id": _member(block, "tool_use_id", at)}
    if block.get("is_error") is True:
        fields["is_error"] = True
    return Message(role="tool", content=content, fields=fields)


def _parts(blocks: Any, at: str) -> str | list[media_parts.Part]:
    if not isinstance(blocks, list):
        raise _expected(at, "a text or a list of blocks")
    return media_parts.content([_part(block, f"{at}[{i}]") for i, block in enumerate(blocks)])


def _part(block: Any, at: str) -> media_parts.Part:
    """What the user or a tool shows."""
    if _type(block, at) == "image":
        return media_parts.shown(media_parts.image_source(block.get("source"), f"{at}.source"))
    return media_parts.text(_text(block, at))


def _texts(blocks: Any, at: str) -> str:
    if not isinstance(blocks, list):
        raise _expected(at, "a text or a list of blocks")
    return "\n".join(_text(block, f"{at}[{i}]") for i, block in enumerate(blocks))


def _type(block: Any, at: str) -> str:
    if not isinstance(block, dict):
        raise _expected(at, "an object")
    return _member(block, "type", at)


def _text(block: Any, at: str) -> str:
    kind = _type(block, at)
    if kind == "image":
        raise unsupported(at, "only the user and tools show pictures")
    if kind in ("document", "search_result"):
        raise unsupported(at, f"this server reads text and pictures, not {kind}")
    if kind != "text":
        raise _expected(f"{at}.type", "text")
    return _member(block, "text", at)


def _member(block: dict[str, Any], name: str, at: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise _expected(f"{at}.{name}", "`str`")
    return value
