"""What templates can say, and conversations put into their words."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from corral.backend.chat.capabilities import Capabilities, analyse
from corral.backend.chat.fitting import fit, fit_tool, fold
from corral.backend.chat.telling import TOOL_VARIABLES
from corral.backend.chat.template import CHATML, ChatTemplate
from corral.backend.chat.types import Message

DATA = Path(__file__).parent.parent / "data" / "chat-templates"
FIELDS = ("system_role", "tools", "tool_calls", "parallel_tool_calls", "tool_results",
          "preserve_reasoning", "thinking_switch", "reasoning_effort", "typed_content",
          "object_arguments", "developer_role")  # fmt: skip

#: By hand, from reading the templates: an x for each of FIELDS in order.
KNOWN = {
    "Qwen-Qwen2.5-7B-Instruct": "xxxxx....x.",
    "Qwen-Qwen3-0.6B": "xxxxxxx..x.",
    "Qwen3-Coder": "xxxxx....x.",
    "meta-llama-Llama-3.1-8B-Instruct": "xxx.x....x.",  # one call at a time
    "mistralai-Mistral-Nemo-Instruct-2407": "xxxxx....x.",
    "Mistral-Small-3.2-24B-Instruct-2506": "xxxxx...xx.",
    "google-gemma-2-2b-it": "...........",  # no system, and nobody else speaks
    "microsoft-Phi-3.5-mini-instruct": "x..........",
    "openai-gpt-oss-120b": "xxx.xx.x.xx",
    "deepseek-ai-DeepSeek-V3.1": "x.xxx.x..x.",
    "GLM-4.6": "xxxxxxx.xx.",
    "Kimi-K2-Instruct": "xxxxx...xx.",  # it queues what was called in a list
    "moonshotai-Kimi-K2": "xxxxx...xx.",
    "HuggingFaceTB-SmolLM3-3B": "x...x.x....",  # this edit of it knows no tools
    "fireworks-ai-llama-3-firefunction-v2": "xxxxx....x.",  # its tools are "functions"
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "xxxxx....x.",  # renders with tools only
    "CohereForAI-c4ai-command-r-plus-tool_use": "xxxxx....x.",
}


def analysed(source: str) -> Capabilities:
    return analyse(ChatTemplate(source, bos_token="<s>", eos_token="</s>", may_queue=True))


@pytest.mark.parametrize("name", KNOWN)
def test_a_published_templates_capabilities_are_found(name: str) -> None:
    can = msgspec.structs.asdict(analysed((DATA / f"{name}.jinja").read_text()))
    assert "".join(".x"[bool(can[field])] for field in FIELDS) == KNOWN[name]


def test_every_published_template_shows_a_user() -> None:
    mute = [
        path.stem
        for path in sorted(DATA.glob("*.jinja"))
        if not analysed(path.read_text()).string_content
    ]
    assert not mute


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CHATS = {
    "text": "{% for m in messages %}{{ m.content }}{% endfor %}",
    "needs text": "{% for m in messages %}{{ m.content + '' }}{% endfor %}",
    "parts": "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
    "both": "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}",
    "objects": "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}",
    "texts": "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ '' + c.function.arguments }}{% endfor %}{% endfor %}",
    "items": "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}"
    "{% endfor %}",
    "null": "{% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}"
    "{{ c.function.arguments }}{% endfor %}{% else %}{{ m.content + '' }}{% endif %}{% endfor %}",
    "developers": "{% for m in messages %}{# developer #}{{ m.content }}{% endfor %}",
}


def fitted(chat: str, content: Any, role: str = "user", **fields: Any) -> Message:
    (made,) = fit([Message(role=role, content=content, fields=fields)], analysed(CHATS[chat]))
    return made


def text(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": part} for part in texts]


@pytest.mark.parametrize(
    ("chat", "given", "expected"),
    [
        ("text", "a", "a"),
        ("text", text("a", "b"), "a\nb"),
        ("text", None, UNSET),
        ("needs text", None, ""),
        ("needs text", UNSET, ""),
        ("parts", "a", text("a")),
        ("parts", text("a", "b"), text("a", "b")),
        ("both", "a", "a"),
        ("both", text("a"), text("a")),
    ],
)
def test_content_takes_the_form_that_shows(chat: str, given: Any, expected: Any) -> None:
    assert fitted(chat, given).content == expected


@pytest.mark.parametrize(
    ("chat", "given", "expected"),
    [
        ("objects", '{"a": 1}', {"a": 1}),
        ("objects", {"a": 1}, {"a": 1}),
        ("objects", '{"a": ', '{"a": '),
        ("objects", "[1]", "[1]"),
        ("objects", "[" * 100_000, "[" * 100_000),
        ("objects", r'{"a": "\ud83d"}', r'{"a": "\ud83d"}'),
        ("objects", r'{"\ude00": 1}', r'{"\ude00": 1}'),
        ("objects", r'{"a": "\ud83d\ude00"}', {"a": "😀"}),
        ("objects", '{"a": ' * 101 + "1" + "}" * 101, '{"a": ' * 101 + "1" + "}" * 101),
        ("texts", '{"a":1}', '{"a":1}'),
        ("texts", {"a": "é"}, '{"a": "é"}'),
        ("items", '{"a": ', {"arguments": '{"a": '}),
    ],
)
def test_arguments_take_the_form_that_shows(chat: str, given: Any, expected: Any) -> None:
    call = {**CALL, "function": {"name": "f", "arguments": given}}
    made = fitted(chat, "x", "assistant", tool_calls=[call])
    assert made.fields["tool_calls"][0]["function"]["arguments"] == expected
    assert call["function"]["arguments"] == given  # what the client sent is left alone


@pytest.mark.parametrize("calls", [[None], [{}], [{"function": 1}], ["x"], [{"function": {}}]])
def test_a_call_of_another_shape_is_left_to_the_template(calls: list[Any]) -> None:
    made = fitted("objects", "x", "assistant", tool_calls=calls)
    expected = [{"function": {"arguments": None}}] if calls == [{"function": {}}] else calls
    assert made.fields["tool_calls"] == expected


def test_a_call_without_words_has_the_content_that_lets_it_show() -> None:
    for content in (None, UNSET, ""):
        assert fitted("null", content, "assistant", tool_calls=[CALL]).content is None
        assert fitted("needs text", content, "assistant", tool_calls=[CALL]).content == ""
        assert fitted("objects", content, "assistant", tool_calls=[CALL]).content is UNSET
    assert fitted("objects", "so", "assistant", tool_calls=[CALL]).content == "so"


def test_words_beside_a_call_stand_before_it_where_a_message_shows_only_one_of_both() -> None:
    fields = {"tool_calls": [CALL], "reasoning_content": "hm"}
    said = Message(role="assistant", content="so", fields=fields)
    words, call = fit([said], analysed(CHATS["null"]))
    assert words == Message(role="assistant", content="so")
    assert call.content is None and set(call.fields) == {"tool_calls", "reasoning_content"}
    wordless = Message(role="assistant", content="", fields={"tool_calls": [CALL]})
    assert len(fit([wordless], analysed(CHATS["null"]))) == 1


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("Qwen-Qwen3-0.6B", "beside"),
        ("openai-gpt-oss-120b", "beside"),
        ("meta-llama-Llama-3.1-8B-Instruct", "before"),
        ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "before"),
        ("mistralai-Mistral-Nemo-Instruct-2407", "lost"),  # it wants roles to alternate
        ("google-gemma-2-2b-it", "beside"),  # calls are written as text there
    ],
)
def test_where_words_beside_a_call_show_is_found(name: str, where: str) -> None:
    assert analysed((DATA / f"{name}.jinja").read_text()).words == where


def test_members_that_are_null_are_left_out() -> None:
    assert fitted("text", "a", name=None, tool_calls=None, x=0).fields == {"x": 0}


def test_developers_are_the_system_unless_the_template_knows_them() -> None:
    assert fitted("text", "a", "developer").role == "system"
    assert fitted("developers", "a", "developer").role == "developer"


def talk(*turns: tuple[str, Any]) -> list[Message]:
    return [Message(role=role, content=content) for role, content in turns]


@pytest.mark.parametrize(
    ("given", "expected", "done"),
    [
        ([("user", "a")], [("user", "a")], ()),
        ([("system", "s"), ("user", "a")], [("user", "s\n\na")], ("system",)),
        ([("system", "s"), ("system", "t"), ("user", "a")], [("user", "s\n\nt\n\na")], ("system",)),
        ([("system", "s")], [("user", "s")], ("system",)),
        ([("user", "a"), ("user", "b")], [("user", "a\n\nb")], ("roles",)),
        (
            [("user", "a"), ("system", "s"), ("assistant", "b"), ("assistant", "c"), ("user", "d")],
            [("user", "a"), ("assistant", "b\n\nc"), ("user", "s\n\nd")],
            ("system", "roles"),
        ),
    ],
)
def test_what_a_template_objects_to_is_folded(given: Any, expected: Any, done: Any) -> None:
    can = analysed((DATA / "google-gemma-2-2b-it.jinja").read_text())
    assert fold(talk(*given), can) == (talk(*expected), done)


def test_a_first_system_message_stays_where_the_template_has_a_place_for_it() -> None:
    can = analysed(CHATML)
    turns = talk(("system", "s"), ("user", "a"), ("system", "t"), ("user", "b"))
    assert fold(turns, can) == (
        talk(("system", "s"), ("user", "a\n\nt\n\nb")),
        ("system", "roles"),
    )


def test_messages_with_calls_or_names_are_not_joined() -> None:
    can = analysed(CHATML)
    turns = [Message(role="user", content="a", fields={"name": "x"}), *talk(("user", "b"))]
    assert fold(turns, can) == (turns, ())


@pytest.mark.parametrize("path", sorted(DATA.glob("*.jinja")), ids=lambda path: path.stem)
def test_calls_as_openais_clients_send_them_show_in_every_template_that_has_calls(
    path: Path,
) -> None:
    template = ChatTemplate(path.read_text(), bos_token="", eos_token="", may_queue=True)
    can = analyse(template)
    function = {"name": "weather", "arguments": '{"city": "Bern"}'}
    call = {"id": "call12345", "type": "function", "function": function}
    result = {"tool_call_id": "call12345", "name": "weather"}
    turns = [
        *talk(("user", "Weather?")),
        Message(role="assistant", content=None, fields={"tool_calls": [call], "refusal": None}),
        Message(role="tool", content="sun", fields=result),
    ]
    tools = [{"type": "function", "function": {"name": "weather"}}]
    if can.tool_calls:
        given = TOOL_VARIABLES[can.tools_variable]([fit_tool(tool, can) for tool in tools])
        variables = {can.tools_variable: given} if can.takes_tools else {}
        prompt = template.render(
            fit(turns, can),
            add_generation_prompt=True,
            kwargs=variables,
            trusted={"datetime": "now"},
            keep_null=True,
        )
        assert "Bern" in prompt.text
        assert "sun" in prompt.text
        assert "None" not in prompt.text.split("Weather?")[1]


def test_a_tool_gets_the_members_that_a_template_reads() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": None}}
    picky = (
        "{{ messages[0].content }}{% for t in tools %}{{ t.function.name }}"
        "{{ t.function.description + '' }}{{ t.function.parameters.properties | length }}"
        "{% endfor %}"
    )
    made = fit_tool(tool, analysed(picky))
    assert made["function"] == {
        "description": "",
        "name": "f",
        "parameters": {"type": "object", "properties": {}},
    }
    about = {"name": "f", "parameters": {"properties": {"a": {"type": "string"}, "b": True}}}
    made = fit_tool({"type": "function", "function": about}, analysed(picky))
    assert made["function"]["parameters"] == {
        "type": "object",
        "properties": {"a": {"description": "", "type": "string"}, "b": True},
    }
    assert about["parameters"] == {"properties": {"a": {"type": "string"}, "b": True}}
    plain = "{{ messages[0].content }}{{ tools | tojson }}"
    assert fit_tool(tool, analysed(plain)) is tool
