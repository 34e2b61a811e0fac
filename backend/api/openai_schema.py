"""OpenAI's wire: request bodies and what they mean, reply structs."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from corral.backend.answer_settings import Count, agreed
from corral.backend.api import media_parts
from corral.backend.api.calling import Calling, calling, old_calling
from corral.backend.api.generation import MAX_CHOICES, GenerationBody, unsupported
from corral.backend.api.history import in_new_words
from corral.backend.api.probs import ChatLogprobs, TextLogprobs
from corral.backend.api.prompts import Prompts, prompts
from corral.backend.api.renamed import effort_variables, variables
from corral.backend.api.timings import WireProgress, WireTimings
from corral.backend.chat.types import ChatRequest, CompletionRequest, Message
from corral.backend.errors import Refused
from corral.backend.values import ReasoningFormat

_MESSAGE = {
    "required": ["role"],
    "properties": {
        "role": {"type": "string"},
        "content": {
            "anyOf": [
                {"type": "string"},
                {"type": "null"},
                {
                    "type": "array",
                    "items": {
                        "anyOf": [
                            {
                                "type": "object",
                                "required": ["type", "text"],
                                "properties": {
                                    "type": {"const": "text"},
                                    "text": {"type": "string"},
                                },
                            },
                            media_parts.IMAGE_URL_SCHEMA,
                            media_parts.INPUT_AUDIO_SCHEMA,
                        ]
                    },
                },
            ]
        },
    },
}
_UNREAD = ("input_image", "input_video", "video_url", "file")


class ChatBody(GenerationBody, kw_only=True):
    """``POST /v1/chat/completions``."""

    is_chat = True

    messages: list[Annotated[dict[str, Any], Meta(extra_json_schema=_MESSAGE)]]
    model: Annotated[str | None, Meta(description="any name means the served model")] = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: Annotated[
        bool | None, Meta(description="the last message is the assistant's, and goes on")
    ] = None
    parallel_tool_calls: Annotated[bool | None, Meta(description="several calls in one answer")] = (
        None
    )
    reasoning_format: ReasoningFormat | None = None
    reasoning_effort: Annotated[
        Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None,
        Meta(description="the template's variable; none switches enable_thinking off"),
    ] = None
    reasoning_budget_tokens: Annotated[
        Count | None, Meta(description="most tokens of reasoning; -1: no limit")
    ] = None
    thinking_budget_tokens: Annotated[
        Count | None, Meta(description="as reasoning_budget_tokens")
    ] = None
    # Known, but not built.
    modalities: list[str] | None = None
    audio: Any = None
    web_search_options: Any = None
    prediction: Any = None

    def request(self, n_vocab: int) -> ChatRequest:
        """What is asked. Raises ``Refused`` naming the field."""
        if self.continue_final_message and self.add_generation_prompt:
            problem = "a new message cannot begin when the last one goes on"
            raise Refused(f"add_generation_prompt: {problem}", param="add_generation_prompt")
        return self._calling().request(
            messages=tuple(message(m, f"messages[{i}]") for i, m in enumerate(self.messages)),
            params=self.params(n_vocab),
            model=self.model,
            template_kwargs=variables(
                self.chat_template_kwargs, effort_variables(self.reasoning_effort)
            ),
            add_generation_prompt=self.add_generation_prompt is not False,
            n=self.n_choices,
            reasoning_format=self.reasoning_format,
            thinking_budget=agreed(self, "reasoning_budget_tokens", "thinking_budget_tokens"),
            continue_final=self.continue_final_message,
        )

    def _calling(self) -> Calling:
        for new, old in (("tools", "functions"), ("tool_choice", "function_call")):
            if getattr(self, new) is not None and getattr(self, old) is not None:
                raise Refused(f"{new} and {old} mean the same; send one", param=old)
        if self.functions is not None or self.function_call is not None:
            return old_calling(self.functions, self.function_call)
        return calling(self.tools, self.tool_choice, self.parallel_tool_calls)


class CompletionBody(GenerationBody, kw_only=True):
    """``POST /v1/completions``."""

    prompt: Prompts
    model: Annotated[str | None, Meta(description="any name means the served model")] = None
    suffix: Annotated[str | None, Meta(description="what comes after the text to write")] = None
    echo: Annotated[bool | None, Meta(description="the prompt in front of the answer")] = None
    best_of: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None,
        Meta(description="answers made, of which the n likeliest are kept"),
    ] = None

    @property
    def n_top(self) -> int | None:
        """As for every route, but 0 asks for the chosen token's log probability, as on OpenAI."""
        is_zero = self.logprobs == 0 and self.logprobs is not False
        return 0 if is_zero and not self.n_probs else super().n_top

    @property
    def n_made(self) -> int:
        """Answers to make for each prompt. Raises ``Refused``."""
        n = self.n_choices
        best_of = n if self.best_of is None else self.best_of
        if best_of < n:
            raise Refused(f"best_of: {best_of} is less than n, which is {n}", param="best_of")
        if best_of > n and self.stream:
            raise Refused("best_of: the best is not known in a stream", param="best_of")
        if best_of > n and self.post_sampling_probs:
            message = "best_of: ranks by log probabilities before sampling"
            raise Refused(message, param="post_sampling_probs")
        return best_of

    def request(self, n_vocab: int) -> CompletionRequest:
        """What is asked. Raises ``Refused`` naming the field."""
        params, n = self.params(n_vocab), self.n_made
        if n > self.n_choices:
            params = replace(params, n_probs=max(params.n_probs or 0, 1))
        if self.echo and self.n_top is not None:
            params = replace(params, prompt_probs=True)
        given = prompts(self.prompt, n_vocab, n=n)
        if params.prompt_probs and any(given.sources):
            message = "echo: pictures and sounds have no log probabilities"
            raise Refused(message, kind="unsupported", param="echo")
        return CompletionRequest(
            prompts=given.prompts, sources=given.sources, params=params, model=self.model, n=n
        )


