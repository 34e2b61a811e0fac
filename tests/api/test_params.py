"""The same settings mean the same through every door, and what is in force is shown."""

import json
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.backend.api.anthropic_schema import MessagesBody
from corral.backend.api.native_render import settings as shown
from corral.backend.api.native_schema import InfillBody, NativeBody
from corral.backend.api.openai_schema import ChatBody, CompletionBody
from corral.backend.api.responses_schema import ResponsesBody
from corral.backend.chat.types import Effective, Params
from corral.backend.defaults import effective
from corral.backend.engine.messages import SAMPLERS, Constraint, Sampling
from corral.backend.errors import Refused
from corral.backend.samplers import samplers
from corral.backend.settings import Settings

N_VOCAB = 259
MESSAGES = [{"role": "user", "content": "hi"}]

unit = st.floats(0, 1)
upto = st.floats(0, 100)
signed = st.floats(-100, 100)
count = st.integers(-1, 2**31 - 1)
natural = st.integers(0, 2**31 - 1)

#: A setting, the values it takes, and it is shown under its own name as it was sent.
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "temperature": upto,
    "dynatemp_range": upto,
    "dynatemp_exponent": upto,
    "top_k": count,
    "top_p": unit,
    "min_p": unit,
    "typical_p": unit,
    "top_n_sigma": st.floats(-1, 100),
    "xtc_probability": unit,
    "xtc_threshold": unit,
    "repeat_last_n": count,
    "repeat_penalty": st.floats(0.01, 100),
    "presence_penalty": signed,
    "frequency_penalty": signed,
    "dry_multiplier": upto,
    "dry_base": st.floats(1, 100),
    "dry_allowed_length": natural,
    "dry_penalty_last_n": count,
    "dry_sequence_breakers": st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=5),
    "mirostat": st.integers(0, 2),
    "mirostat_tau": upto,
    "mirostat_eta": unit,
    "adaptive_target": st.floats(-1, 1),
    "adaptive_decay": st.floats(0, 0.99),
    "samplers": st.lists(st.sampled_from([*SAMPLERS, "infill", "adaptive_p"]), unique=True),
    "min_keep": natural,
    "seed": st.integers(0, 2**32 - 2),
    "ignore_eos": st.booleans(),
    "n_probs": st.integers(1, 1000),
    "post_sampling_probs": st.booleans(),
    "max_tokens": st.integers(1, 2**31 - 1),
    "cache_prompt": st.booleans(),
    "context_shift": st.booleans(),
    "n_keep": count,
    "n_discard": natural,
    "n_indent": natural,
    "t_max_predict_ms": st.integers(-1, 2**53),
    "stop": st.lists(st.text(min_size=1, max_size=5), max_size=5),
    "grammar": st.sampled_from(['root ::= "a"']),
    "lora": st.lists(
        st.fixed_dictionaries({"id": st.integers(0, 9), "scale": signed}),
        max_size=3,
        unique_by=lambda lora: lora["id"],
    ),
}
#: Settings that a reply shows and a request does not have, or the other way round.
NOT_FIELDS = {"n_predict", "stream", "logit_bias", "json_schema", "regex", "lark"}


def doors(fields: dict[str, Any]) -> dict[str, Params]:
    """What each API makes of the same members."""

    def read(kind: Any, **more: Any) -> Any:
        return msgspec.json.decode(json.dumps(fields | more), type=kind)

    limit = {"max_tokens": fields.get("max_tokens", 9)}
    responses = read(ResponsesBody, input="hi", include=["message.output_text.logprobs"])
    return {
        "native": read(NativeBody, prompt="hi").request(N_VOCAB).params,
        "infill": read(InfillBody, input_prefix="a", input_suffix="b").params(N_VOCAB),
        "completions": read(CompletionBody, prompt="hi").request(N_VOCAB).params,
        "chat": read(ChatBody, messages=MESSAGES).request(N_VOCAB).params,
        "responses": responses.settings(N_VOCAB),
        "anthropic": replace(
            read(MessagesBody, messages=MESSAGES, n_probs=None, **limit).settings(N_VOCAB),
            n_probs=fields.get("n_probs"),  # its replies have no place for them
        ),
    }


def test_every_setting_that_is_shown_is_tried_here() -> None:
    names = set(json.loads(msgspec.json.encode(shown(Effective(), seed=1, stream=False))))
    assert names - NOT_FIELDS == set(FIELDS)
    assert set(Sampling.__struct_fields__) <= set(FIELDS) | {"logit_bias"}


