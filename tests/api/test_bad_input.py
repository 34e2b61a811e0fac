"""Every kind of bad input gets 400, the one error shape, and the path of the field at fault."""

import json
from typing import Any

import httpx
import pytest

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
TEXT = {"prompt": "hi", "max_tokens": 1}
DEEP = b'{"unheard_of":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

WRONG = [
    ({"temperature": "1"}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 101}, "temperature"),
    ({"temperature": "nan"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"min_p": -1}, "min_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 2**31}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"repeat_last_n": -2}, "repeat_last_n"),
    ({"repeat_penalty": 0}, "repeat_penalty"),
    ({"presence_penalty": 101}, "presence_penalty"),
    ({"frequency_penalty": -101}, "frequency_penalty"),
    ({"seed": -2}, "seed"),
    ({"seed": 2**32}, "seed"),
    ({"max_tokens": -2}, "max_tokens"),
    ({"max_tokens": 10**40}, "max_tokens"),
    ({"max_completion_tokens": 2}, "max_completion_tokens"),
    ({"n_predict": 2}, "max_tokens"),
    ({"stop": 1}, "stop"),
    ({"stop": "x" * 1025}, "stop"),
    ({"stop": ["a", 1]}, "stop[1]"),
    ({"stop": ["a"] * 65}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"logit_bias": {"5": True}}, "logit_bias.5"),
    ({"logit_bias": {"259": 1}}, "logit_bias.259"),
    ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
    ({"logit_bias": {"": 1}}, "logit_bias."),
    ({"logit_bias": [[1, 2, 3]]}, "logit_bias[0]"),
    ({"logit_bias": [[1, 2], [1000, 1]]}, "logit_bias[1]"),
    ({"logit_bias": [[1.5, 1]]}, "logit_bias[0]"),
    ({"logit_bias": 5}, "logit_bias"),
    ({"tool_choice": "maybe"}, "tool_choice"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": "2"}, "n"),
    ({"n_cmpl": 129}, "n_cmpl"),
    ({"n": 2, "n_cmpl": 3}, "n"),
    ({"dynatemp_range": -0.1}, "dynatemp_range"),
    ({"dynatemp_exponent": -1}, "dynatemp_exponent"),
    ({"typical_p": 1.1}, "typical_p"),
    ({"top_n_sigma": -2}, "top_n_sigma"),
    ({"xtc_probability": 2}, "xtc_probability"),
    ({"xtc_threshold": -0.5}, "xtc_threshold"),
    ({"dry_multiplier": -1}, "dry_multiplier"),
    ({"dry_base": 0.5}, "dry_base"),
    ({"dry_allowed_length": -1}, "dry_allowed_length"),
    ({"dry_penalty_last_n": -2}, "dry_penalty_last_n"),
    ({"dry_sequence_breakers": []}, "dry_sequence_breakers"),
    ({"dry_sequence_breakers": "x"}, "dry_sequence_breakers"),
    ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers[0]"),
    ({"dry_sequence_breakers": ["x" * 41]}, "dry_sequence_breakers[0]"),
    ({"dry_sequence_breakers": ["x"] * 65}, "dry_sequence_breakers"),
    ({"mirostat": 3}, "mirostat"),
    ({"mirostat": -1}, "mirostat"),
    ({"mirostat_tau": -1}, "mirostat_tau"),
    ({"mirostat_eta": 1.5}, "mirostat_eta"),
    ({"adaptive_target": 1.1}, "adaptive_target"),
    ({"adaptive_decay": 1}, "adaptive_decay"),
    ({"min_keep": -1}, "min_keep"),
    ({"samplers": ["top_k", "nonsense"]}, "samplers[1]"),
    ({"samplers": ["top_k", "top-k"]}, "samplers[1]"),
    ({"samplers": "kz"}, "samplers"),
    ({"samplers": "kk"}, "samplers"),
    ({"samplers": [1]}, "samplers[0]"),
    ({"samplers": ["top_k"] * 17}, "samplers"),
    ({"n_probs": -1}, "n_probs"),
    ({"n_probs": 1001}, "n_probs"),
    ({"logprobs": 1001}, "logprobs"),
    ({"logprobs": "yes"}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 1001}, "top_logprobs"),
    ({"n_probs": 2, "logprobs": 3}, "n_probs"),
    ({"n_probs": 2, "logprobs": True, "top_logprobs": 3}, "n_probs"),
    ({"post_sampling_probs": 1}, "post_sampling_probs"),
    ({"ignore_eos": 0}, "ignore_eos"),
    ({"n_indent": -1}, "n_indent"),
    ({"t_max_predict_ms": -2}, "t_max_predict_ms"),
    ({"t_max_predict_ms": 2**63}, "t_max_predict_ms"),
    ({"context_shift": "on"}, "context_shift"),
    ({"n_keep": -2}, "n_keep"),
    ({"n_discard": -1}, "n_discard"),
    ({"id_slot": -2}, "id_slot"),
    ({"id_slot": 4}, "id_slot"),
    ({"id_slot": 2**31 - 1}, "id_slot"),
    ({"lora": {"id": 0}}, "lora"),
    ({"lora": [{"id": -1, "scale": 1}]}, "lora[0].id"),
    ({"lora": [{"id": 0}]}, "lora[0].scale"),
    ({"lora": [{"id": 0, "scale": "1"}]}, "lora[0].scale"),
    ({"lora": [{"id": 0, "scale": 1}, {"id": 0, "scale": 1}]}, "lora[1].id"),
    ({"backend_sampling": 1}, "backend_sampling"),
    ({"user": 5}, "user"),
    ({"store": "yes"}, "store"),
    ({"metadata": {"a": 1}}, "metadata[...]"),
    ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
    ({"metadata": {"a": "x" * 513}}, "metadata[...]"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": ["text"]}}, "response_format.type"),
    ({"response_format": {"type": "json_object", "schema": 5}}, "response_format.schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": []}}},
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
        "response_format.json_schema.name",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"strict": 1}}},
        "response_format.json_schema.strict",
    ),
    ({"json_schema": 5}, "json_schema"),
    ({"json_schema": "{}"}, "json_schema"),
    ({"grammar": {"root": "x"}}, "grammar"),
    ({"regex": 1}, "regex"),
    ({"lark": []}, "lark"),
    ({"json_schema": {}, "grammar": 'root ::= "a"'}, "grammar"),
    ({"response_format": {"type": "json_object"}, "json_schema": {}}, "json_schema"),
    ({"regex": "a", "lark": "start: /a/"}, "lark"),
]

