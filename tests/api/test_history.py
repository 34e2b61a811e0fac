"""Earlier turns as clients send them: calls with broken arguments, refusals, and where faults are
said to be."""

import json
from typing import Any

import httpx
import pytest

from corral.backend.api.history import in_new_words
from corral.backend.errors import Refused

CHAT = "/v1/chat/completions"
ASK = {"role": "user", "content": "q"}
HALF = r'{"a": "\ud83d"}'
BROKEN = [
    HALF,
    r'{"\ud83d": 1}',
    r'{"a": ["\ude00\ud83d"]}',
    "[" * 3_000,
    '{"a": ' + "[" * 400 + "]" * 400 + "}",
    '{"a": ' + "[" * 150 + "]" * 150 + "}",
    '{"a"',
    "",
]


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def after(**turn: Any) -> list[dict[str, Any]]:
    result = {"role": "tool", "tool_call_id": "1", "content": "x"}
    return [ASK, {"role": "assistant", **turn}, result]


def refusal(reply: httpx.Response) -> tuple[str | None, str]:
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    return error.get("param"), error["message"]


@pytest.mark.parametrize("arguments", BROKEN, ids=lambda text: text[:20])
@pytest.mark.parametrize("path", [CHAT, "/apply-template", f"{CHAT}/input_tokens"])
def test_broken_arguments_of_earlier_calls_are_taken_as_text(
    http: httpx.Client, path: str, arguments: str
) -> None:
    for turn in (
        {"tool_calls": [call(arguments)]},
        {"function_call": {"name": "f", "arguments": arguments}},
    ):
        reply = http.post(path, json={"messages": after(**turn), "max_tokens": 1})
        assert reply.status_code == 200, reply.text[:300]


@pytest.mark.parametrize("arguments", BROKEN, ids=lambda text: text[:20])
def test_broken_arguments_of_an_earlier_response_are_taken_as_text(
    http: httpx.Client, arguments: str
) -> None:
    items = [
        ASK,
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": arguments},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
    ]
    reply = http.post("/v1/responses", json={"input": items, "max_output_tokens": 1})
    assert reply.status_code == 200, reply.text[:300]
    kept = http.get(f"/v1/responses/{reply.json()['id']}/input_items?order=asc").json()["data"]
    assert kept[1]["arguments"] == arguments


@pytest.mark.parametrize(
    ("turn", "param"),
    [
        ({"tool_calls": "x"}, "tool_calls"),
        ({"tool_calls": {"id": "1"}}, "tool_calls"),
        ({"tool_calls": [1]}, "tool_calls[0]"),
        ({"tool_calls": [call("{}"), {"id": "1"}]}, "tool_calls[1].function"),
        ({"tool_calls": [{"id": "1", "type": "function"}]}, "tool_calls[0].function"),
        ({"tool_calls": [{"type": "custom", "custom": {"name": "f"}}]}, "tool_calls[0].type"),
        ({"tool_calls": [call("{}") | {"id": 5}]}, "tool_calls[0].id"),
        ({"tool_calls": [{"function": {"arguments": "{}"}}]}, "tool_calls[0].function.name"),
        ({"tool_calls": [{"function": {"name": ""}}]}, "tool_calls[0].function.name"),
        ({"tool_calls": [call([1])]}, "tool_calls[0].function.arguments"),
        ({"tool_calls": [call(5)]}, "tool_calls[0].function.arguments"),
        ({"function_call": "x"}, "function_call"),
        ({"function_call": {"arguments": "{}"}}, "function_call.name"),
        ({"function_call": {"name": "f", "arguments": 1}}, "function_call.arguments"),
    ],
    ids=str,
)
def test_what_is_no_call_is_refused_with_its_place(
    http: httpx.Client, turn: dict[str, Any], param: str
) -> None:
    for path in (CHAT, "/apply-template"):
        named, message = refusal(http.post(path, json={"messages": after(**turn)}))
        assert named == f"messages[1].{param}" and named in message


def test_calls_that_are_absent_null_or_without_arguments_are_none_or_have_no_arguments() -> None:
    for fields in ({}, {"tool_calls": None}, {"function_call": None}, {"tool_calls": []}):
        assert not in_new_words("assistant", dict(fields), "m")[1].get("tool_calls")
    for function in ({"name": "f"}, {"name": "f", "arguments": None}):
        _, fields = in_new_words("assistant", {"tool_calls": [{"function": function}]}, "m")
        assert fields["tool_calls"][0]["function"]["arguments"] == "{}"
    with pytest.raises(Refused):
        in_new_words("assistant", {"function_call": 1, "tool_calls": []}, "m")


def test_a_refusal_is_what_the_assistant_said(http: httpx.Client) -> None:
    def prompt(*turns: dict[str, Any]) -> str:
        reply = http.post("/apply-template", json={"messages": [ASK, *turns, ASK]})
        assert reply.status_code == 200, reply.text
        return str(reply.json()["prompt"])

    plain = prompt({"role": "assistant", "content": "No."})
    part = {"type": "refusal", "refusal": "No."}
    assert prompt({"role": "assistant", "content": [part]}) == plain
    assert prompt({"role": "assistant", "content": None, "refusal": "No."}) == plain
    assert prompt({"role": "assistant", "content": "No.", "refusal": None}) == plain
    for turn, param in (
        ({"role": "user", "content": [part]}, "messages[0].content[0].type"),
        (
            {"role": "assistant", "content": [{"type": "refusal"}]},
            "messages[0].content[0].refusal",
        ),
    ):
        assert refusal(http.post(CHAT, json={"messages": [turn, ASK]}))[0] == param


