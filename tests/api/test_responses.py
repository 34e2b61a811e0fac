"""The Responses API over HTTP, on the fake engine: it repeats what the user said last."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

from corral.backend import ROOT
from corral.backend.api.generation import GenerationBody
from corral.backend.api.responses_schema import ResponsesBody
from corral.backend.errors import Broken
from corral.backend.store import Turn

PATH = "/v1/responses"
HELLO = {"input": "hello there"}


@pytest.fixture
def sdk(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
        yield client


def answered(http: httpx.Client, **body: Any) -> dict[str, Any]:
    reply = http.post(PATH, json={**HELLO, **body})
    assert reply.status_code == 200, reply.text
    out: dict[str, Any] = reply.json()
    return out


def refused(http: httpx.Client, path: str = PATH, **body: Any) -> dict[str, Any]:
    reply = http.post(path, json={**HELLO, **body})
    assert reply.status_code == 400, reply.text
    error: dict[str, Any] = reply.json()["error"]
    return error


def text(response: dict[str, Any]) -> str:
    return str(response["output"][0]["content"][0]["text"])


def n_tokens(http: httpx.Client, **body: Any) -> int:
    reply = http.post(f"{PATH}/input_tokens", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["object"] == "response.input_tokens"
    return int(reply.json()["input_tokens"])


def prompt_size(*turns: tuple[str, str]) -> int:
    """Tokens of a conversation in the fake's template, where a byte is a token."""
    said = sum(1 + len(role) + 1 + len(words.encode()) + 1 + 1 for role, words in turns)
    return said + 1 + len("assistant\n")


@pytest.mark.parametrize("path", [PATH, "/responses"])
def test_a_response_is_answered_with_and_without_the_prefix(http: httpx.Client, path: str) -> None:
    out = http.post(path, json=HELLO).json()
    assert text(out) == "hello there"
    assert (out["object"], out["status"], out["model"]) == ("response", "completed", "fake")
    assert out["usage"]["input_tokens"] == prompt_size(("user", "hello there"))


def test_a_stream_ends_in_the_response_that_is_kept(http: httpx.Client) -> None:
    lines = http.post(PATH, json={**HELLO, "stream": True}).text.strip().split("\n\n")
    named = [line.split("\n") for line in lines if not line.startswith(":")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in named]
    assert [name for name, _ in named] == [f"event: {e['type']}" for e in events]
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    final = events[-1]["response"]
    assert events[-1]["type"] == "response.completed" and text(final) == "hello there"
    assert http.get(f"{PATH}/{final['id']}").json() == final


def test_a_limit_makes_it_incomplete(http: httpx.Client) -> None:
    out = answered(http, max_output_tokens=5)
    assert (text(out), out["status"]) == ("hello", "incomplete")
    assert out["incomplete_details"] == {"reason": "max_output_tokens"}
    assert http.get(f"{PATH}/{out['id']}").json() == out


def test_a_response_follows_another_without_its_instructions(http: httpx.Client) -> None:
    first = answered(http, input="one", instructions="be brief")
    second = answered(http, input="two", previous_response_id=first["id"])
    third = answered(http, input="three", previous_response_id=second["id"], instructions="hm")
    said = ("user", "one"), ("assistant", "one"), ("user", "two"), ("assistant", "two")
    assert first["usage"]["input_tokens"] == prompt_size(("system", "be brief"), said[0])
    assert second["usage"]["input_tokens"] == prompt_size(*said[:3])
    expected = prompt_size(("system", "hm"), *said, ("user", "three"))
    assert third["usage"]["input_tokens"] == expected
    assert (
        n_tokens(http, input="three", previous_response_id=second["id"], instructions="hm")
        == expected
    )


def test_what_is_not_kept_cannot_be_followed_or_fetched(http: httpx.Client) -> None:
    out = answered(http, store=False)
    assert out["store"] is False
    assert http.get(f"{PATH}/{out['id']}").status_code == 404
    error = refused(http, previous_response_id=out["id"])
    assert error["code"] == "previous_response_not_found"
    assert error["param"] == "previous_response_id"


