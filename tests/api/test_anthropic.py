"""Anthropic's API over HTTP, on the fake engine: it repeats what the user said last."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import msgspec
import pytest

from corral.backend import ROOT
from corral.backend.api.anthropic_schema import MessagesBody
from corral.backend.api.generation import GenerationBody

PATH = "/v1/messages"
HELLO: dict[str, Any] = {
    "model": "claude-x",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "hello there"}],
}


@pytest.fixture
def sdk(server: Any) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0) as client:
        yield client


def refused(http: httpx.Client, body: dict[str, Any], status: int = 400) -> dict[str, Any]:
    reply = http.post(PATH, json=HELLO | body)
    assert reply.status_code == status, reply.text
    out = reply.json()
    assert out["type"] == "error" and set(out) == {"type", "error", "request_id"}
    assert out["request_id"] == reply.headers["request-id"] == reply.headers["x-request-id"]
    error: dict[str, Any] = out["error"]
    return error


def prompt_size(*turns: tuple[str, str]) -> int:
    """Tokens of a conversation in the fake's template, where a byte is a token."""
    said = sum(1 + len(role) + 1 + len(words.encode()) + 1 + 1 for role, words in turns)
    return said + 1 + len("assistant\n")


def n_tokens(http: httpx.Client, **body: Any) -> int:
    reply = http.post(f"{PATH}/count_tokens", json=body)
    assert reply.status_code == 200, reply.text
    assert set(reply.json()) == {"input_tokens"}
    return int(reply.json()["input_tokens"])


def test_a_message_is_answered_under_the_name_that_was_asked_for(http: httpx.Client) -> None:
    reply = http.post(PATH, json=HELLO)
    out = reply.json()
    assert out["content"] == [{"type": "text", "text": "hello there"}]
    assert (out["type"], out["role"], out["model"]) == ("message", "assistant", "claude-x")
    assert (out["stop_reason"], out["stop_sequence"]) == ("end_turn", None)
    used = out["usage"]
    expected = prompt_size(("user", "hello there"))
    assert used["input_tokens"] + used["cache_read_input_tokens"] == expected
    assert reply.headers["request-id"] == reply.headers["x-request-id"]


def test_a_stream_has_anthropic_s_events_and_no_done(http: httpx.Client) -> None:
    said = http.post(PATH, json={**HELLO, "stream": True}).text.strip().split("\n\n")
    named = [line.split("\n") for line in said if not line.startswith(":")]
    assert [name for name, _ in named if "delta" not in name] == [
        "event: message_start",
        "event: content_block_start",
        "event: ping",
        "event: content_block_stop",
        "event: message_stop",
    ]
    assert all(data.startswith('data: {"type":"' + name[7:]) for name, data in named)


def test_a_stop_sequence_is_told_and_a_limit_too(sdk: anthropic.Anthropic) -> None:
    asked: Any = HELLO["messages"]
    out = sdk.messages.create(model="m", max_tokens=50, messages=asked, stop_sequences=["the"])
    assert (out.stop_reason, out.stop_sequence) == ("stop_sequence", "the")
    assert out.content[0].text == "hello "  # type: ignore[union-attr]
    out = sdk.messages.create(model="m", max_tokens=4, messages=asked)
    assert (out.stop_reason, out.content[0].text) == ("max_tokens", "hell")  # type: ignore[union-attr]


def test_system_and_blocks_become_one_conversation(http: httpx.Client) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "Rome"}}
    body = {
        "model": "m",
        "system": [
            {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "b"},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "c"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "redacted_thinking", "data": "zzz"},
                    {"type": "text", "text": "d"},
                    call,
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "e"},
                    {"type": "tool_result", "tool_use_id": "t1", "content": "sun"},
                    {"type": "tool_result", "tool_use_id": "t2", "is_error": True},
                ],
            },
        ],
    }
    # The fake's template knows no tools: calls and results are told in words.
    said = 'd\n<tool_call>\n{"name": "look", "arguments": {"at": "Rome"}}\n</tool_call>'
    results = "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in ("sun", ""))
    turns = [("system", "a\nb"), ("user", "c"), ("assistant", said), ("user", results)]
    assert n_tokens(http, **body) == prompt_size(*turns, ("user", "e"))