def message(given: dict[str, Any], at: str) -> Message:
    """One message; everything beside role and content is the template's business."""
    role = given.get("role")
    if not isinstance(role, str):
        problem = "expected `str`" if "role" in given else "object missing required field `role`"
        raise Refused(f"{at}.role: {problem}", param=f"{at}.role")
    content = given.get("content", UNSET)
    if isinstance(content, list):
        content = [_part(part, role, f"{at}.content[{i}]") for i, part in enumerate(content)]
    elif content is not UNSET and content is not None and not isinstance(content, str):
        raise Refused(
            f"{at}.content: expected a text, null or a list of parts", param=f"{at}.content"
        )
    fields = {k: v for k, v in given.items() if k not in ("role", "content")}
    if role == "assistant" and not content and isinstance(fields.get("refusal"), str):
        content = fields["refusal"]
    role, fields = in_new_words(role, fields, at)
    return Message(role=role, content=content, fields=fields)


def _part(part: Any, role: str, at: str) -> media_parts.Part:
    kind = part.get("type") if isinstance(part, dict) else None
    match kind:
        case "image_url":
            media_parts.check_role(role, at)
            return media_parts.shown(media_parts.image_url(part.get(kind), f"{at}.{kind}"))
        case "input_audio":
            media_parts.check_role(role, at)
            return media_parts.shown(media_parts.input_audio(part.get(kind), f"{at}.{kind}"))
        case "text":
            if not isinstance(part.get("text"), str):
                raise Refused(f"{at}.text: expected `str`", param=f"{at}.text")
            return media_parts.text(part["text"])
        case "refusal" if role == "assistant":
            if not isinstance(part.get("refusal"), str):
                raise Refused(f"{at}.refusal: expected `str`", param=f"{at}.refusal")
            return media_parts.text(part["refusal"])
        case _ if kind in _UNREAD:
            raise unsupported(at, f"this server reads text, pictures and sounds, not {kind}")
    kinds = "text or refusal" if role == "assistant" else "text, image_url or input_audio"
    raise Refused(f"{at}.type: expected {kinds}", param=f"{at}.type")