@pytest.mark.parametrize(
    ("text", "half", "at"),
    [
        (r"\ud83d", r"\ud83d", 0),
        (r"ab\ud83dx", r"\ud83d", 2),
        (r"\ud83d\n", r"\ud83d", 0),
        (r"\ud83d\ude00\ude00", r"\ude00", 12),
        (r"\\ud83d\uD83D\ud83d", r"\uD83D", 7),
        (r"\ude00\ud83d", r"\ude00", 0),
    ],
)
def test_half_a_character_in_a_body_is_called_that(
    http: httpx.Client, text: str, half: str, at: int
) -> None:
    before = '{"messages": [{"role": "user", "content": "'
    reply = http.post(CHAT, content=f'{before}{text}"}}]}}')
    _, message = refusal(reply)
    assert "half of a character" in message and "too early" not in message
    assert f"{half} at byte {len(before) + at} " in message


def test_a_body_that_ends_too_early_is_called_that(http: httpx.Client) -> None:
    for text in (r'{"messages": [{"content": "\ud83d\ude00 \\ud83d', '{"messages": ['):
        assert "it ends too early" in refusal(http.post(CHAT, content=text))[1]


# --- where faults are said to be ------------------------------------------------------------------

BAD = {"type": "object", "properties": {"a": {"not": {}}}}
ARRAY = {"type": "array"}
TURN = {"messages": [ASK], "max_tokens": 1}


@pytest.mark.parametrize(
    ("path", "body", "at"),
    [
        ("/v1/messages", {"tools": [{"name": "f", "input_schema": None}]}, "tools[0].input_schema"),
        ("/v1/messages/count_tokens", {"tools": [{"name": "f", "input_schema": None}]}, ""),
        ("/v1/responses", {"tools": [{"type": "function", "name": "f", "parameters": None}]}, ""),
        (CHAT, {"functions": [{"name": "f", "parameters": None}]}, "functions[0].parameters"),
        (
            CHAT,
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": None}}]},
            "tools[0].function.parameters",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_schema_is_called_what_the_client_calls_it(
    http: httpx.Client, path: str, body: dict[str, Any], at: str
) -> None:
    at = at or f"tools[0].{'input_schema' if 'messages' in path else 'parameters'}"
    told = {"input": "q"} if "responses" in path else TURN

    def answer(schema: Any) -> httpx.Response:
        text = json.dumps(body).replace("null", json.dumps(schema))
        return http.post(path, json=told | json.loads(text))

    param, message = refusal(answer(ARRAY))
    assert param == f"{at}.type" and at in message
    if "count" not in path:
        param, message = refusal(answer(BAD))
        assert param == f"{at}.properties.a.not" and at in message


def test_a_tool_keeps_its_number_when_only_some_may_be_called(http: httpx.Client) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in (("f", {"type": "object"}), ("g", BAD))
    ]
    only = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": only}
    reply = http.post(CHAT, json=TURN | {"tools": tools, "tool_choice": choice})
    assert refusal(reply)[0] == "tools[1].function.parameters.properties.a.not"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"functions": [{"name": "f"}] * 2}, "functions[1].name"),
        ({"functions": ["f"]}, "functions[0]"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call"),
        ({"functions": [{"name": "f"}], "function_call": "maybe"}, "function_call"),
    ],
    ids=str,
)
def test_old_functions_are_called_that(http: httpx.Client, body: Any, words: str) -> None:
    param, message = refusal(http.post(CHAT, json=TURN | body))
    assert param == words and message.startswith(words) and "tool" not in message


SAID = {"role": "assistant", "content": "a"}
CALLED = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    ("body", "at"),
    [
        ({"input": [ASK, CALLED]}, "input[1]"),
        ({"input": [ASK, SAID, SAID]}, "input[2]"),
        ({"input": [ASK, SAID, CALLED], "instructions": "x"}, "input[2]"),
        ({"input": [{"role": "system", "content": "x"}, ASK, SAID, SAID]}, "input[3]"),
    ],
    ids=str,
)
def test_an_item_that_cannot_be_continued_is_named(http: httpx.Client, body: Any, at: str) -> None:
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        param, message = refusal(http.post(path, json=body))
        assert param == at and message.startswith(at)


def test_a_system_message_of_a_preset_moves_no_number(http: httpx.Client) -> None:
    http.put("/presets/moves", json={"system": "Be brief."}).raise_for_status()
    try:
        body = {"messages": [ASK, SAID, SAID], "preset": "moves"}
        param, message = refusal(http.post(CHAT, json=body))
        assert param == "messages[2]" and "messages[2]" in message
        body = {"input": [ASK, SAID, SAID], "preset": "moves"}
        assert refusal(http.post("/v1/responses", json=body))[0] == "input[2]"
    finally:
        http.delete("/presets/moves")


def test_the_places_of_a_prompt_are_those_of_the_api(run_server: Any) -> None:
    with run_server(jinja=False) as server, httpx.Client(base_url=server.url) as http:
        use = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "1", "content": "x"}
        turns = ASK, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}
        body = {"system": "x", "messages": turns, "max_tokens": 1}
        assert refusal(http.post("/v1/messages", json=body))[0] == "messages[1].tool_calls"
