"""Models whose template knows no tools: they are told of them in a system message, and call them as
Hermes does, which is the form that small models find most often in what they were trained on."""

import json

from corral.backend.chat.dialects.hermes import Hermes
from corral.backend.chat.types import Tool

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
