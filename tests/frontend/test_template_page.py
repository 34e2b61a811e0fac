"""The page that shows what a conversation becomes, and tries other templates."""

from typing import Any, TypeAlias

import msgspec
import pytest
from litestar.datastructures import FormMultiDict

from corral.backend.chat.trial import Trial, tried
from corral.backend.chat.types import ChatRequest, Message, Written
from corral.backend.errors import CorralError, Refused
from corral.frontend.tools import template
from corral.frontend.tools.segments import Segment, segments

#: See ``conftest``.
Client: TypeAlias = Any
HTMX = {"hx-request": "true"}
NAMES = {"<|im_start|>", "<|im_end|>", "<|im", "\n\n"}


# --- segments -------------------------------------------------------------------------------------


def test_control_tokens_are_found_in_what_the_template_wrote_only() -> None:
    text = "<|im_start|>user\n<|im_end|><|im_end|>\n\n"
    found = segments(Written(text, ((17, 27),)), NAMES)
    assert found == (
        Segment("control", "<|im_start|>"),
        Segment("markup", "user\n"),
        Segment("foreign", "<|im_end|>"),
        Segment("control", "<|im_end|>"),
        Segment("markup", "\n\n"),
    )


def test_no_token_is_made_of_what_touches_the_clients_text() -> None:
    found = segments(Written("<|im_end|>", ((4, 6),)), {"<|im_end|>"})
    assert [s.kind for s in found] == ["markup", "foreign", "markup"]


def test_the_longest_token_counts_and_all_text_is_there() -> None:
    found = segments(Written("a<|im_start|>b<|imc"), NAMES)
    assert [s.text for s in found if s.kind == "control"] == ["<|im_start|>", "<|im"]
    assert "".join(s.text for s in found) == "a<|im_start|>b<|imc"
    assert segments(Written(""), ()) == ()


# --- a template in a process of its own -----------------------------------------------------------


def trial(source: str) -> Trial:
    request = ChatRequest(messages=(Message(role="user", content="hi"),))
    options = {"folds": False}
    return Trial(
        source=source, bos_token="<s>", eos_token="", controls=[], options=options, request=request
    )


async def test_another_template_is_rendered_as_the_servers_own_would_be() -> None:
    found = await tried(
        trial("{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}")
    )
    assert found.prompt == Written("<s>[hi]", ((4, 6),))
    assert found.can is not None and found.can.string_content and not found.can.tools


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('Not like this') }}", "^Not like this$"),
        ("a\n{% if %}", "syntax error in line 2"),
        ("{% for i in [1] %}" * 25 + "{% endfor %}" * 25, "too many statically nested blocks"),
        ("{{ messages.nothing.more }}", "no attribute 'nothing'"),
    ],
)
async def test_its_objections_are_told_in_its_words(source: str, words: str) -> None:
    with pytest.raises(Refused, match=words) as refused:
        await tried(trial(source))
    assert refused.value.kind == "template_error"


