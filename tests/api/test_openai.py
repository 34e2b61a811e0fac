"""OpenAI's official client, and what it cannot see."""

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture
def sdk(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_chat_is_answered_whole(sdk: openai.OpenAI) -> None:
    reply = sdk.chat.completions.create(model="gpt-4", messages=HELLO)
    assert reply.choices[0].message.content == "hello"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model == "fake"
    assert reply.usage is not None and reply.usage.total_tokens == reply.usage.prompt_tokens + 6


def test_a_chat_is_streamed(sdk: openai.OpenAI) -> None:
    stream = sdk.chat.completions.create(
        model="m", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content is None
    texts = [c.choices[0].delta.content for c in chunks[1:-2]]
    assert "".join(t or "" for t in texts) == "hello" and all(texts)
    *others, last = [c.choices[0].finish_reason for c in chunks[:-1]]
    assert set(others) == {None} and last == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 6
    assert len({c.id for c in chunks}) == 1


def test_the_accumulating_helper_reads_the_stream_to_the_same_answer(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(
        model="m", messages=HELLO, extra_body={"return_progress": True}
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "hello"
    assert final.choices[0].message.role == "assistant"


def test_a_text_completion_is_the_same_whole_and_streamed(sdk: openai.OpenAI) -> None:
    whole = sdk.completions.create(model="m", prompt="abc", max_tokens=7)
    assert whole.choices[0].finish_reason == "length"
    assert len(whole.choices[0].text) == 7
    stream = sdk.completions.create(model="m", prompt="abc", max_tokens=7, stream=True)
    assert "".join(c.choices[0].text for c in stream) == whole.choices[0].text


def test_a_stop_string_ends_the_answer_and_is_not_in_it(sdk: openai.OpenAI) -> None:
    reply = sdk.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "one STOP two"}], stop=["STOP"]
    )
    assert reply.choices[0].message.content == "one "
    assert reply.choices[0].finish_reason == "stop"


def test_content_parts_are_joined_by_newlines(sdk: openai.OpenAI) -> None:
    parts: Any = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    reply = sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": parts}])
    assert reply.choices[0].message.content == "one\ntwo"


def test_the_models_are_listed_and_found_by_name(sdk: openai.OpenAI) -> None:
    (model,) = sdk.models.list().data
    assert sdk.models.retrieve(model.id).id == "fake"
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("some/other")


def test_a_bad_request_is_the_clients_own_error_class(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.chat.completions.create(model="m", messages=HELLO, temperature=500)
    assert raised.value.param == "temperature"


def test_no_messages_are_the_templates_business(http: httpx.Client) -> None:
    assert http.post("/v1/chat/completions", json={"messages": []}).status_code == 200


def test_the_seed_that_was_used_is_reported_and_zero_is_one(http: httpx.Client) -> None:
    body = {"messages": HELLO, "max_tokens": 1}
    assert http.post("/v1/chat/completions", json=body | {"seed": 0}).json()["seed"] == 0
    drawn = [
        http.post("/v1/chat/completions", json=body | {"seed": seed}).json()["seed"]
        for seed in (-1, 2**32 - 1, None)
    ]
    assert len(set(drawn)) == 3 and min(drawn) >= 0 and max(drawn) < 2**32 - 1


@pytest.mark.parametrize("path", ["/chat/completions", "/models", "/models/fake"])
def test_routes_work_without_their_prefix(http: httpx.Client, path: str) -> None:
    if path.startswith("/chat"):
        assert http.post(path, json={"messages": HELLO}).json()["object"] == "chat.completion"
    else:
        assert http.get(path).json() == http.get(f"/v1{path}").json()


def test_a_streams_headers_come_before_its_first_token(server: Any, http: httpx.Client) -> None:
    server.control(hold="prefill")
    body = {"messages": [{"role": "user", "content": "x" * 300}], "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["x-accel-buffering"] == "no"
        lines = (line for line in reply.iter_lines() if line)
        assert '"role":"assistant"' in next(lines)
        assert next(lines) == ": ping"
        server.control(hold=None)
        assert list(lines)[-1] == "data: [DONE]"


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


def prompts(n: int) -> list[dict[str, Any]]:
    """Prompts that share nothing and take more than one step to read."""
    return [{"prompt": chr(65 + i) * 1000, "max_tokens": 1} for i in range(n)]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("hold", ["prefill", "decode"])
def test_a_client_that_leaves_frees_its_slot(server: Any, hold: str, stream: bool) -> None:
    server.control(hold=hold)
    body = {"messages": [{"role": "user", "content": "x" * 300}], "stream": stream}
    with sent(server, "/v1/chat/completions", [body]):
        server.until(lambda s: any(slot.state != "idle" for slot in s.slots))
    server.until_idle()


def test_a_client_that_leaves_the_queue_is_dropped(server: Any) -> None:
    server.control(hold="prefill")
    with sent(server, "/completion", prompts(6)):
        server.until(lambda s: len(s.waiting) + sum(x.state != "idle" for x in s.slots) == 6)
    server.until_idle()


def test_a_full_queue_is_503_and_says_when_to_come_back(server: Any, http: httpx.Client) -> None:
    server.control(hold="prefill")
    with sent(server, "/completion", prompts(12)):  # four slots, eight may wait
        server.until(lambda s: len(s.waiting) + sum(x.state != "idle" for x in s.slots) == 12)
        reply = http.post("/v1/completions", json={"prompt": "abc", "stream": True})
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "queue_full"
    assert int(reply.headers["retry-after"]) >= 1


def test_an_engine_that_dies_mid_stream_ends_it_in_an_error_and_the_next_works(
    run_server: Any,
) -> None:
    with run_server() as server, httpx.Client(base_url=server.url, timeout=20) as http:
        server.control(hold="decode", after=3)
        body = {"messages": [{"role": "user", "content": "x" * 50}], "stream": True}
        with http.stream("POST", "/v1/chat/completions", json=body) as reply:
            lines = (line for line in reply.iter_lines() if line)
            assert [next(lines) for _ in range(3)]
            server.control(crash="exit", hold=None)
            last = list(lines)[-1]
        assert '"code":"engine_died"' in last
        assert http.post("/v1/chat/completions", json={"messages": HELLO}).status_code == 200
