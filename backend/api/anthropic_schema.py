"""Anthropic's wire: the body of a request and what it means, and the message object."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from corral.backend.answer_settings import MAX_STOPS, StopText
from corral.backend.api.anthropic_blocks import to_messages
from corral.backend.api.calling import Calling, Names, calling
from corral.backend.api.generation import GenerationBody, unsupported
from corral.backend.api.renamed import renamed, variables
from corral.backend.api.timings import WireTimings
from corral.backend.chat.types import ChatRequest, Message, Params
from corral.backend.errors import Refused

Effort = Literal["low", "medium", "high", "xhigh", "max"]
_TEXT_BLOCK = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
_IMAGE_BLOCK = {
    "type": "object",
    "required": ["type", "source"],
    "properties": {
        "type": {"const": "image"},
        "source": {
            "anyOf": [
                {
                    "type": "object",
                    "required": ["type", "media_type", "data"],
                    "properties": {
                        "type": {"const": "base64"},
                        "media_type": {"type": "string"},
                        "data": {"type": "string"},
                    },
                },
                {
                    "type": "object",
                    "required": ["type", "url"],
                    "properties": {"type": {"const": "url"}, "url": {"type": "string"}},
                },
            ]
        },
    },
}
_MESSAGE = {
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["user", "assistant", "system"]},
        "content": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"anyOf": [_TEXT_BLOCK, _IMAGE_BLOCK]}},
            ]
        },
    },
}
_TOOL = {"required": ["name", "input_schema"], "properties": {"name": {"type": "string"}}}
_NAMES = Names(nested="", schema="input_schema")
Block = Annotated[dict[str, Any], Meta(extra_json_schema=_TEXT_BLOCK)]
Turn = Annotated[dict[str, Any], Meta(extra_json_schema=_MESSAGE)]
Tool = Annotated[dict[str, Any], Meta(extra_json_schema=_TOOL)]


class MessageMetadata(Struct, frozen=True):
    """``user_id`` is taken and not used."""

    user_id: str | None = None


class ThinkingConfig(Struct, frozen=True):
    """The template's variable ``enable_thinking``."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputConfig(Struct, frozen=True):
    """``format`` is ``{"type": "json_schema", "schema": …}``; ``effort`` is the template's
    variable ``reasoning_effort``."""

    format: dict[str, Any] | None = None
    effort: Effort | None = None


class CountBody(GenerationBody, kw_only=True):
    """``POST /v1/messages/count_tokens``, and the half of a request that makes up its prompt."""

    is_chat = True

    messages: list[Turn]
    model: Annotated[str | None, Meta(description="any name means the served model")] = None
    system: str | list[Block] | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    tools: list[Tool] | None = None
    tool_choice: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # Known, but not built.
    mcp_servers: list[Any] | None = None
    container: Any = None
    context_management: dict[str, Any] | None = None

    def request(self, n_vocab: int) -> ChatRequest:
        """What is asked. Raises ``Refused`` naming the field."""
        for name in ("mcp_servers", "container", "context_management"):
            if getattr(self, name):
                raise unsupported(name, "leave it out")
        messages, places = self._conversation()
        return self._calling().request(
            messages=messages,
            places=places,
            params=self.settings(n_vocab),
            model=self.model,
            template_kwargs=self._template_kwargs(),
            thinking_budget=None if self.thinking is None else self.thinking.budget_tokens,
        )

    @property
    def names_form(self) -> bool:
        """As everywhere; ``output_config.format`` says it too."""
        config = self.output_config
        return super().names_form or (config is not None and config.format is not None)

    def settings(self, n_vocab: int) -> Params:
        """The settings of the answer; there is none here."""
        return Params()

    def _conversation(self) -> tuple[tuple[Message, ...], tuple[str, ...]]:
        messages, places = to_messages(self.system, self.messages)
        if messages and messages[-1].role == "assistant":
            at = f"messages[{len(self.messages) - 1}]"
            raise unsupported(at, "continuing a last message of the assistant")
        return messages, places

    def _calling(self) -> Calling:
        """The tools in the shape they have in a chat request."""
        asked, choice = self.tool_choice or {}, None
        match asked:
            case {"type": "tool", "name": str(name)}:
                choice = {"type": "function", "function": {"name": name}}
            case {"type": "none" | "auto" | "any" as choice}:
                pass
            case _ if asked:
                message = "tool_choice.type: expected none, auto, any, or tool with a name"
                raise Refused(message, param="tool_choice")
        for i, tool in enumerate(self.tools or ()):
            if tool.get("type", "custom") not in ("custom", None):
                raise unsupported(f"tools[{i}].type", f"{tool['type']!r:.60} is not custom")
            for name, kind in (("name", str), ("input_schema", dict)):
                if not isinstance(tool.get(name), kind):
                    at = f"tools[{i}].{name}"
                    raise Refused(f"{at}: expected `{kind.__name__}`", param=at)
        tools = [{"type": "function", "function": _function(tool)} for tool in self.tools or ()]
        one = asked.get("disable_parallel_tool_use")
        return calling(tools, choice, None if one is None else not one, names=_NAMES)

    def _template_kwargs(self) -> dict[str, Any]:
        """Variables for the template; those named outright win."""
        meant: dict[str, Any] = {}
        if self.thinking is not None:
            meant["enable_thinking"] = self.thinking.type != "disabled"
        if self.output_config is not None and self.output_config.effort is not None:
            meant["reasoning_effort"] = self.output_config.effort
        return variables(self.chat_template_kwargs, meant)