@pytest.mark.parametrize(
    "source",
    [
        "{% set x = [1] %}{% for i in x %}{{ x.append(1) or '' }}{% endfor %}",
        "{% set n = namespace(x='a' * 4096) %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}"
        "{% endfor %}",
    ],
    ids=["for ever", "all memory"],
)
async def test_one_that_takes_too_much_is_ended(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Busy cores are no reason to end it early, and its own limits end it on idle ones.
    monkeypatch.setattr("corral.backend.chat.trial.WALL_S", 100.0)
    with pytest.raises(CorralError, match=r"more than 3 seconds of a core|MemoryError"):
        await tried(trial(source))


async def test_one_that_waits_for_a_core_too_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("corral.backend.chat.trial.WALL_S", 0.0)
    with pytest.raises(Refused, match="takes more than 0 seconds"):
        await tried(trial("a"))


# --- the form -------------------------------------------------------------------------------------


def view(**more: Any) -> template.Template:
    known: dict[str, Any] = {"rows": (template.Row("user", "hi"),), "own": "", "source": ""}
    return template.Template(**known | more)


def test_a_request_has_what_the_form_says() -> None:
    asked = template.to_request(
        view(
            tools='[{"name": "f", "parameters": {"type": "object"}}]',
            kwargs='{"a": 1}',
            thinking="off",
            adds_prompt=False,
        )
    )
    assert asked.messages == (Message(role="user", content="hi"),)
    assert asked.template_kwargs == {"enable_thinking": False, "a": 1}
    assert not asked.add_generation_prompt
    (tool,) = asked.tools
    assert tool.name == "f" and tool.source["type"] == "function"
    msgspec.json.encode(asked)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"tools": "[{]"}, "Tools: no JSON in line 1, column 3"),
        ({"tools": '[{"name": "f"}, 3]'}, "Tools: number 2 is no function with a name"),
        ({"kwargs": "[1]"}, "Variables: expected an object"),
        ({"kwargs": '{"a":\n}'}, "Variables: no JSON in line 2, column 1"),
        ({"rows": ()}, "A conversation needs a message"),
        ({"kwargs": "[" * 100_000}, "Variables: nested too deep"),
    ],
)
def test_what_is_wrong_is_named(field: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        template.to_request(view(**field))


def test_buttons_add_and_remove_messages_and_put_the_template_back() -> None:
    two = template.changed(view(own="a", source="b"), "add")
    assert [row.role for row in two.rows] == ["user", "assistant"]
    assert template.changed(two, "add").rows[2].role == "user"
    assert template.changed(two, "remove-0").rows == two.rows[1:]
    assert template.changed(two, "remove-9") == two and template.changed(two, "remove-x") == two
    assert two.is_changed and not template.changed(two, "reset").is_changed


@pytest.mark.parametrize("own", ["a\r\nb", "a\rb", "a\nb\n"])
def test_a_template_that_only_lost_its_line_ends_is_the_models(own: str) -> None:
    sent = FormMultiDict([("source", "a\r\nb")])
    assert not template.of_form(sent, own).is_changed
    assert template.of_form(FormMultiDict([("source", "a\r\n b")]), own).is_changed


# --- over HTTP ------------------------------------------------------------------------------------


def form(**more: Any) -> dict[str, Any]:
    return {
        "role": ["system", "user"],
        "text": ["Be <b>", "<|im_end|>"],
        "adds_prompt": "on",
    } | more


async def test_the_page_opens_with_an_example(client: Client) -> None:
    answer = await client.get("/template")
    assert "<b>&lt;|im_start|&gt;</b>system" in answer.text
    assert "<mark>And of Spain?</mark>" in answer.text


async def test_what_is_typed_is_marked_as_the_persons(client: Client) -> None:
    answer = await client.post("/template", data=form(), headers=HTMX)
    assert "<html" not in answer.text
    assert "<mark>Be &lt;b&gt;</mark><b>&lt;|im_end|&gt;</b>" in answer.text
    assert "<mark>&lt;|im_end|&gt;</mark><b>&lt;|im_end|&gt;</b>" in answer.text
    # The client's is ten tokens, one for each byte.
    assert "45 tokens" in answer.text


async def test_a_changed_template_is_tried_and_the_servers_own_stays(client: Client) -> None:
    own = client.app.state.service.chat_template
    source = "{% for m in messages %}\r\n{{ m.role }}: {{ m.content }}\r\n{% endfor %}"
    answer = await client.post("/template", data=form(source=source))
    assert "by a template that you changed" in answer.text
    assert "system: <mark>Be &lt;b&gt;</mark>" in answer.text
    assert client.app.state.service.chat_template == own
    answer = await client.post("/template", data=form(source=source, do="reset"), headers=HTMX)
    assert "that you changed" not in answer.text
    assert "{{ m.content }}&lt;|im_end|&gt;" in answer.text.replace("&#39;", "'")


async def test_the_same_template_with_a_browsers_line_ends_is_the_same(client: Client) -> None:
    own = client.app.state.service.chat_template
    answer = await client.post("/template", data=form(source=own.replace("\n", "\r\n")))
    assert "that you changed" not in answer.text


async def test_an_objection_leaves_all_that_was_written(client: Client) -> None:
    data = form(source="{{ raise_exception('Roles must alternate') }}", kwargs='{"a": 1}')
    answer = await client.post("/template", data=data)
    assert '<p class="error" role="alert">Roles must alternate</p>' in answer.text
    assert "\nBe &lt;b&gt;</textarea>" in answer.text and "raise_exception(" in answer.text
    assert "{&#34;a&#34;: 1}</textarea>" in answer.text


async def test_too_much_is_refused(client: Client) -> None:
    answer = await client.post("/template", data=form(kwargs="a" * 400_001))
    assert answer.status_code == 413
