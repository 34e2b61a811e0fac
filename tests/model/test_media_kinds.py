"""Each way in which llama.cpp computes pictures gives what its own helper gives.

The models are made up (``tests/data/vision-kinds``). The helper, ``mtmd_helper_eval_chunks``,
computes a whole prompt alone in an empty cache; the engine shares prefixes, takes turns, computes
in slices and starts over, and must come to the same.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import llama_cpp.llama_cpp as lib
import numpy as np
import pytest
from llama_cpp import mtmd_cpp as mtmd

from corral.backend.engine.assembly import assemble
from corral.backend.engine.core import Admitted, EngineCore
from corral.backend.engine.messages import (
    Add,
    Call,
    Delta,
    Done,
    EngineConfig,
    Failed,
    Media,
    Output,
    Reply,
    Sampling,
    Written,
)
from corral.backend.engine.pace import PromptBudget
from corral.backend.engine.slots import Threads

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]

DATA = Path(__file__).parents[1] / "data" / "vision-kinds"
KINDS = ("qwen2vl", "gemma3", "idefics3")
N_TOKENS = 12
N_BATCH = 64
#: How far another order of the same sums moves these models' log probabilities.
TOLERANCE = 0.02

Part: TypeAlias = str | Media


def picture(key: int, width: int = 40, height: int = 24) -> Media:
    random = np.random.default_rng(key)
    # Few pixels, so that there is something left to see when they are averaged.
    few = random.integers(0, 256, (-(-height // 8), -(-width // 8), 3), np.uint8)
    data = few.repeat(8, 0).repeat(8, 1)[:height, :width].tobytes()
    return Media(kind="image", key=f"{key}-{width}x{height}", data=data, width=width, height=height)


A, B, C = picture(1), picture(2), picture(3, 24, 48)

PROMPTS: list[list[Part]] = [
    ["Look: ", A, " What is it?"],
    [A, "?"],
    ["Here ", A, " and there ", B, " and the last ", C, " are what?"],
    ["Both ", A, B, " at once, please."],
    ["The same ", C, " again ", C, "!"],
    ["A strip ", picture(4, 8, 96), " and one that lies ", picture(5, 96, 8), "."],
    ["No picture at all."],
]


class Answer(NamedTuple):
    """The likeliest tokens, and their log probabilities."""

    tokens: list[int]
    logprobs: list[float]

    def is_like(self, other: "Answer", tolerance: float = TOLERANCE) -> bool:
        return self.tokens == other.tokens and np.allclose(
            self.logprobs, other.logprobs, atol=tolerance, rtol=0
        )


def bitmap(media: Media) -> Any:
    """What llama.cpp's helper takes."""
    if media.kind == "audio":
        n = len(media.data) // 4
        samples = (ctypes.c_float * n).from_buffer_copy(media.data)
        return mtmd.mtmd_bitmap_init_from_audio(n, samples)
    pixels = (ctypes.c_uint8 * len(media.data))(*media.data)
    return mtmd.mtmd_bitmap_init(media.width, media.height, pixels)


class Bare:
    """A model and its projector, and llama.cpp's own way with them."""

    def __init__(self, folder: Path, kind: str, *, n_ctx: int = 2048) -> None:
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(
            os.fsencode(folder / f"{kind}.gguf"), lib.llama_model_default_params()
        )
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, N_BATCH, N_BATCH
        params.n_threads = params.n_threads_batch = 1
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.swa_full = True
        self._context = lib.llama_init_from_model(self._model, params)
        media_params = mtmd.mtmd_context_params_default()
        media_params.use_gpu = media_params.print_timings = media_params.warmup = False
        media_params.n_threads = 1
        media_params.media_marker = b"<<here>>"
        self._media = mtmd.mtmd_init_from_file(
            os.fsencode(folder / f"{kind}-mmproj.gguf"), self._model, media_params
        )
        self._n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._known: dict[str, Answer] = {}

    def close(self) -> None:
        mtmd.mtmd_free(self._media)
        lib.llama_free(self._context)
        lib.llama_model_free(self._model)

    def answer(self, *parts: Part) -> Answer:
        key = "".join(p if isinstance(p, str) else f"<<{p.key}>>" for p in parts)
        if key not in self._known:
            self._known[key] = self._answer(parts)
        return self._known[key]

    def _answer(self, parts: tuple[Part, ...]) -> Answer:
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        position = lib.llama_pos(self._read(parts))
        tokens, logprobs = list[int](), list[float]()
        while True:
            row = lib.llama_get_logits_ith(self._context, -1)
            logits = np.ctypeslib.as_array(row, (self._n_vocab,)).astype(np.float64)
            token = int(logits.argmax())
            tokens.append(token)
            logits -= logits.max()
            logprobs.append(logits[token] - np.log(np.exp(logits).sum()))
            if len(tokens) == N_TOKENS:
                return Answer(tokens, logprobs)
            last = (ctypes.c_int32 * 1)(token)  # to outlive the batch
            batch = lib.llama_batch_get_one(last, 1)
            batch.pos = ctypes.pointer(position)
            assert lib.llama_decode(self._context, batch) == 0
            position = lib.llama_pos(position.value + 1)

    def _read(self, parts: tuple[Part, ...]) -> int:
        """Computes a prompt. The position behind it."""
        pictures = [p for p in parts if isinstance(p, Media)]
        text = "".join(p if isinstance(p, str) else "<<here>>" for p in parts).encode()
        bitmaps = [bitmap(p) for p in pictures]
        chunks = mtmd.mtmd_input_chunks_init()
        given = mtmd.mtmd_input_text(text, len(text), True, True)
        array = (mtmd.mtmd_bitmap_p_ctypes * len(bitmaps))(*bitmaps)
        rc = mtmd.mtmd_tokenize(self._media, chunks, ctypes.byref(given), array, len(bitmaps))
        assert rc == 0
        end = lib.llama_pos(0)
        rc = mtmd.mtmd_helper_eval_chunks(
            self._media, self._context, chunks, 0, 0, N_BATCH, True, ctypes.byref(end)
        )
        assert rc == 0
        for one in bitmaps:
            mtmd.mtmd_bitmap_free(one)
        mtmd.mtmd_input_chunks_free(chunks)
        return int(end.value)


