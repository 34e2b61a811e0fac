"""Pictures and sounds in requests, in the forms that each API has for them.

A part holds its ``Source`` until all messages are made: only then is their order known.
"""

import binascii
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, Literal

from msgspec.structs import replace

from corral.backend.api.unbuilt import unsupported
from corral.backend.chat.media import MARKER
from corral.backend.chat.types import Message, Source, Written
from corral.backend.errors import Refused
from corral.backend.media import magic

Part = dict[str, Any]
#: Roles that no API lets show pictures or play sounds.
_WORDS_ONLY: Final = ("system", "developer", "assistant")
_DETAILS: Final = ("auto", "low", "high", "original")
#: Characters of base64 by which its kind is told.
_N_HEAD: Final = 2800

#: What each part looks like, for OpenAPI documents.
IMAGE_URL_SCHEMA: Final = {
    "type": "object",
    "required": ["type", "image_url"],
    "properties": {
        "type": {"const": "image_url"},
        "image_url": {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "required": ["url"],
                    "properties": {"url": {"type": "string"}, "detail": {"enum": [*_DETAILS]}},
                },
            ]
        },
    },
}
INPUT_AUDIO_SCHEMA: Final = {
    "type": "object",
    "required": ["type", "input_audio"],
    "properties": {
        "type": {"const": "input_audio"},
        "input_audio": {
            "type": "object",
            "required": ["data"],
            "properties": {
                "data": {"type": "string", "description": "base64"},
                "format": {"enum": [*magic.SOUNDS]},
            },
        },
    },
}


def text(said: str) -> Part:
    """A part that is text."""
    return {"type": "text", "text": said}


def shown(source: Source) -> Part:
    """A part that is a picture or a sound."""
    return {"type": "media", "source": source}


def content(parts: Sequence[Part]) -> str | list[Part]:
    """Parts as the content of a message: one text with line breaks, or a list when not all of them
    are text."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return list(parts)


def gathered(messages: Sequence[Message]) -> tuple[tuple[Message, ...], tuple[Source, ...]]:
    """The messages with numbers for their pictures and sounds, and these, in order."""
    sources: list[Source] = []

    def numbered(part: Part) -> Part:
        if part["type"] != "media":
            return part
        sources.append(part["source"])
        return {"type": "media", "index": len(sources) - 1}

    made = [
        replace(message, content=[numbered(part) for part in message.content])
        if isinstance(message.content, list)
        else message
        for message in messages
    ]
    return tuple(made), tuple(sources)


def check_role(role: str, at: str) -> None:
    """Raises ``Refused`` for a picture or sound where only words may be."""
    if role in _WORDS_ONLY:
        words = f"messages of role {role} hold no pictures or sounds"
        raise Refused(f"{at}: {words}", kind="unsupported", param=at)


# --- OpenAI ---------------------------------------------------------------------------------------


def image_url(given: Any, at: str) -> Source:
    """``image_url``: an object with a ``url``, or that itself; base64 alone is taken too."""
    if isinstance(given, dict):
        url, there = given.get("url"), f"{at}.url"
        check_detail(given.get("detail"), f"{at}.detail")
    else:
        url, there = given, at
    if not isinstance(url, str) or not url:
        raise Refused(f"{there}: expected a URL", param=there)
    return Source(kind="image", param=at, url=url)


def check_detail(given: Any, at: str) -> None:
    """``detail`` is taken and changes nothing: the projector has its own sizes."""
    if given is not None and given not in _DETAILS:
        raise Refused(f"{at}: expected one of {', '.join(_DETAILS)}", param=at)


def input_audio(given: Any, at: str) -> Source:
    """``input_audio``: ``data`` (base64) and its ``format``; or a ``url``, as llama-server has it.
    What counts are the bytes."""
    if not isinstance(given, dict):
        raise Refused(f"{at}: expected an object", param=at)
    name = "url" if "data" not in given and "url" in given else "data"
    data, sort = given.get(name), given.get("format")
    if not isinstance(data, str) or not data:
        raise Refused(f"{at}.{name}: expected base64", param=f"{at}.{name}")
    if sort is not None and sort not in magic.SOUNDS:
        names = ", ".join(magic.SOUNDS)
        raise Refused(f"{at}.format: expected one of {names}", param=f"{at}.format")
    return Source(kind="audio", param=at, url=data)


# --- Anthropic ------------------------------------------------------------------------------------


def image_source(given: Any, at: str) -> Source:
    """The ``source`` of an ``image`` block: ``base64`` or ``url``."""
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "file":
        raise unsupported(at, "no files are kept here; send the picture itself")
    if kind not in ("base64", "url"):
        raise Refused(f"{at}.type: expected base64 or url", param=f"{at}.type")
    name = "data" if kind == "base64" else "url"
    value = given.get(name)
    if not isinstance(value, str) or not value:
        raise Refused(f"{at}.{name}: expected `str`", param=f"{at}.{name}")
    if kind == "url":
        return Source(kind="image", param=at, url=value)
    media_type = given.get("media_type")
    if not isinstance(media_type, str) or not media_type.startswith("image/"):
        there = f"{at}.media_type"
        raise Refused(f"{there}: expected one of images, as image/png", param=there)
    return Source(kind="image", param=at, url=f"data:;base64,{value}")


# --- llama-server ---------------------------------------------------------------------------------


def raw_prompt(given: dict[str, Any], at: str) -> tuple[str | Written, tuple[Source, ...]]:
    """``{"prompt_string": …, "multimodal_data": [base64, …]}``: a text with ``MARKER`` where each
    picture or sound belongs."""
    said, data = given.get("prompt_string"), given.get("multimodal_data")
    if not isinstance(said, str):
        raise Refused(f"{at}.prompt_string: expected `str`", param=f"{at}.prompt_string")
    at = f"{at}.multimodal_data"
    if data is None:
        data = []
    if not isinstance(data, list):
        raise Refused(f"{at}: expected a list of base64", param=at)
    for i, one in enumerate(data):
        if not isinstance(one, str) or not one:
            raise Refused(f"{at}[{i}]: expected base64", param=f"{at}[{i}]")
    texts = said.split(MARKER)
    if len(texts) - 1 != len(data):
        message = f"{len(data)} given, and {len(texts) - 1} places marked {MARKER} in the text"
        raise Refused(f"{at}: {message}", param=at)
    if not data:
        return said, ()
    places = tuple(accumulate(len(text) for text in texts[:-1]))
    sources = tuple(
        Source(kind=_kind(one), param=f"{at}[{i}]", url=f"data:;base64,{one}")
        for i, one in enumerate(data)
    )
    return Written("".join(texts), (), places), sources


def _kind(base64: str) -> Literal["image", "audio"]:
    """What some base64 seems to be; a closer look comes later."""
    is_sound = magic.known(_head(base64)) in magic.SOUNDS
    return "audio" if is_sound else "image"


def _head(base64: str) -> bytes:
    """The first bytes; nothing for what is no base64."""
    try:
        return binascii.a2b_base64(base64[:_N_HEAD])
    except (ValueError, binascii.Error):
        return b""
