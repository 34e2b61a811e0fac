"""A conversation as the model gets it."""

from typing import Any

from corral.backend.chat.types import Source
from corral.backend.store import Message, Picture
from corral.frontend.asking import to_request


def message(role: Any, content: str, **more: Any) -> Message:
    return Message(id=1, conversation_id="c", parent_id=None, role=role, content=content, **more)


def picture(key: str) -> Picture:
    return Picture(key=key, name=f"{key}.png", media_type="image/png", n_bytes=1, width=1, height=1)


def test_roles_alternate_whatever_failed_before() -> None:
    turns = [message("user", "a"), message("assistant", ""), message("user", "b")]
    request = to_request([*turns, message("assistant", "c"), message("user", "d")])
    assert [(m.role, m.content) for m in request.messages] == [
        ("user", "a\n\nb"),
        ("assistant", "c"),
        ("user", "d"),
    ]
    assert request.sources == ()


def test_pictures_come_before_their_text_and_are_counted_through_the_conversation() -> None:
    one, two = picture("k1"), picture("k2")
    request = to_request(
        [
            message("user", "first", pictures=(one, two)),
            message("assistant", "both"),
            message("user", "", pictures=(two,)),
            message("assistant", ""),
            message("user", "and now?"),
        ],
        {"k1": b"1", "k2": b"2"},
    )
    media = [{"type": "media", "index": i} for i in range(3)]
    assert [m.content for m in request.messages] == [
        [media[0], media[1], {"type": "text", "text": "first"}],
        "both",
        [media[2], {"type": "text", "text": "and now?"}],
    ]
    assert request.sources == tuple(
        Source(kind="image", param=f"{key}.png", data=data)
        for key, data in (("k1", b"1"), ("k2", b"2"), ("k2", b"2"))
    )


def test_reasoning_goes_back_apart_and_is_asked_for_apart() -> None:
    request = to_request(
        [
            message("user", "a"),
            message("assistant", "b", reasoning="because"),
            message("user", "c"),
            message("assistant", "", reasoning="stopped within"),
            message("user", "d"),
        ]
    )
    assert [m.fields for m in request.messages] == [{}, {"reasoning_content": "because"}, {}]
    assert request.reasoning_format == "auto"
