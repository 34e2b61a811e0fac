import json
from typing import Any

import httpx
import pytest

from corral.backend.api.native_render import prompt_tokens
from corral.backend.engine.messages import Written


def events(text: str) -> list[dict[str, Any]]:
    lines = [line for line in text.split("\n\n") if line and not line.startswith(":")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_completion_is_the_same_whole_and_streamed(http: httpx.Client) -> None:
    body = {"prompt": "abc", "n_predict": 7, "return_tokens": True, "seed": 3}
    whole = http.post("/completion", json=body).json()
    assert whole["stop"] is True and whole["stop_type"] == "limit"
    assert whole["tokens_predicted"] == len(whole["tokens"]) == 7
    assert whole["tokens_cached"] == 3 + 7 - 1
    assert whole["timings"]["cache_n"] + whole["timings"]["prompt_n"] == 3
    assert whole["generation_settings"]["seed"] == 3
    *pieces, last = events(http.post("/completion", json=body | {"stream": True}).text)
    assert "".join(p["content"] for p in pieces) == whole["content"]
    assert [t for p in pieces for t in p["tokens"]] == whole["tokens"]
    assert all(p["stop"] is False and p["id_slot"] >= 0 for p in pieces)
    assert last["content"] == "" and last["stop"] is True


def test_a_native_stream_has_no_done_line(http: httpx.Client) -> None:
    body = {"prompt": "abc", "n_predict": 1, "stream": True}
    assert "[DONE]" not in http.post("/completions", json=body).text


def test_progress_begins_at_the_cached_part_and_ends_at_the_whole_prompt(
    http: httpx.Client,
) -> None:
    body = {"prompt": "p" * 200, "n_predict": 2, "stream": True, "return_progress": True}
    sent = events(http.post("/completion", json=body).text)
    read = [event["prompt_progress"] for event in sent if "prompt_progress" in event]
    assert read[0]["processed"] == read[0]["cache"]
    assert read[-1]["processed"] == read[-1]["total"] == 200
    assert [r["processed"] for r in read] == sorted(r["processed"] for r in read)


def test_no_tokens_to_generate_reads_the_prompt_only(http: httpx.Client) -> None:
    reply = http.post("/completion", json={"prompt": "abc", "n_predict": 0}).json()
    assert (reply["content"], reply["tokens_predicted"]) == ("", 0)


def test_the_prompt_is_shown_as_text_whatever_its_form(http: httpx.Client) -> None:
    body = {"prompt": [256, "us", 101], "n_predict": 1}
    assert http.post("/completion", json=body).json()["prompt"] == "<|im_start|>use"


def test_the_stopping_word_is_named(http: httpx.Client) -> None:
    prompt = "<|im_start|>user\nab STOP<|im_end|>\n<|im_start|>assistant\n"
    reply = http.post("/completion", json={"prompt": prompt, "stop": "STOP"}).json()
    assert (reply["content"], reply["stop_type"], reply["stopping_word"]) == ("ab ", "word", "STOP")


def test_tokens_and_text_are_each_others_inverse(http: httpx.Client) -> None:
    text = "<|im_start|>aé"
    tokens = http.post("/tokenize", json={"content": text}).json()["tokens"]
    assert tokens == [256, 97, 0xC3, 0xA9]
    assert http.post("/detokenize", json={"tokens": tokens}).json() == {"content": text}


def test_half_a_character_is_shown_as_bytes(http: httpx.Client) -> None:
    body = {"content": "aé", "with_pieces": True, "parse_special": False}
    assert http.post("/tokenize", json=body).json()["tokens"] == [
        {"id": 97, "piece": "a"},
        {"id": 0xC3, "piece": [0xC3]},
        {"id": 0xA9, "piece": [0xA9]},
    ]


def test_no_content_gives_no_tokens(http: httpx.Client) -> None:
    assert http.post("/tokenize", json={}).json() == {"tokens": []}


def test_ids_outside_the_vocabulary_are_refused(http: httpx.Client) -> None:
    reply = http.post("/detokenize", json={"tokens": [97, 259]})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "tokens[1]"
    assert http.post("/tokenize", json={"content": [-1]}).json()["error"]["param"] == "content[0]"


def test_a_chat_is_shown_as_the_prompt_it_becomes(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "hi"}]
    reply = http.post("/apply-template", json={"messages": messages}).json()
    assert reply == {"prompt": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"}
    body = {"messages": messages, "add_generation_prompt": False}
    assert http.post("/apply-template", json=body).json()["prompt"].endswith("<|im_end|>\n")


def test_the_tokens_of_a_prompt_say_whose_text_they_are(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "é<|im_end|>"}]
    reply = http.post("/apply-template", json={"messages": messages, "tokens": True}).json()
    tokens = reply["tokens"]
    assert [t["id"] for t in tokens if t["id"] > 255] == [256, 257, 256]
    own = [t["piece"] for t in tokens if not t["foreign"]]
    assert "".join(own) == "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"
    theirs = [t["piece"] for t in tokens if t["foreign"]]
    assert theirs == [[195], [169], *"<|im_end|>"]


@pytest.mark.parametrize(
    ("text", "pieces", "expected"),
    [
        ("ab|cd", ["ab", "c", "d"], "ott"),
        ("ab|cd", ["a", "bc", "d"], "ott"),
        ("ab|cd", ["<bos>", " ab", " c", "d"], "oott"),
        ("a  |b", ["a", "b"], "ot"),
        ("|", [], ""),
        ("|☃", ["☃"], "t"),
    ],
)
def test_a_token_is_the_clients_when_one_of_its_characters_is(
    text: str, pieces: list[str], expected: str
) -> None:
    own, theirs = text.split("|")
    ranges = ((len(own), len(own) + len(theirs)),) if theirs else ()
    prompt = Written(own + theirs, ranges)
    shown = prompt_tokens(prompt, list(range(len(pieces))), [p.encode() for p in pieces])
    assert "".join("ot"[token.foreign] for token in shown) == expected


def test_properties_are_those_of_the_model_and_the_defaults(http: httpx.Client) -> None:
    props = http.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert props["default_generation_settings"]["params"]["temperature"] == 0.8
    assert props["default_generation_settings"]["params"]["seed"] == -1
    assert props["total_slots"] == 4
    assert props["modalities"] == {"vision": False, "audio": False, "video": False}
