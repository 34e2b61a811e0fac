"""The events of a streamed response and the object they add up to, from events alone."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from openai.types.responses import Response as SdkResponse
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from corral.backend.api import sse
from corral.backend.api.answer import Answer, Wishes
from corral.backend.api.responses_render import Facts, ResponsesRender
from corral.backend.api.responses_schema import ResponsesBody
from corral.backend.api.serving import wishes
from corral.backend.chat.types import Content, Event, Finished, Reading, Text, Timings
from corral.backend.engine.messages import FinishKind, TokenProbs
from corral.backend.errors import Broken

TIMES = Timings(10, 4, 3, prompt_ms=12.0, predicted_ms=8.0)
READ: list[Event] = [Reading(10, 4, 4, 0.5), Reading(10, 4, 10, 12.0)]
SAID: list[Event] = [
    Text("Hé", [1, 2], TIMES, parts=(Content("Hé"),)),
    Text("", [3], TIMES),
    Text("!", [4], TIMES, parts=(Content("!"),)),
]
SDK_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def end(finish: FinishKind = "eos") -> Finished:
    return Finished(finish, "", False, 7, 2, TIMES)


def render(wishes: Wishes = Wishes(), **body: Any) -> ResponsesRender:  # noqa: B008 - frozen
    facts = Facts(
        suffix="ab",
        created_at=5,
        model="m",
        body=ResponsesBody(input="x", **body),
        temperature=0.5,
        top_p=1.0,
    )
    return ResponsesRender(facts, wishes, lambda: 9.7)


def streamed(this: ResponsesRender, events: Sequence[Event]) -> list[dict[str, Any]]:
    """What goes out, read back; each must be an event the official client knows."""
    answer = Answer()
    shown = list(this.opening())
    for event in events:
        answer.take(event)
        shown += this.chunks(event, answer)
    if answer.end is not None:
        shown += this.closing([answer])
    return decoded(shown)


def decoded(shown: Sequence[Any]) -> list[dict[str, Any]]:
    out = [msgspec.json.decode(msgspec.json.encode(value)) for value in shown]
    for value in out:
        SDK_EVENT.validate_python(value)
    return out


def whole(this: ResponsesRender, events: Sequence[Event]) -> dict[str, Any]:
    answer = Answer()
    for event in events:
        answer.take(event)
    out: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(this.reply([answer])))
    SdkResponse.model_validate(out, strict=False)
    return out


def test_events_come_in_openai_s_order_and_are_numbered() -> None:
    out = streamed(render(), [*READ, *SAID, end()])
    assert [e["type"] for e in out] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [e["sequence_number"] for e in out] == list(range(10))
    placed = [e for e in out if "content_index" in e]
    assert len(placed) == 5
    assert {(e["item_id"], e["output_index"], e["content_index"]) for e in placed} == {
        ("msg_ab0000", 0, 0)
    }
    assert out[2]["item"] == {
        "id": "msg_ab0000",
        "type": "message",
        "status": "in_progress",
        "role": "assistant",
        "content": [],
    }


def test_the_parts_the_item_and_the_response_all_say_the_same() -> None:
    out = streamed(render(), [*READ, *SAID, end()])
    text = "".join(e["delta"] for e in out if e["type"] == "response.output_text.delta")
    assert text == "Hé!"
    done, part, item, final = out[-4:]
    assert done["text"] == part["part"]["text"] == text
    assert item["item"]["content"] == [part["part"]]
    assert final["response"]["output"] == [item["item"]]
    assert item["item"]["status"] == final["response"]["status"] == "completed"


def test_the_whole_response_is_the_one_that_ends_the_stream() -> None:
    events = [*READ, *SAID, end()]
    assert streamed(render(), events)[-1]["response"] == whole(render(), events)


def test_usage_counts_cached_tokens_as_input() -> None:
    assert whole(render(), [*SAID, end()])["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 13,
    }


@pytest.mark.parametrize(
    ("finish", "status", "last", "item"),
    [
        ("eos", "completed", "completed", "completed"),
        ("word", "completed", "completed", "completed"),
        ("limit", "incomplete", "incomplete", "incomplete"),
        ("cancelled", "cancelled", "incomplete", "incomplete"),
    ],
)
def test_the_status_is_true(finish: FinishKind, status: str, last: str, item: str) -> None:
    out = streamed(render(), [*SAID, end(finish)])[-1]
    response = out["response"]
    assert (out["type"], response["status"]) == (f"response.{last}", status)
    assert response["output"][0]["status"] == item
    details = {"reason": "max_output_tokens"} if finish == "limit" else None
    assert response["incomplete_details"] == details
    assert response["completed_at"] == (9 if status == "completed" else None)


def test_an_answer_without_text_is_an_empty_message() -> None:
    out = streamed(render(), [Text("", [5], TIMES), end()])
    assert [e["type"] for e in out][2:5] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
    ]
    assert out[-1]["response"]["output"][0]["content"][0]["text"] == ""


def test_a_failure_is_an_error_event_and_a_failed_response() -> None:
    this = render()
    shown = streamed(this, SAID[:1])
    failed = decoded(list(this.failure(Broken("boom", kind="engine_died"))))
    assert failed[0] == {
        "type": "error",
        "sequence_number": len(shown),
        "code": "engine_died",
        "message": "boom",
        "param": None,
    }
    assert failed[1]["type"] == "response.failed"
    assert failed[1]["sequence_number"] == len(shown) + 1
    response = failed[1]["response"]
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "boom"}
    assert response["output"][0]["content"][0]["text"] == "Hé"


def test_log_probabilities_are_shown_where_they_were_asked_for() -> None:
    probs = [
        TokenProbs(1, b"H", -0.5, [(1, b"H", -0.5), (2, b"\xc3", float("-inf")), (3, b"x", -3.0)])
    ]
    events: list[Event] = [Text("H", [1], TIMES, probs, parts=(Content("H"),)), end()]
    body = ResponsesBody(input="x", include=["message.output_text.logprobs"], top_logprobs=2)
    out = streamed(render(wishes(body)), events)
    expected = [
        {
            "token": "H",
            "bytes": [72],
            "logprob": -0.5,
            "top_logprobs": [
                {"token": "H", "bytes": [72], "logprob": -0.5},
                {"token": "bytes:\\xc3", "bytes": [195], "logprob": -9999.0},
            ],
        }
    ]
    shown = [e["logprobs"] for e in out if e["type"].startswith("response.output_text")]
    assert shown == [expected, expected]
    assert out[-1]["response"]["output"][0]["content"][0]["logprobs"] == expected
    quiet = streamed(render(), events)
    assert [e["logprobs"] for e in quiet if "logprobs" in e] == [[], []]


def test_progress_and_timings_are_shown_on_request() -> None:
    out = streamed(render(Wishes(progress=True, timings=True)), [*READ, *SAID, end()])
    seen = [e["response"]["prompt_progress"] for e in out[2:4]]
    assert [p["processed"] for p in seen] == [4, 10]
    assert all("timings" in e for e in out if e["type"].endswith("text.delta"))


def test_what_was_asked_is_echoed() -> None:
    asked: dict[str, Any] = {
        "instructions": "be kind",
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "previous_response_id": "resp_0",
        "store": False,
        "parallel_tool_calls": False,
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "tool_choice": "none",
        "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": True}],
    }
    out = whole(render(**asked), [*SAID, end()])
    assert {name: out[name] for name in asked} == asked
    assert (out["temperature"], out["top_p"]) == (0.5, 1.0)
    assert out["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert set(SdkResponse.model_fields) - set(out) <= {
        # Kinds of service that this server does not have.
        *("access_programs", "conversation", "image", "input_transformations", "moderation"),
        *("prompt", "prompt_cache_diagnostics", "prompt_cache_options", "tool_usage"),
    }


def test_events_are_named_on_the_wire() -> None:
    this = render()
    first = sse.data(this.opening(), names_events=True).decode().split("\n")[0]
    assert first == "event: response.created"
