"""A model's own chat template: messages in, prompt text out, the same text as Hugging Face gives.

Templates come from strangers, so they run in Jinja's immutable sandbox, with bounds on the usual
runaways: output, ranges, repetition. Knows no tokens, files or HTTP. The settings are the ones
that transformers documents for chat templates.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import UNSET

from corral.backend.chat.types import Message
from corral.backend.errors import Refused

#: For a model that brings no template: the format most chat models were trained on.
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

#: Longest prompt text a template may write, in characters: twice the largest body accepted.
MAX_CHARS = 64 * 2**20
#: Most numbers all ``range()`` calls of one rendering may yield together.
MAX_RANGE = 1_000_000

# Everything a template's own expressions can raise; a bug of ours stays visible as another error.
_TEMPLATE_FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)

# A message's reasoning goes by three names; templates read the first, gpt-oss's the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")


class _GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}`` marks training text; here it is only a scope."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it as an instance variable

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with multiplication bounded: one ``*`` could otherwise take all memory."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and (abs(left) > 2**32 or abs(right) > 64):
            raise SecurityError("power too large")
        for text, times in ((left, right), (right, left)):
            if operator == "*" and hasattr(text, "__len__") and len(text) * times > MAX_CHARS:
                raise SecurityError("repetition too long")
        return super().call_binop(context, operator, left, right)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, > and & for HTML, which would change the prompt.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _environment() -> _Sandbox:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _bounded_range() -> Callable[..., range]:
    """A ``range`` for one rendering, with a budget for all its calls together."""
    left = MAX_RANGE

    def bounded(*args: int) -> range:
        nonlocal left
        numbers = range(*args)
        left -= len(numbers)
        if left < 0:
            raise SecurityError(f"loops over more than {MAX_RANGE} numbers")
        return numbers

    return bounded


def _as_template_sees(message: Message) -> dict[str, Any]:
    """The mapping a template reads. An absent ``content`` stays absent, a null one None."""
    seen: dict[str, Any] = {"role": message.role}
    if message.content is not UNSET:
        seen["content"] = message.content
    seen |= message.fields
    reasoning = next((seen[n] for n in _REASONING if seen.get(n) is not None), None)
    if reasoning is not None:
        seen = {"thinking": reasoning, **seen, "reasoning_content": reasoning}
    return seen


class ChatTemplate:
    """A compiled chat template; immutable, safe to share between threads.

    ``source`` is Jinja text, as in a GGUF's ``tokenizer.chat_template``. Raises ``Refused``
    (``template_error``) with the line when it is not valid Jinja.
    """

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = _environment().from_string(source)
        except TemplateSyntaxError as error:
            raise Refused(
                f"the chat template has a syntax error in line {error.lineno}: {error.message}",
                kind="template_error",
            ) from error
        except RecursionError as error:
            raise Refused("the chat template nests too deep", kind="template_error") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        kwargs: Mapping[str, Any],
        max_chars: int = MAX_CHARS,
    ) -> str:
        """The prompt text for a conversation.

        ``kwargs`` become variables of the template and win over the built-in ones, except
        ``messages``. Raises ``Refused`` (``template_error``) with the template's own words when it
        raises, fails, or writes more than ``max_chars`` characters.
        """
        if "messages" in kwargs:
            raise Refused(
                "chat_template_kwargs cannot replace messages", param="chat_template_kwargs"
            )
        variables: dict[str, Any] = {
            "range": _bounded_range(),
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._tokens,
            **kwargs,
            "messages": [_as_template_sees(message) for message in messages],
        }
        try:
            return self._write(variables, max_chars)
        except TemplateError as error:
            words = error.message or type(error).__name__
            raise Refused(words, kind="template_error", param="messages") from error
        except _TEMPLATE_FAULTS as error:
            words = f"the chat template failed: {type(error).__name__}: {error}"
            raise Refused(words, kind="template_error", param="messages") from error

    def _write(self, variables: Mapping[str, Any], max_chars: int) -> str:
        pieces: list[str] = []
        n_chars = 0
        for piece in self._template.generate(variables):
            n_chars += len(piece)
            if n_chars > max_chars:
                raise TemplateError(f"the chat template writes more than {max_chars} characters")
            pieces.append(piece)
        return "".join(pieces)
