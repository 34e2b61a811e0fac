"""The Responses API's requests and what they mean."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from corral.backend.api.calling import Calling, Names, calling
from corral.backend.api.generation import GenerationBody, Metadata, StreamOptions, unsupported
from corral.backend.api.renamed import effort_variables, renamed, variables
from corral.backend.api.responses_items import Item, to_messages
from corral.backend.chat.types import ChatRequest, Params
from corral.backend.errors import Refused

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
]
Identifier = Annotated[str, Meta(max_length=512)]

_NAMES = Names(nested="")
LOGPROBS = "message.output_text.logprobs"
_PART = {
    "anyOf": [
        {
            "type": "object",
            "required": ["type", "text"],
            "properties": {
                "type": {"enum": ["input_text", "output_text"]},
                "text": {"type": "string"},
            },
        },
        {
            "type": "object",
            "required": ["type", "image_url"],
            "properties": {"type": {"const": "input_image"}, "image_url": {"type": "string"}},
        },
    ]
}
_ITEM = {
    "anyOf": [
        {
            "type": "object",
            "required": ["role", "content"],
            "properties": {
                "type": {"const": "message"},
                "role": {"enum": ["user", "assistant", "system", "developer"]},
                "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]},
            },
        },
        {
            "type": "object",
            "required": ["type"],
            "properties": {
                "type": {"enum": ["function_call", "function_call_output", "reasoning"]},
            },
        },
        {
            "type": "object",
            "required": ["type", "id"],
            "properties": {"type": {"const": "item_reference"}, "id": {"type": "string"}},
        },
    ]
}


class ResponsesStreamOptions(StreamOptions):
    """``include_obfuscation``: random padding of events; never sent, so only false is taken."""

    include_obfuscation: bool | None = None


class TextConfig(Struct, frozen=True):
    """What the text must look like: ``format`` is ``text``, ``json_object`` or ``json_schema``."""

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(Struct, frozen=True):
    """How much to think: the template's variable ``reasoning_effort``; ``none`` switches
    ``enable_thinking`` off."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class PromptBody(GenerationBody, kw_only=True):
    """What makes up a prompt: ``POST /v1/responses/input_tokens``, and the half of a request."""

    is_chat = True

    input: str | list[Annotated[dict[str, Any], Meta(extra_json_schema=_ITEM)]] | None = None
    model: Annotated[str | None, Meta(description="any name means the served model")] = None
    instructions: str | None = None
    previous_response_id: str | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    conversation: Any = None

    def request(self, items: Sequence[Item], n_vocab: int, n_earlier: int = 0) -> ChatRequest:
        """What is asked, given all items of the conversation, of which the first ``n_earlier`` are
        those of the responses before. Raises ``Refused``."""
        self.refuse_prompt()
        messages, places = to_messages(items, self.instructions, n_earlier)
        return self._calling().request(
            messages=messages,
            places=places,
            params=self.settings(n_vocab),
            model=self.model,
            template_kwargs=self._template_kwargs(),
        )

    @property
    def names_form(self) -> bool:
        """As everywhere; ``text.format`` says it too."""
        return super().names_form or (self.text is not None and self.text.format is not None)

    def settings(self, n_vocab: int) -> Params:
        """The settings of the answer; there is none here."""
        return Params()

    def refuse_prompt(self) -> None:
        """Raises ``Refused`` for what is not built."""
        if self.conversation is not None:
            raise unsupported("conversation", "use previous_response_id")
        if self.truncation == "auto":
            raise unsupported("truncation", "only disabled is: a prompt that is too long is a 400")

    def _calling(self) -> Calling:
        """The tools in the shape they have in a chat request."""
        tools, choice = [], self.tool_choice
        for tool in self.tools or ():
            function = {k: v for k, v in tool.items() if k != "type"}
            tools.append({"type": tool.get("type"), "function": function})
        match choice:
            case {"type": "function", "name": name}:
                choice = {"type": "function", "function": {"name": name}}
            case {"type": "allowed_tools"}:
                choice = {"type": "allowed_tools", "allowed_tools": choice}
        return calling(tools, choice, self.parallel_tool_calls, names=_NAMES)

    def _template_kwargs(self) -> dict[str, Any]:
        """Variables for the template; those named outright win."""
        effort = None if self.reasoning is None else self.reasoning.effort
        return variables(self.chat_template_kwargs, effort_variables(effort))


class ResponsesBody(PromptBody, kw_only=True):
    """``POST /v1/responses``."""

    input: str | list[Annotated[dict[str, Any], Meta(extra_json_schema=_ITEM)]]
    max_output_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: list[Include] | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    user: Identifier | None = None
    safety_identifier: Identifier | None = None
    prompt_cache_key: Identifier | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    service_tier: str | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    stream_options: ResponsesStreamOptions | None = None
    # Known, but not built.
    background: bool | None = None
    prompt: Any = None
    context_management: list[Any] | None = None
    moderation: Any = None

    @property
    def n_top(self) -> int | None:
        """As everywhere; ``include`` asks for log probabilities too. Raises ``Refused``."""
        asks = LOGPROBS in (self.include or ())
        n_top: int | None = GenerationBody.n_top.__get__(
            replace(self, logprobs=True) if asks else self
        )
        return n_top

    def settings(self, n_vocab: int) -> Params:
        """The settings asked for, under the names they have elsewhere. Raises ``Refused``."""
        self._refuse_unbuilt()
        chat = replace(
            self,
            max_completion_tokens=self._limit(),
            response_format=self._response_format(),
        )
        names = ("response_format.json_schema", "text.format"), ("response_format", "text.format")
        return renamed(chat, n_vocab, names)

    def _limit(self) -> int | None:
        other = self.max_completion_tokens
        if self.max_output_tokens is None:
            return other
        if other is not None and other != self.max_output_tokens:
            raise Refused(
                "these mean the same and differ: max_output_tokens, max_completion_tokens",
                param="max_output_tokens",
            )
        return self.max_output_tokens

    def _response_format(self) -> dict[str, Any] | None:
        """``text.format`` in the shape it has in a chat request."""
        given = None if self.text is None else self.text.format
        if given is None:
            return self.response_format
        if self.response_format is not None:
            raise Refused("text.format and response_format exclude each other", param="text.format")
        if given.get("type") != "json_schema":
            return given
        named = {k: v for k, v in given.items() if k != "type"}
        return {"type": "json_schema", "json_schema": named}

    def _refuse_unbuilt(self) -> None:
        if self.background:
            raise unsupported("background", "leave it out or send false")
        for name in ("prompt", "context_management", "moderation"):
            if getattr(self, name):
                raise unsupported(name, "leave it out or send null")
        if self.stream_options is not None and self.stream_options.include_obfuscation:
            raise unsupported("stream_options.include_obfuscation", "leave it out or send false")
        if self.n_choices > 1:
            raise unsupported("n", "a response is one answer")
        if self.top_logprobs and not (LOGPROBS in (self.include or ()) or self.logprobs):
            message = f'top_logprobs needs "include": ["{LOGPROBS}"]'
            raise Refused(message, param="top_logprobs")


prompt_decoder = msgspec.json.Decoder(PromptBody)
responses_decoder = msgspec.json.Decoder(ResponsesBody)
