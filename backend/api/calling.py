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


class Names(Struct, frozen=True, kw_only=True):
    """What a client calls the list of its tools, the member in which a tool has its own (empty:
    none), that of the arguments' schema, and the choice."""

    tools: str = "tools"
    nested: str = "function"
    schema: str = "parameters"
    choice: str = "tool_choice"


NAMES = Names()


class Calling(Struct, frozen=True, kw_only=True):
    """What may be called. ``name``: the one tool that must be (``choice`` is then required)."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = "auto"
    name: str | None = None
    parallel: bool | None = None

    def request(self, messages: Sequence[Message], **members: Any) -> ChatRequest:
        """A chat request that may call them; ``members`` are others of it."""
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
    names: Names = NAMES,
) -> Calling:
    """Chat tools (``{"type": "function", "function": {…}}``) and OpenAI's ``tool_choice``.

    ``names`` are the client's words. Raises ``Refused`` naming the field.
    """
    all_at, choice_at = names.tools, names.choice
    if len(tools or ()) > MAX_TOOLS:
        raise Refused(f"{all_at}: {len(tools or ())} are more than {MAX_TOOLS}", param=all_at)
    made = tuple(_tool(tool, f"{all_at}[{i}]", names) for i, tool in enumerate(tools or ()))
    known = [tool.name for tool in made]
    for i, name in enumerate(known):
        if name in known[:i]:
            at = ".".join(filter(None, (f"{all_at}[{i}]", names.nested, "name")))
            raise Refused(f"{at}: there are two {all_at} {name!r}", param=at)
    mode, named = _choice(choice, choice_at)
    allowed = _allowed(choice)
    for wanted in [named] if named else allowed or ():
        if wanted not in known:
            message = f"{choice_at}: there is no {all_at.removesuffix('s')} {wanted!r}"
            raise Refused(message, param=choice_at)
    if mode == "required" and not (made if allowed is None else allowed):
        raise Refused(f"{choice_at}: there are no {all_at} to be called", param=choice_at)
    if allowed is not None:
        made = tuple(tool for tool in made if tool.name in allowed)
    return Calling(tools=made, choice=mode, name=named, parallel=parallel)


def old_calling(functions: Sequence[Any] | None, call: Any) -> Calling:
    """OpenAI's old ``functions`` and ``function_call``: one call at most. Raises ``Refused``."""
    tools = [{"type": "function", "function": f} for f in functions or ()]
    choice = {"type": "function", "function": call} if isinstance(call, dict) else call
    names = Names(tools="functions", nested="", choice="function_call")
    return calling(tools, choice, parallel=False, names=names)


def _tool(given: Any, at: str, names: Names) -> Tool:
    if not isinstance(given, dict):
        raise Refused(f"{at}: expected `object`", param=at)
    if given.get("type", "function") != "function":
        raise unsupported(f"{at}.type", f"{given['type']!r:.60} is not function")
    function = given.get("function")
    at = ".".join(filter(None, (at, names.nested)))
    if not isinstance(function, dict):
        raise Refused(f"{at}: expected `object`", param=at)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        message = "expected up to 128 letters, digits and any of _ - . : /"
        raise Refused(f"{at}.name: {message}", param=f"{at}.name")
    description = function.get("description")
    if not isinstance(description, str | None):
        raise Refused(f"{at}.description: expected `str`", param=f"{at}.description")
    parameters, schema_at = function.get("parameters"), f"{at}.{names.schema}"
    if not isinstance(parameters, dict | None):
        raise Refused(f"{schema_at}: expected `object`", param=schema_at)
    if (parameters or {}).get("type", "object") != "object":
        message = "arguments are an object, so its type is object"
        raise Refused(f"{schema_at}.type: {message}", param=f"{schema_at}.type")
    strict = function.get("strict")
    if not isinstance(strict, bool | None):
        raise Refused(f"{at}.strict: expected `bool`", param=f"{at}.strict")
    return Tool(
        name=name,
        description=description or "",
        parameters=parameters or {"type": "object", "properties": {}},
        strict=strict,
        source=given,
        at=schema_at,
    )


def _choice(choice: Any, at: str) -> tuple[ToolChoice, str | None]:
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
    raise Refused(f"{at}: {message}", param=at)


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
