"""Input items: what is kept of them, and the conversation a template gets."""

import itertools
from typing import Any

import pytest

from corral.backend.api.responses_items import normal, to_messages
from corral.backend.chat.types import Message
from corral.backend.errors import Refused


def kept(given: Any) -> list[dict[str, Any]]:
    numbers = itertools.count()
    return normal(given, lambda prefix: f"{prefix}_{next(numbers)}")


def heard(given: Any, instructions: str | None = None) -> list[Message]:
    return list(to_messages(kept(given), instructions)[0])


def test_a_text_is_one_message_of_the_user() -> None:
    assert kept("Hi") == [
        {
            "id": "msg_0",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_text", "text": "Hi"}],
        }
    ]
    assert heard("Hi") == [Message(role="user", content="Hi")]


def test_short_and_long_messages_mean_the_same() -> None:
    short = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    long = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {
            "type": "message",
            "id": "msg_x",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "b", "annotations": []}],
        },
    ]
    assert heard(short) == heard(long)
    assert [item["id"] for item in kept(long)] == ["msg_0", "msg_x"]


def test_instructions_and_opening_system_messages_become_one() -> None:
    given = [
        {"role": "system", "content": "one"},
        {"role": "developer", "content": [{"type": "input_text", "text": "two"}]},
        {"role": "user", "content": "Hi"},
        {"role": "developer", "content": "later"},
    ]
    assert heard(given, "zero") == [
        Message(role="system", content="zero\n\none\n\ntwo"),
        Message(role="user", content="Hi"),
        Message(role="system", content="later"),
    ]
    assert heard([], "alone") == [Message(role="system", content="alone")]


def test_reasoning_message_and_calls_are_one_turn_of_the_assistant() -> None:
    given = [
        {"role": "user", "content": "weather?"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": "I'll look."},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at":"Rome"}'},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [
                {"type": "input_text", "text": "rain"},
                {"type": "input_text", "text": "wind"},
            ],
        },
        {"role": "assistant", "content": "Sun."},
        {"role": "assistant", "content": "And rain."},
    ]
    calls = [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "look", "arguments": '{"at":"Rome"}'},
        },
        {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ]
    turn = {"reasoning_content": "hm", "tool_calls": calls}
    assert heard(given) == [
        Message(role="user", content="weather?"),
        Message(role="assistant", content="I'll look.", fields=turn),
        Message(role="tool", content="sun", fields={"tool_call_id": "c1"}),
        Message(role="tool", content="rain\nwind", fields={"tool_call_id": "c2"}),
        Message(role="assistant", content="Sun."),
        Message(role="assistant", content="And rain."),
    ]


def test_a_call_without_a_message_has_empty_content() -> None:
    given = [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]
    (message,) = heard(given)
    assert message.content == "" and message.fields["tool_calls"][0]["id"] == "c"


def test_what_is_kept_can_be_sent_again() -> None:
    given = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "out"},
        {"id": "msg_9"},
    ]
    once = kept(given)
    assert kept(once) == once
    assert once[-1] == {"type": "item_reference", "id": "msg_9"}


@pytest.mark.parametrize(
    ("item", "param", "words"),
    [
        ("text", "input[1]", "expected an object"),
        ({"type": "web_search_call"}, "input[1].type", "web_search_call"),
        ({"type": ["message"]}, "input[1].type", "not supported"),
        ({"role": "tool", "content": "x"}, "input[1].role", "expected user"),
        ({"role": "user"}, "input[1].content", "expected a text"),
        (
            {"role": "user", "content": [{"type": "input_image"}]},
            "input[1].content[0].image_url",
            "a URL",
        ),
        ({"role": "user", "content": [{"type": "x"}]}, "input[1].content[0].type", "input_text"),
        ({"role": "user", "content": [7]}, "input[1].content[0].type", "input_text"),
        ({"role": "user", "content": [{"type": "text"}]}, "input[1].content[0].text", "`str`"),
        ({"role": "user", "content": "x", "id": 5}, "input[1].id", "`str`"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, "input[1].arguments", "`str`"),
        ({"type": "function_call_output", "call_id": "c"}, "input[1].output", "a text"),
        ({"type": "reasoning", "summary": "x"}, "input[1].summary", "list"),
        ({"type": "reasoning", "content": [{}]}, "input[1].content[0].type", "reasoning_text"),
        ({"type": "item_reference"}, "input[1].id", "`str`"),
    ],
)
def test_a_bad_item_is_refused_by_its_place(item: Any, param: str, words: str) -> None:
    with pytest.raises(Refused) as refused:
        kept([{"role": "user", "content": "fine"}, item])
    assert refused.value.param == param
    assert words in refused.value.message
