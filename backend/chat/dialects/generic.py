"""Models whose template knows no tools: they are told of them in a system message, and call them as
Hermes does, which is the form that small models find most often in what they were trained on."""

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from corral.backend.chat.dialects.base import signatures
from corral.backend.chat.dialects.hermes import Hermes
from corral.backend.chat.types import Message, Tool
from corral.backend.jsonvalue import value_of

_ABOUT = """You can call functions. Their signatures, as JSON Schema:
<tools>
{signatures}
</tools>
To call one, write a JSON object with its name and its arguments within tags, and nothing after it:
<tool_call>
{{"name": "function", "arguments": {{}}}}
</tool_call>"""


class Generic(Hermes, frozen=True, kw_only=True):
    """See the module."""

    name: str = "generic"

    def fits(self, template: str, controls: frozenset[str]) -> bool:
        """Any model."""
        return True

    def preamble(self, tools: tuple[Tool, ...]) -> str:
        """See ``Dialect``."""
        return _ABOUT.format(signatures=signatures(tools))


def with_preamble(
    messages: Sequence[Message], preamble: str, *, has_system: bool = True
) -> list[Message]:
    """A conversation whose system message says this too; without such messages the first one,
    if it is the user's."""
    first = messages[0] if messages else None
    if first is not None and isinstance(first.content, str | list):
        if first.role == "system":
            content = _around("", first.content, f"\n\n{preamble}")
            return [replace(first, content=content), *messages[1:]]
        if first.role == "user" and not has_system:
            content = _around(f"{preamble}\n\n", first.content, "")
            return [replace(first, content=content), *messages[1:]]
    return [Message(role="system", content=preamble), *messages]


def told(messages: Sequence[Message], is_lost: Callable[[Message], bool]) -> list[Message]:
    """A conversation in which messages that a template would lose are spelled, see ``spelled``;
    results in a row are one message of the user's."""
    out = list[Message]()
    results = False
    for message in messages:
        is_result = message.role == "tool" and is_lost(message)
        shown = spelled(message) if is_lost(message) else message
        if is_result and results:
            out[-1] = replace(shown, content=_joined(out[-1].content, shown.content))
        else:
            out.append(shown)
        results = is_result
    return out


def spelled(message: Message) -> Message:
    """A call, or what came of one, as text, or as a list of parts when the content is one."""
    content = message.content if isinstance(message.content, str | list) else ""
    if message.role == "tool":
        shown = _around("<tool_response>\n", content, "\n</tool_response>")
        return Message(role="user", content=shown)
    calls = message.fields.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return message
    fields = {k: v for k, v in message.fields.items() if k != "tool_calls"}
    text = "\n".join(map(_call, calls))
    shown = _around("", content, f"\n{text}") if content else text
    return Message(role=message.role, content=shown, fields=fields)


def _around(
    before: str, content: str | list[dict[str, Any]], after: str
) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return before + content + after
    return [*_parts(before), *content, *_parts(after)]


def _joined(one: Any, other: Any) -> str | list[dict[str, Any]]:
    if isinstance(one, str) and isinstance(other, str):
        return f"{one}\n{other}"
    return [*_parts(one), *_parts("\n"), *_parts(other)]


def _parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _call(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    function = function if isinstance(function, dict) else {}
    name, arguments = function.get("name"), function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):  # broken ones are shown as they are
            arguments = value_of(arguments)
    shown = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{shown}\n</tool_call>"
