"""Arguments of calls in a conversation: a text that a client wrote, as the value it stands for."""

import json
from typing import Any

#: Objects are nested less than this; templates and filters go down one level at a time.
MAX_DEPTH = 100


def value_of(text: str) -> Any:
    """The value of a JSON text. Raises ``ValueError`` for one that is none, is nested ``MAX_DEPTH``
    deep, or has halves of characters (``"\\ud83d"``) in a text or a name, which no prompt and no
    reply could hold."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if _is_deep(value):
        raise ValueError("nested too deeply")
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def whole_characters(value: Any) -> Any:
    """A JSON value with question marks for halves of characters."""
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-8", "replace"))


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for one in level for inner in _within(one)]
        if not level:
            return False
    return True


def _within(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [one for one in inner if isinstance(one, dict | list)]
