"""Log probabilities in three shapes: pure first, then through official clients."""

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import openai
import pytest

from corral.backend.api import probs, sse
from corral.backend.api.answer import Answer, Wishes
from corral.backend.api.openai_render import ChatRender, Envelope, TextRender
from corral.backend.chat.types import Content, Event, Finished, Scored, Text, Timings
from corral.backend.engine.messages import TokenProbs

HELLO: Any = [{"role": "user", "content": "hé"}]
TIMES = Timings(1, 0, 2, 0.0, 0.0)
ENVELOPE = Envelope(id="i", created=0, model="m")
HALF = math.log(0.5)
A = TokenProbs(1, b"a", HALF, [(1, b"a", HALF), (2, b"\xe2\x80", -math.inf)])
# The two halves of é.
E1 = TokenProbs(3, b"\xc3", -1.0, [(4, b"x", -0.5), (3, b"\xc3", -1.0)])
E2 = TokenProbs(5, b"\xa9", -2.0, [])
FIRST = TokenProbs(1, b"P", None, [])


def wire(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


def test_a_chat_shows_bytes_exactly_and_no_infinity() -> None:
    assert wire(probs.for_chat([A], probs.Shape(2))) == {
        "content": [
            {
                "token": "a",
                "logprob": HALF,
                "bytes": [97],
                "top_logprobs": [
                    {"token": "a", "logprob": HALF, "bytes": [97]},
                    {"token": "bytes:\\xe2\\x80", "logprob": -9999.0, "bytes": [0xE2, 0x80]},
                ],
            }
        ],
        "refusal": None,
    }


def test_a_text_completion_has_four_lists_of_one_length() -> None:
    assert wire(probs.for_text([A, E1, E2], probs.Shape(1), start=10)) == {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9"],
        "token_logprobs": [HALF, -1.0, -2.0],
        # The chosen token is among them even when it is not among the likeliest.
        "top_logprobs": [{"a": HALF}, {"bytes:\\xc3": -1.0, "x": -0.5}, {"bytes:\\xa9": -2.0}],
        "text_offset": [10, 11, 11],
    }


def test_the_first_token_of_a_prompt_has_no_probability() -> None:
    shown = probs.for_text([FIRST, A], probs.Shape(1))
    assert shown.token_logprobs == [None, HALF]
    assert shown.top_logprobs == [None, {"a": HALF}]


def test_without_likely_tokens_there_is_no_list_of_them() -> None:
    assert probs.for_text([A], probs.Shape(0)).top_logprobs is None
    assert probs.for_chat([A], probs.Shape(0)).content[0].top_logprobs == []


def test_a_native_completion_shows_ids_and_its_own_number_for_never() -> None:
    assert wire(probs.for_native([A], probs.Shape(2))) == [
        {
            "id": 1,
            "token": "a",
            "bytes": [97],
            "logprob": HALF,
            "top_logprobs": [
                {"id": 1, "token": "a", "bytes": [97], "logprob": HALF},
                {
                    "id": 2,
                    "token": "bytes:\\xe2\\x80",
                    "bytes": [0xE2, 0x80],
                    "logprob": -3.4028234663852886e38,
                },
            ],
        }
    ]


def test_after_sampling_native_shows_probabilities_and_others_their_logarithms() -> None:
    p = TokenProbs(1, b"a", 0.75, [(1, b"a", 0.75), (2, b"b", 0.0)])
    shape = probs.Shape(2, is_post=True)
    (entry,) = wire(probs.for_native([p], shape))
    assert entry["prob"] == 0.75 and "logprob" not in entry
    assert entry["top_probs"] == [{"id": 1, "token": "a", "bytes": [97], "prob": 0.75}]
    chat = probs.for_chat([p], shape).content[0]
    assert chat.logprob == math.log(0.75)
    assert [t.logprob for t in chat.top_logprobs] == [math.log(0.75), -9999.0]


def streamed(render: Any, events: list[Event]) -> list[dict[str, Any]]:
    answer = Answer()
    sent = sse.data(render.opening())
    for event in events:
        answer.take(event)
        sent += sse.data(render.chunks(event, answer))
    return [json.loads(part.removeprefix(b"data: ")) for part in sent.split(b"\n\n") if part]


END = Finished("eos", "", False, 1, 0, TIMES)
ANSWER: list[Event] = [
    Text("", [3], TIMES, [E1]),
    Text("é", [5], TIMES, [E2], parts=(Content("é"),)),
    END,
]


def test_a_stream_loses_no_token_that_shows_nothing_yet() -> None:
    chunks = streamed(ChatRender(ENVELOPE, Wishes(probs=probs.Shape(0))), ANSWER)
    choices = [chunk["choices"][0] for chunk in chunks[1:]]
    assert [c["delta"] for c in choices] == [{}, {"content": "é"}, {}]
    tokens = [t["token"] for c in choices for t in (c.get("logprobs") or {}).get("content", [])]
    assert tokens == ["bytes:\\xc3", "bytes:\\xa9"]
    # Without probabilities there is nothing to say of it.
    assert len(streamed(ChatRender(ENVELOPE, Wishes()), ANSWER)) == 3


def test_an_echoed_prompt_comes_first_with_its_probabilities() -> None:
    render = TextRender(ENVELOPE, Wishes(probs=probs.Shape(0)), echoed=["Pa"])
    events: list[Event] = [Scored([FIRST]), Scored([A]), *ANSWER]
    choices = [chunk["choices"][0] for chunk in streamed(render, events)]
    assert "".join(c["text"] for c in choices) == "Paé"
    lists = [c["logprobs"] for c in choices if c["logprobs"]]
    assert [o for given in lists for o in given["text_offset"]] == [0, 1, 2, 2]
    assert [p for given in lists for p in given["token_logprobs"]] == [None, HALF, -1.0, -2.0]
    answer = Answer()
    for event in events:
        answer.take(event)
    (whole,) = render.reply([answer]).choices
    assert whole.text == "Paé" and whole.logprobs is not None
    assert whole.logprobs.tokens == ["P", "a", "bytes:\\xc3", "bytes:\\xa9"]


def test_the_likeliest_answers_are_kept_in_order_and_numbered_anew() -> None:
    answers = []
    for index, logprob in enumerate([-3.0, -1.0, -2.0, -5.0, -4.0, -6.0]):
        answer = Answer(index, prompt_index=index // 3)
        token = TokenProbs(index, b"x", logprob, [])
        # A longer answer is not the worse for its length.
        for _ in range(1 + index % 3):
            answer.take(Text(str(index), [index], TIMES, [token]))
        answer.take(END)
        answers.append(answer)
    reply = TextRender(ENVELOPE, Wishes(), n=2, n_made=3).reply(answers)
    assert [c.text[0] for c in reply.choices] == ["1", "2", "4", "3"]
    assert [c.index for c in reply.choices] == [0, 1, 2, 3]
    assert reply.usage is not msgspec.UNSET
    assert reply.usage.completion_tokens == 6 * TIMES.n_generated  # type: ignore[union-attr]


# --- official clients ---------------------------------------------------------------------------


@pytest.fixture
def sdk(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_chat_has_one_entry_for_each_token_whole_and_streamed(sdk: openai.OpenAI) -> None:
    whole = sdk.chat.completions.create(
        model="m", messages=HELLO, logprobs=True, top_logprobs=2, max_tokens=3
    )
    assert whole.choices[0].logprobs is not None and whole.usage is not None
    content = whole.choices[0].logprobs.content or []
    assert len(content) == whole.usage.completion_tokens == 3
    assert bytes(b for t in content for b in t.bytes or []) == "hé".encode()
    assert all(len(t.top_logprobs) == 2 for t in content)
    stream = sdk.chat.completions.create(
        model="m", messages=HELLO, logprobs=True, top_logprobs=2, max_tokens=3, stream=True
    )
    streamed = [
        token
        for chunk in stream
        for choice in chunk.choices
        if choice.logprobs
        for token in choice.logprobs.content or []
    ]
    assert streamed == content


def test_a_chat_that_asks_for_none_gets_null(sdk: openai.OpenAI, http: httpx.Client) -> None:
    reply = sdk.chat.completions.create(model="m", messages=HELLO, logprobs=False)
    assert reply.choices[0].logprobs is None
    body = {"messages": HELLO, "logprobs": True, "max_tokens": 1}
    (token,) = http.post("/v1/chat/completions", json=body).json()["choices"][0]["logprobs"][
        "content"
    ]
    assert token["top_logprobs"] == []


@pytest.mark.parametrize("asked", [0, 1, 3])
def test_a_text_completion_counts_likely_tokens(sdk: openai.OpenAI, asked: int) -> None:
    reply = sdk.completions.create(model="m", prompt="abc", max_tokens=3, logprobs=asked)
    got = reply.choices[0].logprobs
    assert got is not None and got.tokens is not None
    assert len(got.tokens) == len(got.token_logprobs or []) == 3
    assert "".join(got.tokens) == reply.choices[0].text
    assert got.text_offset == [0, 1, 2]
    sizes = None if got.top_logprobs is None else [len(top) for top in got.top_logprobs]
    assert sizes == (None if asked == 0 else [asked] * 3)


@pytest.mark.parametrize("prompt", ["abc", [97, 98, 99], ["abc", [120, 121]]])
def test_a_prompt_is_scored_without_generating(sdk: openai.OpenAI, prompt: Any) -> None:
    reply = sdk.completions.create(
        model="m", prompt=prompt, max_tokens=0, logprobs=1, echo=True, temperature=0
    )
    first = reply.choices[0]
    assert first.text == "abc" and first.logprobs is not None
    assert first.logprobs.tokens == ["a", "b", "c"]
    assert first.logprobs.token_logprobs is not None
    none, *rest = first.logprobs.token_logprobs
    assert none is None and all(isinstance(p, float) for p in rest)
    assert first.logprobs.text_offset == [0, 1, 2]
    assert reply.usage is not None and reply.usage.completion_tokens == 0
    if len(reply.choices) > 1:
        assert reply.choices[1].text == "xy"


def test_an_echoed_prompt_is_in_front_of_every_choice(sdk: openai.OpenAI) -> None:
    plain = sdk.completions.create(model="m", prompt=["abc", "xy"], max_tokens=3)
    reply = sdk.completions.create(model="m", prompt=["abc", "xy"], max_tokens=3, echo=True, n=2)
    texts = [c.text for c in plain.choices]
    assert [c.text for c in reply.choices] == [
        *["abc" + texts[0]] * 2,
        *["xy" + texts[1]] * 2,
    ]
    streamed = ["", "", "", ""]
    for chunk in sdk.completions.create(
        model="m", prompt=["abc", "xy"], max_tokens=3, echo=True, n=2, stream=True
    ):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [c.text for c in reply.choices]


def test_native_probabilities_are_in_whole_replies_and_in_each_piece(http: httpx.Client) -> None:
    body = {"prompt": "abc", "n_predict": 3, "n_probs": 2}
    whole = http.post("/completion", json=body).json()["completion_probabilities"]
    assert [len(entry["top_logprobs"]) for entry in whole] == [2, 2, 2]
    text = http.post("/completion", json=body | {"stream": True}).text
    events = [json.loads(e.removeprefix("data: ")) for e in text.split("\n\n") if e]
    pieces = [p for e in events for p in e.get("completion_probabilities", [])]
    assert pieces == whole


def test_choices_and_probabilities_go_together(sdk: openai.OpenAI) -> None:
    reply = sdk.chat.completions.create(model="m", messages=HELLO, n=2, logprobs=True)
    for choice in reply.choices:
        assert choice.logprobs is not None and len(choice.logprobs.content or []) == 3