class MessagesBody(CountBody, kw_only=True):
    """``POST /v1/messages``."""

    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    stop_sequences: Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None = None
    metadata: MessageMetadata | None = None  # type: ignore[assignment]
    service_tier: Literal["auto", "standard_only"] | None = None

    def settings(self, n_vocab: int) -> Params:
        """The settings asked for, under the names they have elsewhere. Raises ``Refused``."""
        if self.n_choices > 1:
            raise unsupported("n", "a message is one answer")
        if self.n_top is not None:
            raise unsupported("logprobs", "a message has no place for them")
        chat = replace(
            self,
            stop=self._stops(),
            response_format=self._response_format(),
        )
        there = "output_config.format"
        names = ("response_format.json_schema", there), ("response_format", there)
        return renamed(chat, n_vocab, names)

    def _stops(self) -> str | list[str] | None:
        if self.stop_sequences is None:
            return self.stop
        if self.stop:
            message = "stop_sequences and stop mean the same; send one"
            raise Refused(message, param="stop_sequences")
        return self.stop_sequences

    def _response_format(self) -> dict[str, Any] | None:
        """``output_config.format`` in the shape it has in a chat request."""
        given = None if self.output_config is None else self.output_config.format
        if given is None:
            return self.response_format
        if given.get("type") != "json_schema" or not isinstance(given.get("schema"), dict):
            at = "output_config.format"
            raise Refused(f"{at}: expected type json_schema and a schema", param=at)
        schema = {"name": "output", "schema": given["schema"], "strict": True}
        return {"type": "json_schema", "json_schema": schema}


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as a chat request describes it."""
    same: dict[str, Any] = {
        name: tool[name] for name in ("name", "description", "strict") if name in tool
    }
    return {**same, "parameters": tool["input_schema"]}


count_decoder = msgspec.json.Decoder(CountBody)
messages_decoder = msgspec.json.Decoder(MessagesBody)

# --- replies ----------------------------------------------------------------------------------


class MessageUsage(Struct, frozen=True, kw_only=True):
    """Token counts. ``input_tokens`` are those that were computed, ``cache_read_input_tokens``
    those that were not; both together are the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int
    service_tier: str = "standard"


class MessageObject(Struct, frozen=True, kw_only=True):
    """An answer. ``timings`` and ``seed`` (the one used) are additions."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage
    timings: WireTimings | UnsetType = UNSET
    seed: int | UnsetType = UNSET


class TokenCount(Struct, frozen=True):
    """``POST /v1/messages/count_tokens``."""

    input_tokens: int
