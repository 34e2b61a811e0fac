"""Calls of earlier turns, as chat clients send them back: checked, in the words of today."""

from typing import Any

from corral.backend.api.unbuilt import unsupported
from corral.backend.errors import Refused


def in_new_words(role: str, fields: dict[str, Any], at: str) -> tuple[str, dict[str, Any]]:
    """A turn's role and the members beside it, with OpenAI's old ``function_call`` and role
    ``function`` as templates know them: calls of tools, and results.

    Calls have a name, and arguments that are a text, broken or not, or an object; without any they
    are an empty one. Raises ``Refused`` naming the place.
    """
    if role == "function":
        return "tool", {"tool_call_id": f"call_{fields.get('name', '')}", **fields}
    fields = dict(fields)
    call, calls = fields.pop("function_call", None), fields.get("tool_calls")
    if call is not None:
        function = _function(call, f"{at}.function_call")
        if calls is None:
            made = {"id": f"call_{function['name']}", "type": "function", "function": function}
            return role, fields | {"tool_calls": [made]}
    if calls is None:
        return role, fields
    at = f"{at}.tool_calls"
    if not isinstance(calls, list):
        raise Refused(f"{at}: expected a list of calls", param=at)
    return role, fields | {"tool_calls": [_call(one, f"{at}[{i}]") for i, one in enumerate(calls)]}


def _call(given: Any, at: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise Refused(f"{at}: expected a call, an object", param=at)
    if given.get("type", "function") not in ("function", None):
        raise unsupported(f"{at}.type", f"{given['type']!r:.60} is not function")
    if not isinstance(given.get("id"), str | None):
        raise Refused(f"{at}.id: expected `str`", param=f"{at}.id")
    return {**given, "function": _function(given.get("function"), f"{at}.function")}


def _function(given: Any, at: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise Refused(f"{at}: expected an object with a name and arguments", param=at)
    if not isinstance(given.get("name"), str) or not given["name"]:
        raise Refused(f"{at}.name: expected the name of a function", param=f"{at}.name")
    arguments = given.get("arguments")
    if not isinstance(arguments, str | dict | None):
        raise Refused(f"{at}.arguments: expected a text or an object", param=f"{at}.arguments")
    return given if arguments is not None else {**given, "arguments": "{}"}
