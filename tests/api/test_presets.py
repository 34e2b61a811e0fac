"""Presets: made, changed and forgotten over HTTP, and named by requests."""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from corral.backend.api.presets import BUILT_INS


@pytest.fixture
def mine(http: httpx.Client) -> Iterator[httpx.Client]:
    """A client of a server whose own presets are gone afterwards."""
    yield http
    for preset in http.get("/presets").json()["data"]:
        if not preset["is_builtin"]:
            http.delete(f"/presets/{preset['name']}").raise_for_status()


def put(http: httpx.Client, name: str, body: Any) -> httpx.Response:
    return http.put(f"/presets/{name}", json=body)


def refusal(response: httpx.Response, status: int) -> tuple[str | None, str]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    return error["param"], error["message"]


# --- the collection -------------------------------------------------------------------------------


def test_a_preset_is_shown_as_it_was_put_and_counts_its_changes(mine: httpx.Client) -> None:
    said = {"temperature": 0, "stop": ["x"], "system": "Be kind.", "json_schema": {"type": "null"}}
    made = put(mine, "my own", said).json()
    assert made == {**said, "name": "my own", "version": 1, "is_builtin": False} | {
        "updated": made["updated"]
    }
    assert mine.get("/presets/my own").json() == made
    changed = put(mine, "my own", {"top_k": 3, "version": 1}).json()
    assert (changed["version"], changed["top_k"]) == (2, 3)
    assert "temperature" not in changed


def test_the_list_holds_those_that_come_with_the_server_and_then_ones_own(
    mine: httpx.Client,
) -> None:
    put(mine, "a", {})
    listed = mine.get("/presets").json()
    assert listed["object"] == "list"
    assert [p["name"] for p in listed["data"]] == [*BUILT_INS, "a"]
    assert listed["data"][0] == mine.get("/presets/precise").json()
    wanted = {"precise", "balanced", "creative", "deterministic", "code", "json", "roleplay"}
    assert wanted <= set(BUILT_INS)


def test_a_preset_changed_meanwhile_is_not_overwritten_or_deleted(mine: httpx.Client) -> None:
    put(mine, "a", {"top_k": 1})
    put(mine, "a", {"top_k": 2})
    answer = put(mine, "a", {"top_k": 3, "version": 1})
    assert refusal(answer, 409)[0] == "version"
    assert answer.json()["error"]["code"] == "conflict"
    assert refusal(mine.delete("/presets/a?version=1"), 409)[0] == "version"
    assert refusal(mine.delete("/presets/a?version=-1"), 400)[0] == "version"
    assert mine.get("/presets/a").json()["top_k"] == 2
    assert mine.delete("/presets/a?version=2").json() == {"name": "a", "deleted": True}
    assert refusal(mine.get("/presets/a"), 404)
    assert refusal(mine.delete("/presets/a"), 404)


@pytest.mark.parametrize("name", BUILT_INS)
def test_what_comes_with_the_server_stays_and_may_be_copied(mine: httpx.Client, name: str) -> None:
    before = mine.get(f"/presets/{name}").json()
    for answer in (put(mine, name, {"top_k": 1}), mine.delete(f"/presets/{name}")):
        param, message = refusal(answer, 403)
        assert param == "name" and "copy" in message
    assert mine.get(f"/presets/{name}").json() == before
    copy = put(mine, "copy", before).json()
    assert copy.pop("updated") > 0
    assert copy == {**before, "name": "copy", "version": 1, "is_builtin": False}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temprature": 1}, "temprature"),
        ({"messages": []}, "messages"),
        ({"n": 2}, "n"),
        ({"stream": True}, "stream"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"stop": [1]}, "stop[0]"),
        ({"system": ["text"]}, "system"),
        ({"version": -1}, "version"),
        ({"samplers": ["nonsense"]}, "samplers[0]"),
        ({"max_tokens": 1, "n_predict": 2}, "max_tokens"),
        ({"grammar": 'root ::= "a"', "regex": "a"}, "regex"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"logit_bias": {"1": 1000}}, "logit_bias.1"),
    ],
)
def test_what_is_wrong_in_a_preset_is_named(mine: httpx.Client, body: Any, param: str) -> None:
    assert refusal(put(mine, "a", body), 400)[0] == param
    assert refusal(mine.get("/presets/a"), 404)


@pytest.mark.parametrize("name", ["%20a", "a%0Ab", "...", "a" * 65])
def test_a_name_that_cannot_be_shown_is_refused(mine: httpx.Client, name: str) -> None:
    assert refusal(put(mine, name, {}), 400)[0] == "name"


def test_presets_are_behind_the_key_and_outlive_the_server(run_server: Any, tmp_path: Any) -> None:
    with run_server(api_keys=("k",), data_dir=tmp_path) as server:
        assert refusal(httpx.get(f"{server.url}/presets"), 401)
        assert refusal(httpx.put(f"{server.url}/presets/a", json={}), 401)
        key = {"X-Api-Key": "k"}
        assert httpx.put(f"{server.url}/presets/a", json={}, headers=key).status_code == 200
    with run_server(data_dir=tmp_path) as server:
        assert httpx.get(f"{server.url}/presets/a").json()["version"] == 1


