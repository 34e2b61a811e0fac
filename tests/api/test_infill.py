"""Fill in the middle: the layout, what is cut, and the routes."""

from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.backend.api.infill import Parts, trimmed

# The fake's tokens: 1 prefix, 2 suffix, 3 middle, 4 project, 5 file; its others are bytes.
PRE, SUF, MID, REP, SEP = range(1, 6)


def shown(http: httpx.Client, body: dict[str, Any]) -> list[int]:
    """The tokens of the prompt that a request becomes."""
    reply = http.post("/infill", json=body | {"n_predict": 1})
    assert reply.status_code == 200, reply.text
    return list(reply.json()["prompt"].encode())


def test_a_gap_is_laid_out_as_the_model_was_trained(http: httpx.Client) -> None:
    body = {"input_prefix": "ab", "input_suffix": "yz", "prompt": "c"}
    assert shown(http, body) == [PRE, *b"abc", SUF, *b"yz", MID]


def test_other_files_come_first_by_name(http: httpx.Client) -> None:
    body = {
        "input_prefix": "ab",
        "input_suffix": "",
        "input_extra": [{"filename": "x.py", "text": "X"}, {"text": "Y"}],
    }
    assert shown(http, body) == [
        *(REP, *b"myproject\n"),
        *(SEP, *b"x.py\nX"),
        *(SEP, *b"tmp\nY"),
        *(SEP, *b"filename\n"),
        *(PRE, *b"ab", SUF, MID),
    ]


def test_what_looks_like_a_special_token_is_text(http: httpx.Client) -> None:
    body = {"input_prefix": "<|im_end|>", "input_suffix": ""}
    assert shown(http, body) == [PRE, *b"<|im_end|>", SUF, MID]


def test_texts_that_are_too_long_are_cut_far_from_the_gap(http: httpx.Client) -> None:
    body = {"input_prefix": "a" * 5000 + "b", "input_suffix": "y" + "z" * 5000}
    tokens = shown(http, body)
    assert len(tokens) < 4096
    gap = tokens.index(SUF)
    assert tokens[gap - 1 : gap + 2] == [ord("b"), SUF, ord("y")]
    assert tokens.count(ord("a")) > 2 * tokens.count(ord("z")) > 1000


@given(
    n_prefix=st.integers(0, 50),
    n_suffix=st.integers(0, 50),
    files=st.lists(st.integers(0, 20), max_size=5),
    room=st.integers(0, 120),
)
def test_the_cut_parts_fit_and_waste_no_room(
    n_prefix: int, n_suffix: int, files: list[int], room: int
) -> None:
    given = Parts(
        prefix=[1] * n_prefix,
        suffix=[2] * n_suffix,
        head=[3, 3] if files else [],
        files=[[4] * n for n in files],
        tail=[5] if files else [],
    )
    p = trimmed(given, room)
    size = sum(map(len, (p.prefix, p.suffix, p.head, p.tail, *p.files)))
    assert size <= room
    if n_prefix + n_suffix >= room:
        assert len(p.prefix) + len(p.suffix) == room
    else:
        assert (len(p.prefix), len(p.suffix)) == (n_prefix, n_suffix)
    assert p.files == given.files[len(given.files) - len(p.files) :]


def test_a_suffix_makes_a_text_completion_an_infill(http: httpx.Client) -> None:
    body = {"prompt": ["ab", [97]], "suffix": "yz", "max_tokens": 3, "echo": True}
    texts = [c["text"] for c in http.post("/v1/completions", json=body).json()["choices"]]
    for text, prefix in zip(texts, ("ab", "a"), strict=True):
        gap = [PRE, *prefix.encode(), SUF, *b"yz", MID]
        alone = http.post("/completion", json={"prompt": gap, "n_predict": 3}).json()["content"]
        assert text == prefix + alone
    empty = http.post("/v1/completions", json=body | {"suffix": ""}).json()["choices"]
    plain = http.post("/completion", json={"prompt": "ab", "n_predict": 3}).json()["content"]
    assert empty[0]["text"] == "ab" + plain


def test_an_infill_streams_and_has_choices(http: httpx.Client) -> None:
    body = {"input_prefix": "a", "input_suffix": "b", "n_predict": 2, "n": 2}
    assert [r["index"] for r in http.post("/infill", json=body).json()] == [0, 1]
    text = http.post("/infill", json=body | {"stream": True}).text
    assert text.count('"stop":true') == 2


def test_a_chat_can_be_counted(http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        reply = http.post(path, json=body).json()
        used = http.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"]
        assert reply == {"object": "response.input_tokens", "input_tokens": used}


@pytest.mark.parametrize("path", ["/infill", "/v1/completions"])
def test_a_gap_in_a_constrained_answer_is_refused_by_name(http: httpx.Client, path: str) -> None:
    body = {"input_prefix": "a", "input_suffix": "b", "prompt": "a", "suffix": "b", "regex": "("}
    reply = http.post(path, json=body)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "regex"
