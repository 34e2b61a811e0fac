import datetime
import functools
import json
from typing import Any

import msgspec
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from corral.backend.chat.template import CHATML, ChatTemplate
from corral.backend.chat.types import Message
from corral.backend.errors import Refused

BOS, EOS = "<|bos|>", "<|eos|>"


def as_messages(conversation: list[dict[str, Any]]) -> list[Message]:
    return [
        Message(
            role=turn["role"],
            content=turn.get("content", msgspec.UNSET),
            fields={k: v for k, v in turn.items() if k not in ("role", "content")},
        )
        for turn in conversation
    ]


@functools.cache
def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token=BOS, eos_token=EOS)


def ours(
    source: str, conversation: list[dict[str, Any]], prompt: bool, kwargs: dict[str, Any]
) -> str | None:
    template = compiled(source)
    try:
        return template.render(
            as_messages(conversation), add_generation_prompt=prompt, kwargs=kwargs
        ).text
    except Refused as refused:
        assert refused.kind == "template_error"
        return None


def theirs(
    source: str, conversation: list[dict[str, Any]], prompt: bool, kwargs: dict[str, Any]
) -> str | None:
    try:
        rendered: Any = render_jinja_template(
            [conversation],
            chat_template=source,
            add_generation_prompt=prompt,
            bos_token=BOS,
            eos_token=EOS,
            **kwargs,
        )
    except Exception:  # noqa: BLE001 - whatever a template raises counts as a refusal
        return None
    text: str = rendered[0][0]
    return text


def render(source: str, *turns: Message, **kwargs: Any) -> str:
    template = ChatTemplate(source, bos_token=BOS, eos_token=EOS)
    return template.render(turns, add_generation_prompt=True, kwargs=kwargs).text


@pytest.fixture
def user() -> Message:
    return Message(role="user", content="hi")


@pytest.mark.parametrize(
    "source",
    [
        "{% if true %}\n  a\n{% endif %}\n  b\n",
        "   {% if true %}a{% endif %}   \n",
        "{# note #}\nx\n",
        "{%- for m in messages -%}\n {{ m.role }} \n{%- endfor -%}\n\n",
        "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
        "{% for i in range(9) %}{% if i > 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "{{ {'b': '<é>', 'a': [1, none, true]} | tojson }}",
        "{{ {'b': 1, 'a': {'c': 2}} | tojson(indent=2, sort_keys=true) }}",
        "{{ {'b': 1, 'a': 'é'} | tojson(separators=(',', ':'), ensure_ascii=true) }}",
        "{% set x = 1 %}a{% generation %}\n b{% set x = 2 %}{{ x }}\n{% endgeneration %}{{ x }}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
        "{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}",
        "{{ tools is none }}{{ documents is none }}",
        "{{ nothing }}{{ nothing is defined }}{{ messages[0].nothing }}",
        "{{ strftime_now('%d %B %Y') }}",
        "{% set n = namespace(x=0) %}{% for m in 'abc' %}{% set n.x = m %}{% endfor %}{{ n.x }}",
        "{{ '<&>' }}{{ messages[0].content | upper }}{{ messages | length * 2 }}",
        "{{ 'ab' * 3 }}{{ 3 * [1] }}{{ 2 ** 8 }}{{ 1.5 * 2 }}",
        "{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(1) }}{{ m('<') }}",
    ],
)  # fmt: skip
def test_whitespace_and_functions_are_those_of_transformers(source: str) -> None:
    conversation = [{"role": "user", "content": "<hi>"}]
    expected = theirs(source, conversation, True, {})
    assert expected is not None
    assert ours(source, conversation, True, {}) == expected


def test_a_template_that_raises_is_refused_with_its_words(user: Message) -> None:
    with pytest.raises(Refused) as caught:
        render("{{ raise_exception('roles must alternate') }}", user)
    assert caught.value.message == "roles must alternate"
    assert (caught.value.kind, caught.value.param) == ("template_error", "messages")
    assert caught.value.wire.status == 400


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ nothing.at.all }}", "nothing"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ ''.__class__.__mro__ }}", "__class__"),
        ("{% include 'etc/passwd' %}", "loader"),
    ],
)
def test_a_template_that_fails_is_refused_and_says_how(
    user: Message, source: str, word: str
) -> None:
    with pytest.raises(Refused, match=word) as caught:
        render(source, user)
    assert caught.value.kind == "template_error"