class FixedBudget(PromptBudget):
    def tokens(self, n_decode: int) -> int:
        return self._n

    def __init__(self, n: int) -> None:
        super().__init__(n_batch=N_BATCH)
        self._n = n


class Engine:
    """An engine, and what each request got from it."""

    def __init__(self, folder: Path, kind: str, *, budget: int = N_BATCH, **changes: Any) -> None:
        fields = {"n_slots": 4, "n_ctx": 2048, "n_threads": 1, "n_batch": N_BATCH, **changes}
        path = folder / kind
        config = EngineConfig(model=f"{path}.gguf", mmproj=f"{path}-mmproj.gguf", **fields)
        engine = assemble(config, on_progress=lambda _: None, on_started=lambda _: None)
        assert isinstance(engine.cores.generation, EngineCore)
        self.core = engine.cores.generation
        self.core._budget = FixedBudget(budget)
        self.words: Any = engine.words
        self.outputs: dict[int, list[Output]] = {}
        self.replies: list[Reply] = []
        self.core.memory.connect(Threads(reply=self.replies.append))

    def add(self, *parts: Part, **fields: Any) -> int:
        text, places = "", list[int]()
        for part in parts:
            if isinstance(part, str):
                text += part
            else:
                places.append(len(text))
        request = len(self.outputs) + 1
        add = Add(
            id=request,
            prompt=Written(text, (), tuple(places)),
            media=tuple(p for p in parts if isinstance(p, Media)),
            sampling=Sampling(temperature=0, n_probs=1),
            **{"max_tokens": N_TOKENS, **fields},
        )
        admitted = self.core.admit(add)
        self.outputs[request] = []
        if isinstance(admitted, Admitted):
            self.core.add(admitted)
        else:
            self.outputs[request].append(admitted)
        return request

    def step(self, n: int = 1) -> None:
        for _ in range(n):
            for output in self.core.step():
                self.outputs[output.id].append(output)

    def run(self) -> None:
        while self.core.has_work:
            self.step()

    def ask(self, *parts: Part, **fields: Any) -> Answer:
        request = self.add(*parts, **fields)
        self.run()
        return self.answer(request)

    def answer(self, request: int) -> Answer:
        assert not self.failures(request)
        deltas = [o for o in self.outputs[request] if isinstance(o, Delta)]
        probs = [p for d in deltas for p in d.probs]
        assert [p.token for p in probs] == [t for d in deltas for t in d.tokens]
        return Answer([p.token for p in probs], [p.logprob or 0.0 for p in probs])

    def failures(self, request: int) -> list[str]:
        return [o.message for o in self.outputs[request] if isinstance(o, Failed)]

    def n_cached(self, request: int) -> int:
        (done,) = (o for o in self.outputs[request] if isinstance(o, Done))
        return done.stats.n_cached

    def n_tokens(self, *parts: Part) -> int:
        """Of a prompt's beginning."""
        places, text = list[int](), ""
        for part in parts:
            if isinstance(part, str):
                text += part
            else:
                places.append(len(text))
        media = [p for p in parts if isinstance(p, Media)]
        return len(self.core.prompt_tokens(Written(text, (), tuple(places)), media))

    def call(self, method: str, **args: Any) -> Reply:
        self.core.memory.call(Call(len(self.replies) + 1, method, args))
        return self.replies[-1]


