"""Embeddings and reranking at every door, on the scripted engine."""

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import openai
import pytest

OPENAI = "/v1/embeddings"
NATIVE = ["/embedding", "/embeddings"]
RANK = ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"]


def vectors(reply: httpx.Response) -> np.ndarray[Any, Any]:
    assert reply.status_code == 200, reply.text
    body = reply.json()
    if isinstance(body, list):
        return np.array([row["embedding"][0] for row in body])
    return np.array([row["embedding"] for row in body["data"]])


def refusal(reply: httpx.Response) -> dict[str, Any]:
    assert reply.status_code == 400, reply.text
    error: dict[str, Any] = reply.json()["error"]
    return error


# --- vectors ----------------------------------------------------------------------------------


def test_one_text_gives_openais_list_of_one(http: httpx.Client) -> None:
    body = http.post(OPENAI, json={"input": "hello", "model": "m"}).json()
    (row,) = body["data"]
    assert (body["object"], body["model"], row["object"], row["index"]) == (
        *("list", "fake", "embedding"),
        0,
    )
    assert body["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    assert np.isclose(np.linalg.norm(row["embedding"]), 1)
    assert "encoding_format" not in row


@pytest.mark.parametrize("path", NATIVE)
@pytest.mark.parametrize("name", ["input", "content"])
def test_the_native_routes_give_a_list_of_lists(http: httpx.Client, path: str, name: str) -> None:
    reply = http.post(path, json={name: ["hello", "you"]})
    assert [row["index"] for row in reply.json()] == [0, 1]
    assert np.allclose(vectors(reply), vectors(http.post(OPENAI, json={"input": ["hello", "you"]})))


def test_content_at_openais_door_gets_the_native_shape(http: httpx.Client) -> None:
    reply = http.post(OPENAI, json={"content": "hello"})
    assert np.allclose(vectors(reply), vectors(http.post("/embedding", json={"input": "hello"})))


def test_without_prefix_embeddings_is_llama_servers(http: httpx.Client) -> None:
    assert isinstance(http.post("/embeddings", json={"input": "a"}).json(), list)
    assert http.post("/v1/embedding", json={"input": "a"}).status_code == 404


def test_base64_holds_the_same_numbers_as_little_endian_float32(http: httpx.Client) -> None:
    asked = {"input": ["hello", "there"]}
    plain = vectors(http.post(OPENAI, json=asked))
    coded = http.post(OPENAI, json={**asked, "encoding_format": "base64"}).json()["data"]
    assert [row["encoding_format"] for row in coded] == ["base64", "base64"]
    found = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in coded]
    assert np.array_equal(np.array(found, np.float64), plain)
    native = http.post("/embedding", json={**asked, "encoding_format": "base64"}).json()
    assert native[1]["embedding"] == [coded[1]["embedding"]]


def test_the_official_sdk_reads_both_encodings(server: Any) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        asked: dict[str, Any] = {"model": "any", "input": ["one", "two"]}
        coded = client.embeddings.create(**asked)  # the SDK asks for base64 by itself
        plain = client.embeddings.create(**asked, encoding_format="float")
    assert [d.index for d in coded.data] == [0, 1]
    assert coded.usage.prompt_tokens == 8
    for a, b in zip(coded.data, plain.data, strict=True):
        assert np.allclose(a.embedding, b.embedding, atol=1e-7)


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("hi", ["hi"]),
        (["hi"], ["hi"]),
        (["hi", "yo"], ["hi", "yo"]),
        ([104, 105, 258], ["hi"]),
        ([[104, 105, 258], "yo"], ["hi", "yo"]),
        ([104, "i"], ["hi"]),
        ([[104, "i"], [121, 111, 258]], ["hi", "yo"]),
    ],
)
def test_texts_and_tokens_may_be_mixed(http: httpx.Client, given: Any, texts: list[str]) -> None:
    expected = vectors(http.post(OPENAI, json={"input": texts}))
    assert np.allclose(vectors(http.post(OPENAI, json={"input": given})), expected)


def test_vectors_come_in_the_order_of_their_inputs(http: httpx.Client) -> None:
    texts = [f"{'long ' * (i % 7)}{i}" for i in range(300)]
    alone = {t: vectors(http.post(OPENAI, json={"input": t}))[0] for t in (texts[0], texts[299])}
    found = vectors(http.post(OPENAI, json={"input": texts}))
    assert len({tuple(v) for v in found}) == 300
    assert np.allclose(found[0], alone[texts[0]]) and np.allclose(found[299], alone[texts[299]])


def test_a_text_may_be_longer_than_a_call(http: httpx.Client) -> None:
    reply = http.post(OPENAI, json={"input": ["x" * 500, "short"]})
    assert reply.json()["usage"]["prompt_tokens"] == 501 + 6
    alone = vectors(http.post(OPENAI, json={"input": "short"}))[0]
    assert np.allclose(vectors(reply)[1], alone)