@pytest.mark.parametrize(
    "source", ["{% if %}", "a\n{{ 'b' ", "{% nonsense %}", "{% generation %}x"]
)
def test_a_template_that_is_not_jinja_is_refused_at_once_with_its_line(source: str) -> None:
    with pytest.raises(Refused, match=r"syntax error in line [12]: ") as caught:
        ChatTemplate(source, bos_token=BOS, eos_token=EOS)
    assert caught.value.kind == "template_error"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100000000) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{{ 10000000000 * 'x' }}",
        "{{ [0] * 10000000000 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set t = 'x' * 60000000 %}{{ t }}{{ t }}",
    ],
)
@pytest.mark.timeout(10)
def test_a_runaway_template_is_stopped(user: Message, source: str) -> None:
    with pytest.raises(Refused) as caught:
        render(source, user)
    assert caught.value.kind == "template_error"


def test_a_prompt_may_be_exactly_as_long_as_the_limit() -> None:
    template = ChatTemplate("{{ messages[0].content }}", bos_token=BOS, eos_token=EOS)
    turns = [Message(role="user", content="x" * 100)]
    assert (
        template.render(turns, add_generation_prompt=True, kwargs={}, max_chars=100).text
        == "x" * 100
    )
    with pytest.raises(Refused, match="more than 99 characters"):
        template.render(turns, add_generation_prompt=True, kwargs={}, max_chars=99)


def test_what_is_null_is_absent() -> None:
    source = "{% for m in messages %}{{ 'content' in m }}:{{ 'name' in m }};{% endfor %}"
    turns = [
        Message(role="a", content=None, fields={"name": None}),
        Message(role="a", content="", fields={"name": ""}),
        Message(role="a"),
    ]
    assert render(source, *turns) == "False:False;True:True;False:False;"


def test_members_beside_role_and_content_reach_the_template_unchanged() -> None:
    calls = [{"function": {"name": "f", "arguments": {"x": [1, 2.5, None, "é"]}}}]
    message = Message(role="assistant", content="", fields={"name": "Bo", "tool_calls": calls})
    shown = json.loads(render("{{ messages[0] | tojson }}", message))
    assert shown == {"role": "assistant", "content": "", "name": "Bo", "tool_calls": calls}


def test_kwargs_become_variables_and_beat_the_built_in_ones(user: Message) -> None:
    assert render("{{ flag }}{{ bos_token }}", user, flag=True, bos_token="!") == "True!"


def test_kwargs_cannot_replace_the_messages(user: Message) -> None:
    with pytest.raises(Refused) as caught:
        render("{{ messages }}", user, messages=[])
    assert caught.value.param == "chat_template_kwargs"


def test_one_rendering_leaves_nothing_for_the_next(user: Message) -> None:
    template = ChatTemplate(
        "{% for i in range(90000) %}{% endfor %}{{ x is defined }}{% set x = 1 %}",
        bos_token=BOS,
        eos_token=EOS,
    )
    shown = {template.render([user], add_generation_prompt=True, kwargs={}).text for _ in range(15)}
    assert shown == {"False"}


def test_the_date_is_todays(user: Message) -> None:
    before = datetime.date.today().isoformat()
    shown = render("{{ strftime_now('%Y-%m-%d') }}", user)
    assert shown in (before, datetime.date.today().isoformat())


def test_a_model_without_a_template_speaks_chatml(user: Message) -> None:
    shown = render(CHATML, Message(role="system", content="Be brief."), user)
    assert shown == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )  # fmt: skip


def test_chatml_shows_a_message_without_content_as_empty() -> None:
    shown = render(CHATML, Message(role="user", content=None), Message(role="user"))
    assert shown.count("<|im_start|>user\n<|im_end|>\n") == 2


@pytest.mark.parametrize("source", [r"{{ '\ud83d' }}", r"{{ raise_exception('\ud83d') }}"])
def test_half_a_character_that_a_template_writes_is_an_objection(source: str) -> None:
    with pytest.raises(Refused) as refused:
        compiled(source).render([], add_generation_prompt=False, kwargs={})
    assert refused.value.kind == "template_error"
    refused.value.message.encode()