Start: TypeAlias = Callable[..., Engine]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("kinds")
    subprocess.run([sys.executable, DATA / "make_kinds.py", made], check=True, timeout=60)
    return made


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def bare(folder: Path, kind: str) -> Iterator[Bare]:
    model = Bare(folder, kind)
    yield model
    model.close()


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    engines = list[Engine]()

    def make(kind: str, **changes: Any) -> Engine:
        engines.append(Engine(folder, kind, **changes))
        return engines[-1]

    yield make
    for engine in engines:
        engine.words.close()


# --- alone ---------------------------------------------------------------------------------------


def test_answers_are_those_of_llama_cpps_own_helper(kind: str, bare: Bare, start: Start) -> None:
    engine = start(kind)
    for parts in PROMPTS:
        assert engine.ask(*parts, cache_prompt=False).is_like(bare.answer(*parts)), parts


def test_an_answer_depends_on_each_picture_and_on_their_order(kind: str, bare: Bare) -> None:
    asked = [(A, B), (B, A), (A, C), (A, A)]
    answers = [bare.answer("1 ", one, " 2 ", two, " which?") for one, two in asked]
    assert not any(a.is_like(b) for i, a in enumerate(answers) for b in answers[:i])


def test_pictures_alone_say_what_is_computed_how(start: Start) -> None:
    """What the three kinds are here for."""
    items = {
        kind: [p for p in start(kind).words.see(A) if not isinstance(p, list)] for kind in KINDS
    }
    assert [(len(i.tokens), i.n_pos, i.is_whole) for i in items["qwen2vl"]] == [(15, 5, True)]
    assert [(len(i.tokens), i.n_pos, i.is_whole) for i in items["gemma3"]] == [(36, 36, True)]
    assert [(len(i.tokens), i.n_pos, i.is_whole) for i in items["idefics3"]] == [(4, 4, False)] * 5


# --- beside others -------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 7, N_BATCH])
def test_a_prefix_may_end_anywhere_but_in_a_picture(
    kind: str, bare: Bare, start: Start, budget: int
) -> None:
    engine = start(kind, budget=budget)
    first: list[Part] = ["Here ", A, " and there ", B, " it is."]
    assert engine.ask(*first).is_like(bare.answer(*first))
    cases: list[tuple[list[Part], list[Part]]] = [
        (["Here "], [C, " and there ", B, " it is."]),  # before the first one
        (["Here ", A, " an"], ["other?"]),  # in the text behind it
        (["Here ", A, " and there "], [C, " it is."]),  # between the two
        (["Here ", A, " and there "], ["is none."]),
        (["Here ", A, " and there ", B, " it "], ["was, then."]),  # behind both
        (["Here ", A, " and there ", B, " it is."], []),
    ]
    begin = engine.n_tokens("") - 0
    for known, new in cases:
        request = engine.add(*known, *new)
        engine.run()
        assert engine.answer(request).is_like(bare.answer(*known, *new)), (known, new)
        if kind == "gemma3":  # prefixes are not shared where there is a sliding window
            assert engine.n_cached(request) == 0
            continue
        n = engine.n_tokens(*known) - begin
        assert n - 1 <= engine.n_cached(request) - begin <= n + 3  # marks around pictures are equal


@pytest.mark.parametrize("budget", [1, N_BATCH])
def test_streams_beside_a_picture_and_the_picture_say_what_they_say_alone(
    kind: str, bare: Bare, start: Start, budget: int
) -> None:
    engine = start(kind, budget=budget)
    asked: list[list[Part]] = [["Tell me more."], *PROMPTS[:4], PROMPTS[2], PROMPTS[3]]
    requests = list[int]()
    for parts in asked:  # the last ones follow those that are read before them, or take all
        requests.append(engine.add(*parts))
        engine.step(3)
    engine.run()
    for request, parts in zip(requests, asked, strict=True):
        assert engine.answer(request).is_like(bare.answer(*parts)), parts


def test_preempted_and_computed_again_a_picture_is_the_same(
    kind: str, bare: Bare, start: Start
) -> None:
    engine = start(kind)
    requests = {engine.add(*parts): parts for parts in PROMPTS[:4]}
    n_preempted = 0
    while engine.core.has_work:
        engine.step(5)
        if n_preempted < 20 and engine.core.scheduler.running:
            engine.core.scheduler._preempt_youngest()
            n_preempted += 1
    assert n_preempted > 3
    for request, parts in requests.items():
        assert engine.answer(request).is_like(bare.answer(*parts)), parts


