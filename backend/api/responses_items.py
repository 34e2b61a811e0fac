"""Items of the Responses API: what a client sends, as it is kept, and as a chat template reads it.

Kept items have an id and the long form: ``content`` is always a list of parts. A turn of the
assistant may be several items (reasoning, message, function calls); templates want one message.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from corral.backend.api import media_parts
from corral.backend.api.generation import unsupported
from corral.backend.chat.types import Message
from corral.backend.errors import Refused

Item: TypeAlias = dict[str, Any]
#: A new name for item ``n`` of this request, with a prefix.
NewId: TypeAlias = Callable[[str], str]

# A developer's word is the system's in every template that knows only one of them.
_SYSTEM = ("system", "developer")


def expected(at: str, what: str) -> Refused:
    """The refusal of a member that is not what it should be."""
    return Refused(f"{at}: expected {what}", param=at)


def _text(given: Any, at: str) -> str:
    if not isinstance(given, str):
        raise expected(at, "`str`")
    return given


# --- from the wire --------------------------------------------------------------------------------


def normal(given: str | Sequence[Any], new_id: NewId, at: str = "input") -> list[Item]:
    """``input`` in the form that is kept; an ``item_reference`` stays one.

    Raises ``Refused`` naming the place for what is malformed or not built.
    """
    if isinstance(given, str):
        return [_message({"role": "user", "content": given}, new_id, at)]
    return [_item(item, new_id, f"{at}[{i}]") for i, item in enumerate(given)]


def _item(given: Any, new_id: NewId, at: str) -> Item:
    if not isinstance(given, dict):
        raise expected(at, "an object")
    kind = given.get("type") or ("message" if "role" in given else "item_reference")
    read = _READ.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise unsupported(f"{at}.type", f"{kind!r:.60} is none of {', '.join(_READ)}")
    return read(given, new_id, at)


def _name(given: Item, prefix: str, new_id: NewId, at: str) -> str:
    name = given.get("id")
    return new_id(prefix) if name is None else _text(name, f"{at}.id")


def _message(given: Item, new_id: NewId, at: str) -> Item:
    role = given.get("role")
    if role not in ("user", "assistant", *_SYSTEM):
        raise expected(f"{at}.role", "user, assistant, system or developer")
    kind = "output_text" if role == "assistant" else "input_text"
    content = given.get("content")
    if isinstance(content, str):
        parts = [_part({"type": kind, "text": content}, role, at)]
    elif isinstance(content, list):
        parts = [_part(part, role, f"{at}.content[{i}]") for i, part in enumerate(content)]
    else:
        raise expected(f"{at}.content", "a text or a list of parts")
    return {
        "id": _name(given, "msg", new_id, at),
        "type": "message",
        "status": "completed",
        "role": role,
        "content": parts,
    }


def _part(given: Any, role: str, at: str) -> Item:
    kind = given.get("type") if isinstance(given, dict) else None
    if kind in ("input_image", "input_audio"):
        media_parts.check_role(role, at)
        return _image(given, at) if kind == "input_image" else _audio(given, at)
    if kind == "input_file":
        raise unsupported(at, "this server reads text, pictures and sounds, not input_file")
    if kind == "refusal":
        return {"type": kind, "refusal": _text(given.get("refusal"), f"{at}.refusal")}
    if kind not in ("input_text", "output_text", "text"):
        raise expected(f"{at}.type", "input_text, output_text or refusal")
    text = _text(given.get("text"), f"{at}.text")
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


def _image(given: Item, at: str) -> Item:
    if given.get("file_id") is not None:
        raise unsupported(f"{at}.file_id", "no files are kept here; send the picture itself")
    url, detail = given.get("image_url"), given.get("detail")
    if not isinstance(url, str) or not url:
        raise expected(f"{at}.image_url", "a URL")
    media_parts.check_detail(detail, f"{at}.detail")
    return {"type": "input_image", "detail": detail or "auto", "image_url": url}


def _audio(given: Item, at: str) -> Item:
    sound = given.get("input_audio")
    media_parts.input_audio(sound, f"{at}.input_audio")
    return {"type": "input_audio", "input_audio": sound}


def _function_call(given: Item, new_id: NewId, at: str) -> Item:
    return {
        "id": _name(given, "fc", new_id, at),
        "type": "function_call",
        "status": "completed",
        "call_id": _text(given.get("call_id"), f"{at}.call_id"),
        "name": _text(given.get("name"), f"{at}.name"),
        "arguments": _text(given.get("arguments"), f"{at}.arguments"),
    }


def _function_output(given: Item, new_id: NewId, at: str) -> Item:
    output = given.get("output")
    if isinstance(output, list):
        output = [_part(part, "tool", f"{at}.output[{i}]") for i, part in enumerate(output)]
    elif not isinstance(output, str):
        raise expected(f"{at}.output", "a text or a list of parts")
    return {
        "id": _name(given, "fco", new_id, at),
        "type": "function_call_output",
        "status": "completed",
        "call_id": _text(given.get("call_id"), f"{at}.call_id"),
        "output": output,
    }


def _reasoning(given: Item, new_id: NewId, at: str) -> Item:
    item: Item = {"id": _name(given, "rs", new_id, at), "type": "reasoning", "status": "completed"}
    for name, kind in (("summary", "summary_text"), ("content", "reasoning_text")):
        parts = given.get(name) or []
        if not isinstance(parts, list):
            raise expected(f"{at}.{name}", "a list of parts")
        item[name] = [_thought(p, kind, f"{at}.{name}[{i}]") for i, p in enumerate(parts)]
    return item


def _thought(given: Any, kind: str, at: str) -> Item:
    if not isinstance(given, dict) or given.get("type") != kind:
        raise expected(f"{at}.type", kind)
    return {"type": kind, "text": _text(given.get("text"), f"{at}.text")}


def _reference(given: Item, new_id: NewId, at: str) -> Item:
    return {"type": "item_reference", "id": _text(given.get("id"), f"{at}.id")}


_READ: dict[str, Callable[[Item, NewId, str], Item]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_output,
    "reasoning": _reasoning,
    "item_reference": _reference,
}


# --- to a chat template ---------------------------------------------------------------------------


class _Conversation:
    """Messages as they come together; items of one turn of the assistant are gathered first.
    ``at`` is the place of the item that comes, ``places`` are those of the messages."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.places: list[str] = []
        self.at = ""
        self._turn_at = ""
        self._content: str | None = None
        self._fields: dict[str, Any] = {}

    def say(
        self, role: str, content: str | list[Item], fields: dict[str, Any] | None = None
    ) -> None:
        """A message of its own."""
        self.end_turn()
        self.messages.append(Message(role=role, content=content, fields=fields or {}))
        self.places.append(self.at)

    def think(self, text: str) -> None:
        """The assistant's reasoning, which begins a turn."""
        if self._content is not None or "tool_calls" in self._fields:
            self.end_turn()
        earlier = self._fields.get("reasoning_content")
        self._fields["reasoning_content"] = text if earlier is None else f"{earlier}\n{text}"
        self._turn_at = self.at

    def answer(self, text: str) -> None:
        """What the assistant said."""
        if self._content is not None or "tool_calls" in self._fields:
            self.end_turn()
        self._content = text
        self._turn_at = self.at

    def call(self, call_id: str, name: str, arguments: str) -> None:
        """A function the assistant called."""
        function = {"name": name, "arguments": arguments}
        calls = self._fields.setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": function})
        self._turn_at = self.at

    def end_turn(self) -> None:
        """The assistant's turn is over."""
        if self._content is None and not self._fields:
            return
        # Many templates add the content to a text without looking whether it is there.
        content = self._content or ""
        self.messages.append(Message(role="assistant", content=content, fields=self._fields))
        self.places.append(self._turn_at)
        self._content, self._fields = None, {}