def test_plain_forms_mean_the_same_as_blocks(http: httpx.Client) -> None:
    plain = n_tokens(http, system="s", messages=[{"role": "user", "content": "c"}])
    blocks = [{"type": "text", "text": "c"}]
    listed = n_tokens(
        http,
        system=[{"type": "text", "text": "s"}],
        messages=[{"role": "user", "content": blocks}],
    )
    assert plain == listed == prompt_size(("system", "s"), ("user", "c"))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].source.type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "magic"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "x"}]}]},
            "messages[0].content[0].input",
        ),
        ({"messages": [*HELLO["messages"], {"role": "assistant", "content": "I"}]}, "messages[1]"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "magic"}}, "tool_choice"),
        ({"thinking": {"type": "loud"}}, "thinking.type"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": ["a"] * 65}, "stop_sequences"),
        ({"stop_sequences": ["a"], "stop": "b"}, "stop_sequences"),
        ({"n": 2}, "n"),
        ({"n_probs": 2}, "logprobs"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused_by_name(
    http: httpx.Client, body: dict[str, Any], param: str
) -> None:
    error = refused(http, body)
    assert (error["type"], error["param"]) == ("invalid_request_error", param), error


def test_max_tokens_is_needed(http: httpx.Client) -> None:
    reply = http.post(PATH, json={"messages": HELLO["messages"]})
    assert reply.json()["error"]["param"] == "max_tokens"


def test_tools_are_taken_where_none_may_be_called(http: httpx.Client) -> None:
    tool = {"name": "f", "input_schema": {"type": "object"}, "cache_control": None}
    body = HELLO | {"tools": [tool], "tool_choice": {"type": "none"}}
    assert http.post(PATH, json=body).status_code == 200


def test_every_error_has_the_api_s_own_shape(http: httpx.Client) -> None:
    replies = {
        400: http.post(PATH, content=b"{"),
        404: http.get(f"{PATH}/batches/x"),
        405: http.get(PATH),
        413: http.post(PATH, content=b" " * (2**20 + 1)),
    }
    types = {404: "not_found_error", 413: "request_too_large"}
    for status, reply in replies.items():
        assert reply.status_code == status, reply.text
        out = reply.json()
        assert out["type"] == "error"
        assert out["error"]["type"] == types.get(status, "invalid_request_error")
        assert out["request_id"] == reply.headers["request-id"]


def test_a_caller_s_request_id_is_kept(http: httpx.Client) -> None:
    for body in (HELLO, HELLO | {"max_tokens": 0}):
        reply = http.post(PATH, json=body, headers={"X-Request-Id": "mine"})
        assert reply.headers["request-id"] == reply.headers["x-request-id"] == "mine"


def test_keys_are_asked_for_in_the_api_s_own_shape(run_server: Any, tmp_path: Path) -> None:
    with run_server(api_keys=("sesame",), data_dir=tmp_path) as server:
        asked: Any = {"model": "m", "max_tokens": 5, "messages": HELLO["messages"]}
        with (
            anthropic.Anthropic(base_url=server.url, api_key="no", max_retries=0) as wrong,
            pytest.raises(anthropic.AuthenticationError) as caught,
        ):
            wrong.messages.create(**asked)
        assert caught.value.type == "authentication_error"
        assert caught.value.request_id is not None
        with anthropic.Anthropic(base_url=server.url, api_key="sesame") as right:
            assert right.messages.create(**asked).stop_reason == "max_tokens"
        reply = httpx.post(server.url + PATH, json=HELLO, headers={"x-api-key": "sesame"})
        assert reply.status_code == 200


def test_a_full_queue_is_an_overload(run_server: Any, tmp_path: Path) -> None:
    with (
        run_server(n_slots=1, max_queue=1, data_dir=tmp_path) as server,
        httpx.Client(base_url=server.url, timeout=20) as http,
    ):
        server.control(hold="decode", after=2)
        body = HELLO | {"stream": True}
        with http.stream("POST", PATH, json=body), http.stream("POST", PATH, json=body):
            server.until(lambda s: len(s.waiting) == 1)
            error = refused(http, {}, 503)
    assert error["type"] == "overloaded_error"


def test_an_engine_that_dies_mid_stream_ends_it_in_an_error_event(
    run_server: Any, tmp_path: Path
) -> None:
    with (
        run_server(data_dir=tmp_path) as server,
        httpx.Client(base_url=server.url, timeout=20) as http,
    ):
        server.control(hold="decode", after=3)
        body = HELLO | {"stream": True}
        with http.stream("POST", PATH, json=body) as reply:
            lines = (line for line in reply.iter_lines() if line and not line.startswith(":"))
            assert [next(lines) for _ in range(8)]
            server.control(crash="exit", hold=None)
            *_, name, data = lines
        assert name == "event: error"
        out = json.loads(data.removeprefix("data: "))
        assert (out["type"], out["error"]["type"]) == ("error", "overloaded_error")


def test_other_paths_keep_their_shape(http: httpx.Client) -> None:
    out = http.post("/v1/chat/completions", json={}).json()
    assert set(out) == {"error"}


def test_every_field_is_in_the_page() -> None:
    page = (ROOT / "docs" / "anthropic.md").read_text()
    shared = {field.name for field in msgspec.structs.fields(GenerationBody)}
    for field in msgspec.structs.fields(MessagesBody):
        assert field.name in shared or f"`{field.name}`" in page, field.name


def test_tools_and_thinking_become_variables_of_the_template() -> None:
    tool = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    body = HELLO | {"tools": [tool], "tool_choice": {"type": "none"}}
    body |= {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}
    asked = msgspec.convert(body, MessagesBody).request(10)
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert asked.template_kwargs == {"enable_thinking": False, "reasoning_effort": "low"}
    assert [t.source for t in asked.tools] == [{"type": "function", "function": function}]
    assert asked.tool_choice == "none"


def test_settings_mean_what_they_mean_elsewhere() -> None:
    form = {"type": "json_schema", "schema": {"type": "object", "required": ["a"]}}
    body = HELLO | {"stop_sequences": ["x", ""], "min_p": 0.2, "output_config": {"format": form}}
    params = msgspec.convert(body, MessagesBody).settings(10)
    assert (params.max_tokens, params.min_p, params.stop) == (100, 0.2, ("x",))
    assert params.constraint is not None
    assert json.loads(params.constraint.source) == form["schema"]
    assert params.constraint_at == "output_config.format.schema"
