import time
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from corral.backend.app import create_app
from corral.backend.settings import Settings


def metric(http: httpx.Client, name: str) -> float:
    for family in text_string_to_metric_families(http.get("/metrics").text):
        for sample in family.samples:
            if sample.name == name:
                return sample.value
    raise AssertionError(f"{name} is missing")


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_a_ready_server_is_healthy(http: httpx.Client, path: str) -> None:
    assert http.get(path).json() == {"status": "ok"}


@pytest.mark.parametrize(
    "path", ["/health", "/v1/health", "/slots", "/metrics", "/props", "/v1/models", "/schema"]
)
def test_probes_may_ask_for_the_head_only(http: httpx.Client, path: str) -> None:
    reply = http.head(path)
    assert (reply.status_code, reply.content) == (200, b"")


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("loading", "loading_model"),
        ("restarting", "engine_died"),
        ("draining", "server_draining"),
        ("failed", "engine_died"),
        ("closed", "server_draining"),
    ],
)
async def test_an_unready_server_says_why(state: str, code: str) -> None:
    async def nothing() -> None: ...

    stub: Any = SimpleNamespace(
        state=state,
        load_progress=0.42,
        info=None,
        snapshot=None,
        model_name="m",
        settings=Settings(),
        start=nothing,
        close=nothing,
    )
    app = create_app(Settings(), stub, frontend_handlers=[])
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        reply = await http.get("/health")
        assert reply.status_code == 503
        error = reply.json()["error"]
        assert (error["type"], error["code"]) == ("unavailable_error", code)
        if state == "loading":
            assert (error["message"], error["progress_percent"]) == ("Loading model", 42)
            assert reply.headers["retry-after"]
        for path in ("/slots", "/props", "/v1/models"):
            assert (await http.get(path)).status_code == 503
        assert (await http.get("/metrics")).status_code == 200


def test_probes_answer_at_once_while_a_prompt_is_read(server: Any, http: httpx.Client) -> None:
    server.control(hold="prefill")
    body = {"prompt": "x" * 1000, "stream": True}
    with http.stream("POST", "/completion", json=body):
        server.until(lambda s: any(slot.n_processed >= 400 for slot in s.slots))
        for path in ("/health", "/slots", "/metrics"):
            began = time.perf_counter()
            reply = http.get(path)
            assert time.perf_counter() - began < 0.1
            assert reply.status_code == 200
        (row,) = [row for row in http.get("/slots").json() if row["is_processing"]]
        assert row["state"] == "reading" and row["n_prompt_tokens"] == 1000
        assert 0 < row["n_prompt_tokens_processed"] + row["n_prompt_tokens_cache"] < 1000
        assert row["next_token"][0]["has_next_token"] is True
        assert metric(http, "llamacpp:requests_processing") == 1
        server.control(hold=None)


def test_slots_fail_on_request_when_none_is_idle(server: Any, http: httpx.Client) -> None:
    assert http.get("/slots?fail_on_no_slot=1").status_code == 200
    server.control(step_ms=20)
    streams = []
    for letter in "ABCD":
        body = {"prompt": letter * 200, "stream": True, "ignore_eos": True}
        request = http.build_request("POST", "/completion", json=body)
        streams.append(http.send(request, stream=True))
    server.until(lambda s: all(slot.state != "idle" for slot in s.slots))
    assert http.get("/slots").status_code == 200
    assert http.get("/slots?fail_on_no_slot=1").status_code == 503
    for stream in streams:
        stream.close()


def test_metrics_count_tokens_and_times(http: httpx.Client) -> None:
    names = ("llamacpp:tokens_predicted_total", "corral_time_to_first_token_seconds_count")
    before = [metric(http, name) for name in names]
    gaps = metric(http, "corral_inter_token_seconds_count")
    http.post("/v1/completions", json={"prompt": "count me", "max_tokens": 5})
    after = [metric(http, name) for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [5, 1]
    assert metric(http, "corral_inter_token_seconds_count") - gaps == 4


def test_scraping_an_idle_server_twice_gives_the_same_text(http: httpx.Client) -> None:
    http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
    first = http.get("/metrics")
    http.get("/health")
    assert http.get("/metrics").content == first.content
    assert first.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_requests_are_counted_by_route_and_status(http: httpx.Client) -> None:
    http.post("/tokenize", json={"content": 5})
    text = http.get("/metrics").text
    assert 'corral_requests_total{route="/tokenize",status="400"}' in text
