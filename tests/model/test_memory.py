"""LoRA sets, saved states and tiers on the real model."""

import math
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import httpx
import numpy as np
import pytest

from corral.backend.engine.admission import Admitted
from corral.backend.engine.core import EngineCore
from corral.backend.engine.llama import Llama, LoadError, Row
from corral.backend.engine.messages import Add, Call, Delta, Done, EngineConfig, Reply, Sampling
from corral.backend.engine.pace import PromptBudget, Threads
from corral.backend.engine.slots import Threads as FileThreads
from corral.backend.engine.tiers import Tier

A, B = ((0, 1.0),), ((1, 1.0),)
N_LAYERS, N_EMBD, N_QUERY, N_VALUE = 30, 576, 576, 192
#: Where the two likeliest tokens are closer than this, rounding may choose (docs/engine.md).
NEAR = 1.0


def make_adapter(
    path: Path, *, seed: int, architecture: str = "llama", n_embd: int = N_EMBD
) -> Path:
    """A random rank-4 adapter on queries and values of every other layer."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 4.0)
    writer.add_string("adapter.lora.task_name", f"task {seed}")
    for layer in range(0, N_LAYERS, 2):
        for name, n_out in (("attn_q", N_QUERY), ("attn_v", N_VALUE)):
            a = random.standard_normal((4, n_embd)) / np.sqrt(n_embd)
            b = random.standard_normal((n_out, 4)) * 0.3
            full = f"blk.{layer}.{name}.weight"
            writer.add_tensor(f"{full}.lora_a", a.astype(np.float32))
            writer.add_tensor(f"{full}.lora_b", b.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [make_adapter(folder / f"{seed}.gguf", seed=seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def model(model_path: Path, adapters: list[Path]) -> Iterator[Llama]:
    made = Llama(
        model_path,
        n_ctx=1024,
        n_slots=4,
        n_seq_max=12,
        n_batch=256,
        n_threads=1,
        lora=tuple((str(path), 0.0) for path in adapters),
    )
    yield made
    made.close()


class Engine:
    """An engine on the model, with an empty cache."""

    def __init__(self, model: Llama, tier: Tier | None = None) -> None:
        for seq_id in range(model.n_seq_max):
            model.cut(seq_id, 0)
        self.core = EngineCore(
            model,
            n_slots=4,
            max_queue=8,
            budget=PromptBudget(n_batch=256),
            threads=Threads(1, fixed=1),
            tier=tier,
        )
        self.replies: list[Reply] = []
        self.core.memory.connect(FileThreads(reply=self.replies.append))

    def add(self, id: int, prompt: str, **fields: Any) -> None:
        add = Add(id=id, prompt=prompt, sampling=Sampling(temperature=0), **fields)
        admitted = self.core.admit(add)
        assert isinstance(admitted, Admitted), admitted
        self.core.add(admitted)

    def run(self) -> dict[int, tuple[list[int], Done]]:
        tokens: dict[int, list[int]] = {}
        done = {}
        while self.core.has_work:
            for output in self.core.step():
                if isinstance(output, Delta):
                    tokens.setdefault(output.id, []).extend(output.tokens)
                elif isinstance(output, Done):
                    done[output.id] = output
        return {i: (tokens.get(i, []), done[i]) for i in done}

    def one(self, prompt: str, **fields: Any) -> tuple[list[int], Done]:
        self.add(1, prompt, **{"max_tokens": 12} | fields)
        return self.run()[1]


def same_up_to_rounding(
    model: Llama, prompt: str, lora: Any, got: list[int], wanted: list[int]
) -> bool:
    """Equal, or first different where the two likeliest tokens are near each other."""
    at = next((i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), None)
    if at is None:
        return len(got) == len(wanted)
    tokens = array("i", [*model.tokenize_prompt(prompt), *wanted[:at]])
    model.set_adapters(lora or ())
    model.cut(11, 0)
    (index,) = model.decode([Row(11, 0, tokens, True)])
    logits = model.logits(index)
    gap = float(logits[wanted[at]] - logits[got[at]])
    model.cut(11, 0)
    return math.fabs(gap) < NEAR


PROMPT = "The capital of France is"
#: About 100 tokens.
LONG = "Once upon a time there was a small village by the sea, where people fished. " * 6


def test_an_adapter_changes_the_text_and_a_scale_of_0_does_not(model: Llama) -> None:
    base, one, two, both, off = (
        Engine(model).one(PROMPT, lora=lora)[0]
        for lora in ((), A, B, (*A, *B), ((0, 0.0), (1, 0.0)))
    )
    assert off == base
    assert len({tuple(t) for t in (base, one, two, both)}) >= 3
    assert one != base and two != base


def test_two_adapters_interleaved_give_what_each_gives_alone(model: Llama) -> None:
    sets: list[Any] = [(), A, B, ((0, 0.5), (1, 0.5))]
    alone = [Engine(model).one(PROMPT, lora=lora)[0] for lora in sets]
    engine = Engine(model)
    for i, lora in enumerate(sets):
        engine.add(i, PROMPT, max_tokens=12, lora=lora)
    answers = engine.run()
    assert engine.core.scheduler.turns.n_changes >= 4
    for i, lora in enumerate(sets):
        tokens, done = answers[i]
        assert done.stats.n_cached == 0
        assert same_up_to_rounding(model, PROMPT, lora, tokens, alone[i])


def test_prefixes_are_used_again_within_a_set_only(model: Llama) -> None:
    engine = Engine(model)
    n = engine.one(LONG, lora=A)[1].stats.n_prompt
    cached = [engine.one(LONG, lora=lora)[1].stats.n_cached for lora in (B, (), A)]
    assert cached == [0, 0, n - 1]


def test_a_state_comes_back_bit_by_bit(model: Llama) -> None:
    Engine(model)  # an empty cache
    tokens = array("i", model.tokenize_prompt(LONG))
    model.set_adapters(())
    model.decode([Row(0, 0, tokens, False)])
    data = model.save_state(0)
    model.cut(0, 0)
    assert model.load_state(0, data)  # the same one: its number is in the bytes
    assert (model.save_state(0) == data).all()
    model.cut(0, 0)


@pytest.mark.parametrize("kind", ["empty", "cut", "garbage"])
def test_a_bad_state_is_refused_and_the_model_lives(model: Llama, kind: str) -> None:
    engine = Engine(model)
    model.decode([Row(0, 0, array("i", model.tokenize_prompt(LONG)), False)])
    data = model.save_state(0)
    bad = {"empty": data[:0], "cut": data[: len(data) // 2], "garbage": data[::-1].copy()}[kind]
    assert not model.load_state(1, bad)
    assert len(model.save_state(1)) < 100
    model.cut(0, 0)
    assert engine.one(PROMPT)[0]


def test_what_lost_its_cells_is_restored_and_goes_on_alike(model: Llama) -> None:
    wanted = Engine(model).one(LONG + PROMPT)[0]
    engine = Engine(model, Tier(1 << 30))
    n = engine.one(LONG)[1].stats.n_prompt
    scheduler = engine.core.scheduler
    while len(scheduler.cache):
        scheduler.room.evict_oldest()
    assert engine.core.memory.settle() and scheduler.cells.n_free == scheduler.cells.n_cells
    tokens, done = engine.one(LONG + PROMPT)
    assert done.stats.n_cached >= n - 1
    assert same_up_to_rounding(model, LONG + PROMPT, (), tokens, wanted)


def test_a_slot_file_restores_in_another_engine(model: Llama, tmp_path: Path) -> None:
    first = Engine(model)
    n = first.one(LONG, id_slot=2)[1].stats.n_prompt
    args = {"slot": 2, "filename": "slot.bin"}
    for engine, method in ((first, "slot_save"), (Engine(model), "slot_restore")):
        engine.core.memory.configure(EngineConfig(model="", slot_save_path=str(tmp_path)))
        engine.core.memory.call(Call(1, method, args))
        assert engine.replies[0].error is None, engine.replies
        last = engine
    assert last.one(LONG)[1].stats.n_cached == n - 1


def test_files_that_are_no_adapters_for_this_model_are_told(
    model_path: Path, tmp_path: Path, adapters: list[Path]
) -> None:
    (tmp_path / "cut.gguf").write_bytes(adapters[0].read_bytes()[:100_000])
    (tmp_path / "text.gguf").write_text("hello")
    bad = [
        make_adapter(tmp_path / "architecture.gguf", seed=1, architecture="gemma3"),
        make_adapter(tmp_path / "shape.gguf", seed=1, n_embd=64),
        *(tmp_path / name for name in ("cut.gguf", "text.gguf", "absent.gguf")),
        model_path,
    ]
    for path in bad:
        with pytest.raises(LoadError) as caught:
            Llama(
                model_path,
                n_ctx=256,
                n_slots=1,
                n_seq_max=3,
                n_batch=64,
                n_threads=1,
                lora=((str(path), 1.0),),
            )
        assert str(path) in str(caught.value)


def test_the_fingerprint_tells_layouts_of_the_cache_apart(model: Llama, model_path: Path) -> None:
    found = []
    for flash_attn in (False, True):
        other = Llama(
            model_path,
            n_ctx=256,
            n_slots=1,
            n_seq_max=3,
            n_batch=64,
            n_threads=1,
            flash_attn=flash_attn,
        )
        found.append(other.fingerprint)
        other.close()
    assert found[0] == model.fingerprint != found[1]


def test_a_prompt_survives_a_restart_of_the_server(
    serve: Callable[..., Any], tmp_path: Path, adapters: list[Path]
) -> None:
    flags = ["--threads", "1", "--ctx-size", "1024", "--data-dir", str(tmp_path / "data")]
    flags += ["--cache-disk", str(tmp_path / "prefixes"), "--lora-scaled", f"{adapters[0]}:0.5"]
    body = {"prompt": LONG, "n_predict": 4, "temperature": 0}
    cached = []
    for _ in range(2):
        with serve(*flags) as server, httpx.Client(base_url=server.url, timeout=60) as http:
            assert http.get("/lora-adapters").json()[0]["scale"] == 0.5
            cached.append(http.post("/completion", json=body).json()["timings"]["cache_n"])
            written = tmp_path / "prefixes"
            deadline = time.monotonic() + 30
            while not list(written.glob("*.prefix")) and time.monotonic() < deadline:
                http.get("/health")
            if len(cached) == 2:
                assert "corral_disk_reads_total 1.0" in http.get("/metrics").text
    assert cached[0] == 0 and cached[1] > 80
