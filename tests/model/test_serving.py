"""A real server process on the real model, met by real clients."""

import concurrent.futures
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

pytestmark = pytest.mark.model

HI = [{"role": "user", "content": "Hi"}]
LONG = "The trains leave every morning at eight and come back in the evening. " * 100


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The JSON events of a stream, as they come."""
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


@pytest.fixture
def sdk(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none") as client:
        yield client


def until_idle(client: httpx.Client) -> list[dict[str, Any]]:
    """The slots, once nothing is processed. Fails after 20 seconds."""
    deadline = time.monotonic() + 20
    while True:
        slots: list[dict[str, Any]] = client.get("/slots").json()
        if not any(s["is_processing"] for s in slots):
            return slots
        assert time.monotonic() < deadline, slots
        time.sleep(0.02)


def test_start_up_prints_address_model_context_and_slots(server: Any) -> None:
    server.wait_for(
        r"Ready: http://127.0.0.1:\d+\n"
        r"  model    SmolLM2-135M-Instruct.Q4_1 .*\n  context  8192 tokens\n  slots    4\n"
    )


def test_the_openai_client_chats_without_streaming(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(model="any", messages=HI, temperature=0, max_tokens=20)
    assert "Hello" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_openai_client_streams_the_same_text(sdk: openai.OpenAI) -> None:
    # One text fits: without a schema even greedy answers may differ where two words are near a tie,
    # as a prompt read whole rounds otherwise than one of which the cache holds a part.
    form = {"name": "greeting", "schema": {"const": "Hello! How may I help you today?"}}
    asked: Any = {
        "model": "any",
        "messages": HI,
        "temperature": 0,
        "max_tokens": 40,
        "response_format": {"type": "json_schema", "json_schema": form},
    }
    whole = sdk.chat.completions.create(**asked)
    chunks = list(
        sdk.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks[:-1]][-1] == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage is not None


def test_the_openai_client_completes_text_and_lists_the_model(sdk: openai.OpenAI) -> None:
    answer = sdk.completions.create(
        model="any", prompt="The capital of France is", temperature=0, max_tokens=3, seed=0
    )
    assert "Paris" in answer.choices[0].text
    assert [m.id for m in sdk.models.list()] == ["SmolLM2-135M-Instruct.Q4_1"]


def test_a_stop_string_ends_the_answer_and_is_not_shown(client: httpx.Client) -> None:
    body = {"prompt": "1, 2, 3, 4,", "temperature": 0, "n_predict": 40, "stop": [" 8", "9"]}
    answer = client.post("/completion", json=body).json()
    assert answer["stop_type"] == "word" and answer["stopping_word"] == " 8"
    assert answer["content"] == " 5, 6, 7,"


def test_a_prompt_that_can_never_fit_is_refused_with_both_counts(client: httpx.Client) -> None:
    reply = client.post("/completion", json={"prompt": [100] * 9000, "stream": True})
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["code"] == "context_length_exceeded"
    assert (error["n_prompt_tokens"], error["n_ctx"], error["param"]) == (9000, 8192, "prompt")


def test_probes_answer_at_once_while_a_long_prompt_is_read(client: httpx.Client) -> None:
    body = {"prompt": LONG, "n_predict": 1, "stream": True, "return_progress": True}
    with client.stream("POST", "/completion", json=body) as stream:
        seen = []
        for event in events(stream):
            if progress := event.get("prompt_progress"):
                seen.append(progress)
                if 0 < progress["processed"] < progress["total"]:
                    for path in ("/health", "/slots", "/metrics"):
                        began = time.perf_counter()
                        assert client.get(path).status_code == 200
                        # The step that runs meanwhile takes far longer than this.
                        assert time.perf_counter() - began < 0.1, path
                    (row,) = [s for s in client.get("/slots").json() if s["is_processing"]]
                    assert row["n_prompt_tokens"] == progress["total"]
                    assert row["n_prompt_tokens_processed"] <= progress["total"]
    done = [p["processed"] for p in seen]
    assert done == sorted(done) and done[-1] == seen[-1]["total"]
    assert len(done) > 3 and done[0] == seen[0]["cache"]


def test_leaving_during_the_prompt_frees_the_slot(client: httpx.Client) -> None:
    body = {"prompt": "Another " + LONG, "n_predict": 50, "stream": True, "return_progress": True}
    with client.stream("POST", "/completion", json=body) as stream:
        next(events(stream))
    until_idle(client)


def test_sixty_mixed_requests_with_random_departures_leave_all_slots_idle(
    server: Any, client: httpx.Client
) -> None:
    rng = random.Random(7)

    def one(i: int) -> tuple[int, str | None]:
        topic = f"item number {i}"
        body = {"messages": [{"role": "user", "content": f"Say: {topic}"}], "max_tokens": 12}
        patience = rng.randrange(8) if i % 3 == 0 else None
        with httpx.Client(base_url=server.url, timeout=120) as mine:
            if i % 4 == 1:
                answer = mine.post("/v1/chat/completions", json=body)
                assert answer.status_code == 200, answer.text
                return i, answer.json()["choices"][0]["message"]["content"]
            with mine.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as s:
                text = ""
                for n, event in enumerate(events(s), 1):
                    if patience is not None and n > patience:
                        return i, None
                    text += event["choices"][0]["delta"].get("content") or ""
                return i, text

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = dict(pool.map(one, range(60)))
    assert sum(text is not None for text in answers.values()) >= 40
    assert all(text for text in answers.values() if text is not None)
    assert len(until_idle(client)) == 4
    assert client.post("/completion", json={"prompt": "Hi", "n_predict": 2}).status_code == 200


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGABRT])
def test_when_the_engine_dies_each_stream_ends_once_and_service_returns(
    server: Any, client: httpx.Client, how: signal.Signals
) -> None:
    body = {"prompt": "Once", "n_predict": 2000, "ignore_eos": True, "stream": True}
    errors = []
    with client.stream("POST", "/completion", json=body) as stream:
        for n, event in enumerate(events(stream)):
            if n == 3:
                os.kill(server.engine_pid(), how)
            if "error" in event:
                errors.append(event["error"])
    assert [e["code"] for e in errors] == ["engine_died"]
    assert how.name in errors[0]["message"]
    answer = client.post("/completion", json={"prompt": "Hi", "n_predict": 2})
    assert answer.status_code == 200, answer.text


def test_a_termination_signal_lets_the_running_answer_finish(serve: Any, tmp_path: Path) -> None:
    with serve("--threads", "1", "--data-dir", str(tmp_path)) as server:
        body = {"prompt": "Once", "n_predict": 150, "ignore_eos": True, "stream": True}
        with (
            httpx.Client(base_url=server.url, timeout=60) as client,
            client.stream("POST", "/completion", json=body) as stream,
        ):
            engine = server.engine_pid()
            arriving = events(stream)
            next(arriving)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("finishing running requests")
            health = httpx.get(server.url + "/health")
            assert health.status_code == 503
            refused = httpx.post(server.url + "/completion", json={"prompt": "x"})
            assert refused.status_code == 503 and "retry-after" in refused.headers
            last = list(arriving)[-1]
        assert last["stop"] is True and last["tokens_predicted"] == 150
        assert server.process.wait(20) == 0
        assert not Path(f"/proc/{engine}").exists()


def test_an_answer_that_outlasts_the_drain_ends_in_an_error(serve: Any, tmp_path: Path) -> None:
    flags = ("--threads", "1", "--data-dir", str(tmp_path), "--drain-timeout", "0.3")
    with serve(*flags) as server:
        body = {"prompt": "Once", "n_predict": 5000, "ignore_eos": True, "stream": True}
        with (
            httpx.Client(base_url=server.url, timeout=60) as client,
            client.stream("POST", "/completion", json=body) as stream,
        ):
            arriving = events(stream)
            next(arriving)
            server.process.send_signal(signal.SIGTERM)
            last = list(arriving)[-1]
        assert last["error"]["code"] == "server_draining"
        assert server.process.wait(20) == 0


def test_the_engine_does_not_outlive_a_killed_server(serve: Any, tmp_path: Path) -> None:
    with serve("--threads", "1", "--data-dir", str(tmp_path)) as server:
        assert server.url
        engine = server.engine_pid()
        server.process.kill()
        server.process.wait()
        deadline = time.monotonic() + 5
        while Path(f"/proc/{engine}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_model_that_cannot_be_loaded_ends_the_server_with_the_reason(
    serve: Any, tmp_path: Path, model_path: Path
) -> None:
    cut, text = tmp_path / "cut.gguf", tmp_path / "text.gguf"
    cut.write_bytes(model_path.read_bytes()[:5_000_000])
    text.write_text("this is not a model")
    reasons = {
        tmp_path / "missing.gguf": "no such file",
        tmp_path: "not a file",
        text: "not a GGUF file",
        cut: "not within the file bounds",
    }
    for path, reason in reasons.items():
        with serve("-m", str(path), "--data-dir", str(tmp_path)) as server:
            assert server.process.wait(30) == 3
            server.wait_for(reason)
            server.wait_for(str(path))
