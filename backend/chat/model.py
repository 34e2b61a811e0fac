"""How one model is spoken to: its template, its dialect, and a request made ready for it."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from corral.backend.chat.dialects import choose
from corral.backend.chat.dialects.base import Dialect
from corral.backend.chat.dialects.generic import spelled, with_preamble
from corral.backend.chat.dialects.lark import Wish
from corral.backend.chat.parser import Parser, Thinks
from corral.backend.chat.template import ChatTemplate
from corral.backend.chat.types import ChatRequest, Content, Message, Part, Thought, Written
from corral.backend.engine.messages import Constraint, Thinking
from corral.backend.errors import Refused

_ARGUMENTS: Final = re.compile(r"arguments\s*\|\s*(?:tojson|items|dictsort)")


class Turn(Struct, frozen=True, kw_only=True):
    """A request made ready: the prompt, what the engine must know of the dialect, and who reads
    the answer (one parser for each)."""

    prompt: Written
    new_parser: Callable[[], Parser]
    constraint: Constraint | None = None
    marks: tuple[str, ...] = ()
    thinking: Thinking | None = None


class ChatModel:
    """A model's template and dialect, analysed once. Immutable.

    ``controls``: the texts of its special tokens. ``budget`` and ``message`` are the server's
    defaults for reasoning, see ``messages.Thinking``. ``trusts``: what clients write may hold
    control tokens.
    """

    def __init__(
        self,
        template: ChatTemplate,
        controls: frozenset[str],
        *,
        reasoning_format: str = "auto",
        budget: int = -1,
        message: str = "",
        trusts: bool = False,
    ) -> None:
        self.template = template
        self.dialect: Dialect = choose(template.source, controls)
        self._controls = controls
        self._format = reasoning_format
        self._budget = budget
        self._message = message
        self._trusts = trusts
        # Clients send a call's arguments as text, some templates write them out as JSON.
        self._wants_objects = _ARGUMENTS.search(template.source) is not None
        # A template that knows no tools would drop them, and what was called and answered.
        self._is_told = "tools" not in template.source and "tool_calls" not in template.source
        think = self.dialect.think
        #: Whether it reasons in tags; in a model that does not, they are words like any others.
        self.can_think = think is not None and (
            think[0] in controls or any(tag in template.source for tag in think)
        )

    def render(self, request: ChatRequest) -> Written:
        """The prompt a conversation becomes. Raises Refused with the template's objection."""
        kwargs: dict[str, Any] = dict(request.template_kwargs)
        if request.tools:  # as transformers does; a variable named outright wins
            kwargs.setdefault("tools", [tool.source for tool in request.tools])
        if self._budget_of(request) == 0:
            kwargs.setdefault("enable_thinking", False)
        messages: Sequence[Message] = request.messages
        if self._wants_objects:
            messages = [_with_objects(m) for m in messages]
        if self._is_told and any(_has_calls(m) for m in messages):
            messages = [spelled(m) for m in messages]
        if self._is_told and request.tools and request.tool_choice != "none":
            messages = with_preamble(messages, self.dialect.preamble(request.tools))
        prompt = self.template.render(
            messages, add_generation_prompt=request.add_generation_prompt, kwargs=kwargs
        )
        return Written(prompt.text) if self._trusts else prompt

    def read(self, request: ChatRequest) -> Turn:
        """A request made ready. Raises Refused."""
        prompt = self.render(request)
        thinks = self._thinks(prompt)
        wish = self._wish(request, thinks)
        constraint = self.dialect.grammar(wish, self._controls) if wish.calls else None
        if constraint is not None and request.params.constraint is not None:
            at = request.params.constraint_at or "grammar"
            message = 'cannot be had together with tools, unless "tool_choice" is "none"'
            raise Refused(f"{at}: {message}", param=at)
        shown = request.reasoning_format or self._format
        return Turn(
            prompt=prompt,
            new_parser=lambda: self._parser(wish, shown),
            constraint=constraint,
            marks=self.dialect.marks,
            thinking=self._thinking(request, thinks),
        )

    def _parser(self, wish: Wish, shown: str) -> Parser:
        if shown == "none":
            return self.dialect.parser(replace(wish, thinks="no"), self._controls)
        parser = self.dialect.parser(wish, self._controls)
        if shown == "deepseek-legacy" and self.dialect.think is not None:
            return _Both(parser, self.dialect.think, is_open=wish.thinks == "open")
        return parser

    def _wish(self, request: ChatRequest, thinks: Thinks) -> Wish:
        tools, first = request.tools, 0
        if request.tool_name is not None:
            first = [tool.name for tool in tools].index(request.tool_name)
            tools = tools[first : first + 1]
        return Wish(
            tools=tools,
            choice=request.tool_choice,
            parallel=request.parallel_tool_calls is not False,
            thinks=thinks,
            first=first,
        )

    def _thinks(self, prompt: Written) -> Thinks:
        if self.dialect.think is None or not self.can_think:
            return "no"
        return "open" if prompt.text.rstrip().endswith(self.dialect.think[0]) else "may"

    def _budget_of(self, request: ChatRequest) -> int:
        return self._budget if request.thinking_budget is None else request.thinking_budget

    def _thinking(self, request: ChatRequest, thinks: Thinks) -> Thinking | None:
        if self.dialect.think is None or thinks == "no":
            return None
        start, end = self.dialect.think
        return Thinking(
            start=start,
            end=end,
            is_open=thinks == "open",
            budget=self._budget_of(request),
            message=self._message,
        )


def _with_objects(message: Message) -> Message:
    """A message whose calls have their arguments as objects; broken ones stay as they are."""
    calls = message.fields.get("tool_calls")
    if not isinstance(calls, list):
        return message
    fields = {**message.fields, "tool_calls": [_with_object(call) for call in calls]}
    return replace(message, fields=fields)


def _with_object(call: Any) -> Any:
    match call:
        case {"function": {"arguments": str(text)} as function}:
            try:
                value = json.loads(text)
            except ValueError:
                return call
            if isinstance(value, dict):
                return {**call, "function": {**function, "arguments": value}}
    return call


def _has_calls(message: Message) -> bool:
    return message.role == "tool" or bool(message.fields.get("tool_calls"))


class _Both:
    """Reasoning apart, and in the content as well, with its tags (``deepseek-legacy``)."""

    def __init__(self, parser: Parser, tags: tuple[str, str], *, is_open: bool) -> None:
        self.n_calls = 0
        self._parser = parser
        self._tags: Final = tags
        self._is_thinking = False
        self._is_open = is_open  # the prompt has the opening tag

    def feed(self, text: str, marks: Any = ()) -> list[Part]:
        """See ``Parser``."""
        return self._double(self._parser.feed(text, marks))

    def finish(self) -> list[Part]:
        """See ``Parser``."""
        return self._double(self._parser.finish())

    def _double(self, parts: list[Part]) -> list[Part]:
        self.n_calls = self._parser.n_calls
        doubled: list[Part] = []
        for part in parts:
            is_thought = isinstance(part, Thought)
            if is_thought != self._is_thinking:
                self._is_thinking = is_thought
                tag = "" if is_thought and self._is_open else self._tags[not is_thought]
                self._is_open = False
                if tag:
                    doubled.append(Content(tag))
            doubled.append(part)
            if isinstance(part, Thought):
                doubled.append(Content(part.text))
        return doubled
