"""Every published template renders as transformers' ``apply_chat_template`` renders it, or both
refuse."""

import functools
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from corral.backend.chat.telling import TOOL_VARIABLES
from corral.backend.chat.template import ChatTemplate
from corral.backend.chat.types import Message
from corral.backend.errors import Refused

TEMPLATES = sorted((Path(__file__).parent.parent / "data" / "chat-templates").glob("*.jinja"))
BOS, EOS = "<|bos|>", "<|eos|>"
TOKENIZER = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(WordLevel({"x": 0}, unk_token="x")), bos_token=BOS, eos_token=EOS
)

WEATHER = {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}


def call(function: dict[str, Any] = WEATHER, call_id: str = "call12345") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": function}


def told(content: str = "rain", call_id: str = "call12345") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "name": "weather", "content": content}


def user(content: Any = "Why?") -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any = "So.", **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def text(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": part} for part in texts]


SYSTEM = {"role": "system", "content": "Be brief."}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one question": [user("Why is the sky blue?")],
    "system": [SYSTEM, user()],
    "system alone": [SYSTEM],
    "system later": [user(), assistant(), SYSTEM, user()],
    "developer": [{"role": "developer", "content": "Be brief."}, user()],
    "turns": [SYSTEM, user("Hi"), assistant("Hello!"), user("  <b>5 > 3 & 'é' ☃</b>\n\n")],
    "unicode": [
        user("日本語 🇨🇭👨‍👩‍👧 e\u0301 \u200b﷽ \u00a0 \x00 \\n"),
        assistant("Größe"),
        user("ﬁ ß İ"),
    ],
    "white space": [SYSTEM | {"content": "\n a \n"}, user(" \n"), assistant("\tb\n\n"), user("")],
    "an answer last": [user("Count."), assistant("One, two")],
    "two users": [user("a"), user("b")],
    "two assistants": [user("a"), assistant("b"), assistant("c")],
    "assistant first": [assistant("b"), user("a")],
    "an unknown role": [{"role": "narrator", "content": "Once upon a time"}],
    "names": [user() | {"name": "Ann"}, assistant() | {"name": "Bo"}, user() | {"name": "Ann"}],
    "reasoning": [user("2+2?"), assistant("4", reasoning_content="two and two"), user("Sure?")],
    "reasoning under another name": [
        *(user("2+2?"), assistant("4", thinking="two and two"), user("Sure?"))
    ],
    "reasoning last": [user("2+2?"), assistant("4", reasoning="two and two")],
    "reasoning alone": [user("2+2?"), assistant(None, reasoning_content="two and")],
    "tags in the text": [
        *(user("<think>a</think>b"), assistant("<think>c</think>\n\nd"), user("</think>"))
    ],
    "parts": [
        SYSTEM | {"content": text("Be", "brief")},
        user(text("a", "b")),
        assistant(text("c")),
    ],
    "null content": [user(None), assistant(None), user()],
    "no content": [{"role": "user"}, {"role": "assistant"}, user()],
    "null members": [user() | {"name": None}, assistant(tool_calls=None, reasoning_content=None)],
    "a call": [user("Weather?"), assistant("", tool_calls=[call()]), told(), user("And then?")],
    "a call with a word": [user(), assistant("Let me see.", tool_calls=[call()]), told()],
    "a call with null content": [user(), assistant(None, tool_calls=[call()]), told()],
    "a call without content": [
        *(user(), {"role": "assistant", "tool_calls": [call()]}, told('{"sky": "<blue> & é"}'))
    ],
    "a call last": [user(), assistant("", tool_calls=[call()])],
    "a call with reasoning": [
        *(user(), assistant("", reasoning_content="I should", tool_calls=[call()]), told())
    ],
    "two calls": [
        user("Weather in both?"),
        assistant("", tool_calls=[call(), call(WEATHER, "call67890")]),
        told(),
        told("sun", "call67890"),
        assistant("Rain and sun."),
        user("Thanks"),
    ],
    "calls in a row": [
        user(),
        assistant("", tool_calls=[call()]),
        told(),
        assistant("", tool_calls=[call({"name": "clock", "arguments": {}})]),
        told("noon"),
    ],
    "arguments as text": [
        user(),
        assistant("", tool_calls=[call(WEATHER | {"arguments": '{"city": "Zürich"}'})]),
        told(),
    ],
    "broken arguments": [
        *(user(), assistant("", tool_calls=[call(WEATHER | {"arguments": '{"city": '})]), told())
    ],
    "deep arguments": [
        user(),
        assistant(
            "",
            tool_calls=[
                call({"name": "f", "arguments": {"a": [1, 2.5, None, True, {"b": "é\n"}], "c": {}}})
            ],
        ),
        told(""),
    ],
    "result in parts": [
        user(),
        assistant("", tool_calls=[call()]),
        told() | {"content": text("a")},
    ],
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather <now> & then, in °C",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Where", "enum": ["Zürich", "Bern"]},
                    "days": {"type": "integer", "default": 1},
                    "more": {"type": ["array", "null"], "items": {"type": "number"}},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "clock", "description": "", "parameters": {}}},
]
VARIABLES: dict[str, dict[str, Any]] = {
    "plain": {},
    "tools": {"tools": TOOLS},
    "tools under other names": {
        name: TOOL_VARIABLES[name](TOOLS) for name in ("xml_tools", "functions")
    }
    | {"datetime": "Jan 01 2030"},
    "no thinking": {"enable_thinking": False, "thinking": False},
    "thinking": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
    "dates": {"date_string": "01 Jan 2030", "datetime": "Jan 01 2030"},
    "documents": {"documents": [{"title": "T<é>", "text": "x\ny"}], "parallel_tool_calls": False},
}


