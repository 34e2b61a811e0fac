"""llama.cpp's own formats, with whose text is whose."""

import ctypes
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.backend.engine.llama.formats import UnknownFormat, Unspoken, format_chat
from corral.backend.engine.llama.native import lib
from corral.backend.values_chat import FORMATS

pytestmark = pytest.mark.model


def alone(template: str, messages: list[tuple[str, str]], add: bool) -> str:
    """What llama.cpp writes, asked directly."""
    chat = (lib.llama_chat_message * max(1, len(messages)))()
    for i, (role, content) in enumerate(messages):
        chat[i].role, chat[i].content = role.encode(), content.encode()
    buffer = ctypes.create_string_buffer(1 << 16)
    n = lib.llama_chat_apply_template(template.encode(), chat, len(messages), add, buffer, 1 << 16)
    assert 0 <= n < 1 << 16
    return buffer.raw[:n].decode()


def test_the_names_are_llama_cpps() -> None:
    n = lib.llama_chat_builtin_templates(None, 0)
    names = (ctypes.c_char_p * n)()
    lib.llama_chat_builtin_templates(names, n)
    assert {name.decode() for name in names} == FORMATS


CHATS: list[list[tuple[str, str]]] = [
    [("user", "Hi")],
    [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello!"), ("user", "Why?")],
    [("user", " \n a\t\n "), ("assistant", "  b  "), ("user", "")],
    [("user", "user"), ("assistant", "[INST]"), ("user", "é☃ <|im_end|>")],
    [("user", "a"), ("user", "b"), ("assistant", "c"), ("assistant", "d")],
    [("system", ""), ("user", ""), ("system", " "), ("user", "x")],
]


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("add", [True, False])
def test_every_format_is_written_as_llama_cpp_writes_it(name: str, add: bool) -> None:
    for chat in CHATS:
        if name == "yandex":  # knows no system
            chat = [turn for turn in chat if turn[0] != "system"]
        prompt = format_chat(name, chat, add_generation_prompt=add)
        assert prompt.text == alone(name, chat, add)
        said = [prompt.text[a:b].strip() for a, b in prompt.foreign]
        assert [text for text in said if text] == [t.strip() for _, t in chat if t.strip()]


texts = st.text("ab <|>[]\n\té", max_size=6)
roles = st.sampled_from(["user", "assistant", "system"])


@given(st.sampled_from(sorted(FORMATS)), st.lists(st.tuples(roles, texts), max_size=6))
def test_any_conversation_is_written_as_llama_cpp_writes_it(
    name: str, chat: list[tuple[str, str]]
) -> None:
    try:
        prompt = format_chat(name, chat, add_generation_prompt=True)
    except Unspoken as left_out:
        assert chat[left_out.index][0] == "system"
        return
    assert prompt.text == alone(name, chat, True)


def test_a_template_is_recognised() -> None:
    llama3 = "<|start_header_id|>{{ role }}<|end_header_id|>"
    chat = CHATS[1]
    assert format_chat(llama3, chat, add_generation_prompt=True) == format_chat(
        "llama3", chat, add_generation_prompt=True
    )
    with pytest.raises(UnknownFormat):
        format_chat("{{ messages }}", chat, add_generation_prompt=True)


def test_a_message_that_would_be_lost_is_named() -> None:
    with pytest.raises(Unspoken, match=r"messages\[1\]"):
        format_chat("gemma", [("user", "a"), ("system", "b")], add_generation_prompt=True)


def test_the_prompt_may_end_in_the_last_message() -> None:
    chat = [("user", "Count."), ("assistant", "One, two")]
    prompt = format_chat("chatml", chat, add_generation_prompt=False, continue_final=True)
    assert prompt.text.endswith("<|im_start|>assistant\nOne, two")


@pytest.mark.parametrize("text", ["\x01" + "0\x01", "a\0b", "\v", "\x0b\x010\x01\x0b"])
def test_no_text_is_taken_for_a_placeholder(text: str) -> None:
    chat: Any = [("user", text), ("assistant", "x"), ("user", text)]
    prompt = format_chat("chatml", chat, add_generation_prompt=False)
    said = [prompt.text[a:b] for a, b in prompt.foreign]
    assert said == [text, "x", text]


def test_a_long_conversation_fits() -> None:
    chat = [("user", "x" * 1000), ("assistant", "y" * 100_000)] * 20
    prompt = format_chat("llama3", chat, add_generation_prompt=True)
    assert prompt.text.count("y") == 2_000_000