def to_messages(
    items: Sequence[Item], instructions: str | None = None, n_earlier: int = 0
) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """The conversation that kept items are, and what the client calls each message of it (of a turn
    of several items: the last); the first ``n_earlier`` items are those of the responses before.

    ``instructions`` and the system's messages at the beginning become one message, since many
    templates take only one.
    """
    conversation = _Conversation()
    conversation.at = "instructions"
    opening = [] if instructions is None else [instructions]
    for i, item in enumerate(items):
        at = "previous_response_id" if i < n_earlier else f"input[{i - n_earlier}]"
        if not conversation.messages and item.get("role") in _SYSTEM:
            opening.append(_joined(item["content"]))
            conversation.at = at
            continue
        if opening:
            conversation.say("system", "\n\n".join(opening))
            opening = []
        conversation.at = at
        _add(conversation, item, at)
    if opening:
        conversation.say("system", "\n\n".join(opening))
    conversation.end_turn()
    return tuple(conversation.messages), tuple(conversation.places)


def _add(conversation: _Conversation, item: Item, at: str) -> None:
    match item["type"]:
        case "message" if item["role"] == "assistant":
            conversation.answer(_joined(item["content"]))
        case "message":
            role = "system" if item["role"] in _SYSTEM else item["role"]
            conversation.say(role, _shown(item["content"], f"{at}.content"))
        case "function_call":
            conversation.call(item["call_id"], item["name"], item["arguments"])
        case "function_call_output":
            output = item["output"]
            shown = output if isinstance(output, str) else _shown(output, f"{at}.output")
            conversation.say("tool", shown, {"tool_call_id": item["call_id"]})
        case "reasoning":
            parts = item.get("content") or item.get("summary") or []
            if parts:
                conversation.think(_joined(parts))


def _shown(parts: Sequence[Item], at: str) -> str | list[Item]:
    """What the user or a tool shows. A source of an earlier response is called by that."""
    found = []
    for i, part in enumerate(parts):
        there = at.partition(".")[0] if at.startswith("previous") else f"{at}[{i}].{part['type']}"
        match part["type"]:
            case "input_image":
                there = there.replace(".input_image", ".image_url")
                found.append(media_parts.shown(media_parts.image_url(part["image_url"], there)))
            case "input_audio":
                found.append(media_parts.shown(media_parts.input_audio(part["input_audio"], there)))
            case _:
                found.append(media_parts.text(_joined([part])))
    return media_parts.content(found)


def _joined(parts: Sequence[Item]) -> str:
    """The text of parts, joined as those of a chat message are."""
    return "\n".join(part.get("text") or part.get("refusal") or "" for part in parts)
