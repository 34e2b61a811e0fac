"""Models whose template knows no tools: they are told of them in a system message, and call them as
Hermes does, which is the form that small models find most often in what they were trained on."""

import contextlib
import json
from collections.abc import Sequence
from typing import Any

from corral.backend.chat.dialects.hermes import Hermes
from corral.backend.chat.types import Message, Tool

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
        signatures = "\n".join(json.dumps(tool.source, ensure_ascii=False) for tool in tools)
        return _ABOUT.format(signatures=signatures)


def with_preamble(messages: Sequence[Message], preamble: str) -> list[Message]:
    """A conversation whose system message says this too."""
    if not preamble:
        return list(messages)
    if messages and messages[0].role == "system" and isinstance(messages[0].content, str | list):
        content = _around("", messages[0].content, f"\n\n{preamble}")
        return [Message(role="system", content=content, fields=messages[0].fields), *messages[1:]]
    return [Message(role="system", content=preamble), *messages]


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
    parts = [{"type": "text", "text": before}] if before else []
    return [*parts, *content, {"type": "text", "text": after}]


def _call(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    function = function if isinstance(function, dict) else {}
    name, arguments = function.get("name"), function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):  # broken ones are shown as they are
            arguments = json.loads(arguments)
    shown = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{shown}\n</tool_call>"
