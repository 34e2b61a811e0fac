"""Under which names, and in which form, chat templates take tools."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

_Tools = Sequence[dict[str, Any]]


def _functions(tools: _Tools) -> list[Any]:
    return [tool.get("function", tool) for tool in tools]


def _written(tools: _Tools) -> str:
    return json.dumps(_functions(tools), ensure_ascii=False, indent=4)


#: The variables, the best first, and what each is for tools as OpenAI's API has them. SmolLM3's
#: model card gives ``xml_tools`` as functions, FireFunction's ``functions`` as their JSON text.
TOOL_VARIABLES: Final[dict[str, Callable[[_Tools], Any]]] = {
    "tools": list,
    "xml_tools": _functions,
    "functions": _written,
}
