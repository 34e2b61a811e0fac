"""OpenAI's wire: request bodies and what they mean, reply structs."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from corral.backend.api.generation import GenerationBody, single_prompt, unsupported
from corral.backend.api.timings import WireProgress, WireTimings
from corral.backend.chat.types import ChatRequest, CompletionRequest, Message
from corral.backend.errors import Refused

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
                        "type": "object",
                        "required": ["type", "text"],
                        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                    },
                },
            ]
        },
    },
}
_MEDIA = ("image_url", "input_image", "input_audio", "input_video", "video_url", "file")


class ChatBody(GenerationBody, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: list[Annotated[dict[str, Any], Meta(extra_json_schema=_MESSAGE)]]
    model: Annotated[str | None, Meta(description="any name means the served model")] = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    # Known, but not built.
    modalities: list[str] | None = None
    audio: Any = None
    web_search_options: Any = None
    prediction: Any = None

    def request(self, n_vocab: int) -> ChatRequest:
        """What is asked. Raises ``Refused`` naming the field."""
        kwargs = self.chat_template_kwargs or {}
        if not isinstance(kwargs.get("enable_thinking", False), bool):
            name = "chat_template_kwargs.enable_thinking"
            raise Refused(f"{name}: expected true or false", param=name)
        return ChatRequest(
            messages=tuple(message(m, f"messages[{i}]") for i, m in enumerate(self.messages)),
            params=self.params(n_vocab),
            model=self.model,
            template_kwargs=kwargs,
            add_generation_prompt=self.add_generation_prompt is not False,
        )


class CompletionBody(GenerationBody, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[int | str | list[int | str]] | dict[str, Any]
    model: Annotated[str | None, Meta(description="any name means the served model")] = None
    suffix: str | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None

    def request(self, n_vocab: int) -> CompletionRequest:
        """What is asked. Raises ``Refused`` naming the field."""
        params = self.params(n_vocab)
        prompt = single_prompt(self.prompt, n_vocab)
        return CompletionRequest(prompt=prompt, params=params, model=self.model)


def message(given: dict[str, Any], at: str) -> Message:
    """One message; everything beside role and content is the template's business."""
    role = given.get("role")
    if not isinstance(role, str):
        problem = "expected `str`" if "role" in given else "object missing required field `role`"
        raise Refused(f"{at}.role: {problem}", param=f"{at}.role")
    content = given.get("content", UNSET)
    if isinstance(content, list):
        texts = [_part(part, f"{at}.content[{i}]") for i, part in enumerate(content)]
        content = "\n".join(texts)
    elif content is not UNSET and content is not None and not isinstance(content, str):
        raise Refused(
            f"{at}.content: expected a text, null or a list of parts", param=f"{at}.content"
        )
    fields = {k: v for k, v in given.items() if k not in ("role", "content")}
    return Message(role=role, content=content, fields=fields)


def _part(part: Any, at: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _MEDIA:
        raise unsupported(at, f"this server reads text, not {kind}")
    if kind != "text":
        raise Refused(f"{at}.type: expected text", param=f"{at}.type")
    text = part.get("text")
    if not isinstance(text, str):
        raise Refused(f"{at}.text: expected `str`", param=f"{at}.text")
    return text


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


class AssistantMessage(Struct, frozen=True, kw_only=True):
    """The answer; ``content`` is empty rather than null when there is none."""

    role: str = "assistant"
    content: str


class ChatChoice(Struct, frozen=True, kw_only=True):
    """The only choice; ``finish_reason`` is ``stop`` or ``length``."""

    index: int = 0
    message: AssistantMessage
    finish_reason: str


class Delta(Struct, frozen=True, kw_only=True):
    """What a chunk adds to the message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET


class ChunkChoice(Struct, frozen=True, kw_only=True):
    """``finish_reason`` is null until the last chunk."""

    index: int = 0
    delta: Delta
    finish_reason: str | None = None


class TextChoice(Struct, frozen=True, kw_only=True):
    """A text completion, or a piece of one."""

    text: str
    index: int = 0
    logprobs: None = None
    finish_reason: str | None = None


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
    """A model that is served. ``created``: when this server began to serve it."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "corral"
    meta: ModelMeta


class ModelList(Struct, frozen=True, kw_only=True):
    """``GET /v1/models``."""

    object: str = "list"
    data: list[Model]
