"""Greedy text of a whole server equals that of a loop over llama.cpp's own functions.

The loop shares no code with the engine. Alone in an empty cache every token is equal; batched, and
with prefixes shared, the rule of docs/engine.md holds.
"""

import ctypes
import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import llama_cpp.llama_cpp as lib
import numpy as np
import pytest
from numpy.typing import NDArray

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

PROMPTS: list[str] = json.loads(
    (Path(__file__).parents[1] / "data" / "greedy_prompts.json").read_text(encoding="utf-8")
)
N_TOKENS = 24
#: Most tokens in a call, of both: 4-bit weights make it show how a prompt is split.
N_BATCH = 128
#: How far summing in another order moves this model's logits (docs/engine.md).
TIE = 1.0


class Answer(NamedTuple):
    """Tokens without the one that ended them, if one did, and their text."""

    tokens: list[int]
    has_ended: bool
    text: str


class BareLoop:
    """llama_tokenize, llama_decode, argmax and llama_token_to_piece, and nothing else."""

    def __init__(self, path: Path) -> None:
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(
            os.fsencode(path), lib.llama_model_default_params()
        )
        self._vocab = lib.llama_model_get_vocab(self._model)
        self._n_vocab = lib.llama_vocab_n_tokens(self._vocab)
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 1024, N_BATCH, N_BATCH
        params.n_threads = params.n_threads_batch = 1
        # As the server on a CPU: the two kinds of attention add up differently.
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = lib.llama_init_from_model(self._model, params)
        self._memory = lib.llama_get_memory(self._context)
        self._batch = lib.llama_batch_init(N_BATCH, 0, 1)

    def close(self) -> None:
        lib.llama_batch_free(self._batch)
        lib.llama_free(self._context)
        lib.llama_model_free(self._model)

    def tokenize(self, prompt: str) -> list[int]:
        data = prompt.encode()
        tokens = (ctypes.c_int32 * (len(data) + 8))()
        n = lib.llama_tokenize(self._vocab, data, len(data), tokens, len(tokens), True, True)
        return tokens[:n]

    def text(self, tokens: list[int]) -> str:
        piece = ctypes.create_string_buffer(256)
        sizes = (lib.llama_token_to_piece(self._vocab, t, piece, 256, 0, False) for t in tokens)
        return b"".join(piece.raw[:n] for n in sizes).decode("utf-8", "replace")

    def is_end(self, token: int) -> bool:
        return bool(lib.llama_vocab_is_eog(self._vocab, token))

    def clear(self) -> None:
        lib.llama_memory_clear(self._memory, True)

    def decode(
        self, tokens: list[int], start: int, *, n_rows: int = 1
    ) -> list[NDArray[np.float32]]:
        """Logits behind the last ``n_rows`` of the tokens, which lie at ``start`` and on."""
        rows = []
        for first in range(0, len(tokens), N_BATCH):
            part = tokens[first : first + N_BATCH]
            self._batch.n_tokens = len(part)
            for i, token in enumerate(part):
                self._batch.token[i] = token
                self._batch.pos[i] = start + first + i
                self._batch.n_seq_id[i] = 1
                self._batch.seq_id[i][0] = 0
                self._batch.logits[i] = first + i >= len(tokens) - n_rows
            assert lib.llama_decode(self._context, self._batch) == 0
            for i in (i for i in range(len(part)) if self._batch.logits[i]):
                row = lib.llama_get_logits_ith(self._context, i)
                rows.append(np.ctypeslib.as_array(row, (self._n_vocab,)).copy())
        return rows

    def answer(self, prompt: str) -> Answer:
        """The likeliest tokens after a prompt, one by one."""
        self.clear()
        tokens = self.tokenize(prompt)
        n_prompt = len(tokens)
        logits = self.decode(tokens, 0)[-1]
        while True:
            token = int(logits.argmax())
            if self.is_end(token):
                break
            tokens.append(token)
            if len(tokens) == n_prompt + N_TOKENS:
                break
            logits = self.decode([token], len(tokens) - 1)[-1]
        answer = tokens[n_prompt:]
        return Answer(answer, self.is_end(token), self.text(answer))

    def regrets(self, prompt: str, answer: Answer) -> list[float]:
        """By how much each token of an answer, and its end, was less likely than the likeliest
        after all before it, in logits."""
        self.clear()
        tokens = self.tokenize(prompt) + answer.tokens
        rows = self.decode(tokens, 0, n_rows=len(answer.tokens) + 1)
        regrets = [float(r.max() - r[t]) for r, t in zip(rows, answer.tokens, strict=False)]
        if answer.has_ended:
            ends = [t for t in range(self._n_vocab) if self.is_end(t)]
            regrets.append(float(rows[-1].max() - rows[-1][ends].max()))
        return regrets


