"""The exact bytes of streams, from events alone."""

import json
from typing import Any, NamedTuple

from corral.backend.api import openai_render, sse
from corral.backend.api.answer import Answer, Render, Wishes
from corral.backend.api.native_render import NativeRender, settings, slots
from corral.backend.api.openai_render import ChatRender, Envelope, TextRender
from corral.backend.chat.types import Content, Effective, Event, Finished, Reading, Text, Timings
from corral.backend.engine.messages import Counters, Sampling, SlotRow, Snapshot

TIMES = Timings(10, 4, 3, prompt_ms=12.0, predicted_ms=8.0)
TIMES_JSON = (
    '{"cache_n":4,"prompt_n":6,"prompt_ms":12.0,"prompt_per_token_ms":2.0,'
    '"prompt_per_second":500.0,"predicted_n":3,"predicted_ms":8.0,"predicted_per_token_ms":4.0,'
    '"predicted_per_second":250.0}'
)
EVENTS: list[Event] = [
    Reading(10, 4, 4, 0.5),
    Reading(10, 4, 10, 12.0),
    Text("Hé", [1, 2], Timings(10, 4, 2, 12.0, 4.0), parts=(Content("Hé"),)),
    Text("\n", [3], TIMES, parts=(Content("\n"),)),
    Text("", [4], TIMES),
    Finished("eos", "", False, 7, 2, TIMES),
]
ENVELOPE = Envelope(id="chatcmpl-1", created=5, model="m")
EFFECTIVE = Effective(
    sampling=Sampling(logit_bias=((5, float("-inf")), ("x", 1.5))),
    stop=("END",),
    max_tokens=-1,
    cache_prompt=True,
)


class Asked(NamedTuple):
    effective: Effective = EFFECTIVE
    n_prompt: int = 10
    slot: int = 2


def native(**more: object) -> NativeRender:
    given: dict[str, object] = {
        "model": "m",
        "prompts": ["p"],
        "generations": [Asked()],
        "wishes": Wishes(),
        "stream": True,
    }
    return NativeRender(**(given | more))  # type: ignore[arg-type]


def streamed(render: Render) -> str:
    answer = Answer()
    out = sse.data(render.opening())
    for event in EVENTS:
        answer.take(event)
        out += sse.data(render.chunks(event, answer))
    return (out + sse.data(render.closing([answer]))).decode()


def whole(render: Render) -> Any:
    answer = Answer()
    for event in EVENTS:
        answer.take(event)
    return render.reply([answer])


def chunk(rest: str) -> str:
    fingerprint = openai_render.FINGERPRINT
    return (
        'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":5,"model":"m",'
        f'"system_fingerprint":"{fingerprint}",{rest}}}\n\n'
    )


def choice(delta: str, finish: str = "null") -> str:
    return f'"choices":[{{"index":0,"delta":{delta},"finish_reason":{finish}}}]'


def test_a_chat_stream_is_role_then_text_then_finish_reason() -> None:
    assert streamed(ChatRender(ENVELOPE, Wishes())) == (
        chunk(choice('{"role":"assistant","content":null}'))
        + chunk(choice('{"content":"Hé"}'))
        + chunk(choice('{"content":"\\n"}'))
        + chunk(choice("{}", '"stop"') + f',"timings":{TIMES_JSON},"seed":7')
    )


def test_the_usage_chunk_has_no_choices_and_comes_last() -> None:
    text = streamed(ChatRender(ENVELOPE, Wishes(usage=True)))
    assert text.endswith(
        chunk(choice("{}", '"stop"') + ',"seed":7')
        + chunk(
            '"choices":[],"usage":{"completion_tokens":3,"prompt_tokens":10,"total_tokens":13,'
            '"prompt_tokens_details":{"cached_tokens":4}},'
            f'"timings":{TIMES_JSON},"seed":7'
        )
    )