def test_a_deleted_response_is_gone(http: httpx.Client) -> None:
    name = answered(http)["id"]
    expected = {"id": name, "object": "response", "deleted": True}
    assert http.delete(f"{PATH}/{name}").json() == expected
    for reply in (http.get(f"{PATH}/{name}"), http.delete(f"{PATH}/{name}")):
        assert reply.status_code == 404
        assert reply.json()["error"]["type"] == "not_found_error"


def test_input_items_come_in_pages(sdk: openai.OpenAI) -> None:
    said: Any = [{"role": "user", "content": str(i)} for i in range(5)]
    out = sdk.responses.create(model="m", input=said)
    pages = sdk.responses.input_items.list(out.id, limit=2, order="asc")
    texts = [item.content[0].text for item in pages]  # type: ignore[union-attr]
    assert texts == ["0", "1", "2", "3", "4"]
    newest = sdk.responses.input_items.list(out.id, limit=2)
    assert [i.content[0].text for i in newest.data] == ["4", "3"]  # type: ignore[union-attr]
    assert newest.has_more is True


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=no", "after")],
)
def test_a_bad_page_is_refused(http: httpx.Client, query: str, param: str) -> None:
    name = answered(http)["id"]
    reply = http.get(f"{PATH}/{name}/input_items?{query}")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_an_item_can_be_sent_by_its_name(http: httpx.Client) -> None:
    first = answered(http, input="one")
    said = http.get(f"{PATH}/{first['id']}/input_items").json()["data"][0]
    came = first["output"][0]
    names = [{"type": "item_reference", "id": said["id"]}, {"id": came["id"]}]
    out = answered(http, input=[*names, {"role": "user", "content": "two"}])
    turns = ("user", "one"), ("assistant", "one"), ("user", "two")
    assert out["usage"]["input_tokens"] == prompt_size(*turns)
    error = refused(http, input=[{"type": "item_reference", "id": "msg_none"}])
    assert error["param"] == "input[0].id"


def test_a_running_response_can_be_looked_at_and_cancelled(server: Any, http: httpx.Client) -> None:
    server.control(hold="decode", after=3)
    with http.stream("POST", PATH, json={"input": "x" * 50, "stream": True}) as stream:
        events = (
            json.loads(line.removeprefix("data: "))
            for line in stream.iter_lines()
            if line.startswith("data: ")
        )
        name = next(events)["response"]["id"]
        assert next(e for e in events if e["type"] == "response.output_text.delta")
        seen = http.get(f"{PATH}/{name}").json()
        assert seen["status"] == "in_progress" and text(seen).startswith("x")
        cancelled = http.post(f"{PATH}/{name}/cancel").json()
        assert cancelled["status"] == "cancelled"
        last = list(events)[-1]
    assert last["response"] == cancelled == http.get(f"{PATH}/{name}").json()
    again = http.post(f"{PATH}/{name}/cancel")
    assert again.status_code == 400 and "ended" in again.json()["error"]["message"]
    assert http.post(f"{PATH}/resp_none/cancel").status_code == 404


def test_an_engine_that_dies_makes_the_response_failed(run_server: Any, tmp_path: Path) -> None:
    with (
        run_server(data_dir=tmp_path) as server,
        httpx.Client(base_url=server.url, timeout=20) as http,
    ):
        server.control(hold="decode", after=3)
        body = {"input": "x" * 50, "stream": True}
        with http.stream("POST", PATH, json=body) as reply:
            lines = (line for line in reply.iter_lines() if line.startswith("data: "))
            assert [next(lines) for _ in range(5)]
            server.control(crash="exit", hold=None)
            error, failed = [json.loads(line[6:]) for line in lines][-2:]
        assert (error["type"], error["code"]) == ("error", "engine_died")
        assert failed["type"] == "response.failed"
        assert failed["response"]["error"]["code"] == "server_error"
        kept = http.get(f"{PATH}/{failed['response']['id']}").json()
        assert kept == failed["response"]
        assert text(kept).startswith("x")