#: Members that are numbers; the same nonsense is tried on each.
NUMBERS = (
    *("temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p"),
    *("typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "repeat_last_n"),
    *("repeat_penalty", "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base"),
    *("dry_allowed_length", "dry_penalty_last_n", "mirostat", "mirostat_tau", "mirostat_eta"),
    *("adaptive_target", "adaptive_decay", "min_keep", "seed", "n_probs", "top_logprobs"),
    *("max_tokens", "max_completion_tokens", "n_predict", "n", "n_cmpl", "n_keep", "n_discard"),
    *("n_indent", "t_max_predict_ms", "id_slot", "sse_ping_interval"),
)
NONSENSE = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 400, "-1e308", '"1"', "[]")

TOOL = {"type": "function", "function": {"name": "f"}}
BAD_TOOLS = [
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"functions": [{}]}, "functions[0].name"),
    ({"functions": [TOOL["function"]], "function_call": {"name": "g"}}, "function_call"),
    (
        {"tools": [TOOL | {"function": {"name": "f", "parameters": {"type": "string"}}}]},
        "tools[0].function.parameters.type",
    ),
    (
        {
            "tools": [TOOL],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": []},
            },
        },
        "tool_choice",
    ),
    ({"functions": [], "tools": []}, "functions"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice"),
    ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
    (
        {"tools": [TOOL | {"function": {"name": "f", "parameters": []}}]},
        "tools[0].function.parameters",
    ),
    ({"tools": [TOOL], "regex": "a", "tool_choice": "required"}, "regex"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
    ({"messages": [{"role": "assistant", "content": "a"}] * 2}, "messages[1]"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]},
        "messages[0]",
    ),
]
UNBUILT = [
    ({"tools": [{"type": "custom"}]}, "tools[0].type"),
    ({"image_data": [{"data": "", "id": 1}]}, "image_data"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "x", "format": "wav"}}, "audio"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
]
NEUTRAL = {
    "n": 1,
    "tools": [],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "json_schema": None,
    "grammar": "",
    "regex": "",
    "lark": "",
    "logprobs": False,
    "top_logprobs": 0,
    "n_probs": 0,
    "mirostat": 0,
    "typical_p": 1,
    "top_n_sigma": -1,
    "samplers": ["temperature"],
    "lora": [],
    "image_data": [],
    "id_slot": -1,
    "post_sampling_probs": False,
    "context_shift": False,
    "n_keep": -1,
    "min_keep": 0,
    "modalities": ["text"],
    "audio": None,
    "web_search_options": None,
    "prediction": None,
    "stop": ["", "xyz"],
    "user": "u",
    "store": False,
    "metadata": {"a": "b"},
    "backend_sampling": True,
    "unheard_of": {"a": 1},
    "temperature": None,
    "seed": 2**32 - 1,
    "top_k": -1,
    "logit_bias": {"5": -100, "x": False},
}


