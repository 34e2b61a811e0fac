"""Several answers to one request: choices and arrays of prompts, whole and streamed."""

import contextlib
import itertools
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

HELLO: Any = [{"role": "user", "content": "hello"}]
HELLO_PROMPT = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def sdk(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def events(text: str) -> list[dict[str, Any]]:
    lines = [line for line in text.split("\n\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def with_engine(snapshot: Any) -> int:
    """Answers that run or wait."""
    return len(snapshot.waiting) + sum(slot.state != "idle" for slot in snapshot.slots)


# --- choices ------------------------------------------------------------------------------------


def test_n_choices_answer_one_prompt_and_all_are_counted(sdk: openai.OpenAI) -> None:
    one = sdk.chat.completions.create(model="m", messages=HELLO, seed=5)
    reply = sdk.chat.completions.create(model="m", messages=HELLO, n=3, seed=5)
    assert [c.index for c in reply.choices] == [0, 1, 2]
    assert {c.message.content for c in reply.choices} == {"hello"}
    assert one.usage is not None and reply.usage is not None
    assert reply.usage.prompt_tokens == one.usage.prompt_tokens
    assert reply.usage.completion_tokens == 3 * one.usage.completion_tokens
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_choices_have_seeds_in_a_row_and_the_first_has_the_one_asked_for(
    http: httpx.Client,
) -> None:
    body = {"messages": HELLO, "n": 3, "max_tokens": 1}
    choices = http.post("/v1/chat/completions", json=body | {"seed": 5}).json()["choices"]
    assert [c["seed"] for c in choices] == [5, 6, 7]
    last = 2**32 - 2
    choices = http.post("/v1/chat/completions", json=body | {"seed": last}).json()["choices"]
    assert [c["seed"] for c in choices] == [last, 0, 1]


def test_unset_seeds_are_drawn_and_differ(http: httpx.Client) -> None:
    body = {"messages": HELLO, "n": 8, "max_tokens": 1}
    drawn = [
        choice["seed"]
        for _ in range(2)
        for choice in http.post("/v1/chat/completions", json=body).json()["choices"]
    ]
    assert len(set(drawn)) == 16
    gaps = {b - a for a, b in itertools.pairwise(drawn)}
    assert len(gaps) > 2


def test_the_prompt_of_all_choices_is_computed_once(server: Any, http: httpx.Client) -> None:
    before = server.until(lambda s: True).counters.prompt_tokens
    body = {"prompt": "once " * 100, "n": 6, "max_tokens": 2}
    reply = http.post("/v1/completions", json=body).json()
    assert reply["usage"]["prompt_tokens"] == 500
    server.until(lambda s: s.counters.prompt_tokens > before)
    # Each choice computes the last token of the prompt itself: its answer comes out of that step.
    assert server.until_idle().counters.prompt_tokens - before <= 500 + 6


def test_choices_are_streamed_by_index_and_each_ends_once(sdk: openai.OpenAI) -> None:
    stream = sdk.chat.completions.create(
        model="m", messages=HELLO, n=3, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    texts, reasons = ["", "", ""], [None, None, None]
    roles = []
    for chunk in chunks:
        (choice,) = chunk.choices
        if choice.delta.role:
            roles.append(choice.index)
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            assert reasons[choice.index] is None
            reasons[choice.index] = choice.finish_reason  # type: ignore[call-overload]
    assert roles == [0, 1, 2]
    assert texts == ["hello"] * 3 and reasons == ["stop"] * 3
    assert last.choices == [] and last.usage is not None
    assert last.usage.completion_tokens == 3 * 6
    assert len({c.id for c in [*chunks, last]}) == 1


def test_choices_interleave(server: Any, http: httpx.Client) -> None:
    server.control(step_ms=5)
    body = {"prompt": "abc", "n": 2, "max_tokens": 20, "stream": True}
    indexes = [
        e["choices"][0]["index"] for e in events(http.post("/v1/completions", json=body).text)
    ]
    first_of_1, last_of_0 = indexes.index(1), len(indexes) - 1 - indexes[::-1].index(0)
    assert first_of_1 < last_of_0


def test_more_choices_than_slots_run_in_waves(server: Any, http: httpx.Client) -> None:
    body = {"messages": HELLO, "n": 25}  # four slots, eight may wait
    choices = http.post("/v1/chat/completions", json=body).json()["choices"]
    assert [c["index"] for c in choices] == list(range(25))
    assert {c["message"]["content"] for c in choices} == {"hello"}


def test_a_request_for_many_answers_leaves_room_in_the_queue(
    server: Any, http: httpx.Client
) -> None:
    server.control(hold="decode", after=1)
    body = {"messages": HELLO, "n": 25, "stream": True}
    with sent(server, "/v1/chat/completions", [body]):
        server.until(lambda s: with_engine(s) == 4)
        with sent(server, "/completion", [{"prompt": "another"}]):
            server.until(lambda s: with_engine(s) == 5)
    server.until_idle()


def test_a_full_queue_does_not_break_a_request_that_is_running(
    server: Any, http: httpx.Client
) -> None:
    server.control(hold="decode", after=1)
    body = {"messages": HELLO, "n": 6, "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        server.until(lambda s: with_engine(s) == 4)
        others = [{"prompt": f"{i} other", "max_tokens": 1} for i in range(8)]
        with sent(server, "/completion", others):
            server.until(lambda s: with_engine(s) == 12)
            server.control(hold=None)
            text = reply.read().decode()
    assert text.endswith("data: [DONE]\n\n")
    assert sum(e["choices"][0]["finish_reason"] == "stop" for e in events(text)) == 6


@contextlib.contextmanager
def sent(server: Any, path: str, bodies: list[dict[str, Any]]) -> Iterator[None]:
    """Clients that have sent their requests and read nothing; they leave at the end."""
    with contextlib.ExitStack() as clients:
        for body in bodies:
            client = clients.enter_context(socket.create_connection(server.address))
            data = json.dumps(body).encode()
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
            client.sendall(head.encode() + data)
        yield


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_takes_all_its_choices_along(server: Any, stream: bool) -> None:
    server.control(hold="decode", after=2)
    body = {"messages": HELLO, "n": 9, "stream": stream}
    with sent(server, "/v1/chat/completions", [body]):
        server.until(lambda s: with_engine(s) == 4)
    server.until_idle()
    before = server.until_idle().counters.predicted_tokens
    server.control(hold=None)
    # None of the five that had not begun comes now.
    body = {"prompt": "abc", "max_tokens": 1}
    assert httpx.post(f"{server.url}/completion", json=body).status_code == 200
    assert server.until_idle().counters.predicted_tokens == before + 1


def test_an_engine_that_dies_ends_all_choices_in_one_error(run_server: Any) -> None:
    with run_server() as server, httpx.Client(base_url=server.url, timeout=20) as http:
        server.control(hold="decode", after=2)
        body = {"messages": HELLO, "n": 6, "stream": True}
        with http.stream("POST", "/v1/chat/completions", json=body) as reply:
            server.until(lambda s: any(slot.state == "generating" for slot in s.slots))
            server.control(crash="exit", hold=None)
            sent = events(reply.read().decode())
        assert [e["error"]["code"] for e in sent if "error" in e] == ["engine_died"]
        assert "error" in sent[-1]
        whole = http.post("/v1/chat/completions", json={"messages": HELLO, "n": 2})
        assert whole.status_code == 200


# --- arrays of prompts --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt",
    [["abc", "xy"], [[97, 98, 99], [120, 121]], [["a", 98, "c"], "xy"], [[97, "bc"], [120, 121]]],
)
def test_every_prompt_of_an_array_is_answered_as_if_alone(http: httpx.Client, prompt: Any) -> None:
    alone = [
        http.post("/v1/completions", json={"prompt": p, "max_tokens": 5}).json()
        for p in ("abc", "xy")
    ]
    reply = http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 5}).json()
    assert [c["text"] for c in reply["choices"]] == [a["choices"][0]["text"] for a in alone]
    assert [c["index"] for c in reply["choices"]] == [0, 1]
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert reply["usage"][count] == sum(a["usage"][count] for a in alone)


def test_prompts_with_choices_are_numbered_prompt_by_prompt(http: httpx.Client) -> None:
    body = {"prompt": ["abc", "xy"], "n": 2, "max_tokens": 3, "seed": 9}
    reply = http.post("/v1/completions", json=body).json()
    texts = [c["text"] for c in reply["choices"]]
    assert texts[0] == texts[1] != texts[2] == texts[3]
    assert [c["seed"] for c in reply["choices"]] == [9, 10, 9, 10]
    assert reply["usage"]["prompt_tokens"] == 5
    assert reply["usage"]["completion_tokens"] == 2 * 2 * 3


def test_native_completions_of_several_prompts_are_a_list(http: httpx.Client) -> None:
    body = {"prompt": ["abc", [120, 121]], "n_predict": 5, "n_cmpl": 2}
    reply = http.post("/completion", json=body).json()
    assert [r["index"] for r in reply] == [0, 1, 2, 3]
    assert [r["prompt"] for r in reply] == ["abc", "abc", "xy", "xy"]
    assert [r["tokens_evaluated"] for r in reply] == [3, 3, 2, 2]
    streamed: dict[int, str] = {}
    for event in events(http.post("/completion", json=body | {"stream": True}).text):
        streamed[event["index"]] = streamed.get(event["index"], "") + event["content"]
    assert [streamed[i] for i in range(4)] == [r["content"] for r in reply]
    # One prompt in a list is one completion.
    assert isinstance(http.post("/completion", json={"prompt": ["a"], "n_predict": 1}).json(), dict)


def test_one_bad_prompt_refuses_all_before_any_runs(server: Any, http: httpx.Client) -> None:
    before = server.until_idle().counters
    body = {"prompt": ["good", "fine", "", "x" * 5000], "max_tokens": 5}
    for stream in (True, False):
        reply = http.post("/v1/completions", json=body | {"stream": stream})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "prompt[2]"
    assert server.until_idle().counters.steps == before.steps


def test_a_bad_constraint_refuses_all_prompts(http: httpx.Client) -> None:
    body = {"prompt": ["a", "b"], "max_tokens": 5, "grammar": 'root ::= "a'}
    reply = http.post("/v1/completions", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "grammar"


# --- the best of several ------------------------------------------------------------------------


def test_the_best_are_kept_and_all_are_counted(http: httpx.Client) -> None:
    body = {"prompt": ["abc", "xy"], "n": 1, "best_of": 3, "max_tokens": 3}
    reply = http.post("/v1/completions", json=body).json()
    assert [c["index"] for c in reply["choices"]] == [0, 1]
    assert reply["usage"]["completion_tokens"] == 2 * 3 * 3
    assert all(c["logprobs"] is None for c in reply["choices"])
