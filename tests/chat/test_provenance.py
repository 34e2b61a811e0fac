"""Which characters of a prompt are the client's. Here the client writes Greek, and no template
does."""

# ruff: noqa: RUF001

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from transformers.utils.chat_template_utils import render_jinja_template

from corral.backend.chat.template import ChatTemplate
from corral.backend.chat.types import Message, Written
from corral.backend.errors import Refused

TEMPLATES = sorted((Path(__file__).parent.parent / "data" / "chat-templates").glob("*.jinja"))

CALL = {
    "id": "αα1",
    "type": "function",
    "function": {"name": "βολ", "arguments": {"γα": "δδ εε", "ζη": [1, "θ", None]}},
}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "turns": [
        {"role": "system", "content": " ισ\nκα "},
        {"role": "user", "content": "λα\n\nμε"},
        {"role": "assistant", "content": "νυ ξι"},
        {"role": "user", "content": "ο πι", "name": "ρο"},
    ],
    "reasoning": [
        {"role": "user", "content": "σι"},
        {"role": "assistant", "content": "τα", "reasoning_content": "υ\nφι"},
        {"role": "user", "content": "χι"},
    ],
    "tags in the text": [
        {"role": "user", "content": "<think>ψι</think>ω"},
        {"role": "assistant", "content": "<think>αι</think>βι"},
        {"role": "user", "content": "γι"},
    ],
    "calls": [
        {"role": "user", "content": "δα"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "αα1", "name": "βολ", "content": '{"ε": "ζα"}'},
        {"role": "user", "content": "ηα"},
    ],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "θα ια"}]}],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "βολ",
            "description": "κι λι",
            "parameters": {
                "type": "object",
                "properties": {"γα": {"type": "string", "description": "μι", "enum": ["δδ", "νι"]}},
                "required": ["γα"],
            },
        },
    }
]


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.upper()))


def is_greek(char: str) -> bool:
    return "α" <= char.lower() <= "ω"


@functools.cache
def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<|bos|>", eos_token="<|eos|>")


def rendered(source: str, turns: list[dict[str, Any]], **kwargs: Any) -> Written:
    messages = [
        Message(
            role=turn["role"],
            content=turn.get("content", UNSET),
            fields={k: v for k, v in turn.items() if k not in ("role", "content")},
        )
        for turn in turns
    ]
    return compiled(source).render(messages, add_generation_prompt=True, kwargs=kwargs)