@functools.cache
def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token=BOS, eos_token=EOS)


def ours(
    source: str, conversation: list[dict[str, Any]], prompt: bool, goes_on: bool, kwargs: Any
) -> str | None:
    messages = [
        Message(
            role=turn["role"],
            content=turn.get("content", UNSET),
            fields={k: v for k, v in turn.items() if k not in ("role", "content")},
        )
        for turn in conversation
    ]
    try:
        return (
            compiled(source)
            .render(messages, add_generation_prompt=prompt, kwargs=kwargs, continue_final=goes_on)
            .text
        )
    except Refused as refused:
        assert refused.kind == "template_error"
        return None


def theirs(
    source: str, conversation: list[dict[str, Any]], prompt: bool, goes_on: Any, kwargs: Any
) -> str | None:
    last = conversation[-1]
    if goes_on and not last.get("content") and "reasoning_content" in last:
        goes_on = "reasoning_content"
    try:
        rendered: str = TOKENIZER.apply_chat_template(
            conversation,
            chat_template=source,
            tokenize=False,
            add_generation_prompt=prompt,
            continue_final_message=goes_on,
            **kwargs,
        )
    except Exception:  # noqa: BLE001 - whatever a template raises counts as a refusal
        return None
    return rendered


@pytest.mark.parametrize("variables", VARIABLES.values(), ids=VARIABLES)
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_every_template_renders_as_transformers_renders_it(
    path: Path, variables: dict[str, Any]
) -> None:
    source, thorough = path.read_text(), not variables or "tools" in variables
    for name, conversation in CONVERSATIONS.items():
        for prompt, goes_on in ((True, False), (False, False), (False, True))[: 1 + 2 * thorough]:
            mine = ours(source, conversation, prompt, goes_on, variables)
            assert mine == theirs(source, conversation, prompt, goes_on, variables), (name, prompt)


def test_the_published_templates_are_there_and_most_conversations_render() -> None:
    rendered = [
        ours(path.read_text(), turns, True, False, {})
        for path in TEMPLATES
        for turns in CONVERSATIONS.values()
    ]
    assert len(TEMPLATES) >= 39
    assert sum(shown is not None for shown in rendered) > len(rendered) / 2


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_most_templates_can_go_on_with_an_answer(path: Path) -> None:
    turns = CONVERSATIONS["an answer last"]
    shown = ours(path.read_text(), turns, False, True, {})
    if shown is not None:  # as transformers has it: see above
        assert shown.endswith("One, two")