def test_out_of_cells_pictures_wait_and_are_computed_again(
    kind: str, bare: Bare, start: Start
) -> None:
    engine = start(kind, n_ctx=256)
    asked = [["x" * 20 * i, *parts] for i in range(1, 4) for parts in PROMPTS[:2]]
    requests = [engine.add(*parts, max_tokens=60) for parts in asked]
    engine.run()
    assert engine.core.scheduler.n_preempted
    for request, parts in zip(requests, asked, strict=True):
        tokens, logprobs = engine.answer(request)
        assert Answer(tokens[:N_TOKENS], logprobs[:N_TOKENS]).is_like(bare.answer(*parts)), parts


# --- kept elsewhere ------------------------------------------------------------------------------


def test_host_memory_holds_pictures_where_positions_are_numbers_of_tokens(
    kind: str, bare: Bare, start: Start
) -> None:
    engine = start(kind, n_ctx=512, cache_ram_mib=64)
    text = "A long text before the picture, so that it is worth to be kept in host memory. "
    # A strip one token wide has as many positions as tokens, even with M-RoPE.
    asked: list[list[Part]] = [[text, picture(6, 8, 160), "?"], [text, C, " and so on?"]]
    for parts in asked:
        engine.ask(*parts)
        while len(engine.core.scheduler.cache):
            engine.core.scheduler.room.evict_oldest()
    requests = [engine.add(*parts) for parts in asked]
    engine.run()
    for request, parts in zip(requests, asked, strict=True):
        assert engine.answer(request).is_like(bare.answer(*parts)), parts
    n_cached = [engine.n_cached(request) for request in requests]
    if kind == "gemma3":
        assert n_cached == [0, 0]
        return
    assert n_cached[0] == engine.n_tokens(*asked[0]) - 1
    # The other shares the text with the first, unless its own state is worth restoring.
    assert n_cached[1] >= engine.n_tokens(text)


def test_a_slot_with_pictures_is_saved_and_restored_or_that_is_refused(
    kind: str, bare: Bare, start: Start, tmp_path: Path
) -> None:
    engine = start(kind, n_slots=1, slot_save_path=str(tmp_path))
    parts = PROMPTS[2]
    engine.ask(*parts)
    reply = engine.call("slot_save", slot=0, filename="state")
    if kind == "gemma3":
        assert reply.code == "not_supported"
        return
    if kind == "qwen2vl":
        assert (reply.code, reply.param) == ("not_supported", "id_slot")
        assert not list(tmp_path.iterdir())
        assert engine.ask(*parts, " Go on.").is_like(bare.answer(*parts, " Go on."))
        return
    assert reply.error is None
    other = start(kind, n_slots=1, slot_save_path=str(tmp_path))
    assert other.call("slot_restore", slot=0, filename="state").error is None
    request = other.add(*parts)
    other.run()
    assert other.n_cached(request) == other.n_tokens(*parts) - 1
    assert other.answer(request).is_like(bare.answer(*parts))


# --- what cannot be ------------------------------------------------------------------------------


def test_a_picture_larger_than_a_batch_is_computed_in_parts_or_refused(
    kind: str, bare: Bare, start: Start
) -> None:
    engine = start(kind, n_slots=1, n_batch=1)  # which makes it 33, one for each cache sequence
    assert engine.words.n_batch == 33
    parts: list[Part] = ["What ", picture(7, 160, 96), " is this?"]  # 240 tokens with qwen2vl
    request = engine.add(*parts)
    engine.run()
    if kind == "gemma3":
        (failure,) = engine.failures(request)
        assert failure == "it takes 36 tokens at once; start the server with --batch-size 36"
    else:
        assert engine.answer(request).is_like(bare.answer(*parts))


def test_one_refusal_does_not_tell_of_another(start: Start) -> None:
    engine = start("idefics3")
    failures = []
    for size in ((1, 2000), (2000, 1)):
        failures += engine.failures(engine.add("x ", picture(8, *size), " y"))
    assert "0x32" in failures[0] and "32x0" in failures[1] and "0x32" not in failures[1]


@pytest.mark.parametrize("kind", KINDS, scope="function")
def test_pictures_of_odd_sizes_are_answered_or_refused(folder: Path, kind: str) -> None:
    sizes = ["1x1", "1x2000", "2000x1", "8x4000", "4000x8", "3x5", "2048x2047"]
    done = subprocess.run(
        [
            *(sys.executable, DATA / "odd_pictures.py"),
            *(folder / f"{kind}.gguf", folder / f"{kind}-mmproj.gguf", *sizes),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert [line[0] for line in said] == sizes
    refused = {line[0] for line in said if line[1] == "refused"}
    # Cut into squares after their longer side was made to fit, these have no other side left.
    narrow = {"1x2000", "2000x1", "8x4000", "4000x8"} if kind == "idefics3" else set()
    assert refused - {"2048x2047"} == narrow
