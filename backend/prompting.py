"""Conversations made ready for the model that answers: by which template, with what defaults."""

import asyncio
import json
import logging
import re
from typing import Any

import msgspec
from msgspec.structs import replace

from corral.backend.chat.fitting import one_text
from corral.backend.chat.media import Places
from corral.backend.chat.model import ChatModel, Prepared
from corral.backend.chat.template import CHATML, ChatTemplate
from corral.backend.chat.trial import Trial, Tried, tried
from corral.backend.chat.types import ChatRequest, Message, Written
from corral.backend.engine.messages import ModelInfo
from corral.backend.errors import Refused
from corral.backend.pool import Engine
from corral.backend.settings import Settings
from corral.backend.values_chat import FORMATS

log = logging.getLogger("corral")

_NUMBER = re.compile(r"messages\[(\d+)\]")
#: Roles that may be part of a control token: no others are written without a template.
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))


class Prompting:
    """The chat models of the engines, made when the first conversation comes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._models: dict[tuple[str, bool], ChatModel] = {}
        #: Each is a process that may take as much as it is allowed to.
        self._trials = asyncio.Semaphore(2)
        name = settings.chat_template
        #: The format that llama.cpp writes; empty: templates are rendered.
        self._format = name if name in FORMATS and name != "chatml" else ""

    def model(self, engine: Engine, *, has_tools: bool = False) -> ChatModel:
        """How the engine's model is spoken to. Raises Refused or Broken."""
        info = engine.info
        if info is None:
            raise engine.refusal()
        has_own = has_tools and info.chat_template_tool_use is not None and not self._source
        key = engine.name, has_own
        model = self._models.get(key)
        if model is None:
            source = info.chat_template_tool_use if has_own else self.source(info)
            model = self._models[key] = self._new_model(source or CHATML, info)
        return model

    def source(self, info: ModelInfo) -> str:
        """The template in force, as Jinja."""
        if self._source:
            return self._source
        if info.chat_template is None and not self._format:
            log.warning("the model has no chat template; using ChatML")
        return info.chat_template or CHATML

    @property
    def _source(self) -> str:
        s = self._settings
        given = s.chat_template_file or s.chat_template
        return CHATML if given == "chatml" else "" if given in FORMATS else given

    def _new_model(self, source: str, info: ModelInfo) -> ChatModel:
        template = ChatTemplate(
            source, bos_token=info.bos_token, eos_token=info.eos_token, may_queue=True
        )
        return ChatModel(template, frozenset(info.special_tokens), **self._options())

    def _options(self) -> dict[str, Any]:
        s = self._settings
        return {
            "reasoning_format": s.reasoning_format,
            "budget": s.reasoning_budget,
            "message": s.reasoning_budget_message,
            "trusts": s.trust_input,
            "defaults": self._defaults(),
            "prefills": s.prefill_assistant,
            "folds": s.fold_messages,
            "skips_parsing": s.skip_chat_parsing,
        }

    async def try_out(self, engine: Engine, source: str, request: ChatRequest) -> Tried:
        """The prompt that a conversation would become by another template, and what that can say.
        Raises Refused or Broken."""
        info = engine.info
        if info is None:
            raise engine.refusal()
        trial = Trial(
            source=source,
            bos_token=info.bos_token,
            eos_token=info.eos_token,
            controls=info.special_tokens,
            options=self._options(),
            request=request,
        )
        async with self._trials:
            return await tried(trial)

    def _defaults(self) -> dict[str, Any]:
        """The template's variables that flags set."""
        s = self._settings
        found: dict[str, Any] = {}
        if s.reasoning != "auto":
            found["enable_thinking"] = s.reasoning == "on"
        if s.reasoning_effort == "none":
            found["enable_thinking"] = False
        elif s.reasoning_effort:
            found["reasoning_effort"] = s.reasoning_effort
        if s.reasoning_preserve is not None:
            found["preserve_reasoning"] = s.reasoning_preserve
        named: dict[str, Any] = json.loads(s.chat_template_kwargs or "{}")
        return found | named

    async def prepare(self, engine: Engine, request: ChatRequest) -> tuple[ChatModel, Prepared]:
        """The prompt a conversation becomes, and whose it is. Raises Refused or Broken."""
        model = self.model(engine, has_tools=bool(request.tools))
        if self._settings.jinja and not self._format:
            return model, model.prepare(request)
        prompt = await self._formatted(engine, model, request)
        return model, Prepared(
            prompt=replace(prompt, foreign=()) if self._settings.trust_input else prompt
        )

    async def _formatted(self, engine: Engine, model: ChatModel, request: ChatRequest) -> Written:
        """A prompt that llama.cpp writes."""
        if request.tools and request.tool_choice != "none":
            raise _needs_jinja("tools")
        if request.template_kwargs:
            raise _needs_jinja("chat_template_kwargs")
        goes_on = model.goes_on(request)
        places = Places(len(request.sources))
        messages = [_plain(m, request.place(i), places) for i, m in enumerate(request.messages)]
        args = {
            "template": self._format or model.template.source,
            "messages": messages,
            "add_generation_prompt": request.add_generation_prompt and not goes_on,
            "continue_final": goes_on,
        }
        try:
            written = await engine.call("format_chat", args)
        except Refused as error:
            error.message = _NUMBER.sub(lambda n: request.place(int(n[1])), error.message)
            raise
        return places.find(msgspec.convert(written, Written))


def _plain(message: Message, at: str, places: Places) -> tuple[str, str]:
    if message.role not in _ROLES:
        raise Refused(f"{at}.role: expected one of {', '.join(sorted(_ROLES))}", param=f"{at}.role")
    if message.fields.get("tool_calls"):
        raise _needs_jinja(f"{at}.tool_calls")
    content = places.mark([message])[0].content
    if isinstance(content, list):
        return message.role, one_text([part["text"] for part in content], places.is_mark)
    return message.role, content if isinstance(content, str) else ""


def _needs_jinja(at: str) -> Refused:
    message = "needs a Jinja template, and llama.cpp's own formats are used"
    return Refused(f"{at}: {message}", kind="unsupported", param=at)
