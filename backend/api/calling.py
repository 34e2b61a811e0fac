"""Tools and how they may be called, as every chat API says it: checked, in one shape."""

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from corral.backend.api.media_parts import gathered
from corral.backend.api.unbuilt import unsupported
from corral.backend.chat.types import ChatRequest, Message, Tool, ToolChoice
from corral.backend.errors import Refused

MAX_TOOLS = 512
#: OpenAI's rule, with the dots, colons and slashes that tool servers put into names.
_NAME = re.compile(r"[\w.:/-]{1,128}")


class Calling(Struct, frozen=True, kw_only=True):
    """What may be called. ``name``: the one tool that must be (``choice`` is then required)."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = "auto"
    name: str | None = None
    parallel: bool | None = None

    def request(self, messages: Sequence[Message], **members: Any) -> ChatRequest:
        """A chat request that may call them."""
        numbered, sources = gathered(messages)
        return ChatRequest(
            messages=numbered,
            sources=sources,
            tools=self.tools,
            tool_choice=self.choice,
            tool_name=self.name,
            parallel_tool_calls=self.parallel,
            **members,
        )


def calling(
    tools: Sequence[Any] | None,
    choice: Any = None,
    parallel: bool | None = None,
    *,
    nested: str = "function",
) -> Calling:
    """Chat tools (``{"type": "function", "function": {…}}``) and OpenAI's ``tool_choice``.

    ``nested`` is where the client has a tool's members, empty for the tool itself: for the names
    in messages. Raises ``Refused`` naming the field.
    """
    if len(tools or ()) > MAX_TOOLS:
        raise Refused(f"tools: {len(tools or ())} are more than {MAX_TOOLS}", param="tools")
    made = tuple(_tool(tool, f"tools[{i}]", nested) for i, tool in enumerate(tools or ()))
    names = [tool.name for tool in made]
    for i, name in enumerate(names):
        if name in names[:i]:
            at = ".".join(filter(None, (f"tools[{i}]", nested, "name")))
            raise Refused(f"{at}: there are two tools {name!r}", param=at)
    mode, named = _choice(choice)
    allowed = _allowed(choice)
    for wanted in [named] if named else allowed or ():
        if wanted not in names:
            raise Refused(f"tool_choice: there is no tool {wanted!r}", param="tool_choice")
    if mode == "required" and not (made if allowed is None else allowed):
        raise Refused("tool_choice: there are no tools to be called", param="tool_choice")
    if allowed is not None:
        made = tuple(tool for tool in made if tool.name in allowed)
    return Calling(tools=made, choice=mode, name=named, parallel=parallel)


def old_calling(functions: Sequence[Any] | None, call: Any) -> Calling:
    """OpenAI's old ``functions`` and ``function_call``: one call at most. Raises ``Refused``."""
    tools = [{"type": "function", "function": f} for f in functions or ()]
    choice = {"type": "function", "function": call} if isinstance(call, dict) else call
    try:
        return calling(tools, choice, parallel=False)
    except Refused as error:
        for new, old in (("tool_choice", "function_call"), ("tools", "functions")):
            error.message = error.message.replace(new, old)
            error.param = error.param and error.param.replace(new, old)
        error.message = error.message.replace("].function.", "].")
        error.param = error.param and error.param.replace("].function.", "].")
        raise


def _tool(given: Any, at: str, nested: str) -> Tool:
    if not isinstance(given, dict):
        raise Refused(f"{at}: expected `object`", param=at)
    if given.get("type", "function") != "function":
        raise unsupported(f"{at}.type", f"{given['type']!r:.60} is not function")
    function = given.get("function")
    if not isinstance(function, dict):
        raise Refused(f"{at}.function: expected `object`", param=f"{at}.function")
    at = f"{at}.{nested}" if nested else at
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        message = "expected up to 128 letters, digits and any of _ - . : /"
        raise Refused(f"{at}.name: {message}", param=f"{at}.name")
    description = function.get("description")
    if not isinstance(description, str | None):
        raise Refused(f"{at}.description: expected `str`", param=f"{at}.description")
    parameters = function.get("parameters")
    if not isinstance(parameters, dict | None):
        raise Refused(f"{at}.parameters: expected `object`", param=f"{at}.parameters")
    if (parameters or {}).get("type", "object") != "object":
        message = "arguments are an object, so its type is object"
        raise Refused(f"{at}.parameters.type: {message}", param=f"{at}.parameters.type")
    strict = function.get("strict")
    if not isinstance(strict, bool | None):
        raise Refused(f"{at}.strict: expected `bool`", param=f"{at}.strict")
    return Tool(
        name=name,
        description=description or "",
        parameters=parameters or {"type": "object", "properties": {}},
        strict=strict,
        source=given,
    )


def _choice(choice: Any) -> tuple[ToolChoice, str | None]:
    match choice:
        case None | "auto":
            return "auto", None
        case "none":
            return "none", None
        case "required" | "any":
            return "required", None
        case {"type": "function", "function": {"name": str(name)}}:
            return "required", name
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode}}:
            return mode, None
    message = "expected none, auto, required, or an object that names a function"
    raise Refused(f"tool_choice: {message}", param="tool_choice")


def _allowed(choice: Any) -> list[str] | None:
    """The names of the tools that may be called, where the choice lists some."""
    match choice:
        case {"allowed_tools": {"tools": list(tools)}}:
            found = [(t.get("function") or t).get("name") for t in tools if isinstance(t, dict)]
            names = [name for name in found if isinstance(name, str)]
            if len(names) != len(tools):
                at = "tool_choice.allowed_tools.tools"
                raise Refused(f"{at}: expected functions with names", param=at)
            return names
    return None