chat_decoder = msgspec.json.Decoder(ChatBody)
completion_decoder = msgspec.json.Decoder(CompletionBody)

# --- replies ----------------------------------------------------------------------------------


class PromptDetails(Struct, frozen=True):
    """``cached_tokens`` of the prompt needed no computation."""

    cached_tokens: int


class Usage(Struct, frozen=True, kw_only=True):
    """Token counts; ``prompt_tokens`` includes the cached ones."""

    completion_tokens: int
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class FunctionMade(Struct, frozen=True, kw_only=True):
    """The function of a call, or of a piece of one; ``arguments`` is JSON text."""

    name: str | UnsetType = UNSET
    arguments: str


class CallMade(Struct, frozen=True, kw_only=True):
    """A tool call."""

    id: str
    type: str = "function"
    function: FunctionMade


class CallDelta(Struct, frozen=True, kw_only=True):
    """What a chunk adds to call number ``index``; id, type and name come once, with its first."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionMade


class AssistantMessage(Struct, frozen=True, kw_only=True):
    """The answer; ``content`` is null beside calls, and otherwise empty, when there is none."""

    role: str = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CallMade] | UnsetType = UNSET
    function_call: FunctionMade | UnsetType = UNSET


class ChatChoice(Struct, frozen=True, kw_only=True):
    """One answer; ``finish_reason`` is ``stop``, ``length`` or ``tool_calls`` (of old requests:
    ``function_call``). ``seed``: the one used, where there are several answers."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str
    seed: int | UnsetType = UNSET


class Delta(Struct, frozen=True, kw_only=True):
    """What a chunk adds to the message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET
    function_call: FunctionMade | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True, kw_only=True):
    """``finish_reason`` is null until the last chunk; ``logprobs`` are there when asked for."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | UnsetType | None = UNSET
    finish_reason: str | None = None


class TextChoice(Struct, frozen=True, kw_only=True):
    """A text completion, or a piece of one; ``seed`` as for a chat's."""

    text: str
    index: int
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    seed: int | UnsetType = UNSET


class Chat(Struct, frozen=True, kw_only=True):
    """A whole answer. ``timings`` and ``seed`` (the one used) are additions."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    timings: WireTimings
    seed: int


class ChatChunk(Struct, frozen=True, kw_only=True):
    """One event of a streamed answer."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType = UNSET
    timings: WireTimings | UnsetType = UNSET
    prompt_progress: WireProgress | UnsetType = UNSET
    seed: int | UnsetType = UNSET


class Completion(Struct, frozen=True, kw_only=True):
    """A whole text completion, or one event of a streamed one."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage | UnsetType = UNSET
    timings: WireTimings | UnsetType = UNSET
    prompt_progress: WireProgress | UnsetType = UNSET
    seed: int | UnsetType = UNSET


class InputTokens(Struct, frozen=True, kw_only=True):
    """How long a prompt is."""

    object: str = "response.input_tokens"
    input_tokens: int


class ModelMeta(Struct, frozen=True, kw_only=True):
    """Facts about the model, named as llama-server does."""

    vocab_type: int
    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int
    ftype: str


class Model(Struct, frozen=True, kw_only=True):
    """A model that is served. ``created``: when this server began to serve it; ``aliases``: its
    other names; ``tags``: the operator's words for it."""

    id: str
    aliases: list[str] = []
    tags: list[str] = []
    object: str = "model"
    created: int
    owned_by: str = "corral"
    meta: ModelMeta


class ModelAbilities(Struct, frozen=True, kw_only=True):
    """What a model can do, as llama-server says it: ``completion``, ``multimodal`` (it takes
    pictures or sounds), ``embedding``."""

    name: str
    model: str
    capabilities: list[str]


class ModelList(Struct, frozen=True, kw_only=True):
    """``GET /v1/models``."""

    object: str = "list"
    data: list[Model]
    models: list[ModelAbilities]
