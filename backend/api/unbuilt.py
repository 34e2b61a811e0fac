"""What is known and not built: refused by name, unless it is switched off. Nothing is ignored."""

from msgspec import Struct

from corral.backend.errors import Refused

# Features that an empty value leaves off.
_OFF_WHEN_EMPTY = ("image_data",)
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
            raise unsupported(name, "leave it out, or send it empty")
    for name in _OFF_WHEN_NULL:
        if getattr(body, name, None) is not None:
            raise unsupported(name, "leave it out or send null")
    if getattr(body, "modalities", None) not in (None, ["text"]):
        raise unsupported("modalities", 'leave it out or send ["text"]')


def refuse_tools(body: Struct) -> None:
    """Raises ``Refused`` for tools where there is no conversation to call them in."""
    for name in ("tools", "functions", "tool_choice", "function_call"):
        if (value := getattr(body, name, None)) and value not in ("none", "auto"):
            raise Refused(f"{name}: tools are called in chats, not here", param=name)
