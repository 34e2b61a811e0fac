"""What is known and not built: refused by name, unless it is switched off. Nothing is ignored."""

from msgspec import Struct

from corral.backend.errors import Refused

# Features that an empty or false value leaves off.
_OFF_WHEN_EMPTY = (*("functions", "image_data", "continue_final_message"),)
# Features that only null leaves off.
_OFF_WHEN_NULL = ("audio", "web_search_options", "prediction")


def unsupported(name: str, hint: str = "") -> Refused:
    """The refusal of a field whose feature is not built."""
    message = f"{name} is not supported yet" + (f"; {hint}" if hint else "")
    return Refused(message, kind="unsupported", param=name)


def refuse(body: Struct) -> None:
    """Raises ``Refused`` for a feature that is asked for and not built."""
    for name in _OFF_WHEN_EMPTY:
        if getattr(body, name, None):
            raise unsupported(name, "leave it out, or send it false or empty")
    for name in _OFF_WHEN_NULL:
        if getattr(body, name, None) is not None:
            raise unsupported(name, "leave it out or send null")
    if getattr(body, "modalities", None) not in (None, ["text"]):
        raise unsupported("modalities", 'leave it out or send ["text"]')
    _refuse_tools(getattr(body, "tools", None), getattr(body, "tool_choice", None))


def _refuse_tools(tools: object, choice: object) -> None:
    if choice == "required" or isinstance(choice, dict):
        raise unsupported("tool_choice", "only none and auto are")
    if choice not in (None, "none", "auto"):
        message = "tool_choice: expected none, auto, required or an object naming a function"
        raise Refused(message, param="tool_choice")
    if tools and choice != "none":
        raise unsupported("tools", 'leave them out or send "tool_choice": "none"')
