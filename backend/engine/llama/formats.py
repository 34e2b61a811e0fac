"""Conversations written in the formats that llama.cpp knows by heart, without a template engine.

Which of the characters are the messages' own is found out by writing the conversation with
placeholders in place of its texts.
"""

import ctypes
import re
from collections.abc import Sequence

from corral.backend.engine.llama.native import lib
from corral.backend.engine.messages import Written

#: White space that C trims, and one of it that no format writes.
_SPACE, _EDGE = " \t\n\v\f\r", "\v"
_PLACE = re.compile(r"(\v?)\x01(\d+)\x01(\v?)")


class UnknownFormat(Exception):
    """llama.cpp does not know the format; the message is meant for people."""


class Unspoken(Exception):
    """The format leaves out message number ``index``."""

    def __init__(self, index: int) -> None:
        super().__init__(f"the format has no place for messages[{index}]")
        self.index = index


def format_chat(
    template: str,
    messages: Sequence[tuple[str, str]],
    *,
    add_generation_prompt: bool,
    continue_final: bool = False,
) -> Written:
    """The prompt for messages, each a role and a text. ``template`` is the name of a format, or a
    Jinja template that llama.cpp recognises one in. With ``continue_final`` it ends in the last
    message's text. Raises ``UnknownFormat`` and ``Unspoken``."""
    last = len(messages) - 1
    # What holds nothing but white space is no danger, and some formats leave it out.
    space = _SPACE.replace(_EDGE, "")
    blank = {i for i, (_, said) in enumerate(messages) if not said.strip(space)}
    blank -= {last} if continue_final else set()
    marked = [
        (role, said if i in blank else f"{_EDGE}\x01{i}\x01{_EDGE}")
        for i, (role, said) in enumerate(messages)
    ]
    shape = _apply(template, marked, add_generation_prompt=add_generation_prompt)
    text, at, foreign, seen = "", 0, list[tuple[int, int]](), set[int]()
    for place in _PLACE.finditer(shape):
        index = int(place[2])
        said = messages[index][1]
        said = said if place[1] else said.lstrip(_SPACE)
        said = said if place[3] else said.rstrip(_SPACE)
        text += shape[at : place.start()]
        if said:
            foreign.append((len(text), len(text) + len(said)))
        text += said
        at = place.end()
        seen.add(index)
        if continue_final and index == last:
            return Written(text, tuple(foreign))
    for index in range(len(messages)):
        if index not in seen | blank:
            raise Unspoken(index)
    return Written(text + shape[at:], tuple(foreign))


def _apply(
    template: str, messages: Sequence[tuple[str, str]], *, add_generation_prompt: bool
) -> str:
    chat = (lib.llama_chat_message * max(1, len(messages)))()
    for i, (role, content) in enumerate(messages):
        chat[i].role, chat[i].content = role.encode(), content.encode()
    source, n = template.encode("utf-8", "replace"), len(messages)
    size = 256 * (n + 1)
    while True:
        buffer = ctypes.create_string_buffer(size)
        length = lib.llama_chat_apply_template(source, chat, n, add_generation_prompt, buffer, size)
        if length < 0:
            raise UnknownFormat("llama.cpp knows no format of the chat template")
        if length <= size:
            return buffer.raw[:length].decode("utf-8", "replace")
        size = length