@pytest.mark.parametrize("n", [1, 5, 8])
def test_dimensions_cuts_and_normalizes_again(http: httpx.Client, n: int) -> None:
    whole = vectors(http.post(OPENAI, json={"input": "hello"}))[0]
    found = vectors(http.post(OPENAI, json={"input": "hello", "dimensions": n}))[0]
    assert found.shape == (n,)
    assert np.allclose(found, whole[:n] / np.linalg.norm(whole[:n]), atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "length"),
    [
        (1, lambda v: np.abs(v).sum()),
        (2, lambda v: np.sqrt((v**2).sum())),
        (3, lambda v: (np.abs(v) ** 3).sum() ** (1 / 3)),
        (400, lambda v: np.abs(v).max()),
        (0, lambda v: np.abs(v).max() / 32760),
    ],
)
def test_vectors_are_normalized_as_asked(
    http: httpx.Client, kind: int, length: Callable[[Any], float]
) -> None:
    asked = {"input": "some text", "embd_normalize": kind}
    found = vectors(http.post(OPENAI, json=asked))[0]
    raw = vectors(http.post("/embedding", json={"input": "some text", "embd_normalize": -1}))[0]
    assert np.isclose(length(found), 1, rtol=1e-3)
    assert np.isclose(found @ raw, np.linalg.norm(found) * np.linalg.norm(raw))
    assert not np.isclose(np.linalg.norm(raw), 1)


def test_the_servers_kind_of_normalization_is_a_setting(run_server: Callable[..., Any]) -> None:
    with run_server(embd_normalize=1) as server:
        found = vectors(httpx.post(f"{server.url}{OPENAI}", json={"input": "some text"}))[0]
    assert np.isclose(np.abs(found).sum(), 1)


def test_without_pooling_each_token_has_a_vector(run_server: Callable[..., Any]) -> None:
    with run_server(pooling="none") as server, httpx.Client(base_url=server.url) as http:
        (row,) = http.post("/embedding", json={"input": "abc"}).json()
        found = np.array(row["embedding"])
        assert found.shape == (4, 8)
        assert not np.allclose(np.linalg.norm(found, axis=1), 1)
        error = refusal(http.post(OPENAI, json={"input": "abc"}))
        assert "--pooling" in error["message"] and "/embedding" in error["message"]


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a", []]}, "input[1]"),
        ({"input": ["a", [""]]}, "input[1]"),
        ({"content": ["", "a"]}, "content[0]"),
        ({"input": 5}, "input"),
        ({"input": {"prompt_string": "a"}}, "input"),
        ({"input": [-1]}, "input[0]"),
        ({"input": [[1], [2, 259]]}, "input[1][1]"),
        ({"input": [2**40]}, "input[0]"),
        ({"input": [True]}, "input[0]"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 9}, "dimensions"),
        ({"input": "a", "dimensions": -1}, "dimensions"),
        ({"input": "a", "dimensions": "8"}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "embd_normalize": -2}, "embd_normalize"),
        ({"input": "a", "embd_normalize": 1.5}, "embd_normalize"),
        ({"input": "a", "embd_normalize": 2**40}, "embd_normalize"),
    ],
)
@pytest.mark.parametrize("path", [OPENAI, "/embedding"])
def test_bad_input_names_its_field(
    http: httpx.Client, path: str, body: dict[str, Any], param: str
) -> None:
    error = refusal(http.post(path, json=body))
    assert error["param"] == param, error
    assert param.split("[")[0] in error["message"]


@pytest.mark.parametrize("given", ["x" * 512, ["good", "x" * 512], ["good", [1] * 513]])
def test_an_input_that_is_too_long_is_refused_with_its_length(
    server: Any, http: httpx.Client, given: Any
) -> None:
    before = server.until_idle().counters.prompt_tokens
    error = refusal(http.post(OPENAI, json={"input": given}))
    assert error["code"] == "context_length_exceeded"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (513, 512)
    assert error["param"] == ("input" if isinstance(given, str) else "input[1]")
    assert "513" in error["message"] and "512" in error["message"]
    assert server.until_idle().counters.prompt_tokens == before  # nothing was computed


def test_truncate_cuts_what_is_too_long(http: httpx.Client) -> None:
    reply = http.post(OPENAI, json={"input": ["x" * 600, "a"], "truncate": True})
    assert reply.json()["usage"]["prompt_tokens"] == 512 + 2
    whole = http.post(OPENAI, json={"input": "x" * 511})
    assert np.allclose(vectors(reply)[0], vectors(whole)[0])


def test_a_member_nobody_knows_is_named(http: httpx.Client) -> None:
    reply = http.post(OPENAI, json={"input": "a", "user": "me", "colour": "red"})
    assert reply.headers["x-corral-ignored"] == "colour"


# --- many and slow ----------------------------------------------------------------------------


