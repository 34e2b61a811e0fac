"""The Responses and Anthropic APIs on the real model, through the official clients."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pydantic
import pytest

pytestmark = pytest.mark.model

#: The client no longer has an argument for it.
GREEDY = {"temperature": 0}
#: One text fits, so two answers are alike. Without it even greedy ones may differ where two words
#: are near a tie: a prompt read whole rounds otherwise than one of which the cache holds a part.
GREETING = {"const": "Hello! How may I help you today?"}
PARIS = "What is the capital of France? Answer in one word."


@pytest.fixture
def sdk(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(server: Any) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


class City(pydantic.BaseModel):
    name: str
    is_capital: bool


# --- openai ---------------------------------------------------------------------------------------


def test_a_response_is_created(sdk: openai.OpenAI) -> None:
    out = sdk.responses.create(model="any", input=PARIS, temperature=0, max_output_tokens=20)
    assert "Paris" in out.output_text
    assert out.status in ("completed", "incomplete")
    assert out.usage is not None
    assert out.usage.total_tokens == out.usage.input_tokens + out.usage.output_tokens
    assert out.temperature == 0


def test_the_stream_helper_builds_the_same_response(sdk: openai.OpenAI) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "greeting", "schema": GREETING}}
    asked: Any = {"model": "any", "input": "Say hello.", "temperature": 0, "text": form}
    whole = sdk.responses.create(**asked)
    with sdk.responses.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    said = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert said == final.output_text == whole.output_text == json.dumps(GREETING["const"])
    assert [item.type for item in final.output] == [item.type for item in whole.output]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert kinds.count("response.output_text.delta") > 1


def test_an_async_stream_is_cut_by_its_limit(sdk: openai.OpenAI) -> None:
    with sdk.responses.create(
        model="any", input="Count to fifty.", max_output_tokens=5, stream=True
    ) as stream:
        *_, last = stream
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert last.response.usage is not None and last.response.usage.output_tokens == 5


def test_a_response_is_parsed_into_a_model(sdk: openai.OpenAI) -> None:
    out = sdk.responses.parse(
        model="any", input="Describe Paris as JSON.", text_format=City, max_output_tokens=200
    )
    assert isinstance(out.output_parsed, City)
    with sdk.responses.stream(
        model="any", input="Describe Paris as JSON.", text_format=City, max_output_tokens=200
    ) as stream:
        assert isinstance(stream.get_final_response().output_parsed, City)


def test_log_probabilities_come_with_the_text(sdk: openai.OpenAI) -> None:
    out = sdk.responses.create(
        model="any",
        input="Say hello.",
        temperature=0,
        max_output_tokens=6,
        include=["message.output_text.logprobs"],
        top_logprobs=3,
    )
    (message,) = out.output
    assert message.type == "message" and message.content[0].type == "output_text"
    probs = message.content[0].logprobs
    assert probs is not None and len(probs) == 6
    assert b"".join(bytes(p.bytes) for p in probs).decode() == out.output_text
    assert all(len(p.top_logprobs) == 3 and p.logprob <= 0 for p in probs)
    assert all(p.top_logprobs[0].token == p.token for p in probs)


def test_a_conversation_goes_on_after_a_restart(serve: Any, tmp_path: Path) -> None:
    flags = ("--threads", "1", "--data-dir", str(tmp_path))
    asked: Any = {"model": "any", "temperature": 0, "max_output_tokens": 12}
    with serve(*flags) as server, openai.OpenAI(base_url=server.url + "/v1", api_key="x") as sdk:
        first = sdk.responses.create(input="My name is Ada.", instructions="Be brief.", **asked)
        second = sdk.responses.create(
            input="What is my name?", previous_response_id=first.id, **asked
        )
        assert second.usage is not None and first.usage is not None
        assert second.usage.input_tokens_details.cached_tokens > 0
    with serve(*flags) as server, openai.OpenAI(base_url=server.url + "/v1", api_key="x") as sdk:
        assert sdk.responses.retrieve(second.id) == second
        (said,) = sdk.responses.input_items.list(second.id).data
        assert said.type == "message" and said.content[0].text == "What is my name?"  # type: ignore[union-attr]
        third = sdk.responses.create(input="Thanks.", previous_response_id=second.id, **asked)
        assert third.usage is not None
        assert third.usage.input_tokens > second.usage.input_tokens
        counted = sdk.responses.input_tokens.count(
            model="any", input="Thanks.", previous_response_id=second.id
        )
        assert counted.input_tokens == third.usage.input_tokens
        sdk.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            sdk.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError) as caught:
            sdk.responses.create(input="x", previous_response_id=second.id, **asked)
        assert caught.value.code == "previous_response_not_found"


def test_a_running_response_is_cancelled(sdk: openai.OpenAI) -> None:
    stream = sdk.responses.create(
        model="any", input="Count to one thousand.", stream=True, extra_body={"ignore_eos": True}
    )
    with stream:
        first = next(stream)
        assert first.type == "response.created"
        while next(stream).type != "response.output_text.delta":
            pass
        # Whoever cancels need not be the one who reads.
        assert sdk.responses.cancel(first.response.id).status == "cancelled"
        *_, last = stream
    assert last.type == "response.incomplete"


# --- anthropic ------------------------------------------------------------------------------------


def test_a_message_is_created(claude: anthropic.Anthropic) -> None:
    out = claude.messages.create(
        model="claude-any",
        max_tokens=20,
        extra_body=GREEDY,
        system=[{"type": "text", "text": "You are brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": [{"type": "text", "text": PARIS}]}],
    )
    assert out.content[0].type == "text" and "Paris" in out.content[0].text
    assert out.model == "claude-any" and out._request_id
    counted = claude.messages.count_tokens(
        model="claude-any",
        system="You are brief.",
        messages=[{"role": "user", "content": PARIS}],
    )
    read = out.usage.cache_read_input_tokens
    assert read is not None
    assert out.usage.input_tokens + read == counted.input_tokens


def test_the_message_stream_helper_builds_the_same_message(claude: anthropic.Anthropic) -> None:
    form = {"type": "json_schema", "schema": GREETING}
    asked: Any = {
        "model": "any",
        "max_tokens": 40,
        "extra_body": GREEDY | {"output_config": {"format": form}},
        "messages": [{"role": "user", "content": "Say hello."}],
    }
    whole = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text  # type: ignore[union-attr]
    assert text == final.content[0].text == json.dumps(GREETING["const"])  # type: ignore[union-attr]
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_stop_sequence_ends_the_message(claude: anthropic.Anthropic) -> None:
    out = claude.messages.create(
        model="any",
        max_tokens=60,
        extra_body=GREEDY,
        stop_sequences=["Paris"],
        messages=[{"role": "user", "content": PARIS}],
    )
    assert (out.stop_reason, out.stop_sequence) == ("stop_sequence", "Paris")
    assert all("Paris" not in b.text for b in out.content if b.type == "text")


def test_a_message_is_parsed_into_a_model(claude: anthropic.Anthropic) -> None:
    out = claude.messages.parse(
        model="any",
        max_tokens=200,
        messages=[{"role": "user", "content": "Describe Paris as JSON."}],
        output_format=City,
    )
    assert isinstance(out.parsed_output, City)


def test_bad_messages_raise_the_client_s_own_errors(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as bad:
        claude.messages.create(model="any", max_tokens=0, messages=[])
    assert bad.value.type == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError, match="context"):
        long = "many words " * 9000
        claude.messages.create(
            model="any", max_tokens=5, messages=[{"role": "user", "content": long}]
        )
