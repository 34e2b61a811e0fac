"""Every kind of bad input gets 400, the one error shape, and the path of the field at fault."""

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
    ({"response_format": {"type": "xml"}}, "response_format.type"),
]

UNBUILT = [
    ({"n": 2}, "n"),
    ({"n_cmpl": 2}, "n_cmpl"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"functions": [{}]}, "functions"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"json_schema": {}}, "json_schema"),
    ({"grammar": 'root ::= "a"'}, "grammar"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"n_probs": 1}, "n_probs"),
    ({"mirostat": 2}, "mirostat"),
    ({"typical_p": 0.5}, "typical_p"),
    ({"xtc_probability": 0.1}, "xtc_probability"),
    ({"dry_multiplier": 0.8}, "dry_multiplier"),
    ({"samplers": ["top_k"]}, "samplers"),
    ({"samplers": "kp"}, "samplers"),
    ({"lora": [{"id": 0, "scale": 1}]}, "lora"),
    ({"image_data": [{"data": "", "id": 1}]}, "image_data"),
    ({"id_slot": 0}, "id_slot"),
    ({"post_sampling_probs": True}, "post_sampling_probs"),
    ({"n_keep": 5}, "n_keep"),
    ({"n_keep": -1}, "n_keep"),
    ({"min_keep": 1}, "min_keep"),
    ({"penalize_nl": True}, "penalize_nl"),
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
    "logprobs": False,
    "n_probs": 0,
    "mirostat": 0,
    "typical_p": 1,
    "top_n_sigma": -1,
    "samplers": [],
    "image_data": [],
    "id_slot": -1,
    "post_sampling_probs": False,
    "n_keep": 0,
    "min_keep": 0,
    "penalize_nl": False,
    "modalities": ["text"],
    "audio": None,
    "web_search_options": None,
    "prediction": None,
    "stop": ["", "xyz"],
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


LLAMA_SERVER_ORDER = [
    *("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"),
]


def test_llama_servers_default_order_of_samplers_is_neutral(http: httpx.Client) -> None:
    reply = http.post("/completion", json=TEXT | {"samplers": LLAMA_SERVER_ORDER})
    assert reply.status_code == 200, reply.text
    refused(
        http,
        "/completion",
        TEXT | {"samplers": LLAMA_SERVER_ORDER[::-1]},
        "samplers",
        "unsupported_parameter",
    )


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
        (["a", "b"], "prompt", "unsupported_parameter"),
        ([[1], [2]], "prompt", "unsupported_parameter"),
        ({"prompt_string": "a", "multimodal_data": []}, "prompt", "unsupported_parameter"),
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
    [({"echo": True}, "echo"), ({"suffix": "x"}, "suffix"), ({"best_of": 2}, "best_of")],
)
def test_features_of_text_completions_that_are_not_built_are_refused(
    http: httpx.Client, more: dict[str, Any], param: str
) -> None:
    refused(http, "/v1/completions", TEXT | more, param, "unsupported_parameter")


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
            "messages[0].content[0]",
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
        b'{"a":NaN}',
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


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/embeddings", "/embedding", "/embeddings", "/v1/responses", "/v1/messages"),
        *("/v1/messages/count_tokens", "/rerank", "/reranking", "/v1/rerank", "/infill"),
        *("/lora-adapters", "/slots/0"),
    ],
)
def test_a_known_route_that_is_not_built_says_so(http: httpx.Client, path: str) -> None:
    reply = http.post(path, json={})
    assert reply.status_code == 404
    message = reply.json()["error"]["message"]
    assert "not supported yet" in message and "Did you mean" not in message


def test_a_wrong_method_says_which_are_right(http: httpx.Client) -> None:
    reply = http.get("/v1/chat/completions")
    assert reply.status_code == 405
    assert "POST" in reply.headers["allow"]
    assert "POST" in reply.json()["error"]["message"]
