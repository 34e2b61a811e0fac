"""A conversation put into the words of a template: what says the same in a form that comes through.

What a template cannot say in any form may be folded into what it can, for those who ask for that.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from corral.backend.chat.capabilities import WORDLESS, Capabilities
from corral.backend.chat.continuing import REASONING
from corral.backend.chat.types import Message
from corral.backend.jsonvalue import value_of


def fit(
    messages: Sequence[Message], can: Capabilities, is_mark: Callable[[str], bool] = lambda _: False
) -> list[Message]:
    """The conversation as the template takes it. Members that are null are left out.

    Developers are the system, for templates that do not know them; a call's arguments are objects
    or texts, and content is text, parts, or what stands for nothing. Parts that become one text are
    lines of it, but for those that stand for pictures and sounds (``is_mark``), as in llama-server.
    Where a message shows one call at most, each gets its own, with its result behind it; where it
    shows words or calls, words get their own.
    """
    if can.words == "before":
        messages = [part for message in messages for part in _words_apart(message)]
    if can.tool_calls and not can.parallel_tool_calls:
        messages = _one_by_one(messages)
    return [_fit(message, can, is_mark) for message in messages]


def _one_by_one(messages: Sequence[Message]) -> list[Message]:
    out, rest = list[Message](), list(reversed(messages))
    while rest:
        out.append(message := rest.pop())
        calls = message.fields.get("tool_calls")
        if not isinstance(calls, list) or len(calls) < 2:
            continue
        results = list[Message]()
        while rest and rest[-1].role == "tool":
            results.append(rest.pop())
        out[-1] = replace(message, fields=message.fields | {"tool_calls": calls[:1]})
        for i, call in enumerate(calls):
            if i:
                out.append(Message(role=message.role, content=None, fields={"tool_calls": [call]}))
            own = [result for result in results if _is_of(result, call)]
            results = [result for result in results if not _is_of(result, call)]
            out += own
        out += results
    return out


def speaks_and_calls(message: Message) -> bool:
    """Whether words stand beside calls in it."""
    return bool(message.content and message.fields.get("tool_calls"))


def _words_apart(message: Message) -> list[Message]:
    if not speaks_and_calls(message):
        return [message]
    words = Message(role=message.role, content=message.content)
    return [words, replace(message, content=None)]


def _is_of(result: Message, call: Any) -> bool:
    """Whether it is what came of a call."""
    id = result.fields.get("tool_call_id")
    return id is not None and isinstance(call, dict) and call.get("id") == id


def fit_tool(tool: dict[str, Any], can: Capabilities) -> dict[str, Any]:
    """A tool with all members that the template reads."""
    function = tool.get("function")
    if can.bare_tools or not isinstance(function, dict):
        return tool
    given = {name: value for name, value in function.items() if value}
    parameters = {"type": "object", "properties": {}} | given.get("parameters", {})
    if isinstance(properties := parameters["properties"], dict):
        parameters["properties"] = {
            name: {"description": "", **about} if isinstance(about, dict) else about
            for name, about in properties.items()
        }
    return tool | {"function": {"description": "", **given, "parameters": parameters}}


def _fit(message: Message, can: Capabilities, is_mark: Callable[[str], bool]) -> Message:
    role = message.role
    if role == "developer" and not can.developer_role:
        role = "system"
    fields = {name: value for name, value in message.fields.items() if value is not None}
    calls = fields.get("tool_calls")
    if isinstance(calls, list):
        fields["tool_calls"] = [_fit_call(call, can) for call in calls]
    content = message.content
    if isinstance(content, list) and not can.typed_content:
        content = one_text([part["text"] for part in content], is_mark)
    if can.one_thought and calls:
        content = _one_thought(content, fields)
    content = _fit_content(content, can, has_calls=bool(calls) and can.tool_calls)
    return Message(role=role, content=content, fields=fields)


def _fit_content(content: Any, can: Capabilities, *, has_calls: bool) -> Any:
    if content is UNSET or content is None or (has_calls and not content):
        if has_calls:
            return WORDLESS[can.wordless_call]
        return "" if can.needs_content else UNSET
    if isinstance(content, str) and can.typed_content and not can.string_content:
        return [{"type": "text", "text": content}]
    return content


def _one_thought(content: Any, fields: dict[str, Any]) -> Any:
    """What is said beside calls, joined to the reasoning when there is some."""
    name = next((name for name in REASONING if isinstance(fields.get(name), str)), "")
    if not (name and fields[name] and isinstance(content, str) and content):
        return content
    fields[name] = f"{fields[name]}\n\n{content}"
    return UNSET


def one_text(texts: list[str], is_mark: Callable[[str], bool]) -> str:
    """Texts as one, with a line break between two that are no marks."""
    pieces = texts[:1]
    for last, text in itertools.pairwise(texts):
        pieces += [text] if is_mark(last) or is_mark(text) else ["\n", text]
    return "".join(pieces)


def _fit_call(call: Any, can: Capabilities) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str) and can.object_arguments:
        try:
            value = value_of(arguments)
        except ValueError:
            value = None
        if isinstance(value, dict):
            arguments = value
        elif not can.broken_arguments:
            arguments = {"arguments": arguments}
    elif isinstance(arguments, dict) and not can.object_arguments:
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def fold(messages: Sequence[Message], can: Capabilities) -> tuple[list[Message], tuple[str, ...]]:
    """A conversation without what templates object to most, and what was done to it: ``system``
    (system messages became part of the next user's; the first one only where the template has no
    place for it), ``roles`` (neighbours of one role became one message)."""
    kept, waiting, done = list[Message](), list[str](), dict[str, None]()
    for i, message in enumerate(messages):
        text = message.content
        if message.role == "system" and isinstance(text, str) and (i or not can.system_role):
            waiting.append(text)
            done["system"] = None
            continue
        if waiting and message.role == "user" and isinstance(text, str):
            message = replace(message, content="\n\n".join([*waiting, text]))
            waiting.clear()
        if kept and _can_join(kept[-1], message):
            kept[-1] = replace(kept[-1], content=f"{kept[-1].content}\n\n{message.content}")
            done["roles"] = None
        else:
            kept.append(message)
    if waiting:
        kept.append(Message(role="user", content="\n\n".join(waiting)))
    return kept, tuple(done)


def _can_join(one: Message, other: Message) -> bool:
    return (
        one.role == other.role
        and one.role in ("user", "assistant")
        and isinstance(one.content, str)
        and isinstance(other.content, str)
        and one.fields == other.fields == {}
    )