# --- in requests ----------------------------------------------------------------------------------

SAID = [{"role": "user", "content": "hello"}]


def complete(http: httpx.Client, **members: Any) -> dict[str, Any]:
    """What was in force for a native completion."""
    reply = http.post("/completion", json={"prompt": "a", "max_tokens": 1, **members})
    assert reply.status_code == 200, reply.text
    in_force: dict[str, Any] = reply.json()["generation_settings"]
    return in_force


def prompt(http: httpx.Client, messages: Any = SAID, **members: Any) -> str:
    """The prompt of a chat."""
    reply = http.post("/apply-template", json={"messages": messages, **members})
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["prompt"]
    return text


def test_the_official_client_names_a_preset(server: Any, mine: httpx.Client) -> None:
    put(mine, "short", {"stop": "STOP", "seed": 5, "max_tokens": 9})
    url = f"{server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as sdk:

        def ask(text: str, **more: Any) -> Any:
            return sdk.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": text}],
                extra_body={"preset": "short"},
                **more,
            )

        stopped = ask("one STOP")
        assert stopped.choices[0].message.content == "one "
        assert stopped.model_extra["seed"] == 5
        assert ask("a long text").choices[0].finish_reason == "length"
        own = ask("one STOP two", seed=7, max_tokens=50, stop=["two"])
        assert own.choices[0].message.content == "one STOP "
        assert own.model_extra["seed"] == 7


def test_a_request_comes_before_its_preset_and_the_preset_before_flags(run_server: Any) -> None:
    flags = {"temperature": 0.1, "top_k": 7, "seed": 3, "stop": ("flag",)}
    with run_server(**flags) as server, httpx.Client(base_url=server.url) as http:
        put(http, "p", {"temperature": 0.5, "seed": -1, "stop": []})
        found = complete(http, preset="p", top_k=9)
        assert (found["temperature"], found["top_k"], found["stop"]) == (0.5, 9, [])
        assert found["seed"] != 3
        assert complete(http, preset="p", temperature=0, seed=4)["temperature"] == 0
        assert complete(http, preset="p", temperature=None)["temperature"] == 0.5
        assert complete(http)["temperature"] == 0.1
        http.delete("/presets/p")


def test_limits_of_a_request_by_any_name_come_before_the_presets(mine: httpx.Client) -> None:
    put(mine, "p", {"n_predict": 3})
    asked = {"prompt": "a", "preset": "p"}
    for limit, n in (({}, 3), ({"max_completion_tokens": 5}, 5), ({"max_tokens": 4}, 4)):
        usage = mine.post("/v1/completions", json={**asked, **limit}).json()["usage"]
        assert usage["completion_tokens"] == n


def test_every_form_in_a_request_drops_the_presets(mine: httpx.Client) -> None:
    put(mine, "p", {"regex": "[0-9]{2}"})
    assert complete(mine, preset="p")["regex"] == "[0-9]{2}"
    own: list[dict[str, Any]] = [
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "json_object"}},
        {"grammar": ""},
        {"lark": "start: /a/"},
        {"json_schema": {"type": "null"}},
    ]
    for form in own:
        assert "regex" not in complete(mine, preset="p", **form)


@pytest.mark.parametrize(
    ("path", "body", "form", "text_of"),
    [
        (
            "/v1/chat/completions",
            {"messages": SAID},
            {"response_format": {"type": "text"}},
            lambda reply: reply["choices"][0]["message"]["content"],
        ),
        (
            "/v1/completions",
            {"prompt": "hello", "max_tokens": 5},
            {"grammar": "root ::= [a-z]+"},
            lambda reply: reply["choices"][0]["text"],
        ),
        (
            "/v1/responses",
            {"input": "hello"},
            {"text": {"format": {"type": "text"}}},
            lambda reply: reply["output"][-1]["content"][0]["text"],
        ),
        (
            "/v1/messages",
            {"messages": SAID, "max_tokens": 50},
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "string"}}}},
            lambda reply: reply["content"][-1]["text"],
        ),
        (
            "/completion",
            {"prompt": "hello", "n_predict": 5},
            {"response_format": {"type": "text"}},
            lambda reply: reply["content"],
        ),
        (
            "/chat/completions",
            {"messages": SAID},
            {"regex": "[a-z]+"},
            lambda reply: reply["choices"][0]["message"]["content"],
        ),
    ],
)
def test_each_api_takes_a_preset_and_drops_its_form_for_its_own(
    mine: httpx.Client, path: str, body: Any, form: Any, text_of: Any
) -> None:
    put(mine, "p", {"regex": "[0-9]{2}", "seed": 9})
    reply = mine.post(path, json={**body, "preset": "p"})
    assert reply.status_code == 200, reply.text
    assert text_of(reply.json()).isdigit()
    own = mine.post(path, json={**body, **form, "preset": "p"})
    assert own.status_code == 200, own.text
    assert not text_of(own.json()).isdigit()