@settings(max_examples=150, deadline=None, database=None)
@given(fields=st.fixed_dictionaries({}, optional=FIELDS))
def test_the_same_settings_are_in_force_through_every_door(fields: dict[str, Any]) -> None:
    fields.setdefault("n_probs", 1)
    fields.setdefault("max_tokens", 9)
    server = Settings(fake=True)
    in_force = {door: effective(params, server, {}) for door, params in doors(fields).items()}
    first = in_force.pop("native")
    for door, other in in_force.items():
        assert other == first, door
    told = json.loads(msgspec.json.encode(shown(first, seed=fields.get("seed", 1), stream=False)))
    for name, value in fields.items():
        assert told[name] == value, name


def test_what_was_in_force_is_told_by_the_server_itself(http: httpx.Client) -> None:
    fields = {
        "temperature": 0.3,
        "top_k": 3,
        "dry_multiplier": 0.5,
        "samplers": ["top_k", "temperature"],
        "mirostat_tau": 4.0,
        "n_keep": 7,
        "stop": ["q"],
    }
    told = http.post("/completion", json={"prompt": "a", "n_predict": 1} | fields).json()
    assert {n: told["generation_settings"][n] for n in fields} == fields


# --- defaults -----------------------------------------------------------------------------------


def test_a_request_beats_a_flag_beats_the_model_beats_the_default() -> None:
    server = Settings(fake=True, temperature=0.5, top_k=7)
    recommended = {"temperature": 0.9, "top_p": 0.6, "top_k": 9.0, "mirostat": 2.0}
    got = effective(Params(top_k=3), server, recommended).sampling
    assert (got.top_k, got.temperature, got.top_p, got.min_p) == (3, 0.5, 0.6, 0.05)
    assert (got.mirostat, type(got.mirostat)) == (2, int)


def test_the_properties_show_what_is_in_force_when_nothing_is_asked_for(run_server: Any) -> None:
    with run_server(temperature=0.25, repeat_last_n=5) as server:
        props = httpx.get(f"{server.url}/props").json()
    params = props["default_generation_settings"]["params"]
    assert (params["temperature"], params["repeat_last_n"], params["seed"]) == (0.25, 5, -1)
    assert set(params) >= set(FIELDS) - {"grammar"}
    assert params["samplers"] == list(SAMPLERS)


# --- the order of samplers ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("edskypmxt", SAMPLERS),
        ("tk", ("temperature", "top_k")),
        ("ia", ("infill", "adaptive_p")),
        ("", ()),
        ([], ()),
        (["top-k", "top-p", "min-p", "top-n-sigma"], ("top_k", "top_p", "min_p", "top_n_sigma")),
        (["topk", "nucleus", "temp", "typ"], ("top_k", "top_p", "temperature", "typ_p")),
        (["typical", "adaptive-p", "XTC"], ("typ_p", "adaptive_p", "xtc")),
        (["typical_p"], ("typ_p",)),
        (["typical-p"], ("typ_p",)),
    ],
    ids=str,
)
def test_samplers_go_by_letters_and_by_every_spelling(given: Any, meant: tuple[str, ...]) -> None:
    assert samplers(given) == meant


def test_an_unknown_sampler_is_told_which_there_are() -> None:
    with pytest.raises(
        Refused, match=r"samplers\[1\]: 'tfs' is no sampler; there are .*top_k \(k\)"
    ):
        samplers(["top_k", "tfs"])


# --- constraints --------------------------------------------------------------------------------


def asked(**fields: Any) -> tuple[Constraint | None, str | None]:
    body = msgspec.json.decode(json.dumps({"prompt": "a"} | fields), type=NativeBody)
    params = body.request(N_VOCAB).params
    return params.constraint, params.constraint_at


LARK = "start: /a/"
SCHEMA = {"type": "object", "properties": {"a": {"const": 10**30}}}
SOURCE = '{"type":"object","properties":{"a":{"const":' + "1" + "0" * 30 + "}}}"