def refused(
    http: httpx.Client, path: str, body: Any, param: str | None, code: str | None = None
) -> dict[str, Any]:
    raw = {"content": body} if isinstance(body, bytes) else {"json": body}
    reply = http.post(path, **raw)
    assert reply.status_code == 400, reply.text
    error: dict[str, Any] = reply.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert error["message"]
    return error


@pytest.mark.parametrize(("more", "param"), WRONG, ids=str)
def test_a_wrong_value_is_named(http: httpx.Client, more: dict[str, Any], param: str) -> None:
    refused(http, "/v1/chat/completions", CHAT | more, param)


@pytest.mark.parametrize(("more", "param"), BAD_TOOLS, ids=str)
def test_bad_tools_are_refused_by_name(
    http: httpx.Client, more: dict[str, Any], param: str
) -> None:
    refused(http, "/v1/chat/completions", CHAT | more, param)


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
def test_tools_are_refused_where_there_is_no_chat(http: httpx.Client, path: str) -> None:
    refused(http, path, TEXT | {"tools": [TOOL]}, "tools")


@pytest.mark.parametrize(("more", "param"), UNBUILT, ids=str)
def test_what_is_not_built_is_refused(http: httpx.Client, more: dict[str, Any], param: str) -> None:
    refused(http, "/v1/chat/completions", CHAT | more, param, "unsupported_parameter")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion"])
def test_switched_off_features_and_unknown_members_are_accepted(
    http: httpx.Client, path: str
) -> None:
    body = (CHAT if "chat" in path else TEXT) | NEUTRAL
    reply = http.post(path, json=body)
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion"])
def test_no_nonsense_passes_for_a_number(http: httpx.Client, path: str, name: str) -> None:
    good = json.dumps(CHAT if "chat" in path else TEXT)
    for nonsense in NONSENSE:
        refused(http, path, f'{{"{name}": {nonsense}, {good[1:]}'.encode(), name)


