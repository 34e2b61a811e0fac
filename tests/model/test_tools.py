"""Tool calls of the real model: official clients get calls whose arguments validate, always."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import jsonschema
import openai
import pytest

pytestmark = pytest.mark.model

ASK: Any = [{"role": "user", "content": "What is the weather in Oslo and in Rome? Use a tool."}]


def _object(**properties: Any) -> dict[str, Any]:
    required = list(properties)
    shape = {"type": "object", "properties": properties, "required": required}
    return {**shape, "additionalProperties": False}


SHORT = {"type": "string", "maxLength": 12}
SCHEMAS: dict[str, dict[str, Any]] = {
    "text": _object(city=SHORT),
    "choice": _object(unit={"enum": ["celsius", "fahrenheit", "größer", "日本"]}),
    "number": _object(days={"type": "integer", "minimum": 1, "maximum": 14}),
    "flags": _object(now={"type": "boolean"}, later={"type": ["boolean", "null"]}),
    "list": _object(cities={"type": "array", "items": SHORT, "minItems": 1, "maxItems": 2}),
    "nested": _object(
        place=_object(
            city=SHORT, at=_object(lat={"type": "integer", "minimum": -90, "maximum": 90})
        )
    ),
    "union": _object(when={"anyOf": [{"const": "today"}, _object(in_days={"enum": [1, 2, 3]})]}),
    "pattern": _object(zip={"type": "string", "pattern": "^[0-9]{5}$"}),
    "optional": {"type": "object", "properties": {"q": SHORT}, "additionalProperties": False},
    "nothing": {"type": "object", "properties": {}, "additionalProperties": False},
}


def _tools(*names: str) -> Any:
    return [
        {"type": "function", "function": {"name": name, "parameters": SCHEMAS[name]}}
        for name in names
    ]


@pytest.fixture
def sdk(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none") as client:
        yield client


@pytest.mark.parametrize("name", SCHEMAS)
def test_arguments_of_a_required_call_always_validate(sdk: openai.OpenAI, name: str) -> None:
    reply = sdk.chat.completions.create(
        model="any",
        messages=ASK,
        tools=_tools(name),
        tool_choice="required",
        parallel_tool_calls=False,
        n=10,
        temperature=1.5,
        seed=1,
        max_tokens=200,
    )
    for choice in reply.choices:
        assert choice.finish_reason == "tool_calls", choice
        (call,) = choice.message.tool_calls or []
        assert isinstance(call, openai.types.chat.ChatCompletionMessageFunctionToolCall)
        assert call.function.name == name and choice.message.content is None
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[name])


def test_a_named_tool_is_the_one_that_is_called(sdk: openai.OpenAI) -> None:
    for name in ("number", "choice"):
        reply = sdk.chat.completions.create(
            model="any",
            messages=ASK,
            tools=_tools("text", "choice", "number"),
            tool_choice={"type": "function", "function": {"name": name}},
            parallel_tool_calls=False,
            max_tokens=120,
        )
        calls = reply.choices[0].message.tool_calls or []
        assert [getattr(c, "function").name for c in calls] == [name]  # noqa: B009


def test_a_streamed_call_comes_together_in_the_official_client(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(
        model="any", messages=ASK, tools=_tools("text", "list"), tool_choice="required", seed=3,
        max_tokens=200,
    ) as stream:  # fmt: skip
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    (choice,) = final.choices
    assert choice.finish_reason == "tool_calls"
    assert "tool_calls.function.arguments.delta" in kinds
    for call in choice.message.tool_calls or []:
        arguments = json.loads(call.function.arguments)
        jsonschema.validate(arguments, SCHEMAS[call.function.name])


def test_beside_tools_an_answer_has_the_form_asked_for_or_calls(sdk: openai.OpenAI) -> None:
    form = _object(colour={"enum": ["red", "green"]}, why=SHORT)
    reply = sdk.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "Say a colour as JSON. Use a tool if you like."}],
        tools=_tools("text", "nested"),
        response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": form}},
        n=8,
        temperature=1.2,
        seed=5,
        max_tokens=200,
    )
    for choice in reply.choices:
        if choice.finish_reason == "tool_calls":
            assert not choice.message.content
            for call in choice.message.tool_calls or []:
                assert isinstance(call, openai.types.chat.ChatCompletionMessageFunctionToolCall)
                jsonschema.validate(
                    json.loads(call.function.arguments), SCHEMAS[call.function.name]
                )
        else:
            jsonschema.validate(json.loads(choice.message.content or ""), form)
    assert any(choice.message.content for choice in reply.choices)


def test_a_call_that_was_cut_is_a_matter_of_length(sdk: openai.OpenAI) -> None:
    reply = sdk.chat.completions.create(
        model="any", messages=ASK, tools=_tools("nested"), tool_choice="required", max_tokens=18
    )
    assert reply.choices[0].finish_reason == "length"


def test_what_is_free_to_call_may_answer_in_words(sdk: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Say hello."}]
    reply = sdk.chat.completions.create(
        model="any", messages=messages, tools=_tools("text"), temperature=0, max_tokens=60
    )
    (choice,) = reply.choices
    assert choice.message.content or choice.message.tool_calls
    for call in choice.message.tool_calls or []:
        json.loads(getattr(call, "function").arguments)  # noqa: B009


def test_results_of_calls_are_read_in_the_next_turn(sdk: openai.OpenAI) -> None:
    function = {"name": "text", "arguments": '{"city": "Oslo"}'}
    call: Any = {"id": "call_1", "type": "function", "function": function}
    messages: Any = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 21 degrees."},
    ]
    reply = sdk.chat.completions.create(
        model="any", messages=messages, tools=_tools("text"), tool_choice="none", max_tokens=20
    )
    assert reply.choices[0].message.content


def test_the_old_form_of_calls_is_answered_in_the_old_form(sdk: openai.OpenAI) -> None:
    reply = sdk.chat.completions.create(
        model="any",
        messages=ASK,
        functions=[{"name": "number", "parameters": SCHEMAS["number"]}],
        function_call={"name": "number"},
        max_tokens=100,
    )
    (choice,) = reply.choices
    assert choice.finish_reason == "function_call" and choice.message.tool_calls is None
    assert choice.message.function_call is not None
    arguments = json.loads(choice.message.function_call.arguments)
    jsonschema.validate(arguments, SCHEMAS["number"])


def test_a_schema_that_cannot_be_enforced_is_refused_with_its_place(sdk: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "format": "no-such"}}}
    bad: Any = {"type": "function", "function": {"name": "f", "parameters": schema}}
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(
            model="any", messages=ASK, tools=[*_tools("text"), bad], tool_choice="required"
        )
    assert caught.value.param is not None
    assert caught.value.param.startswith("tools[1].function.parameters")


def test_the_responses_api_calls_and_streams_calls(sdk: openai.OpenAI) -> None:
    tools: Any = [
        {"type": "function", "name": "number", "parameters": SCHEMAS["number"], "strict": True}
    ]
    asked: dict[str, Any] = {"model": "any", "input": ASK[0]["content"], "tools": tools}
    asked |= {"tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 120}
    whole = sdk.responses.create(**asked)
    (call,) = whole.output
    assert call.type == "function_call" and whole.status == "completed"
    jsonschema.validate(json.loads(call.arguments), SCHEMAS["number"])
    with sdk.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds
    assert [item.type for item in final.output] == ["function_call"]


def test_anthropic_s_client_calls_and_streams_calls(server: Any) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key="none") as client:
        tools: Any = [{"name": "number", "input_schema": SCHEMAS["number"]}]
        choice: Any = {"type": "tool", "name": "number", "disable_parallel_tool_use": True}
        asked: dict[str, Any] = {"model": "any", "messages": ASK, "max_tokens": 120}
        asked |= {"tools": tools, "tool_choice": choice}
        whole = client.messages.create(**asked)
        assert whole.stop_reason == "tool_use"
        (block,) = whole.content
        assert block.type == "tool_use"
        jsonschema.validate(block.input, SCHEMAS["number"])
        with client.messages.stream(**asked) as stream:
            final = stream.get_final_message()
        (block,) = final.content
        assert block.type == "tool_use" and final.stop_reason == "tool_use"
        jsonschema.validate(block.input, SCHEMAS["number"])
