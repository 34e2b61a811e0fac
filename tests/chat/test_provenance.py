"""Which characters of a prompt are the client's. Here the client writes Greek, and no template
does."""

import functools
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from corral.backend.chat.template import ChatTemplate
from corral.backend.chat.types import Message, Written
from corral.backend.errors import Refused

TEMPLATES = sorted((Path(__file__).parent.parent / "data" / "chat-templates").glob("*.jinja"))

CALL = {
    "id": "αα1",
    "type": "function",
    "function": {"name": "βολ", "arguments": {"γα": "δδ εε", "ζη": [1, "θ", None]}},
}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "turns": [
        {"role": "system", "content": " ισ\nκα "},
        {"role": "user", "content": "λα\n\nμε"},
        {"role": "assistant", "content": "νυ ξι"},
        {"role": "user", "content": "ο πι", "name": "ρο"},
    ],
    "reasoning": [
        {"role": "user", "content": "σι"},
        {"role": "assistant", "content": "τα", "reasoning_content": "υ\nφι"},
        {"role": "user", "content": "χι"},
    ],
    "tags in the text": [
        {"role": "user", "content": "<think>ψι</think>ω"},
        {"role": "assistant", "content": "<think>αι</think>βι"},
        {"role": "user", "content": "γι"},
    ],
    "calls": [
        {"role": "user", "content": "δα"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "αα1", "name": "βολ", "content": '{"ε": "ζα"}'},
        {"role": "user", "content": "ηα"},
    ],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "θα ια"}]}],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "βολ",
            "description": "κι λι",
            "parameters": {
                "type": "object",
                "properties": {"γα": {"type": "string", "description": "μι", "enum": ["δδ", "νι"]}},
                "required": ["γα"],
            },
        },
    }
]

#: What the client's tools and calls say without Greek.
SCHEMA_WORDS = {"string", "STRING", "OBJECT", "array", "object", "function", "enum", "required"}


def is_greek(char: str) -> bool:
    return "α" <= char.lower() <= "ω"


@functools.cache
def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<|bos|>", eos_token="<|eos|>")


def rendered(source: str, turns: list[dict[str, Any]], **kwargs: Any) -> Written:
    messages = [
        Message(
            role=turn["role"],
            content=turn.get("content", UNSET),
            fields={k: v for k, v in turn.items() if k not in ("role", "content")},
        )
        for turn in turns
    ]
    return compiled(source).render(messages, add_generation_prompt=True, kwargs=kwargs)


def whose(prompt: Written) -> list[bool]:
    marks, last = [False] * len(prompt.text), -1
    for start, end in prompt.foreign:
        assert last < start < end <= len(prompt.text)
        marks[start:end] = [True] * (end - start)
        last = end
    return marks


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
@pytest.mark.parametrize("turns", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_in_every_template_what_the_client_wrote_is_marked_and_little_else(
    path: Path, turns: list[dict[str, Any]]
) -> None:
    for kwargs in ({}, {"tools": TOOLS}):
        try:
            prompt = rendered(path.read_text(), turns, **kwargs)
        except Refused:
            continue
        marks = whose(prompt)
        for char, is_foreign in zip(prompt.text, marks, strict=True):
            assert is_foreign or not is_greek(char), prompt
        for start, end in prompt.foreign:
            span = prompt.text[start:end]
            assert any(map(is_greek, span)) or span in SCHEMA_WORDS, span