def test_an_unknown_preset_is_named_by_each_api(http: httpx.Client) -> None:
    chat = {"messages": SAID, "max_tokens": 5}
    for path in ("/v1/chat/completions", "/chat/completions", "/apply-template"):
        assert refusal(http.post(path, json={**chat, "preset": "none"}), 400)[0] == "preset"
    for path in ("/v1/completions", "/completion"):
        answer = http.post(path, json={"prompt": "a", "preset": "none"})
        assert refusal(answer, 400)[0] == "preset"
    answer = http.post("/v1/responses", json={"input": "a", "preset": "none"})
    assert refusal(answer, 400)[0] == "preset"
    answer = http.post("/v1/messages", json={**chat, "preset": "none"})
    assert answer.status_code == 400 and "'none'" in answer.json()["error"]["message"]


def test_the_system_prompt_goes_first_where_there_is_none(mine: httpx.Client) -> None:
    put(mine, "p", {"system": "Be kind."})
    with_one = [{"role": "system", "content": "Be kind."}, *SAID]
    assert prompt(mine, preset="p") == prompt(mine, with_one)
    for role in ("system", "developer"):
        own = [{"role": role, "content": "Be rude."}, *SAID]
        assert prompt(mine, own, preset="p") == prompt(mine, own)


def test_every_way_to_say_a_system_prompt_keeps_the_presets_out(mine: httpx.Client) -> None:
    put(mine, "p", {"system": "x" * 100})
    count = "/v1/responses/input_tokens"
    plain = mine.post(count, json={"input": "a", "instructions": "b"}).json()["input_tokens"]
    own = {"input": "a", "instructions": "b", "preset": "p"}
    assert mine.post(count, json=own).json()["input_tokens"] == plain
    assert mine.post(count, json={"input": "a", "preset": "p"}).json()["input_tokens"] > 100
    count = "/v1/messages/count_tokens"
    body = {"messages": SAID, "system": "b"}
    plain = mine.post(count, json=body).json()["input_tokens"]
    assert mine.post(count, json={**body, "preset": "p"}).json()["input_tokens"] == plain
    added = mine.post(count, json={"messages": SAID, "preset": "p"}).json()["input_tokens"]
    assert added > 100


def test_the_answer_begins_with_the_prefix_after_a_user_or_a_tool(mine: httpx.Client) -> None:
    put(mine, "p", {"prefix": "Well, "})
    assert prompt(mine, preset="p") == prompt(mine) + "Well, "
    called = [{"role": "assistant", "content": "so"}, {"role": "tool", "content": "5"}]
    assert prompt(mine, [*SAID, *called], preset="p").endswith("<|im_start|>assistant\nWell, ")
    begun = [*SAID, {"role": "assistant", "content": "Oh"}]
    assert prompt(mine, begun, preset="p") == prompt(mine, begun)
    no_turn = prompt(mine, preset="p", add_generation_prompt=False)
    assert no_turn == prompt(mine, add_generation_prompt=False)
    goes_on = {"messages": SAID, "preset": "p", "continue_final_message": True}
    answer = mine.post("/v1/chat/completions", json=goes_on)
    assert refusal(answer, 400)[0] == "continue_final_message"


def test_the_prefix_holds_where_the_server_goes_on_with_no_last_message(run_server: Any) -> None:
    with run_server(prefill_assistant=False) as server, httpx.Client(base_url=server.url) as http:
        put(http, "p", {"prefix": "Well, "})
        assert prompt(http, preset="p").endswith("assistant\nWell, ")
        http.delete("/presets/p")


def test_raw_prompts_take_the_settings_alone(mine: httpx.Client) -> None:
    put(mine, "p", {"prefix": "Well, ", "system": "Be kind.", "top_k": 2})
    reply = mine.post("/completion", json={"prompt": "a", "max_tokens": 1, "preset": "p"}).json()
    assert (reply["prompt"], reply["generation_settings"]["top_k"]) == ("a", 2)


def test_what_only_the_model_can_refuse_is_named_as_the_presets(mine: httpx.Client) -> None:
    put(mine, "bad", {"grammar": "root ::= nothing-there"})
    put(mine, "far", {"logit_bias": {"100000": 1}})
    for name, param in (("bad", "preset.grammar"), ("far", "preset.logit_bias.100000")):
        answer = mine.post("/v1/chat/completions", json={"messages": SAID, "preset": name})
        at, message = refusal(answer, 400)
        assert at == param and message.startswith(param)


@pytest.mark.parametrize("name", BUILT_INS)
def test_each_preset_that_comes_with_the_server_answers(http: httpx.Client, name: str) -> None:
    body = {"messages": SAID, "preset": name, "max_tokens": 20}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    preset = http.get(f"/presets/{name}").json()
    in_force = complete(http, preset=name)
    said = {k: v for k, v in preset.items() if k in in_force}
    assert said and {k: in_force[k] for k in said} == said
