"""The events of a streamed message and the object they add up to, from events alone."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from anthropic.types import Message as SdkMessage
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from corral.backend.api.answer import Answer, Wishes
from corral.backend.api.anthropic_render import MessagesRender
from corral.backend.chat.types import (
    CallArguments,
    CallBegin,
    Content,
    Event,
    Finished,
    Reading,
    Text,
    Timings,
)
from corral.backend.engine.messages import FinishKind
from corral.backend.errors import Broken

TIMES = Timings(10, 4, 3, prompt_ms=12.0, predicted_ms=8.0)
SAID: list[Event] = [
    Reading(10, 4, 4, 0.5),
    Text("Hé", [1, 2], TIMES, parts=(Content("Hé"),)),
    Text("", [3], TIMES),
    Text("!", [4], TIMES, parts=(Content("!"),)),
]
SDK_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def end(finish: FinishKind = "eos", word: str = "", *, truncated: bool = False) -> Finished:
    return Finished(finish, word, truncated, 7, 2, TIMES)


def render(wishes: Wishes = Wishes()) -> MessagesRender:  # noqa: B008 - frozen
    return MessagesRender("msg_1", "claude", 10, wishes)


def read_back(value: Any) -> dict[str, Any]:
    out: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    return out


def streamed(this: MessagesRender, events: Sequence[Event]) -> list[dict[str, Any]]:
    answer = Answer()
    shown = list(this.opening())
    for event in events:
        answer.take(event)
        shown += this.chunks(event, answer)
    shown += this.closing([answer])
    out = [read_back(value) for value in shown]
    for value in out:
        if value["type"] != "ping":
            SDK_EVENT.validate_python(value)
    return out


def whole(events: Sequence[Event]) -> dict[str, Any]:
    answer = Answer()
    for event in events:
        answer.take(event)
    out = read_back(render().reply([answer]))
    SdkMessage.model_validate(out)
    return out


def test_events_come_in_anthropic_s_order() -> None:
    out = streamed(render(), [*SAID, end()])
    assert [e["type"] for e in out] == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert {e["index"] for e in out if "index" in e} == {0}
    assert "".join(e["delta"]["text"] for e in out[3:5]) == "Hé!"


def test_the_message_starts_with_the_size_of_the_prompt() -> None:
    message = streamed(render(), [*SAID, end()])[0]["message"]
    assert message["usage"]["input_tokens"] == 10
    assert (message["id"], message["model"], message["content"]) == ("msg_1", "claude", [])
    assert message["stop_reason"] is None and message["stop_sequence"] is None


def test_cached_tokens_are_not_counted_as_input() -> None:
    expected = {
        "input_tokens": 6,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "output_tokens": 3,
        "service_tier": "standard",
    }
    assert whole([*SAID, end()])["usage"] == expected
    assert streamed(render(), [*SAID, end()])[-2]["usage"] == expected


@pytest.mark.parametrize(
    ("ended", "reason", "sequence"),
    [
        (end("eos"), "end_turn", None),
        (end("word", "STOP"), "stop_sequence", "STOP"),
        (end("limit"), "max_tokens", None),
        (end("limit", truncated=True), "model_context_window_exceeded", None),
    ],
)
def test_the_reason_to_stop_is_told(ended: Finished, reason: str, sequence: str | None) -> None:
    message = whole([*SAID, ended])
    delta = streamed(render(), [*SAID, ended])[-2]["delta"]
    assert delta == {"stop_reason": reason, "stop_sequence": sequence}
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


def test_an_answer_without_text_has_no_block() -> None:
    events: list[Event] = [Text("", [5], TIMES), end()]
    assert whole(events)["content"] == []
    kinds = [e["type"] for e in streamed(render(), events)]
    assert kinds == ["message_start", "message_delta", "message_stop"]


def test_progress_rides_on_pings_and_timings_on_deltas() -> None:
    out = streamed(render(Wishes(progress=True, timings=True)), [*SAID, end()])
    assert out[1]["type"] == "ping" and out[1]["prompt_progress"]["total"] == 10
    assert all("timings" in e for e in out if e["type"] == "content_block_delta")


def test_a_failure_has_the_nested_shape() -> None:
    assert read_back(render().failure(Broken("boom", kind="engine_died"))) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "boom", "code": "engine_died"},
        "request_id": None,
    }


def test_half_a_character_in_a_call_is_a_question_mark_in_its_input() -> None:
    arguments = r'{"a\ud83d": ["\ude00", "\ud83d\ude00", 1.5]}'
    call = CallBegin(0, "id", "f"), CallArguments(0, arguments)
    made = whole([Text("x", [1], TIMES, parts=call), end()])
    assert made["content"][0]["input"] == {"a?": ["?", "😀", 1.5]}
