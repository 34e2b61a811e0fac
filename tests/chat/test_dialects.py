"""What models of each family write is read as what they mean, whole, split, and cut anywhere."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from corral.backend.chat.dialects import DIALECTS, choose
from corral.backend.chat.dialects.base import Dialect, Family
from corral.backend.chat.dialects.lark import Wish
from corral.backend.chat.parser import Parser
from corral.backend.chat.parts import joined
from corral.backend.chat.template import ChatTemplate
from corral.backend.chat.types import (
    CallArguments,
    CallBegin,
    Content,
    Message,
    Part,
    Thought,
    Tool,
)

DATA = Path(__file__).parent.parent / "data"
TEMPLATES = sorted((DATA / "chat-templates").glob("*.jinja"))
NAMES = ("get_weather", "get_time", "write", "f", "g", "python")
TOOLS = tuple(
    Tool(
        name=name,
        source={
            "type": "function",
            "function": {"name": name, "description": "", "parameters": {"properties": {}}},
        },
    )
    for name in NAMES
)


def _dialects() -> dict[str, Family]:
    named = {}
    for dialect in DIALECTS:
        assert isinstance(dialect, Family)
        named[dialect.name] = dialect
    return named


FAMILIES = _dialects()
ROWS = {
    f"{path.stem}: {row['is']}": (path.stem, row)
    for path in sorted((DATA / "dialects").glob("*.json"))
    for row in json.loads(path.read_text("utf-8"))
}
#: What every template is taken for, if it is not one that knows no calls, or whose are not known.
SPOKEN: dict[str, str] = {
    "ByteDance-Seed-OSS": "seed-oss",
    "GLM-4.6": "glm",
    "MiniMax-M2": "minimax-m2",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3-coder",
    "Qwen3-Coder": "qwen3-coder",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "deepseek-v4",
    "poolside-Laguna-S-2.1": "glm",
    "poolside-Laguna-XS-2.1": "glm",
    "Apertus-8B-Instruct": "apertus",
    "Apriel-1.6-15b-Thinker-fixed": "apriel",
    "Cohere2MoE": "cohere",
    "CohereForAI-c4ai-command-r-plus-tool_use": "command-r",
    "GigaChat3-10B-A1.8B": "gigachat",
    "MiniMax-M1": "minimax-m1",
    "fireworks-ai-llama-3-firefunction-v2": "firefunction",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "ibm-granite-granite-4.0": "hermes",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral-nemo",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
    "unsloth-mistral-Devstral-Small-2507": "mistral",
    "meetkai-functionary-medium-v3.1": "functionary-v3.1",
    "deepseek-ai-DeepSeek-V3.1": "deepseek-v3.1",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek-r1",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek-r1",
    "llama-cpp-deepseek-r1": "deepseek-r1",
    "Kimi-K2-Instruct": "kimi-k2",
    "Kimi-K2-Thinking": "kimi-k2",
    "moonshotai-Kimi-K2": "kimi-k2",
    "openai-gpt-oss-120b": "harmony",
    "google-gemma-4-31B-it": "gemma4",
    "LFM2-8B-A1B": "lfm2",
}


def reader(name: str, row: Any, controls: frozenset[str] = frozenset()) -> Parser:
    family = replace(FAMILIES[name], new_id=lambda i, name: f"id_{i}")
    return family.parser(Wish(tools=TOOLS, thinks=row.get("thinks", "may")), controls)


def in_marks(family: Family, answer: str) -> tuple[str, list[tuple[int, str]]]:
    """An answer, its tags as tokens; tags within JSON strings are letters in the fixtures too."""
    text, marks = "", list[tuple[int, str]]()
    while answer:
        tag = next((tag for tag in family.marks if answer.startswith(tag)), None)
        if tag is not None:
            marks.append((len(text), tag))
            answer = answer[len(tag) :]
        else:
            text, answer = text + answer[0], answer[1:]
    return text, marks


def summary(parts: list[Part]) -> tuple[str, str, list[list[Any]]]:
    """Thought, content, and calls as name and text of arguments."""
    thought = "".join(part.text for part in parts if isinstance(part, Thought))
    content = "".join(part.text for part in parts if isinstance(part, Content))
    calls: list[list[Any]] = []
    for part in parts:
        if isinstance(part, CallBegin):
            assert part.index == len(calls)
            assert part.id == f"id_{part.index}" or part.id.startswith(f"functions.{part.name}:")
            calls.append([part.name, ""])
        elif isinstance(part, CallArguments):
            assert part.index == len(calls) - 1 and part.text
            calls[-1][1] += part.text
    return thought, content, calls


@pytest.mark.parametrize("case", ROWS)
@pytest.mark.parametrize("are_tokens", [False, True])
def test_an_answer_is_read_as_what_it_means(case: str, are_tokens: bool) -> None:
    name, row = ROWS[case]
    family = FAMILIES[name]
    controls = frozenset(family.marks) if are_tokens else frozenset[str]()
    text, marks = in_marks(family, row["answer"]) if are_tokens else (row["answer"], [])
    parser = reader(name, row, controls)
    thought, content, calls = summary([*parser.feed(text, marks), *parser.finish()])
    assert (thought, content) == (row.get("thought", ""), row.get("content", ""))
    assert [[name, json.loads(text)] for name, text in calls] == row["calls"]
    assert parser.n_calls == len(calls)


@pytest.mark.parametrize("case", ROWS)
def test_every_split_of_an_answer_reads_the_same(case: str) -> None:
    name, row = ROWS[case]
    answer = row["answer"]
    whole = reader(name, row)
    expected = joined([*whole.feed(answer), *whole.finish()])
    splits = [[answer[:at], answer[at:]] for at in range(len(answer))]
    for split in (*splits, list(answer)):
        parser = reader(name, row)
        parts = [part for piece in split for part in parser.feed(piece)]
        assert joined([*parts, *parser.finish()]) == expected
        assert parser.n_calls == whole.n_calls


@pytest.mark.parametrize("case", ROWS)
def test_an_answer_cut_anywhere_holds_the_complete_calls_and_the_rest_begun(case: str) -> None:
    name, row = ROWS[case]
    for at in range(len(row["answer"])):
        parser = reader(name, row)
        _, content, calls = summary([*parser.feed(row["answer"][:at]), *parser.finish()])
        assert parser.n_calls <= len(calls) <= len(row["calls"])
        if calls and not row.get("content"):  # the beginning of a tag behind a call says nothing
            assert not content
        whole = [[name, json.loads(text)] for name, text in calls[: parser.n_calls]]
        assert whole == row["calls"][: parser.n_calls]
        assert [name for name, _ in calls] == [n for n, _ in row["calls"][: len(calls)]]
        for _, text in calls[parser.n_calls :]:
            with pytest.raises(ValueError):
                json.loads(text)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_every_template_is_spoken_in_its_own_dialect(path: Path) -> None:
    expected = SPOKEN.get(path.stem, "generic")
    assert choose(path.read_text("utf-8"), frozenset()).name == expected
    fitting = [d.name for d in DIALECTS[:-1] if d.fits(path.read_text("utf-8"), frozenset())]
    assert fitting == [expected] * (expected != "generic")


def _turn(dialect: Dialect, calls: list[dict[str, Any]]) -> list[Message]:
    user = Message(role="user", content="What is the weather?")
    return [user, Message(role="assistant", content="", fields={"tool_calls": calls})]


@pytest.mark.parametrize("stem", SPOKEN)
@pytest.mark.parametrize("n_calls", [1, 2])
def test_calls_as_the_models_own_template_writes_them_are_read_back(
    stem: str, n_calls: int
) -> None:
    source = (DATA / "chat-templates" / f"{stem}.jinja").read_text("utf-8")
    dialect = choose(source, frozenset())
    if stem in MUTE or (n_calls > 1 and stem in SINGLE):
        return
    wanted = [["get_weather", {"city": "São Paulo", "days": 3}], ["get_time", {"tz": "A/B"}]]
    objects = dialect.name in WANT_OBJECTS or re.search(
        r"arguments\W*\s*\|\s*tojson|(?:function|args)\s*\|\s*tojson", source
    )
    calls = [
        {
            "id": f"abcdefgh{i}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": arguments if objects else json.dumps(arguments),
            },
        }
        for i, (name, arguments) in enumerate(wanted[:n_calls])
    ]
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>", may_queue=True)
    user, answer = _turn(dialect, calls)
    if "message['content'] is none" in source:
        answer = replace(answer, content=None)
    # One hands a generator to tojson, which no Python can write out.
    kwargs: dict[str, Any] = {"tools": [tool.source for tool in TOOLS]}
    if "map(attribute" in source:
        kwargs = {}
    before = template.render([user], add_generation_prompt=True, kwargs=kwargs).text
    both = template.render(
        [user, answer], add_generation_prompt=False, kwargs=kwargs, keep_null=True
    ).text
    size = next(i for i, (a, b) in enumerate(zip(before + "\0", both, strict=False)) if a != b)
    opening = both.rfind("<", 0, size)
    if opening >= 0 and ">" not in both[opening:size]:
        size = opening  # another tag than the prompt's
    parser = reader(dialect.name, {"thinks": "no"})
    _, _, found = summary([*parser.feed(both[size:]), *parser.finish()])
    assert [[name, json.loads(text)] for name, text in found] == wanted[:n_calls]
    assert parser.n_calls == n_calls


#: Dialects whose templates write arguments one by one.
WANT_OBJECTS = {"qwen3-coder", "seed-oss", "minimax-m2", "glm", "deepseek-v4", "gemma4"}
#: Templates that refuse more than one call.
SINGLE = {
    "openai-gpt-oss-120b",
    "GigaChat3-10B-A1.8B",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
}
#: Templates that write no calls, or want variables of their own.
MUTE = {
    "fireworks-ai-llama-3-firefunction-v2",
    "ibm-granite-granite-3.3-2B-Instruct",
    "LFM2-8B-A1B",
}


def test_without_tools_no_dialect_sees_calls_or_constrains() -> None:
    for name, row in ROWS.values():
        for wish in (Wish(), Wish(tools=TOOLS, choice="none")):
            parser = FAMILIES[name].parser(wish, frozenset())
            parts = [*parser.feed(row["answer"]), *parser.finish()]
            assert not any(isinstance(part, CallBegin) for part in parts)
            assert FAMILIES[name].grammar(wish, frozenset()) is None


def test_the_id_that_a_model_wrote_is_its_call_s() -> None:
    answer = next(row["answer"] for name, row in ROWS.values() if name == "kimi-k2")
    parser = reader("kimi-k2", {})
    ids = [part.id for part in parser.feed(answer) if isinstance(part, CallBegin)]
    assert ids == ["functions.get_weather:0"]


#: The form of Functionary 3.2's template.
FUNCTIONARY = (
    r"{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
    r"{% if m.role != 'assistant' %}{{ m.content }}{% else %}"
    r"{% if m.content %}{{ '>>>all\n' + m.content }}{% endif %}{% for c in m.tool_calls or [] %}"
    r"{{ '>>>' + c.function.name + '\n' + c.function.arguments }}{% endfor %}"
    r"{% endif %}{{ '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    r"{{ '<|start_header_id|>assistant<|end_header_id|>\n\n>>>' }}{% endif %}"
)


def test_functionary_s_messages_are_read_back_as_its_template_writes_them() -> None:
    assert [d.name for d in DIALECTS[:-1] if d.fits(FUNCTIONARY, frozenset())] == [
        "functionary-v3.2"
    ]
    template = ChatTemplate(FUNCTIONARY, bos_token="", eos_token="<|eot_id|>")
    functions = [{"name": "f", "arguments": '{"a": "é"}'}, {"name": "g", "arguments": "{}"}]
    calls = [{"id": "c", "type": "function", "function": function} for function in functions]
    user, answer = _turn(FAMILIES["functionary-v3.2"], calls)
    answer = replace(answer, content="I will.\n")
    before = template.render([user], add_generation_prompt=True, kwargs={}).text
    both = template.render([user, answer], add_generation_prompt=False, kwargs={}).text
    assert both.startswith(before)
    parser = reader("functionary-v3.2", {})
    _, content, found = summary([*parser.feed(both[len(before) :]), *parser.finish()])
    assert content == "I will.<|eot_id|>" and found == [["f", '{"a": "é"}'], ["g", "{}"]]


@pytest.mark.parametrize("size", [1, 4, 99])
def test_functionary_s_python_is_code_as_it_is(size: int) -> None:
    answer = 'python\nprint("a\\n")\nx >>= 1 \n>>>f\n{}'
    parser = reader("functionary-v3.2", {})
    pieces = [answer[i : i + size] for i in range(0, len(answer), size)]
    parts = [part for piece in pieces for part in parser.feed(piece)]
    _, content, calls = summary([*parts, *parser.finish()])
    assert not content and [name for name, _ in calls] == ["python", "f"] and parser.n_calls == 2
    assert json.loads(calls[0][1]) == {"code": 'print("a\\n")\nx >>= 1 \n'}


#: The form of LFM2.5's template.
LFM = (
    r"{% macro shown(value) %}{% if value is string %}"
    r"""{{ "'" + value + "'" }}"""
    r"{% elif value is mapping %}{{ value | tojson }}{% else %}{{ value | string }}{% endif %}"
    r"{% endmacro %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
    r"{% if m.tool_calls %}{{ '<|tool_call_start|>[' }}{% for c in m.tool_calls %}"
    r"{{ c.function.name + '(' }}{% for key, value in c.function.arguments.items() %}"
    r"{{ key + '=' + shown(value) }}{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}"
    r"{{ ')' }}{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}"
    r"{{ ']<|tool_call_end|>' }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    r"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_calls_as_lfm_s_template_writes_them_are_read_back() -> None:
    assert [d.name for d in DIALECTS[:-1] if d.fits(LFM, frozenset())] == ["lfm2"]
    template = ChatTemplate(LFM, bos_token="", eos_token="<|im_end|>")
    arguments = {
        "city": "São Paulo",
        "days": 3,
        "rate": -0.5,
        "exact": True,
        "none": None,
        "units": ["cm", 'it"s', 1, False, {"a": None}],
        "more": {"a": [1, {"b": "c'd"}], "e": True},
    }
    wanted: list[list[Any]] = [["get_weather", arguments], ["g", {}]]
    calls = [{"function": {"name": name, "arguments": given}} for name, given in wanted]
    user, answer = _turn(FAMILIES["lfm2"], calls)
    before = template.render([user], add_generation_prompt=True, kwargs={}).text
    both = template.render([user, answer], add_generation_prompt=False, kwargs={}).text
    assert both.startswith(before)
    parser = reader("lfm2", {})
    _, content, found = summary([*parser.feed(both[len(before) :]), *parser.finish()])
    assert [[name, json.loads(text)] for name, text in found] == wanted
    assert content == "<|im_end|>\n" and parser.n_calls == 2


@pytest.mark.parametrize("source", ["{{ messages }}", "List of tools: <|tool_list_start|>["])
def test_a_template_without_calls_is_lfm_s_if_the_model_has_its_tags(source: str) -> None:
    tags = frozenset(("<|tool_call_start|>", "<|tool_call_end|>"))
    assert choose(source, tags).name == "lfm2"
    assert choose("{{ messages }}", frozenset()).name == "generic"


@pytest.mark.parametrize("size", [1, 3])
def test_python_s_arguments_arrive_as_they_are_generated(size: int) -> None:
    answer = "<|tool_call_start|>[write(text='one two three', n=1"
    parser = reader("lfm2", {})
    pieces = [answer[i : i + size] for i in range(0, len(answer), size)]
    fragments = [
        part.text
        for piece in pieces
        for part in parser.feed(piece)
        if isinstance(part, CallArguments)
    ]
    assert "".join(fragments) == '{"text": "one two three", "n": '
    assert len(fragments) >= 13 // size


def test_a_number_of_python_s_ends_where_a_tag_does() -> None:
    family = FAMILIES["lfm2"]
    text, marks = in_marks(family, "<|tool_call_start|>[f(n=3<|tool_call_end|>")
    parser = reader("lfm2", {}, frozenset(family.marks))
    _, content, calls = summary([*parser.feed(text, marks), *parser.finish()])
    assert calls == [["f", '{"n": 3']] and parser.n_calls == 0
    assert content == "<|tool_call_end|>"


#: What Llama 3 writes behind its tag: the answer, and its calls with and without a tool that runs
#: Python.
PYTHON_TAG: list[tuple[str, list[list[Any]], list[list[Any]] | None]] = [
    ('brave_search.call(query="x")', *[[["brave_search", {"query": "x"}]]] * 2),
    ("wolfram_alpha.call(query='2^10')<|eom_id|>", *[[["wolfram_alpha", {"query": "2^10"}]]] * 2),
    ("print(1)\nx = 'é'", [["python", {"code": "print(1)\nx = 'é'"}]], None),
    ("brave.call(q=1)", [["python", {"code": "brave.call(q=1)"}]], [["brave", {"q": 1}]]),
]


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize("row", PYTHON_TAG, ids=lambda row: row[0])
def test_behind_llama_s_tag_stand_builtin_calls_or_code(size: int, runs: bool, row: Any) -> None:
    code, with_runner, without = row
    answer, wanted = f"<|python_tag|>{code}", with_runner if runs else without
    tools = tuple(tool for tool in TOOLS if runs or tool.name != "python")
    family = replace(FAMILIES["llama3"], new_id=lambda i, name: f"id_{i}")
    parser = family.parser(Wish(tools=tools, thinks="may"), frozenset())
    pieces = [answer[i : i + size] for i in range(0, len(answer), size)]
    parts = [part for piece in pieces for part in parser.feed(piece)]
    _, content, calls = summary([*parts, *parser.finish()])
    assert [[name, json.loads(text)] for name, text in calls] == (wanted or [])
    assert content == ("" if wanted else answer)
