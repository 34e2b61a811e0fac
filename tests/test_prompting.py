"""Which template counts, and with what defaults."""

from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from corral.backend.chat.types import ChatRequest, Message, Tool
from corral.backend.commandline import parse
from corral.backend.engine.fake import FakeLlama
from corral.backend.engine.messages import EngineConfig, ModelInfo
from corral.backend.errors import Broken, Refused
from corral.backend.pool import Engine
from corral.backend.preflight import check
from corral.backend.prompting import Prompting
from corral.backend.settings import Settings

HI = (Message(role="user", content="hi"),)
TOOL = Tool(name="f", source={"type": "function", "function": {"name": "f"}})


def engine(**changes: Any) -> Engine:
    made = Engine("m", EngineConfig(model=""))
    info = replace(
        FakeLlama().info, **{"chat_template": "own {{ messages[0].content }}", **changes}
    )
    made.info = cast(ModelInfo, info)
    return made


async def shown(settings: Settings, on: Engine, **request: Any) -> str:
    _, prepared = await Prompting(settings).prepare(on, ChatRequest(messages=HI, **request))
    return prepared.prompt.text


async def test_a_second_template_is_for_requests_with_tools() -> None:
    on = engine(chat_template_tool_use="for {{ tools | tojson }} {{ messages[0].content }}")
    assert await shown(Settings(), on) == "own hi"
    assert await shown(Settings(), on, tools=(TOOL,)) == (
        'for [{"type": "function", "function": {"name": "f"}}] hi'
    )
    given = Settings(chat_template="given {{ messages[0].content }}{{ tools | length }}")
    assert (await shown(given, on, tools=(TOOL,), tool_choice="none")) == "given hi1"


async def test_a_given_template_comes_before_the_models() -> None:
    assert (
        await shown(Settings(chat_template_file="f {{ messages[0].content }}"), engine()) == "f hi"
    )
    assert await shown(Settings(chat_template="chatml"), engine()) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_a_model_without_a_template_speaks_chatml(caplog: pytest.LogCaptureFixture) -> None:
    assert (await shown(Settings(), engine(chat_template=None))).startswith("<|im_start|>user\nhi")
    assert "the model has no chat template" in caplog.text


async def test_reasoning_is_as_flags_say_until_a_request_does() -> None:
    on = engine(
        chat_template="{{ messages[0].content }} {{ enable_thinking }} {{ reasoning_effort }}"
    )
    for settings, expected in (
        (Settings(), "hi  "),
        (Settings(reasoning="on"), "hi True "),
        (Settings(reasoning="off", reasoning_effort="high"), "hi False high"),
        (Settings(reasoning_effort="none"), "hi False "),
        (Settings(reasoning="on", chat_template_kwargs='{"enable_thinking": false}'), "hi False "),
    ):
        assert await shown(settings, on) == expected
        kwargs = {"enable_thinking": True}
        assert "True" in await shown(settings, on, template_kwargs=kwargs)


async def test_the_switch_of_a_template_that_has_another_name_is_found() -> None:
    on = engine(chat_template="{{ messages[0].content }} {{ 'on' if thinking else 'off' }}")
    assert await shown(Settings(), on, template_kwargs={"enable_thinking": True}) == "hi on"
    assert await shown(Settings(reasoning="on"), on) == "hi on"
    both = {"enable_thinking": True, "thinking": False}
    assert await shown(Settings(), on, template_kwargs=both) == "hi off"


@pytest.mark.parametrize(
    "switch", ["preserve_thinking", "clear_thinking is false", "preserve_reasoning"]
)
async def test_reasoning_of_earlier_turns_is_kept_by_the_templates_own_switch(switch: str) -> None:
    template = (
        "{% for m in messages %}{% if m.reasoning_content and (" + switch + ") %}"
        "<{{ m.reasoning_content }}>{% endif %}{{ m.content }}{% endfor %}"
    )
    turns = (
        Message(role="user", content="a"),
        Message(role="assistant", content="b", fields={"reasoning_content": "why"}),
        Message(role="user", content="c"),
    )

    async def prompt(settings: Settings, **kwargs: Any) -> str:
        request = ChatRequest(messages=turns, template_kwargs=kwargs)
        on = engine(chat_template=template)
        return (await Prompting(settings).prepare(on, request))[1].prompt.text

    assert await prompt(Settings()) == "abc"
    assert await prompt(Settings(reasoning_preserve=True)) == "a<why>bc"
    assert await prompt(Settings(reasoning_preserve=True), preserve_reasoning=False) == "abc"
    assert await prompt(Settings(reasoning_preserve=False)) == "abc"
    assert await prompt(Settings(), preserve_reasoning=True) == "a<why>bc"


async def test_a_model_that_is_not_loaded_is_waited_for_by_the_client() -> None:
    on = Engine("m", EngineConfig(model=""))
    with pytest.raises(Broken) as caught:
        await shown(Settings(), on)
    assert caught.value.kind == "loading"


async def test_a_template_that_is_none_is_refused_with_its_line() -> None:
    with pytest.raises(Refused, match="syntax error in line 1"):
        await shown(Settings(), engine(chat_template="{% if %}"))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--chat-template", "lama3"], "must be a Jinja template or one of bailing, "),
        (["--chat-template-kwargs", "{"], "it is not JSON"),
        (["--chat-template-kwargs", "[]"], "must be a JSON object"),
        (["--chat-template-kwargs", '{"messages": []}'], "must not hold messages"),
        (["--chat-template-kwargs", '{"enable_thinking": "no"}'], "must have true or false"),
        (["--chat-template-file", "/nowhere"], "must be a file that can be read"),
        (["--reasoning", "maybe"], "must be auto, on or off"),
        (["--reasoning-effort", "some"], "must be none, minimal, low"),
    ],
)
def test_a_wrong_flag_says_what_it_takes(flags: list[str], words: str) -> None:
    with pytest.raises(Refused, match=words.replace("[", r"\[")):
        parse(flags, {})


def test_a_template_is_compiled_before_the_model_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{% if %}")
    for flags, flag in (
        (["--chat-template", "{% if %}"], "--chat-template"),
        (["--chat-template-file", str(file)], "--chat-template-file"),
    ):
        settings = parse([*flags, "--data-dir", str(tmp_path)], {})
        with pytest.raises(Refused, match=f"^{flag}: the chat template has a syntax error"):
            check(settings)
    both = parse(["--chat-template", "gemma", "--chat-template-file", str(file)], {})
    with pytest.raises(Refused, match="exclude each other"):
        check(both)
    check(parse(["--chat-template", "gemma", "--data-dir", str(tmp_path)], {}))
