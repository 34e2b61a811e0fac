"""A model's own chat template: messages in, prompt text out, the same text as Hugging Face gives,
and which of its characters came from the client.

Knows no tokens, files or HTTP.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError
from msgspec import UNSET

from corral.backend.chat import continuing
from corral.backend.chat.marked import foreign, joined, spans_of
from corral.backend.chat.sandbox import MAX_CHARS, Sandbox, bounded_range
from corral.backend.chat.types import Message, Written
from corral.backend.errors import Refused

#: For a model that brings no template: the format most chat models were trained on.
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

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

# Roles are words of the template's own: "<|" + role + "|>" is a control token in some.
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))


def _as_template_sees(message: Message, *, keep_null: bool) -> dict[str, Any]:
    """The mapping a template reads, all in it marked as the client's."""
    seen: dict[str, Any] = {"role": message.role}
    if message.content is not UNSET:
        seen["content"] = message.content
    seen |= message.fields
    reasoning = next((seen[n] for n in continuing.REASONING if seen.get(n) is not None), None)
    if reasoning is not None:
        seen = {"thinking": reasoning, **seen, "reasoning_content": reasoning}
    if not keep_null:
        seen = {name: value for name, value in seen.items() if value is not None}
    marked: dict[str, Any] = foreign(seen)
    return marked | {"role": message.role} if message.role in _ROLES else marked


def _refused(message: str) -> Refused:
    # A template can quote what no reply could hold.
    words = message.encode("utf-8", "replace").decode()
    return Refused(words, kind="template_error", param="messages")


def _whole(text: str) -> str:
    """The text, when it is one: a literal of the template may be half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise _refused(f"the chat template writes {half}, half of a character") from None
    return text


class ChatTemplate:
    """A compiled chat template; immutable, safe to share between threads.

    ``source`` is Jinja text, as in a GGUF's ``tokenizer.chat_template``. Raises ``Refused``
    (``template_error``) with the line when it is not valid Jinja. ``may_queue``: see ``Sandbox``.
    """

    def __init__(
        self, source: str, *, bos_token: str, eos_token: str, may_queue: bool = False
    ) -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = Sandbox(may_queue=may_queue).from_string(source)
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
        trusted: Mapping[str, Any] = {},
        continue_final: bool = False,
        keep_null: bool = False,
        max_chars: int = MAX_CHARS,
    ) -> Written:
        """The prompt for a conversation, which with ``continue_final`` ends in its last message.
        What is null is absent, as for Hugging Face, unless ``keep_null``.

        ``kwargs``, the client's, become variables of the template and win over ``trusted`` ones,
        which are the server's, and over the built-in ones, except ``messages``. Raises ``Refused``
        (``template_error``) with the template's own words when it raises, fails, or writes more
        than ``max_chars`` characters.
        """
        if "messages" in kwargs:
            raise Refused(
                "chat_template_kwargs cannot replace messages", param="chat_template_kwargs"
            )
        try:
            seen = [_as_template_sees(message, keep_null=keep_null) for message in messages]
            last = ""
            if continue_final:
                seen[-1], last = continuing.tagged(seen[-1], self.source)
            variables: dict[str, Any] = {
                "range": bounded_range(),
                "tools": None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
                **self._tokens,
                **trusted,
                **foreign(dict(kwargs)),
                "messages": seen,
            }
            text = self._write(variables, max_chars)
        except TemplateError as error:
            raise _refused(str.__str__(error.message or type(error).__name__)) from error
        except _TEMPLATE_FAULTS as error:
            words = f"the chat template failed: {type(error).__name__}: {error}"
            raise _refused(words) from error
        text = continuing.opened(text, last) if continue_final else text
        return Written(_whole(str.__str__(text)), spans_of(text))

    def _write(self, variables: Mapping[str, Any], max_chars: int) -> str:
        pieces: list[str] = []
        n_chars = 0
        for piece in self._template.generate(variables):
            n_chars += len(piece)
            if n_chars > max_chars:
                raise TemplateError(f"the chat template writes more than {max_chars} characters")
            pieces.append(piece)
        return joined(pieces)