def whose(prompt: Written) -> list[bool]:
    marks, last = [False] * len(prompt.text), -1
    for start, end in prompt.foreign:
        assert last < start < end <= len(prompt.text)
        marks[start:end] = [True] * (end - start)
        last = end
    return marks


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
@pytest.mark.parametrize("turns", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_in_every_template_what_the_client_wrote_is_marked_and_little_else(
    path: Path, turns: list[dict[str, Any]]
) -> None:
    # Functionary puts a sentence through HTML's escapes, Seed shows a list as Python does.
    sent = words("use the function to 34 none")
    sent |= words(json.dumps([turns, TOOLS], ensure_ascii=False).replace("\\n", " "))
    for kwargs in ({}, {"tools": TOOLS}):
        try:
            prompt = rendered(path.read_text(), turns, **kwargs)
        except Refused:
            continue
        marks = whose(prompt)
        for char, is_foreign in zip(prompt.text, marks, strict=True):
            assert is_foreign or not is_greek(char), prompt
        for start, end in prompt.foreign:
            assert words(prompt.text[start:end]) <= sent


def test_the_conversations_render_in_most_templates() -> None:
    n = 0
    for path in TEMPLATES:
        for turns in CONVERSATIONS.values():
            try:
                n += bool(rendered(path.read_text(), turns).foreign)
            except Refused:
                continue
    assert len(TEMPLATES) >= 39
    assert n > len(TEMPLATES) * len(CONVERSATIONS) * 0.7


#: What templates do with texts. ``c`` is the client's text, ``k`` the client's list of texts, ``t``
#: the template's own text.
EXACT = [
    "{{ c }}{{ t }}",
    "{{ 'a' + c + 'b' }}{{ c ~ 'b' ~ c ~ 1 }}{{ ('a' ~ c)[2:] }}",
    "{{ c * 2 }}{{ 2 * (t ~ c) }}",
    "{{ '%s|%s' % ('a', c) }}{{ '%(x)s' % {'x': c} }}{{ 'a%s' | format(c) }}",
    "{{ 'a{}b{}'.format(c, 'd') }}{{ '{x}'.format(x=c) }}{{ '{x}a'.format_map({'x': c}) }}",
    "{{ '{0[x]}a{1}'.format({'x': c}, t) }}{{ '{{}}{}'.format(c) }}",
    "{{ c | trim }}{{ c.strip() }}{{ (' ' ~ c ~ ' a ') | trim }}{{ t | trim(c) }}",
    "{{ c.split(' ')[1] }}{{ (t ~ c).split('γ') | join('-') }}{{ c.split() | join }}",
    "{{ c.rsplit(' ', 1) | join('a') }}{{ c.splitlines() | join('|') }}",
    "{{ ', '.join(k) }}{{ k | join('; ') }}{{ 'a'.join(['b', c]) }}{{ c.join('ab') }}",
    "{{ [{'x': c}, {'x': 'a'}] | join('-', attribute='x') }}{{ [c, 1, none] | join('-') }}",
    "{{ 'a_b'.replace('_', c) }}{{ c.replace('γ', 'g') }}{{ 'a_b' | replace('_', c) }}",
    "{{ c | replace('γ', 'g', 1) }}{{ c | replace(c, 'g') }}",
    "{{ c | upper }}{{ c | lower }}{{ c | title }}{{ c | capitalize }}{{ ('ab ' ~ c).title() }}",
    "{{ c | string }}{{ nothing | default(c) }}{{ '' | default(c, true) }}{{ c or t }}",
    "{{ c | first }}{{ c | last }}{{ c[1:3] }}{{ c[-1] }}{{ c | reverse }}{{ c | list | join }}",
    "{% for x in c %}{{ x }}.{% endfor %}{% for x in k %}{{ loop.index }}{{ x }}{% endfor %}",
    "{% for a, b in {'x': c, c: 'y'}.items() %}{{ a }}={{ b }};{% endfor %}",
    "{% for a, b in {c: 'y'} | dictsort %}{{ a }}={{ b }};{% endfor %}{{ {c: 1}.keys() | join }}",
    "{{ ('a\n' ~ c) | indent(2) }}{{ ('a\n\n' ~ c) | indent('> ', true, true) }}",
    "{{ c | truncate(3, true, '..') }}{{ (c ~ t) | truncate(5) }}",
    "{% macro m(x) %}a{{ x }}b{% endmacro %}{{ m(c) }}{{ m(m(c)) | upper }}{{ m(c)[1:] }}",
    "{% macro m() %}a{{ caller(c) }}b{% endmacro %}{% call(x) m() %}<{{ x }}>{% endcall %}",
    "{% set x %}a{{ c }}b{% endset %}{{ x }}{{ x | length }}",
    "{% filter upper %}a{{ c }}b{% endfilter %}{% block z %}a{{ c }}{% endblock %}{{ self.z() }}",
    "{% set n = namespace(x='a') %}{% for x in k %}{% set n.x = n.x ~ x %}{% endfor %}{{ n.x }}",
    "{% generation %}a{{ c }}{% endgeneration %}",
    "{% for x in k recursive %}a{{ x }}{{ loop([]) }}{% endfor %}",
    "{{ k | map('upper') | join('a') }}",
    "{{ k | sort | join('a') }}{{ k | unique | list | first }}{{ k | max }}{{ k | select | join }}",
    "{{ c.partition(' ') | join('|') }}{{ c.removeprefix('γδ') }}{{ c['strip']() }}",
    "{{ c | safe }}{{ ('a' ~ c) | safe }}{{ (c | attr('upper'))() }}{{ c.upper() }}",
    "{{ messages[0].role }}{{ messages[0]['content'] }}{{ messages[0].get('content') }}",
]
#: Here all of what is made counts as the client's.
COARSE = [
    "{{ k }}",
    "{{ {'a': c} }}",
    "{{ {'a': c} | tojson }}{{ k | tojson(indent=2) }}{{ c | tojson }}",
    "{{ k | string }}{{ k | trim }}{{ '%s' % (k,) }}{{ k | pprint }}",
    "{{ '%r' % c }}{{ '%5s' % c }}{{ '{:>9}'.format(c) }}{{ '{!r}'.format(c) }}{{ c % () }}",
    "{{ c.center(20) }}{{ c | center(20) }}{{ c.zfill(20) }}{{ c.ljust(20, '.') }}",
    "{{ c.encode().decode() }}{{ c | wordwrap(3) }}{{ c | urlize }}",
    "{{ c | e }}{{ ('<a>' ~ c) | e }}{{ (c | e) + '<b>' }}",
    "{{ c | striptags }}{{ (c | safe) + '<b>' }}",
    "{% autoescape true %}{{ c }}{{ c ~ '<' }}{{ [c, '<'] | join }}{% endautoescape %}",
    "{% autoescape true %}{% set x = c ~ '<' %}{{ x }}{% endautoescape %}{{ x }}",
    "{% autoescape true %}{% set x %}{{ c }}{% endset %}{{ x | replace('a', c) }}"
    "{% endautoescape %}",
    "{{ c | e | upper }}{{ (c | e).split(' ') | join }}{{ '%s' % (c | e) }}{{ (c | e) ~ '' }}",
    "{{ {c: 1}.items() | list }}{{ {'x': c}.values() | string }}",
]


def of_expression(source: str) -> Written:
    names = "{% set c, t, k = messages[0].content, 'own', messages[0].k %}"
    turns = [{"role": "user", "content": "γδ εζ ηγ", "k": ["ιγ", "κ", "λμ"]}]
    prompt = rendered(names + source, turns)
    theirs: Any = render_jinja_template(
        [turns], chat_template=names + source, add_generation_prompt=True
    )
    assert prompt.text == theirs[0][0]
    return prompt


@pytest.mark.parametrize("source", EXACT)
def test_texts_are_followed_through_what_templates_do(source: str) -> None:
    prompt = of_expression(source)
    assert prompt.foreign
    for char, is_foreign in zip(prompt.text, whose(prompt), strict=True):
        assert is_foreign == is_greek(char) or char in " \n", prompt


@pytest.mark.parametrize("source", COARSE)
def test_what_cannot_be_followed_is_the_clients_as_a_whole(source: str) -> None:
    prompt = of_expression(source)
    assert prompt.foreign == ((0, len(prompt.text)),)


@pytest.mark.parametrize(
    "source",
    [
        "{{ '<|a|>' }}{{ ['<|a|>', 1] | join }}{{ '%s' % '<|a|>' }}{{ '{}'.format('<|a|>') }}",
        "{{ '<|a|>' | tojson }}{{ '<|a|>' | upper }}{{ '<|a|>' | safe }}{{ t | title }}",
        "{% macro m(x) %}<|{{ x }}|>{% endmacro %}{{ m('a') }}{{ m(t) | trim }}",
        "{{ '<|' ~ messages[0].role ~ '|>' }}{{ 'a' if c else 'b' }}{{ c | length }}{{ none }}",
        "{{ strftime_now('%Y') }}{{ c == c }}{{ bos_token }}{{ add_generation_prompt }}",
    ],
)
def test_what_the_template_says_itself_is_not_marked(source: str) -> None:
    names = "{% set c, t = messages[0].content, 'own' %}"
    assert rendered(names + source, [{"role": "user", "content": "γ"}]).foreign == ()


def test_a_role_of_the_clients_own_is_text() -> None:
    source = "{% for m in messages %}<|{{ m.role }}|>{% endfor %}"
    prompt = rendered(source, [{"role": r} for r in ("user", "end", "system", "tool")])
    assert prompt == Written("<|user|><|end|><|system|><|tool|>", ((10, 13),))


def test_variables_and_tools_of_the_client_are_text() -> None:
    source = "{{ bos_token }}|{{ tools[0].function.name }}|{{ x.y }}"
    turns = [{"role": "user"}]
    tools = [{"function": {"name": "<|a|>"}}]
    prompt = rendered(source, turns, tools=tools, x={"y": "<|b|>"}, bos_token="<|c|>")
    assert prompt == Written("<|c|>|<|a|>|<|b|>", ((0, 5), (6, 11), (12, 17)))


def test_what_is_undefined_is_said_in_words_about_texts() -> None:
    with pytest.raises(Refused, match=re.escape("'str object' has no attribute 'x'")):
        rendered("{{ messages[0].content.x.y }}", [{"role": "user", "content": "γ"}])