def test_two_thousand_inputs_are_counted_in_the_metrics(server: Any, http: httpx.Client) -> None:
    server.control(step_ms=0.0)
    before = server.until_idle().counters
    reply = http.post(OPENAI, json={"input": [f"t{i}" for i in range(2048)]})
    assert len(reply.json()["data"]) == 2048
    n = reply.json()["usage"]["prompt_tokens"]
    after = server.until_idle().counters
    assert after.prompt_tokens - before.prompt_tokens == n
    assert after.decode_calls > before.decode_calls
    assert f'route="{OPENAI}",status="200"' in http.get("/metrics").text


async def test_a_client_that_leaves_takes_its_inputs_along(server: Any) -> None:
    server.control(step_ms=5.0)
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as http:
        work = asyncio.create_task(http.post(OPENAI, json={"input": ["x" * 50] * 2000}))
        await asyncio.to_thread(server.until, lambda s: any(r.n_processed for r in s.slots))
        began = server.service.snapshot.counters.prompt_tokens
        work.cancel()
        end = await asyncio.to_thread(server.until_idle)
    assert end.counters.prompt_tokens - began < 50 * 1000  # not all of it


async def test_a_small_request_does_not_wait_for_a_large_one(server: Any) -> None:
    server.control(step_ms=5.0)
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as http:
        large = asyncio.create_task(http.post(OPENAI, json={"input": ["x" * 50] * 2000}))
        await asyncio.to_thread(server.until, lambda s: any(r.n_processed for r in s.slots))
        small = await http.post(OPENAI, json={"input": "hello"})
        assert small.status_code == 200 and not large.done()
        large.cancel()


def test_answers_and_vectors_are_computed_side_by_side(http: httpx.Client) -> None:
    with http.stream("POST", "/completion", json={"prompt": "a", "stream": True}) as stream:
        next(stream.iter_lines())
        assert http.post(OPENAI, json={"input": "hello"}).status_code == 200


# --- reranking --------------------------------------------------------------------------------

DOCUMENTS = ["a dog barks", "the cat sat", "a cat sat here", "the cat sat"]


@pytest.mark.parametrize("path", RANK)
def test_documents_come_best_first(http: httpx.Client, path: str) -> None:
    body = http.post(path, json={"query": "the cat sat", "documents": DOCUMENTS}).json()
    assert [r["index"] for r in body["results"]] == [1, 3, 2, 0]
    scores = [r["relevance_score"] for r in body["results"]]
    assert scores == sorted(scores, reverse=True) and scores[0] == 1
    assert set(body["results"][0]) == {"index", "relevance_score"}
    n = sum(len(f"the cat sat|{d}|") for d in DOCUMENTS)
    assert body["usage"] == {"prompt_tokens": n, "total_tokens": n}
    assert (body["object"], body["model"]) == ("list", "fake")


def test_top_n_and_return_documents(http: httpx.Client) -> None:
    asked = {
        "query": "the cat sat",
        "documents": [{"text": d} for d in DOCUMENTS],
        "top_n": 2,
        "return_documents": True,
    }
    results = http.post("/v1/rerank", json=asked).json()["results"]
    assert [r["document"] for r in results] == [{"text": "the cat sat"}] * 2
    asked["top_n"] = 99
    assert len(http.post("/v1/rerank", json=asked).json()["results"]) == 4


def test_texts_get_a_bare_list(http: httpx.Client) -> None:
    asked: dict[str, Any] = {"query": "cat", "texts": ["a dog", "a cat"]}
    found = http.post("/rerank", json=asked).json()
    assert [set(r) for r in found] == [{"index", "score"}] * 2
    assert [r["index"] for r in found] == [1, 0]
    found = http.post("/rerank", json={**asked, "return_text": True, "top_n": 1}).json()
    assert [(r["index"], r["text"]) for r in found] == [(1, "a cat")]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "", "documents": ["a"]}, "query"),
        ({"query": ["a"], "documents": ["a"]}, "query"),
        ({"query": "a"}, "documents"),
        ({"query": "a", "documents": []}, "documents"),
        ({"query": "a", "texts": []}, "texts"),
        ({"query": "a", "documents": "b"}, "documents"),
        ({"query": "a", "documents": ["b", 1]}, "documents[1]"),
        ({"query": "a", "documents": [{"image": "b"}]}, "documents[0].text"),
        ({"query": "a", "documents": ["b"], "texts": ["b"]}, "texts"),
        ({"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        ({"query": "a", "documents": ["b", "c" * 510]}, "documents[1]"),
        ({"query": "a" * 600, "texts": ["b"]}, "texts[0]"),
    ],
)
def test_bad_reranking_names_its_field(
    http: httpx.Client, body: dict[str, Any], param: str
) -> None:
    assert refusal(http.post("/v1/rerank", json=body))["param"] == param


def test_a_long_document_can_be_cut(http: httpx.Client) -> None:
    asked = {"query": "cat", "documents": ["cat " * 500, "dog"], "truncate": True}
    body = http.post("/v1/rerank", json=asked).json()
    assert body["usage"]["prompt_tokens"] == 512 + 8
    assert body["results"][0]["index"] == 0
