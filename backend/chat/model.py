"""How one model is spoken to: its template, its dialect, and a request made ready for it."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from corral.backend.chat.capabilities import analyse
from corral.backend.chat.dialects import choose
from corral.backend.chat.dialects.base import Dialect
from corral.backend.chat.dialects.generic import told, with_preamble
from corral.backend.chat.dialects.lark import Form, Wish
from corral.backend.chat.fitting import fit, fit_tool, fold, speaks_and_calls
from corral.backend.chat.media import Places
from corral.backend.chat.parser import Parser, Thinks
from corral.backend.chat.showing import Both, Unread
from corral.backend.chat.telling import TOOL_VARIABLES
from corral.backend.chat.template import ChatTemplate
from corral.backend.chat.types import ChatRequest, Message, Written
from corral.backend.engine.messages import Constraint, Thinking
from corral.backend.errors import Refused


class Prepared(Struct, frozen=True, kw_only=True):
    """What a conversation became. ``folded``: what was done to it, see ``fitting.fold``, and
    ``words``: what was said beside calls is left out, as the template leaves it out.
    ``is_thinking``: it ends within the reasoning that it goes on with."""

    prompt: Written
    folded: tuple[str, ...] = ()
    is_thinking: bool = False


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
    control tokens. ``defaults`` are variables of the template. ``prefills``: a last message of
    the assistant is gone on with, unless the request says otherwise. ``folds``: see ``fitting``.
    ``skips_parsing``: calls and reasoning are left in the content.
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
        defaults: Mapping[str, Any] | None = None,
        prefills: bool = True,
        folds: bool = False,
        skips_parsing: bool = False,
    ) -> None:
        self.template = template
        self.dialect: Dialect = choose(template.source, controls)
        self._controls = controls
        self._format = reasoning_format
        self._budget = budget
        self._message = message
        self._trusts = trusts
        #: What the template can say.
        self.can = analyse(template)
        self._is_whole = self.can.tools and self.can.tool_calls and self.can.tool_results
        # What is told in words needs content that is text.
        needs_text = not self.can.tools and self.can.string_content
        self._forms = replace(self.can, typed_content=False) if needs_text else self.can
        self._defaults = self._switched(dict(defaults or {}))
        self._prefills = prefills
        self._folds = folds
        self._skips_parsing = skips_parsing
        think = self.dialect.think
        #: Whether it reasons in tags; in a model that does not, they are words like any others.
        self.can_think = think is not None and (
            think[0] in controls or any(tag in template.source for tag in think)
        )

    def prepare(self, request: ChatRequest) -> Prepared:
        """The prompt a conversation becomes. Raises Refused with the template's objection."""
        goes_on = self.goes_on(request)
        kwargs = self._variables(request)
        places = Places(len(request.sources))
        messages: Sequence[Message] = fit(
            places.mark(request.messages), self._forms, places.is_mark
        )
        if not self._is_whole:
            messages = self._told(messages, request, places.is_mark)
        is_lost = self.can.words == "lost" and any(map(speaks_and_calls, messages))
        folded: tuple[str, ...] = ("words",) if is_lost else ()
        if self.can.system_with_user and messages and messages[-1].role != "user":
            messages, done = fold(messages, replace(self.can, system_role=False))
            folded = (*folded, *done)
        try:
            prompt = self._write(messages, request, kwargs, goes_on=goes_on)
        except Refused:
            messages, done = fold(messages, self.can)
            if not (self._folds and done):
                raise
            folded = (*folded, *done)
            prompt = self._write(messages, request, kwargs, goes_on=goes_on)
        prompt = places.find(prompt)
        return Prepared(
            prompt=replace(prompt, foreign=()) if self._trusts else prompt,
            folded=folded,
            is_thinking=goes_on and _only_thought(request.messages[-1]),
        )

    def _told(
        self, messages: Sequence[Message], request: ChatRequest, is_mark: Callable[[str], bool]
    ) -> list[Message]:
        """What the template would drop of tools, calls and results, in words."""
        messages = told(messages, self._is_lost)
        if not self.can.tools and request.tools and request.tool_choice != "none":
            words = self.dialect.preamble(request.tools)
            messages = with_preamble(messages, words, has_system=self.can.system_role)
        return fit(messages, self._forms, is_mark)

    def _is_lost(self, message: Message) -> bool:
        if message.role == "tool":
            # Some write whatever role there is, known to the model or not.
            return not (self.can.tool_results and (self.can.tools or self.can.tool_calls))
        return bool(message.fields.get("tool_calls")) and not self.can.tool_calls

    def goes_on(self, request: ChatRequest) -> bool:
        """Whether the answer continues the last message. Raises Refused when that cannot be."""
        asked, messages = request.continue_final, request.messages
        is_assistant = bool(messages) and messages[-1].role == "assistant"
        if asked is False or not (asked or (is_assistant and self._prefills)):
            return False
        if asked is None and not request.add_generation_prompt:
            return False
        if not is_assistant:
            message = "the last message is not the assistant's"
            raise Refused(f"continue_final_message: {message}", param="continue_final_message")
        at = request.place(len(messages) - 1)
        if messages[-1].fields.get("tool_calls"):
            raise Refused(f"{at}: a message with tool calls cannot be continued", param=at)
        if len(messages) > 1 and messages[-2].role == "assistant":
            raise Refused(f"{at}: the message before it is the assistant's too", param=at)
        return True

    def _variables(self, request: ChatRequest) -> dict[str, Any]:
        kwargs: dict[str, Any] = dict(request.template_kwargs)
        name = self.can.tools_variable
        needs_none = self.can.needs_tools and name not in self._defaults
        if self.can.takes_tools and (request.tools or needs_none):
            # As transformers does; a variable named outright wins.
            tools = [fit_tool(tool.source, self.can) for tool in request.tools]
            kwargs.setdefault(name, TOOL_VARIABLES[name](tools))
        if self._budget_of(request) == 0:
            kwargs.setdefault("enable_thinking", False)
        return self._switched(kwargs)

    def _switched(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Variables with ``enable_thinking`` and ``preserve_reasoning`` under the template's own
        names for them as well."""
        if "preserve_reasoning" in variables:
            for name, value in self.can.preserve_switches:
                variables.setdefault(name, value is bool(variables["preserve_reasoning"]))
        if "enable_thinking" in variables and self.can.thinking_switch:
            variables.setdefault(self.can.thinking_switch, variables["enable_thinking"])
        return variables

    def _write(
        self,
        messages: Sequence[Message],
        request: ChatRequest,
        kwargs: dict[str, Any],
        *,
        goes_on: bool,
    ) -> Written:
        now = datetime.now()
        dates = {"date_string": now.strftime("%d %b %Y"), "datetime": now.strftime("%b %d %Y")}
        prompt = self.template.render(
            messages,
            add_generation_prompt=request.add_generation_prompt and not goes_on,
            kwargs=kwargs,
            trusted=dates | self._defaults,
            continue_final=goes_on,
            keep_null=True,
        )
        if not self.can.system_role:
            for message in messages:
                text = message.content if isinstance(message.content, str) else ""
                if message.role == "system" and text.strip() not in prompt.text:
                    words = "the chat template does not show system messages"
                    raise Refused(words, kind="template_error", param="messages")
        return prompt

    def render(self, request: ChatRequest) -> Written:
        """See ``prepare``."""
        return self.prepare(request).prompt

    def read(self, request: ChatRequest, prepared: Prepared | None = None) -> Turn:
        """A request made ready; its prompt may be another's work. Raises Refused."""
        prepared = prepared or self.prepare(request)
        prompt = prepared.prompt
        thinks: Thinks = "open" if prepared.is_thinking else self._thinks(prompt)
        wish = self._wish(request, thinks)
        wish = replace(wish, form=_form(request)) if wish.calls else wish
        constraint = self.dialect.grammar(wish, self._controls) if wish.calls else None
        shown = request.reasoning_format or self._format
        if self._skips_parsing:
            return self._unread(request, prompt, constraint)
        return Turn(
            prompt=prompt,
            new_parser=lambda: self._parser(wish, shown),
            constraint=constraint,
            marks=self.dialect.marks,
            thinking=self._thinking(request, wish),
        )

    def _unread(self, request: ChatRequest, prompt: Written, constraint: Constraint | None) -> Turn:
        """An answer that is all content, whatever is in it."""
        marks = self.dialect.marks
        return Turn(prompt=prompt, new_parser=Unread, constraint=constraint, marks=marks)

    def _parser(self, wish: Wish, shown: str) -> Parser:
        plain = self.dialect.parser(replace(wish, thinks="no"), self._controls)
        if shown == "none":
            return plain
        parser = self.dialect.parser(wish, self._controls)
        return Both(parser, plain) if shown == "deepseek-legacy" else parser

    def _wish(self, request: ChatRequest, thinks: Thinks) -> Wish:
        tools, named = request.tools, request.tool_name
        if named is not None:
            tools = tuple(tool for tool in tools if tool.name == named)
        return Wish(
            tools=tools,
            choice=request.tool_choice,
            # A tool that is named is called once, as on OpenAI.
            parallel=request.parallel_tool_calls is not False and named is None,
            thinks=thinks,
        )

    def _thinks(self, prompt: Written) -> Thinks:
        if self.dialect.think is None or not self.can_think:
            return "no"
        return "open" if prompt.text.rstrip().endswith(self.dialect.think[0]) else "may"

    def _budget_of(self, request: ChatRequest) -> int:
        return self._budget if request.thinking_budget is None else request.thinking_budget

    def _thinking(self, request: ChatRequest, wish: Wish) -> Thinking | None:
        if self.dialect.think is None or wish.thinks == "no":
            return None
        start, end = self.dialect.think
        budget = self._budget_of(request)
        # Else the model may as well go on with a call, or with more reasoning.
        is_next = not wish.calls and (request.params.constraint is not None or budget >= 0)
        return Thinking(
            start=start,
            end=end,
            then=self.dialect.then if is_next else "",
            is_open=wish.thinks == "open",
            budget=budget,
            message=self._message,
        )


def _form(request: ChatRequest) -> Form | None:
    """What an answer must match that calls no tools. Raises Refused."""
    asked, at = request.params.constraint, request.params.constraint_at or "grammar"
    if asked is None:
        return None
    if asked.kind != "json_schema":
        message = 'a grammar cannot be had together with tools, unless "tool_choice" is "none"'
        raise Refused(f"{at}: {message}", param=at)
    try:
        schema = json.loads(asked.source)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{at}: not JSON: {error}", param=at) from None
    return Form(schema if isinstance(schema, dict) else {"anyOf": [schema]}, at)


def _only_thought(message: Message) -> bool:
    return not message.content and bool(message.fields.get("reasoning_content"))