@pytest.fixture(scope="module")
def bare(model_path: Path) -> Iterator[BareLoop]:
    loop = BareLoop(model_path)
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def thread() -> Iterator[ThreadPoolExecutor]:
    """Where the loop runs, while a server computes its own answers."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture(scope="module")
def expected(bare: BareLoop, thread: ThreadPoolExecutor) -> list[Future[Answer]]:
    return [thread.submit(bare.answer, prompt) for prompt in PROMPTS]


@pytest.fixture
def client(serve: Any, tmp_path: Path) -> Iterator[httpx.Client]:
    flags = ("--threads", "1", "--batch-size", str(N_BATCH), "--data-dir", str(tmp_path))
    with serve(*flags) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def ask(client: httpx.Client, prompt: str, **more: Any) -> tuple[Answer, dict[str, Any]]:
    body = {"prompt": prompt, "n_predict": N_TOKENS, "temperature": 0, "return_tokens": True}
    reply = client.post("/completion", json=body | more)
    assert reply.status_code == 200, reply.text
    got = reply.json()
    return Answer(got["tokens"], got["stop_type"] == "eos", got["content"]), got


def test_alone_in_an_empty_cache_fifty_answers_equal_a_bare_loop_s(
    client: httpx.Client, expected: list[Future[Answer]]
) -> None:
    assert len(PROMPTS) == 50
    got = []
    for prompt in PROMPTS:
        got.append(ask(client, prompt, cache_prompt=False, id_slot=0)[0])
        # Sums over the cache depend on where cells lie: begin with the first one again.
        assert client.post("/slots/0?action=erase").status_code == 200
    wanted = [answer.result() for answer in expected]
    different = [x for x in zip(PROMPTS, wanted, got, strict=True) if x[1] != x[2]]
    assert not different, f"{len(different)} differ, such as {different[0]}"


def test_batched_with_shared_prefixes_they_are_equal_up_to_ties(
    client: httpx.Client,
    bare: BareLoop,
    thread: ThreadPoolExecutor,
    expected: list[Future[Answer]],
) -> None:
    def one(i: int) -> tuple[int, Future[list[float]] | None]:
        got, reply = ask(client, PROMPTS[i])
        assert got.has_ended or len(got.tokens) == N_TOKENS
        assert got.text == bare.text(got.tokens)
        is_equal = got == expected[i].result()
        # Otherwise every token is looked at, also those behind the first different one.
        regrets = None if is_equal else thread.submit(bare.regrets, PROMPTS[i], got)
        return reply["timings"]["cache_n"], regrets

    with ThreadPoolExecutor(8) as pool:
        n_cached, different = zip(*pool.map(one, range(len(PROMPTS))), strict=True)
    assert sum(n > 20 for n in n_cached) >= 3
    metrics = client.get("/metrics").text
    found = re.search(r"^llamacpp:n_busy_slots_per_decode (\S+)", metrics, re.MULTILINE)
    assert found is not None and float(found[1]) > 2
    regrets = [r for answer in different if answer is not None for r in answer.result()]
    assert max(regrets, default=0) < TIE
    # A tie is the exception, in these answers too.
    assert sum(r > 0 for r in regrets) <= len(regrets) / 10