@pytest.mark.parametrize("stream", [True, False])
def test_a_response_that_cannot_be_kept_has_failed(
    server: Any, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    async def put(turn: Turn) -> None:
        raise Broken("the disk is full")

    monkeypatch.setattr(server.app.state.responses, "put", put)
    reply = http.post(PATH, json={**HELLO, "stream": stream})
    if not stream:
        assert reply.status_code == 500 and "disk" in reply.json()["error"]["message"]
        return
    last = json.loads(reply.text.strip().split("\n\n")[-1].split("data: ")[1])
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert "disk" in last["response"]["error"]["message"]


def test_odd_characters_in_names_are_taken_or_refused(http: httpx.Client) -> None:
    for raw in (r'"a\u0000b"', r'"\ud800"', '"💥"', '""'):
        body = f'{{"input": "x", "previous_response_id": {raw}}}'.encode()
        assert http.post(PATH, content=body).status_code == 400
        body = f'{{"input": [{{"role": "user", "content": "x", "id": {raw}}}]}}'.encode()
        assert http.post(PATH, content=body).status_code in (200, 400)
    for name in ("%00", "%ff", "%F0%9F%92%A5", "a%2Fb"):
        assert http.get(f"{PATH}/{name}").status_code == 404


def test_a_client_that_leaves_ends_its_response(server: Any, http: httpx.Client) -> None:
    server.control(hold="decode", after=3)
    with http.stream("POST", PATH, json={"input": "x" * 50, "stream": True}) as stream:
        assert next(stream.iter_lines())
    server.until_idle()
    assert len(server.app.state.running_responses) == 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"truncation": "auto"}, "truncation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"n": 2}, "n"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": ["nonsense"]}, "include[0]"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata[...]"),
        ({"metadata": {str(i): "v" for i in range(17)}}, "metadata"),
        ({"max_output_tokens": -2}, "max_output_tokens"),
        ({"max_output_tokens": 5, "max_tokens": 6}, "max_completion_tokens"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": 5}}}, "text.format.schema"),
        (
            {"text": {"format": {"type": "text"}}, "response_format": {"type": "text"}},
            "text.format",
        ),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": 5}, "input"),
        ({"temperature": 101}, "temperature"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused_by_name(
    http: httpx.Client, body: dict[str, Any], param: str
) -> None:
    error = refused(http, **body)
    assert error["param"] == param, error


def test_tools_are_taken_where_none_may_be_called(http: httpx.Client) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    out = answered(http, tools=[tool], tool_choice="none")
    assert (out["tools"], out["tool_choice"]) == ([tool], "none")


def test_a_prompt_that_cannot_fit_is_the_fault_of_the_input(http: httpx.Client) -> None:
    error = refused(http, input="x" * 20_000)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")


def test_a_kept_response_is_not_streamed(http: httpx.Client) -> None:
    name = answered(http)["id"]
    reply = http.get(f"{PATH}/{name}?stream=true")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "stream")
    assert http.get(f"{PATH}/{name}?stream=false").status_code == 200
    assert http.get(f"{PATH}/resp_none").status_code == 404


def test_every_field_is_in_the_page() -> None:
    page = (ROOT / "docs" / "responses.md").read_text()
    shared = {field.name for field in msgspec.structs.fields(GenerationBody)}
    for field in msgspec.structs.fields(ResponsesBody):
        assert field.name in shared or f"`{field.name}`" in page, field.name


def test_tools_reach_the_template_in_the_shape_of_a_chat_request(http: httpx.Client) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    body = ResponsesBody(input="x", tools=[tool], tool_choice="none")
    function = {"name": "f", "parameters": {"type": "object"}}
    asked = body.request([], 10)
    assert [t.source for t in asked.tools] == [{"type": "function", "function": function}]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"reasoning": {"effort": "none"}}, {"enable_thinking": False}),
        ({"reasoning": {"effort": "low"}}, {"enable_thinking": True, "reasoning_effort": "low"}),
        (
            {"reasoning": {"effort": "none"}, "chat_template_kwargs": {"enable_thinking": True}},
            {"enable_thinking": True},
        ),
    ],
    ids=str,
)
def test_effort_becomes_variables_of_the_template(body: Any, expected: Any) -> None:
    read = msgspec.convert({"input": "x", **body}, ResponsesBody)
    assert read.request([], 10).template_kwargs == expected


def test_settings_mean_what_they_mean_elsewhere() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    body = {"input": "x", "max_output_tokens": 7, "min_p": 0.2, "text": {"format": form}}
    params = msgspec.convert(body, ResponsesBody).settings(10)
    assert (params.max_tokens, params.min_p) == (7, 0.2)
    assert params.constraint is not None
    assert json.loads(params.constraint.source) == schema
    assert params.constraint_at == "text.format.schema"
