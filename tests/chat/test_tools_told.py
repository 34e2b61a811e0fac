"""Tools, calls and results reach every model, under whatever name its template wants them, in its
template's words or in ours; or the request is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from corral.backend.chat.model import ChatModel, Prepared
from corral.backend.chat.template import ChatTemplate
from corral.backend.chat.types import ChatRequest, Message, Tool
from corral.backend.errors import Refused

PATHS = sorted((Path(__file__).parent.parent / "data" / "chat-templates").glob("*.jinja"))
TOKENIZER = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(WordLevel({"x": 0}, unk_token="x")),
    bos_token="<s>",
    eos_token="</s>",
)


def model(source: str, **more: Any) -> ChatModel:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>", may_queue=True)
    return ChatModel(template, frozenset(), **more)


def published(stem: str, **more: Any) -> ChatModel:
    return model(next(path for path in PATHS if path.stem == stem).read_text("utf-8"), **more)


def tool(name: str, about: str) -> Tool:
    parameters = {"type": "object", "properties": {"wo": {"type": "string"}}}
    function = {"name": name, "description": about, "parameters": parameters}
    source = {"type": "function", "function": function}
    return Tool(name=name, parameters=parameters, source=source)


TOOLS = (tool("look-up_9.z", "Ünusual"), tool("ns:zweite_f", "Zwöte"))
ARGUMENTS = ({"wo": "Ålesund <☂> & ﬁ", "n": 271828.25}, {"wo": "Ýtri-Njarðvík"})
RESULTS = ("wörd <&> 📜", "zwöt <&> 📜")
USER = Message(role="user", content="Wö?")
WORDS = "Möment."
FIREFUNCTION = "fireworks-ai-llama-3-firefunction-v2"


def called(i: int, *, as_text: bool) -> dict[str, Any]:
    arguments = json.dumps(ARGUMENTS[i], ensure_ascii=False) if as_text else ARGUMENTS[i]
    function = {"name": TOOLS[i].name, "arguments": arguments}
    return {"id": f"call1234{i}", "type": "function", "function": function}


def answered(i: int, *, as_text: bool) -> Message:
    content: Any = RESULTS[i] if as_text else [{"type": "text", "text": RESULTS[i]}]
    fields = {"tool_call_id": f"call1234{i}", "name": TOOLS[i].name}
    return Message(role="tool", content=content, fields=fields)


def conversation(n: int, words: str | None, *, as_text: bool = True) -> tuple[Message, ...]:
    """A question, an answer that has words and calls, and what came of them."""
    fields = {"tool_calls": [called(i, as_text=as_text) for i in range(n)]}
    results = [answered(i, as_text=as_text) for i in range(n)]
    return (USER, Message(role="assistant", content=words, fields=fields), *results)


SYSTEM = Message(role="system", content="Künstlich.")
AGAIN = (Message(role="assistant", content="Dönn."), Message(role="user", content="Ähm?"))
#: What stands around it, and the words that must come through.
AROUND: dict[str, tuple[tuple[Message, ...], tuple[Message, ...], list[str]]] = {
    "a call": ((), (), []),
    "system": ((SYSTEM,), (), ["Künstlich."]),
    "another turn": ((), AGAIN, ["Dönn.", "Ähm?"]),
}


def dropped(prepared: Prepared, n: int, *more: str) -> list[str]:
    """What is not in the prompt."""
    about = [tool.source["function"]["description"] for tool in TOOLS]
    values = [str(value) for i in range(n) for value in ARGUMENTS[i].values()]
    expected = [*(tool.name for tool in TOOLS), *about, *values, *RESULTS[:n], *more]
    return [text for text in expected if text not in prepared.prompt.text]


@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_nothing_of_tools_calls_and_results_is_dropped(
    path: Path, around: Any, n: int, as_text: bool
) -> None:
    chat = model(path.read_text("utf-8"))
    before, after, expected = around
    for words in (None, WORDS):
        turns = (*before, *conversation(n, words, as_text=as_text), *after)
        request = ChatRequest(messages=turns, tools=TOOLS)
        if before and not chat.can.system_role:
            with pytest.raises(Refused) as refused:
                chat.prepare(request)
            assert refused.value.param == "messages"
            continue
        prepared = chat.prepare(request)
        assert not dropped(prepared, n, *expected), words
        # GPT-OSS takes what is said beside a call for reasoning, and shows no earlier turn's.
        if words and not (after and chat.dialect.name == "harmony"):
            assert (words in prepared.prompt.text) is ("words" not in prepared.folded)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_result_that_names_no_call_shows_or_is_refused(path: Path) -> None:
    chat = model(path.read_text("utf-8"))
    user, asked, first, second = conversation(2, None)
    nobodys = replace(second, fields={"name": TOOLS[1].name})
    request = ChatRequest(messages=(user, asked, first, nobodys), tools=TOOLS)
    try:
        shown = chat.prepare(request).prompt.text
    except Refused as refused:
        assert refused.kind == "template_error"
    else:
        assert RESULTS[0] in shown and RESULTS[1] in shown


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_calls_of_the_history_show_without_tools_too(path: Path) -> None:
    chat = model(path.read_text("utf-8"))
    shown = chat.prepare(ChatRequest(messages=conversation(1, None))).prompt.text
    assert all(str(value) in shown for value in ARGUMENTS[0].values()) and RESULTS[0] in shown


def test_words_that_a_template_cannot_show_beside_calls_are_named() -> None:
    chat = published("mistralai-Mistral-Nemo-Instruct-2407")
    assert chat.prepare(ChatRequest(messages=conversation(1, WORDS))).folded == ("words",)
    assert chat.prepare(ChatRequest(messages=conversation(1, ""))).folded == ()


def test_a_system_message_that_shows_in_a_last_question_only_becomes_part_of_one() -> None:
    chat = published("mistralai-Mistral-Nemo-Instruct-2407")
    prepared = chat.prepare(ChatRequest(messages=(SYSTEM, *conversation(1, None)), tools=TOOLS))
    assert "[INST]Künstlich.\n\nWö?[/INST]" in prepared.prompt.text
    assert prepared.folded == ("system",)
    assert chat.prepare(ChatRequest(messages=(SYSTEM, USER))).folded == ()
    assert not published("Qwen-Qwen3-0.6B").can.system_with_user


# --- Other names for tools ------------------------------------------------------------------------

#: The form of SmolLM3's template, which takes no ``tools``.
XML_TOOLS = (
    "{{ '<|im_start|>system\\n' }}{% if xml_tools or python_tools %}{{ '### Tools\\n' }}"
    "{% if xml_tools %}{{ '<tools>\\n' }}{% for tool in xml_tools[:] %}"
    "{{ (tool | string) ~ '\\n' }}"
    r"""{% endfor %}{{ "</tools>\n<tool_call>\n{\"name\": <name>, \"arguments\": <args>}\n" """
    r"""~ "</tool_call>" }}{% endif %}{% for tool in python_tools or [] %}{{ tool | string }}"""
    "{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% for m in messages %}"
    "{% set content = m.content if m.content is string else '' %}{{ '<|im_start|>' ~ "
    "('user' if m.role == 'tool' else m.role) ~ '\\n' ~ content ~ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def test_tools_reach_a_template_that_calls_them_xml_tools() -> None:
    chat = model(XML_TOOLS)
    assert (chat.dialect.name, chat.can.tools_variable, chat.can.tools) == (
        *("hermes", "xml_tools"),
        True,
    )
    shown = chat.prepare(ChatRequest(messages=(USER,), tools=TOOLS)).prompt.text
    functions = [tool.source["function"] for tool in TOOLS]
    assert shown == TOKENIZER.apply_chat_template(
        [{"role": "user", "content": "Wö?"}],
        chat_template=XML_TOOLS,
        tokenize=False,
        add_generation_prompt=True,
        xml_tools=functions,
    )
    assert shown.count("look-up_9.z") == 1  # in the template's words only
    assert not dropped(chat.prepare(ChatRequest(messages=conversation(2, WORDS), tools=TOOLS)), 2)
    assert "### Tools" not in chat.prepare(ChatRequest(messages=(USER,))).prompt.text


def test_a_variable_of_that_name_in_the_request_wins() -> None:
    for name in ("xml_tools", "python_tools"):
        own = {name: ["def mine(): ..."]}
        request = ChatRequest(messages=(USER,), tools=TOOLS, template_kwargs=own)
        shown = model(XML_TOOLS).prepare(request).prompt.text
        assert "def mine(): ..." in shown
        assert ("look-up_9.z" in shown) is (name == "python_tools")


def test_firefunction_is_given_the_json_text_of_functions() -> None:
    chat = published(FIREFUNCTION)
    assert (chat.can.tools_variable, chat.can.needs_tools) == ("functions", True)
    shown = chat.prepare(ChatRequest(messages=(USER,), tools=TOOLS)).prompt.text
    functions = [tool.source["function"] for tool in TOOLS]
    text = json.dumps(functions, ensure_ascii=False, indent=4)
    assert f"functions as JSON spec:\n{text}\nToday is " in shown
    history = chat.prepare(ChatRequest(messages=conversation(1, None), tools=TOOLS)).prompt.text
    arguments = json.dumps(ARGUMENTS[0], ensure_ascii=False)
    assert f' functools[{{"name": "look-up_9.z", "arguments": {arguments}}}]<|eot_id|>' in history


def test_a_template_that_must_have_tools_is_given_none() -> None:
    for stem in (
        "fireworks-ai-llama-3-firefunction-v2",
        "CohereForAI-c4ai-command-r-plus-tool_use",
    ):
        assert "Wö?" in published(stem).prepare(ChatRequest(messages=(USER,))).prompt.text
    assert not published("Qwen-Qwen3-0.6B").can.needs_tools
    served = published(FIREFUNCTION, defaults={"functions": "those of the server"})
    assert "those of the server" in served.prepare(ChatRequest(messages=(USER,))).prompt.text


# --- Templates that know none ---------------------------------------------------------------------


def test_tools_are_told_in_the_first_message_where_there_is_no_place_for_a_system_s() -> None:
    chat = published("google-gemma-2-2b-it")
    shown = chat.prepare(ChatRequest(messages=conversation(2, None), tools=TOOLS)).prompt.text
    first, _, rest = shown.removeprefix("<s><start_of_turn>user\nYou can call ").partition("Wö?")
    assert all(json.dumps(tool.source, ensure_ascii=False) in first for tool in TOOLS)
    results = "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in RESULTS)
    assert f"<start_of_turn>user\n{results}<end_of_turn>" in rest  # one turn, as roles alternate


def test_results_in_a_row_are_one_message_also_as_parts() -> None:
    chat = model(
        "{% for m in messages %}[{{ m.role }}]{% for part in m.content %}{{ part.text }}"
        "{% endfor %}{% endfor %}"
    )
    shown = chat.prepare(ChatRequest(messages=conversation(2, WORDS, as_text=False))).prompt.text
    results = "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in RESULTS)
    assert shown.endswith(f"[user]{results}")


def test_a_dialect_whose_template_shows_no_tools_is_told_of_them() -> None:
    source = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}<|tool_call|>{{ c.function | tojson }}{% endfor %}"
        "{% endfor %}"
    )
    chat = model(source)
    assert chat.dialect.name == "granite" and not chat.can.tools
    assert not dropped(chat.prepare(ChatRequest(messages=conversation(2, WORDS), tools=TOOLS)), 2)