@pytest.mark.parametrize(
    ("fields", "kind", "source", "at"),
    [
        ({"json_schema": SCHEMA}, "json_schema", SOURCE, "json_schema"),
        ({"json_schema": {}}, "json_schema", '{"type":"object"}', "json_schema"),
        ({"grammar": 'root ::= "a"'}, "gbnf", 'root ::= "a"', "grammar"),
        (
            {"grammar": "%llguidance {}\nstart: /a/"},
            "lark",
            "%llguidance {}\nstart: /a/",
            "grammar",
        ),
        ({"regex": "a+"}, "regex", "a+", "regex"),
        ({"lark": LARK}, "lark", LARK, "lark"),
        (
            {"response_format": {"type": "json_object"}},
            "json_schema",
            '{"type":"object"}',
            "response_format.schema",
        ),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            "json_schema",
            SOURCE,
            "response_format.schema",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "strict": True, "schema": SCHEMA},
                }
            },
            "json_schema",
            SOURCE,
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "schema": SCHEMA}},
            "json_schema",
            SOURCE,
            "response_format.schema",
        ),
    ],
    ids=str,
)
def test_every_way_to_ask_for_a_form_is_one_constraint(
    fields: dict[str, Any], kind: Any, source: str, at: str
) -> None:
    assert asked(**fields) == (Constraint(kind, source), at)


BAD_SCHEMA = {"properties": {"a": {"pattern": "("}}}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"json_schema": BAD_SCHEMA}, "json_schema.properties.a"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": BAD_SCHEMA},
                }
            },
            "response_format.json_schema.schema.properties.a",
        ),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"grammar": "%llguidance {}\nstart: ("}, "grammar"),
        ({"regex": "("}, "regex"),
        ({"lark": "start: ("}, "lark"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_form_that_cannot_be_had_is_refused_by_the_clients_own_name_for_it(
    http: httpx.Client, more: dict[str, Any], param: str, stream: bool
) -> None:
    body = {"messages": MESSAGES, "max_tokens": 1, "stream": stream} | more
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(param.split(".properties")[0])


# --- members nobody knows -----------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion"])
@pytest.mark.parametrize("stream", [True, False])
def test_unknown_members_are_named_in_a_header(http: httpx.Client, path: str, stream: bool) -> None:
    body = {"max_tokens": 1, "stream": stream, "penalize_nl": True, "n_cache_reuse": 3}
    body |= {"messages": MESSAGES} if "chat" in path else {"prompt": "a"}
    body |= {"stream_options": {"include_usage": True, "x": 1}}
    reply = http.post(path, json=body)
    assert reply.headers["x-corral-ignored"] == "penalize_nl, n_cache_reuse, stream_options.x"


def test_a_request_without_unknown_members_has_no_such_header(http: httpx.Client) -> None:
    reply = http.post("/completion", json={"prompt": "a", "max_tokens": 1})
    assert "x-corral-ignored" not in reply.headers


def test_unknown_names_cannot_break_the_header(http: httpx.Client) -> None:
    strange = {"a\r\nSet-Cookie: x": 1, "ü,b": 2, "x" * 500: 3} | {f"y{i}": 1 for i in range(999)}
    value = http.post("/tokenize", json={"content": "a"} | strange).headers["x-corral-ignored"]
    first, second, third, *_, last = value.split(", ")
    assert (first, second, third, last) == ("a??Set-Cookie: x", "??b", "x" * 64, "...")
    assert len(value) < 1100


# --- projection ---------------------------------------------------------------------------------


def test_only_the_members_asked_for_are_shown(http: httpx.Client) -> None:
    fields = ["content", "generation_settings/top_k", "timings/prompt_n", "no/such", "content/x"]
    body = {"prompt": "abc", "n_predict": 3, "top_k": 11, "response_fields": fields}
    reply = http.post("/completion", json=body).json()
    content = http.post("/completion", json=body | {"response_fields": []}).json()["content"]
    assert reply == {
        "content": content,
        "generation_settings/top_k": 11,
        "timings/prompt_n": reply["timings/prompt_n"],
    }
    streamed = http.post("/completion", json=body | {"stream": True}).text.split("\n\n")
    assert set(json.loads(streamed[-2].removeprefix("data: "))) == set(reply)


# --- tools shown to the template ----------------------------------------------------------------


def test_tools_that_must_not_be_called_are_the_templates_business() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    body = {"messages": MESSAGES, "tools": [tool], "tool_choice": "none"}
    request = msgspec.json.decode(json.dumps(body), type=ChatBody).request(N_VOCAB)
    assert ([t.source for t in request.tools], request.tool_choice) == ([tool], "none")
