"""OpenAI's client and the real model: several answers, log probabilities, forms, scoring."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

pytestmark = pytest.mark.model

HI: Any = [{"role": "user", "content": "Hi"}]
FRANCE = "The capital of France is"


@pytest.fixture
def sdk(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_choices_differ_and_the_first_is_what_one_alone_would_be(serve: Any, tmp_path: Any) -> None:
    # Plain attention adds up in the order of the cells, and 4-bit weights make that show.
    flags = ("--threads", "1", "--flash-attn", "on", "--data-dir", str(tmp_path))
    with (
        serve(*flags) as steady,
        openai.OpenAI(base_url=steady.url + "/v1", api_key="none", max_retries=0) as sdk,
    ):
        asked: Any = {"model": "m", "messages": HI, "max_tokens": 12, "temperature": 1.5}
        alone = [sdk.chat.completions.create(**asked, seed=seed) for seed in (11, 12, 13)]
        reply = sdk.chat.completions.create(**asked, seed=11, n=3)
        texts = [c.message.content for c in reply.choices]
        assert texts == [a.choices[0].message.content for a in alone]
        assert len(set(texts)) > 1
        assert reply.usage is not None and alone[0].usage is not None
        assert reply.usage.prompt_tokens == alone[0].usage.prompt_tokens


def test_choices_without_a_seed_differ(sdk: openai.OpenAI) -> None:
    reply = sdk.completions.create(
        model="m", prompt="My favourite", n=5, max_tokens=10, temperature=1.5
    )
    assert len({c.text for c in reply.choices}) > 2


def test_an_array_of_prompts_is_answered_in_order(sdk: openai.OpenAI) -> None:
    prompts = [FRANCE, "a, b, c, d,", "1, 2, 3, 4,"]
    asked: Any = {"model": "m", "max_tokens": 4, "temperature": 0}
    reply = sdk.completions.create(prompt=prompts, **asked)
    alone = [sdk.completions.create(prompt=p, **asked).choices[0].text for p in prompts]
    assert [c.text for c in reply.choices] == alone
    assert "Paris" in reply.choices[0].text
    streamed = ["", "", ""]
    for chunk in sdk.completions.create(prompt=prompts, stream=True, **asked):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == alone


def test_more_choices_than_slots_are_all_answered(sdk: openai.OpenAI) -> None:
    reply = sdk.completions.create(model="m", prompt=FRANCE, n=10, max_tokens=2, temperature=0)
    assert {c.text for c in reply.choices} == {reply.choices[0].text}


def test_log_probabilities_are_of_the_text_and_sorted(sdk: openai.OpenAI) -> None:
    reply = sdk.chat.completions.create(
        model="m", messages=HI, max_tokens=5, temperature=0, logprobs=True, top_logprobs=5
    )
    choice = reply.choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    data = b"".join(bytes(t.bytes or []) for t in choice.logprobs.content)
    assert data.decode() == choice.message.content
    for token in choice.logprobs.content:
        top = [t.logprob for t in token.top_logprobs]
        assert top == sorted(top, reverse=True) and len(top) == 5
        # Greedy: the chosen one is the likeliest.
        assert (token.token, token.logprob) == (token.top_logprobs[0].token, top[0])
        assert sum(map(math.exp, top)) <= 1.0001


def test_half_characters_have_exact_bytes(sdk: openai.OpenAI, client: httpx.Client) -> None:
    emoji = "🦜"
    assert len(client.post("/tokenize", json={"content": emoji}).json()["tokens"]) > 1
    body = {"prompt": "Say it:", "grammar": f'root ::= "{emoji}"', "n_probs": 1, "max_tokens": 9}
    reply = client.post("/completion", json=body).json()
    assert reply["content"] == emoji
    entries = reply["completion_probabilities"]
    assert bytes(b for e in entries for b in e["bytes"]).decode() == emoji
    assert entries[0]["token"].startswith("bytes:\\xf0")
    streamed = sdk.chat.completions.create(
        model="m",
        messages=HI,
        logprobs=True,
        stream=True,
        extra_body={"grammar": f'root ::= "{emoji}"'},
    )
    tokens = [
        t for c in streamed for x in c.choices if x.logprobs for t in x.logprobs.content or []
    ]
    assert bytes(b for t in tokens for b in t.bytes or []).decode() == emoji


def test_a_text_is_scored_as_evaluation_harnesses_do(
    sdk: openai.OpenAI, client: httpx.Client
) -> None:
    def score(context: str, continuation: str) -> float:
        ids = [
            client.post("/tokenize", json={"content": text}).json()["tokens"]
            for text in (context, continuation)
        ]
        reply = sdk.completions.create(
            model="m", prompt=ids[0] + ids[1], max_tokens=0, echo=True, logprobs=1, temperature=0
        )
        got = reply.choices[0].logprobs
        assert got is not None and got.token_logprobs is not None and got.tokens is not None
        assert len(got.tokens) == len(ids[0]) + len(ids[1])
        assert got.token_logprobs[0] is None
        assert reply.choices[0].text == context + continuation == "".join(got.tokens)
        return sum(p for p in got.token_logprobs[len(ids[0]) :] if p is not None)

    paris, rome = score(FRANCE, " Paris"), score(FRANCE, " Rome")
    assert paris > rome
    # The same number comes out of generating it.
    reply = sdk.completions.create(
        model="m", prompt=FRANCE, max_tokens=1, temperature=0, logprobs=1
    )
    got = reply.choices[0].logprobs
    assert reply.choices[0].text == " Paris"
    assert got is not None and got.token_logprobs is not None
    assert got.token_logprobs[0] == pytest.approx(paris, abs=0.05)


def test_the_best_of_several_is_likelier_than_the_others(sdk: openai.OpenAI) -> None:
    asked: Any = {"model": "m", "prompt": FRANCE, "max_tokens": 6, "temperature": 1.8, "seed": 3}
    best = sdk.completions.create(**asked, best_of=6, logprobs=0)
    every = sdk.completions.create(**asked, n=6, logprobs=0)

    def mean(choice: Any) -> float:
        got = choice.logprobs.token_logprobs
        return float(sum(got) / len(got))

    means = [mean(c) for c in every.choices]
    assert mean(best.choices[0]) == pytest.approx(max(means), abs=0.05)
    assert best.usage is not None and every.usage is not None
    assert best.usage.completion_tokens == every.usage.completion_tokens


class Person(BaseModel):
    name: str
    age: int


def test_structured_output_is_parsed_by_the_official_client(sdk: openai.OpenAI) -> None:
    completion = sdk.chat.completions.parse(
        model="m",
        messages=[{"role": "user", "content": "Alice is 30 years old."}],
        response_format=Person,
        temperature=0,
        max_tokens=60,
    )
    message = completion.choices[0].message
    assert completion.choices[0].finish_reason == "stop"
    assert isinstance(message.parsed, Person) and message.parsed.name


def test_every_choice_of_a_json_object_is_one(sdk: openai.OpenAI) -> None:
    reply = sdk.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "A city, as JSON."}],
        response_format={
            "type": "json_schema",
            "json_schema": {
                "name": "city",
                "schema": {
                    "type": "object",
                    "properties": {"name": {"type": "string", "maxLength": 12}},
                    "required": ["name"],
                    "additionalProperties": False,
                },
            },
        },
        n=3,
        temperature=1.2,
        max_tokens=60,
    )
    for choice in reply.choices:
        assert choice.finish_reason == "stop"
        assert set(json.loads(choice.message.content or "")) == {"name"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"regex": "[0-9]{3}-[0-9]{2}"}, r"\d{3}-\d{2}"),
        ({"grammar": 'root ::= "yes" | "no"'}, "yes|no"),
        ({"lark": 'start: "left" | "right"'}, "left|right"),
    ],
    ids=str,
)
def test_an_answer_has_the_form_that_was_asked_for(
    client: httpx.Client, body: dict[str, Any], expected: str
) -> None:
    reply = client.post("/completion", json={"prompt": "Well:", "max_tokens": 30} | body).json()
    assert re.fullmatch(expected, reply["content"]), reply["content"]


def test_a_schema_that_cannot_be_enforced_is_refused_with_its_place(sdk: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "nonsense"}}}
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.chat.completions.create(
            model="m",
            messages=HI,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": schema},
            },
        )
    assert (raised.value.param or "").startswith("response_format.json_schema.schema")


def test_banned_tokens_do_not_come_and_ignored_ends_do_not_end(client: httpx.Client) -> None:
    body = {"prompt": FRANCE, "temperature": 0, "max_tokens": 1}
    assert client.post("/completion", json=body).json()["content"] == " Paris"
    banned = client.post("/completion", json=body | {"logit_bias": {" Paris": False}}).json()
    assert banned["content"] != " Paris"
    chat = {"messages": HI, "temperature": 0, "max_tokens": 40}
    short = client.post("/v1/chat/completions", json=chat).json()
    assert short["choices"][0]["finish_reason"] == "stop"
    long = client.post("/v1/chat/completions", json=chat | {"ignore_eos": True}).json()
    assert long["choices"][0]["finish_reason"] == "length"
    assert long["usage"]["completion_tokens"] == 40


def test_every_sampler_switched_on_still_answers(client: httpx.Client) -> None:
    base = {"prompt": FRANCE, "max_tokens": 8, "seed": 1}
    for more in (
        {"dynatemp_range": 0.5, "dynatemp_exponent": 1.5},
        {"typical_p": 0.5, "top_n_sigma": 1.0, "min_keep": 2},
        {"xtc_probability": 1.0, "xtc_threshold": 0.05},
        {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_sequence_breakers": ["\n"]},
        {"repeat_penalty": 1.3, "presence_penalty": 1, "frequency_penalty": 1},
        {"mirostat": 1},
        {"mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.2},
        {"samplers": ["top_k", "adaptive_p"], "adaptive_target": 0.4},
        {"samplers": "kpt", "top_k": 3},
        {"samplers": []},
        {"samplers": ["infill"]},
    ):
        reply = client.post("/completion", json=base | more)
        assert reply.status_code == 200, (more, reply.text)
        got = reply.json()
        assert got["tokens_predicted"] > 0
        again = client.post("/completion", json=base | more).json()
        assert again["generation_settings"] == got["generation_settings"]


def test_a_context_shift_lets_an_answer_outgrow_the_context(serve: Any, tmp_path: Any) -> None:
    flags = ("--threads", "1", "--ctx-size", "256", "--data-dir", str(tmp_path))
    with serve(*flags) as small, httpx.Client(base_url=small.url, timeout=120) as client:
        body = {"prompt": "One two", "max_tokens": 400, "temperature": 0, "ignore_eos": True}
        cut = client.post("/completion", json=body).json()
        assert cut["truncated"] and cut["tokens_predicted"] < 256
        assert "n_discarded" not in cut["timings"]
        whole = client.post("/completion", json=body | {"context_shift": True}).json()
        assert whole["tokens_predicted"] == 400
        assert whole["truncated"] and whole["timings"]["n_discarded"] > 0


def test_a_model_without_the_tokens_cannot_fill_in(client: httpx.Client) -> None:
    reply = client.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert reply.status_code == 400
    assert "fill-in-the-middle" in reply.json()["error"]["message"]
    reply = client.post("/v1/completions", json={"prompt": "a", "suffix": "b"})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "suffix"
