"""A request made ready for a model, and its answer read as the model's dialect says."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from corral.backend.chat.media import shown
from corral.backend.chat.model import ChatModel, Turn
from corral.backend.chat.template import CHATML, ChatTemplate
from corral.backend.chat.types import (
    CallArguments,
    CallBegin,
    ChatRequest,
    Content,
    Message,
    Params,
    Part,
    Source,
    Thought,
    Tool,
)
from corral.backend.engine.messages import Constraint
from corral.backend.errors import Refused

#: A template of a model that reasons and calls tools as Hermes does.
THINKER = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}"
    '<tool_call>\n{"name": "{{ c.function.name }}", '
    '"arguments": {{ c.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>"
    "{% elif open %}<think>\n{% endif %}{% endif %}"
)
HI = (Message(role="user", content="Hi"),)
TOLD = Message(role="tool", content="so")
TOOL = Tool(name="f", parameters={"type": "object"}, source={"function": {"name": "f"}})
CONTROLS = frozenset(("<think>", "</think>"))


def _model(source: str = THINKER, controls: frozenset[str] = CONTROLS, **more: Any) -> ChatModel:
    template = ChatTemplate(source, bos_token="", eos_token="</s>")
    return ChatModel(template, controls, **more)


def _read(turn: Turn, *pieces: str | tuple[str, str]) -> list[Part]:
    """The parts of an answer; a pair is text and the tag that was generated behind it."""
    parser, parts = turn.new_parser(), list[Part]()
    for piece in pieces:
        text, tag = piece if isinstance(piece, tuple) else (piece, "")
        parts += parser.feed(text, [(len(text), tag)] if tag else [])
    parts += parser.finish()
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, Content | Thought) and type(last) is type(part):
            joined[-1] = type(part)(last.text + part.text)  # type: ignore[union-attr]
        else:
            joined.append(part)
    return joined


def test_reasoning_is_told_apart_by_the_tags_that_are_tokens() -> None:
    turn = _model().read(ChatRequest(messages=HI))
    said = _read(turn, ("", "<think>"), ("hm", "</think>"), "so <think>this</think>")
    assert said == [Thought("hm"), Content("so <think>this</think>")]
    assert turn.thinking is not None and not turn.thinking.is_open
    assert set(turn.marks) >= CONTROLS


def test_an_answer_that_begins_inside_reasoning_is_reasoning_first() -> None:
    turn = _model().read(ChatRequest(messages=HI, template_kwargs={"open": True}))
    assert _read(turn, ("hm", "</think>"), "so") == [Thought("hm"), Content("so")]
    assert turn.thinking is not None and turn.thinking.is_open


def test_tags_are_letters_to_a_model_that_does_not_reason() -> None:
    turn = _model(CHATML, frozenset()).read(ChatRequest(messages=HI))
    assert _read(turn, "<think>hm</think>so") == [Content("<think>hm</think>so")]
    assert turn.thinking is None


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("auto", [Thought("hm"), Content("so")]),
        ("deepseek", [Thought("hm"), Content("so")]),
        ("none", [Content("<think>hm</think>so")]),
    ],
)
def test_reasoning_is_shown_where_it_was_asked_for(shown: Any, said: list[Part]) -> None:
    request = ChatRequest(messages=HI, reasoning_format=shown)
    turn = _model().read(request)
    assert _read(turn, ("", "<think>"), ("hm", "</think>"), "so") == said
    by_default = _model(reasoning_format=shown).read(ChatRequest(messages=HI))
    assert _read(by_default, ("", "<think>"), ("hm", "</think>"), "so") == said


def test_the_old_form_shows_reasoning_twice() -> None:
    turn = _model().read(ChatRequest(messages=HI, reasoning_format="deepseek-legacy"))
    said = _read(turn, ("", "<think>"), ("hm", "</think>"), "so")
    assert "".join(p.text for p in said if isinstance(p, Content)) == "<think>hm</think>so"
    assert "".join(p.text for p in said if isinstance(p, Thought)) == "hm"


@pytest.mark.parametrize(
    "pieces",
    [
        [("", "<think>"), ("hm", "</think>")],
        [("", "<think>"), ("\nhm\n", "</think>"), "\n\n"],
        [("", "<think>"), ("\nhm\n", "</think>"), "\n\nso", "\n"],
        [("", "<think>"), "hm "],
        ["so"],
    ],
    ids=str,
)
def test_the_content_of_the_old_form_is_that_of_none(pieces: list[Any]) -> None:
    def said(shown: Any, kind: type[Content] | type[Thought]) -> str:
        turn = _model().read(ChatRequest(messages=HI, reasoning_format=shown))
        return "".join(p.text for p in _read(turn, *pieces) if isinstance(p, kind))

    assert said("deepseek-legacy", Content) == said("none", Content)
    assert said("deepseek-legacy", Thought) == said("deepseek", Thought)


def test_calls_in_the_old_form_come_once() -> None:
    request = ChatRequest(messages=HI, tools=(TOOL,), reasoning_format="deepseek-legacy")
    turn = _model().read(request)
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    said = _read(turn, ("", "<think>"), ("hm", "</think>"), call)
    assert [type(p) for p in said if not isinstance(p, Content | Thought)] == [
        CallBegin,
        CallArguments,
    ]


def test_a_tool_that_is_named_is_called_once() -> None:
    for more in ({}, {"parallel_tool_calls": True}):
        request = ChatRequest(
            messages=HI, tools=(TOOL,), tool_choice="required", tool_name="f", **more
        )
        constraint = _model().read(request).constraint
        once = replace(request, tool_name=None, parallel_tool_calls=False)
        assert constraint == _model().read(once).constraint
        assert constraint != _model().read(replace(request, tool_name=None)).constraint


def test_an_answer_may_be_left_unread() -> None:
    turn = _model(skips_parsing=True).read(ChatRequest(messages=HI, tools=(TOOL,)))
    pieces = ("", "<think>"), ("a", "</think>"), 'b<tool_call>{"name": "f", "arguments": {}}'
    said = '<think>a</think>b<tool_call>{"name": "f", "arguments": {}}'
    assert _read(turn, *pieces) == [Content(said)]
    assert turn.thinking is None


def test_a_budget_reaches_the_engine_and_none_at_all_reaches_the_template() -> None:
    model = _model(budget=7, message="enough")
    thinking = model.read(ChatRequest(messages=HI)).thinking
    assert thinking is not None and (thinking.budget, thinking.message) == (7, "enough")
    thinking = model.read(ChatRequest(messages=HI, thinking_budget=3)).thinking
    assert thinking is not None and thinking.budget == 3
    off = model.read(ChatRequest(messages=HI, thinking_budget=0))
    assert off.prompt.text.endswith("<think></think>")


def test_calls_are_read_and_constrained_where_there_are_tools() -> None:
    said = 'ok <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    turn = _model().read(ChatRequest(messages=HI, tools=(TOOL,)))
    text, begin, *arguments = _read(turn, said)
    assert text == Content("ok") and isinstance(begin, CallBegin) and begin.name == "f"
    texts = [a.text for a in arguments if isinstance(a, CallArguments)]
    assert "".join(texts) == '{"a": 1}'
    assert turn.constraint is not None and turn.constraint.kind == "calls"
    for request in (
        ChatRequest(messages=HI),
        ChatRequest(messages=HI, tools=(TOOL,), tool_choice="none"),
    ):
        turn = _model().read(request)
        assert turn.constraint is None and _read(turn, said) == [Content(said)]


def test_an_error_names_the_tool_by_its_place_in_the_whole_list() -> None:
    tools = (
        TOOL,
        Tool(name="g", source={"function": {"name": "g"}}, at="tools[1].function.parameters"),
    )
    request = ChatRequest(messages=HI, tools=tools, tool_choice="required", tool_name="g")
    constraint = _model().read(request).constraint
    assert constraint is not None
    assert "tools[1].function.parameters" in constraint.source
    assert "tools[0]" not in constraint.source


def test_an_answer_of_a_form_may_call_tools_instead() -> None:
    schema = '{"type": "object", "properties": {"answer": {"type": "string"}}}'
    params = Params(constraint=Constraint("json_schema", schema), constraint_at="response_format")
    turn = _model().read(ChatRequest(messages=HI, tools=(TOOL,), params=params))
    assert turn.constraint is not None and turn.constraint.kind == "calls"
    schemas = json.loads(turn.constraint.source)["schemas"]
    assert {"schema": json.loads(schema), "place": "response_format"} in schemas


def test_tools_and_a_grammar_cannot_be_had_together() -> None:
    params = Params(constraint=Constraint("regex", "a"), constraint_at="regex")
    with pytest.raises(Refused) as refused:
        _model().read(ChatRequest(messages=HI, tools=(TOOL,), params=params))
    assert refused.value.param == "regex"


@pytest.mark.parametrize("given", ['{"a": 1}', {"a": 1}])
def test_arguments_reach_a_template_that_writes_json_as_objects(given: Any) -> None:
    call = {"function": {"name": "f", "arguments": given}}
    turn = Message(role="assistant", content=None, fields={"tool_calls": [call]})
    assert '"arguments": {"a": 1}}' in _model().render(ChatRequest(messages=(turn, TOLD))).text


def test_broken_arguments_of_earlier_turns_stay_as_they_are() -> None:
    call = {"function": {"name": "f", "arguments": '{"a": '}}
    turn = Message(role="assistant", content=None, fields={"tool_calls": [call]})
    assert '"arguments": "{\\"a\\": "}' in _model().render(ChatRequest(messages=(turn, TOLD))).text


def test_a_template_without_tools_is_told_of_them_in_words() -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = (
        Message(role="system", content="Be brief."),
        *HI,
        Message(role="assistant", content=None, fields={"tool_calls": [call]}),
        Message(role="tool", content="42", fields={"tool_call_id": "1"}),
    )
    text = _model(CHATML).render(ChatRequest(messages=messages, tools=(TOOL,))).text
    assert text.startswith("<|im_start|>system\nBe brief.\n\n") and '"name": "f"' in text
    assert '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>' in text
    assert "<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>" in text
    request = ChatRequest(messages=HI, tools=(TOOL,), tool_choice="none")
    assert "tool_call" not in _model(CHATML).render(request).text


def test_trusted_input_has_no_foreign_text() -> None:
    assert _model().render(ChatRequest(messages=HI)).foreign
    assert not _model(trusts=True).render(ChatRequest(messages=HI)).foreign


# --- GPT-OSS --------------------------------------------------------------------------------------

TEMPLATES = Path(__file__).parent.parent / "data" / "chat-templates"
HARMONY = frozenset(("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"))
FINAL = [("", "<|start|>"), ("assistant", "<|channel|>"), ("final", "<|message|>")]
CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def _harmony(**more: Any) -> ChatModel:
    return _model((TEMPLATES / "openai-gpt-oss-120b.jinja").read_text("utf-8"), HARMONY, **more)


@pytest.mark.parametrize(
    ("content", "shown"), [("", "Why not?"), ("I will.", "Why not?\n\nI will."), (None, "Why not?")]
)
def test_reasoning_of_the_history_stands_before_the_call_it_led_to(
    content: str | None, shown: str
) -> None:
    fields = {"reasoning_content": "Why not?", "tool_calls": [CALLED]}
    messages = (*HI, Message(role="assistant", content=content, fields=fields), TOLD)
    prompt = _harmony().render(ChatRequest(messages=messages, tools=(TOOL,))).text
    call = '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>'
    thought = f"<|start|>assistant<|channel|>analysis<|message|>{shown}<|end|>"
    told = '<|start|>functions.f to=assistant<|channel|>commentary<|message|>"so"<|end|>'
    assert prompt.endswith(f"{thought}{call}{told}<|start|>assistant")


def test_calls_of_the_history_go_one_by_one_where_the_template_shows_only_one() -> None:
    calls = [
        CALLED | {"id": f"c{i}", "function": {"name": name, "arguments": "{}"}}
        for i, name in enumerate("fg")
    ]
    fields = {"reasoning_content": "Both.", "tool_calls": calls}
    told = [
        Message(role="tool", content=f"of {id}", fields={"tool_call_id": id}) for id in ("c1", "c0")
    ]
    again = Message(role="user", content="And?")
    messages = (*HI, Message(role="assistant", content=None, fields=fields), *told, again)
    prompt = _harmony().render(ChatRequest(messages=messages, tools=(TOOL,))).text
    shown = prompt[prompt.index("<|start|>assistant") :].replace("<|channel|>commentary", "")
    assert shown == (
        "<|start|>assistant<|channel|>analysis<|message|>Both.<|end|>"
        "<|start|>assistant to=functions.f json<|message|>{}<|call|>"
        '<|start|>functions.f to=assistant<|message|>"of c0"<|end|>'
        "<|start|>assistant to=functions.g json<|message|>{}<|call|>"
        '<|start|>functions.g to=assistant<|message|>"of c1"<|end|>'
        "<|start|>user<|message|>And?<|end|><|start|>assistant"
    )


def test_effort_identity_and_builtin_tools_reach_the_template() -> None:
    variables = {
        "reasoning_effort": "high",
        "model_identity": "You are Hal.",
        "builtin_tools": ["python"],
    }
    prompt = _harmony().render(ChatRequest(messages=HI, template_kwargs=variables)).text
    assert prompt.startswith("<|start|>system<|message|>You are Hal.\n")
    assert "Reasoning: high\n" in prompt and "## python\n" in prompt
    assert "Reasoning: medium\n" in _harmony().render(ChatRequest(messages=HI)).text


def test_reasoning_that_is_ended_or_a_form_that_is_asked_leads_to_the_final_message() -> None:
    model, final = _harmony(), "<|start|>assistant<|channel|>final<|message|>"
    form = Params(constraint=Constraint("json_schema", "{}"))
    for request, then in (
        (ChatRequest(messages=HI), ""),
        (ChatRequest(messages=HI, thinking_budget=9), final),
        (ChatRequest(messages=HI, params=form), final),
        (ChatRequest(messages=HI, thinking_budget=9, tools=(TOOL,)), ""),
    ):
        thinking = model.read(request).thinking
        assert thinking is not None and thinking.then == then and not thinking.is_open
        assert (thinking.start, thinking.end) == ("<|channel|>analysis<|message|>", "<|end|>")


def test_tags_that_were_generated_are_a_header_and_the_same_letters_are_text() -> None:
    turn = _harmony().read(ChatRequest(messages=HI))
    pieces = [("", "<|channel|>"), ("analysis", "<|message|>"), ("Is <|end|> it?", "<|end|>")]
    assert _read(turn, *pieces, *FINAL, "<|end|>") == [
        Thought("Is <|end|> it?"),
        Content("<|end|>"),
    ]


def test_reasoning_gone_on_with_is_reasoning() -> None:
    model = _harmony()
    message = Message(role="assistant", content="", fields={"reasoning_content": "I th"})
    turn = model.read(ChatRequest(messages=(*HI, message)))
    assert turn.prompt.text.endswith("<|channel|>analysis<|message|>I th")
    assert _read(turn, ("ink.", "<|end|>"), *FINAL, "Yes.") == [Thought("ink."), Content("Yes.")]


# --- DeepSeek -------------------------------------------------------------------------------------

USER, TURN = "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"
CALLS, CALL = "<\uff5ctool▁calls▁begin\uff5c>", "<\uff5ctool▁call▁begin\uff5c>"


@pytest.mark.parametrize(
    "stem",
    [
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
        "deepseek-ai-DeepSeek-V3.1",
    ],
)
def test_a_template_that_writes_calls_but_shows_no_tools_is_helped_in_its_own_form(
    stem: str,
) -> None:
    model = _model((TEMPLATES / f"{stem}.jinja").read_text("utf-8"))
    asked = (Message(role="system", content="Be brief."), *HI)
    tool = Tool(name="look_up", source={"function": {"name": "look_up", "description": "finds"}})
    prompt = model.render(ChatRequest(messages=asked, tools=(tool,))).text
    told, _, rest = prompt.partition(USER)
    assert told.startswith("Be brief.\n\n") and json.dumps(tool.source) in told
    assert rest.startswith(f"Hi{TURN}") and "<tool_call>" not in prompt
    # What it is shown is a call in its dialect.
    turn = model.read(ChatRequest(messages=HI, tools=(tool,), reasoning_format="none"))
    parts = _read(turn, told[told.index(CALLS) :])
    calls = [part for part in parts if isinstance(part, CallBegin)]
    assert [call.name for call in calls] == ["NAME"] and turn.new_parser().n_calls == 0
    without = ChatRequest(messages=asked, tools=(tool,), tool_choice="none")
    assert "look_up" not in model.render(without).text
    history = Message(role="assistant", content=None, fields={"tool_calls": [CALLED]})
    again = model.render(ChatRequest(messages=(*asked, history, TOLD), tools=(tool,))).text
    assert CALL in again.partition(USER)[2]


#: As those of some models for pictures are: content is a list of parts, and there are no tools.
PARTS_ONLY = (
    "{% for m in messages %}[{{ m.role }}]"
    "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}"
    "{% else %}<image>{% endif %}{% endfor %}{{ '\n' }}{% endfor %}"
)


def test_what_is_told_in_words_reaches_a_template_that_takes_parts_only() -> None:
    model = _model(PARTS_ONLY, frozenset())
    call = {"id": "c", "function": {"name": "look", "arguments": '{"at": "cat"}'}}
    messages = (
        Message(role="system", content="Be brief."),
        *HI,
        Message(role="assistant", content="Well.", fields={"tool_calls": [call]}),
        Message(
            role="tool",
            content=[{"type": "text", "text": "seen: "}, {"type": "media", "index": 0}],
        ),
        Message(role="assistant", content=None, fields={"tool_calls": [call]}),
        Message(role="tool", content="nothing"),
    )
    source = Source(kind="image", param="here", data=b"x")
    request = ChatRequest(messages=messages, sources=(source,), tools=(TOOL,))
    prompt = model.render(request)
    told, _, rest = shown(prompt).partition("[user]")
    assert told.startswith("[system]Be brief.\n\n") and json.dumps(TOOL.source) in told
    called = '<tool_call>\n{"name": "look", "arguments": {"at": "cat"}}\n</tool_call>\n'
    assert rest == (
        f"Hi\n[assistant]Well.\n{called}"
        "[user]<tool_response>\nseen: <__media__>\n</tool_response>\n"
        f"[assistant]{called}"
        "[user]<tool_response>\nnothing\n</tool_response>\n"
    )
    assert model.render(ChatRequest(messages=(), tools=(TOOL,))).text.startswith("[system]You can")