def test_progress_comes_between_role_and_text_when_asked() -> None:
    text = streamed(ChatRender(ENVELOPE, Wishes(progress=True)))
    assert text.startswith(
        chunk(choice('{"role":"assistant","content":null}'))
        + chunk(
            choice("{}") + ',"prompt_progress":{"total":10,"cache":4,"processed":4,"time_ms":0.5}'
        )
        + chunk(
            choice("{}") + ',"prompt_progress":{"total":10,"cache":4,"processed":10,"time_ms":12.0}'
        )
        + chunk(choice('{"content":"Hé"}'))
    )


def test_timings_ride_on_every_piece_when_asked() -> None:
    text = streamed(ChatRender(ENVELOPE, Wishes(timings=True)))
    assert text.count('"timings"') == 3
    assert '"predicted_n":2' in text.split("\n\n")[1]


def test_a_text_completion_streams_text_and_a_last_empty_one() -> None:
    sent = streamed(TextRender(ENVELOPE, Wishes())).split("\n\n")[:-1]
    events = [json.loads(event.removeprefix("data: ")) for event in sent]
    assert [e["choices"][0]["text"] for e in events] == ["Hé", "\n", ""]
    assert [e["choices"][0]["finish_reason"] for e in events] == [None, None, "stop"]
    assert {e["object"] for e in events} == {"text_completion"}


def test_a_native_stream_repeats_no_text_in_its_last_chunk() -> None:
    settings_json = sse.encode(settings(EFFECTIVE, seed=7, stream=True)).decode()
    assert streamed(native()) == (
        'data: {"index":0,"content":"Hé","tokens":[1,2],"stop":false,"id_slot":2,'
        '"tokens_predicted":2,"tokens_evaluated":10}\n\n'
        'data: {"index":0,"content":"\\n","tokens":[3],"stop":false,"id_slot":2,'
        '"tokens_predicted":3,"tokens_evaluated":10}\n\n'
        'data: {"index":0,"content":"","tokens":[4],"stop":false,"id_slot":2,'
        '"tokens_predicted":3,"tokens_evaluated":10}\n\n'
        'data: {"index":0,"content":"","tokens":[],"id_slot":2,"stop":true,"model":"m",'
        f'"tokens_predicted":3,"tokens_evaluated":10,"generation_settings":{settings_json},'
        '"prompt":"p","has_new_line":true,"truncated":false,"stop_type":"eos","stopping_word":"",'
        f'"tokens_cached":12,"timings":{TIMES_JSON}}}\n\n'
    )


def test_generation_settings_show_the_seed_used_and_bans_as_null() -> None:
    shown = json.loads(sse.encode(settings(EFFECTIVE, seed=7, stream=False)))
    assert shown["seed"] == 7
    assert shown["logit_bias"] == [[5, None], ["x", 1.5]]
    assert shown["stop"] == ["END"]


def test_a_whole_native_reply_has_tokens_only_when_asked() -> None:
    assert json.loads(sse.encode(whole(native())))["tokens"] == []
    reply = json.loads(sse.encode(whole(native(return_tokens=True))))
    assert (reply["content"], reply["tokens"]) == ("Hé\n", [1, 2, 3, 4])


def test_a_whole_chat_reply_counts_cached_tokens_within_the_prompt() -> None:
    reply = json.loads(sse.encode(whole(ChatRender(ENVELOPE, Wishes()))))
    assert reply["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hé\n"},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert reply["usage"]["prompt_tokens"] == 10
    assert reply["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


def test_a_slot_row_tells_total_cached_and_computed_prompt_tokens() -> None:
    busy = SlotRow(1, "reading", 9, n_prompt=100, n_cached=30, n_processed=70, max_tokens=50)
    snapshot = Snapshot([SlotRow(0, "idle"), busy], [], 10, 0, 0, 1, Counters())
    idle_row, busy_row = slots(snapshot, 4096)
    assert not idle_row.is_processing and idle_row.id_task == -1
    assert busy_row.is_processing and busy_row.id_task == 9 and busy_row.n_ctx == 4096
    assert busy_row.n_prompt_tokens == 100
    assert busy_row.n_prompt_tokens_cache == 30
    assert busy_row.n_prompt_tokens_processed == 40
    assert busy_row.next_token[0].n_remain == 50