def test_reported_settings_are_accepted_back(http: httpx.Client) -> None:
    body = TEXT | {"logit_bias": [[5, False], [6, 1.5]]}
    settings = http.post("/completion", json=body).json()["generation_settings"]
    assert settings["logit_bias"] == [[5, None], [6, 1.5]]
    again = http.post("/completion", json=TEXT | settings).json()["generation_settings"]
    assert again == settings


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
@pytest.mark.parametrize(
    ("prompt", "param", "code"),
    [
        (None, "prompt", None),
        (5, "prompt", None),
        ([], "prompt", None),
        ([[]], "prompt[0]", None),
        ([300], "prompt[0]", None),
        ([1, -1], "prompt[1]", None),
        ([1, 2**70], "prompt[1]", None),
        ([[1, 300]], "prompt[0][1]", None),
        ([True], "prompt[0]", None),
        (["a", ""], "prompt[1]", None),
        (["a", []], "prompt[1]", None),
        ([[1], 2], "prompt[1]", None),
        (["a", "x" * 5000], "prompt[1]", "context_length_exceeded"),
        (["a"] * 1025, "prompt", None),
        ({"prompt_string": 5}, "prompt.prompt_string", None),
        ({"prompt_string": "a", "multimodal_data": ["AA=="]}, "prompt.multimodal_data", None),
        (["a", {"prompt_string": "<__media__>"}], "prompt[1].multimodal_data", None),
    ],
    ids=str,
)
def test_a_bad_prompt_is_named(
    http: httpx.Client, path: str, prompt: Any, param: str, code: str | None
) -> None:
    refused(http, path, {"prompt": prompt, "max_tokens": 1}, param, code)


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
@pytest.mark.parametrize("prompt", ["hi", ["hi"], [104, 105], ["h", 105], [["h", 105]], [[104]]])
def test_every_form_of_one_prompt_is_read(http: httpx.Client, path: str, prompt: Any) -> None:
    reply = http.post(path, json={"prompt": prompt, "max_tokens": 1})
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"best_of": 0}, "best_of"),
        ({"best_of": 129}, "best_of"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 2, "post_sampling_probs": True}, "post_sampling_probs"),
        ({"echo": "yes"}, "echo"),
        ({"suffix": 5}, "suffix"),
    ],
)
def test_a_wrong_value_of_a_text_completion_is_named(
    http: httpx.Client, more: dict[str, Any], param: str
) -> None:
    refused(http, "/v1/completions", TEXT | more, param)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"response_fields": "content"}, "response_fields"),
        ({"response_fields": [""]}, "response_fields[0]"),
        ({"response_fields": ["a"] * 257}, "response_fields"),
        ({"return_tokens": 1}, "return_tokens"),
    ],
)
def test_a_wrong_value_of_a_native_completion_is_named(
    http: httpx.Client, more: dict[str, Any], param: str
) -> None:
    refused(http, "/completion", TEXT | more, param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input_prefix"),
        ({"input_prefix": "a"}, "input_suffix"),
        ({"input_prefix": "a", "input_suffix": "b", "input_extra": [{}]}, "input_extra[0].text"),
        ({"input_prefix": "a", "input_suffix": "b", "prompt": [1]}, "prompt"),
    ],
)
def test_a_wrong_gap_is_named(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    refused(http, "/infill", body, param)


@pytest.mark.parametrize(
    ("messages", "param", "code"),
    [
        ("hi", "messages", None),
        (["hi"], "messages[0]", None),
        ([{"content": "hi"}], "messages[0].role", None),
        ([{"role": 5}], "messages[0].role", None),
        ([{"role": "user", "content": 5}], "messages[0].content", None),
        ([{"role": "user", "content": {"a": 1}}], "messages[0].content", None),
        ([{"role": "user", "content": ["hi"]}], "messages[0].content[0].type", None),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "messages[0].content[0].text",
            None,
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0].image_url",
            "unsupported_parameter",
        ),
    ],
    ids=str,
)
def test_a_bad_message_is_named(
    http: httpx.Client, messages: Any, param: str, code: str | None
) -> None:
    refused(http, "/v1/chat/completions", {"messages": messages}, param, code)
    refused(http, "/apply-template", {"messages": messages}, param, code)


def test_missing_fields_are_named(http: httpx.Client) -> None:
    refused(http, "/v1/chat/completions", {}, "messages")
    refused(http, "/v1/completions", {}, "prompt")
    refused(http, "/completion", {}, "prompt")
    refused(http, "/detokenize", {}, "tokens")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"a":\xff}',
        b"[NaN]",
        b"[]",
        b"null",
        b'{"messages":[],"prompt":""} x',
        DEEP,
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/completion", "/tokenize"])
def test_a_body_that_is_no_json_object_is_refused(
    http: httpx.Client, path: str, body: bytes
) -> None:
    refused(http, path, body, None)


def test_a_body_over_the_limit_is_413(http: httpx.Client) -> None:
    reply = http.post("/completion", json={"prompt": "x" * (1 << 20)})
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == "request_too_large"


def test_a_prompt_that_can_never_fit_is_400_with_both_counts(http: httpx.Client) -> None:
    error = refused(
        http, "/v1/completions", {"prompt": "x" * 5000}, "prompt", "context_length_exceeded"
    )
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (5000, 4096)


def test_the_template_objects_in_its_own_words(http: httpx.Client) -> None:
    body = CHAT | {"chat_template_kwargs": {"messages": []}}
    refused(http, "/v1/chat/completions", body, "chat_template_kwargs")
    body = CHAT | {"chat_template_kwargs": {"enable_thinking": "false"}}
    refused(http, "/v1/chat/completions", body, "chat_template_kwargs.enable_thinking")


def test_an_unknown_route_points_to_the_nearest(http: httpx.Client) -> None:
    reply = http.post("/v1/chat/completion", json=CHAT)
    assert reply.status_code == 404
    assert reply.json()["error"]["type"] == "not_found_error"
    assert "/v1/chat/completions" in reply.json()["error"]["message"]
    assert "Did you mean" not in http.get("/qqqqqqqq").json()["error"]["message"]


def test_a_wrong_method_says_which_are_right(http: httpx.Client) -> None:
    reply = http.get("/v1/chat/completions")
    assert reply.status_code == 405
    assert "POST" in reply.headers["allow"]
    assert "POST" in reply.json()["error"]["message"]
