"""From a configuration to a working engine: loads the model and puts together what it can do."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from corral.backend.engine import fake, llama
from corral.backend.engine.core import EngineCore
from corral.backend.engine.cores import Cores
from corral.backend.engine.embedding import Embedder, EmbeddingCore
from corral.backend.engine.fake_embedding import FakeEmbedder
from corral.backend.engine.llama.embedding import EmbeddingModel
from corral.backend.engine.llama.header import Header, read_header
from corral.backend.engine.llama.media import Projector
from corral.backend.engine.llama.placing import uses_gpu
from corral.backend.engine.messages import EngineConfig, ModelInfo, Output
from corral.backend.engine.pace import PromptBudget, Threads

#: Cache sequences beside the running ones: how many finished prompts can be remembered.
N_CACHED_PREFIXES = 32

Started: TypeAlias = Callable[[list[Output]], None]


class Assembly(NamedTuple):
    """``words`` is whose vocabulary is asked; ``fakes`` what ``control`` scripts."""

    words: llama.Llama | EmbeddingModel | fake.FakeLlama
    cores: Cores
    info: ModelInfo
    fakes: tuple[FakeEmbedder, ...] = ()


def assemble(
    config: EngineConfig, *, on_progress: Callable[[float], None], on_started: Started
) -> Assembly:
    """The engine of a configuration. Raises ``LoadError``. ``on_started`` is the cores'."""
    if config.fake:
        return _scripted(config, on_started)
    path = Path(config.model)
    header = read_header(path, config.llama.override_kv)
    loading: dict[str, Any] = {
        "check_tensors": config.check_tensors,
        "plain_buffers": config.plain_buffers,
        "on_progress": on_progress,
    }
    if header.is_embedding_model or config.pooling == "rank":
        if config.mmproj:
            raise llama.LoadError(f"{config.mmproj}: a model for vectors or ranking takes none")
        model = EmbeddingModel.load(path, header, **loading, **_options(config))
        if config.llama.warmup:
            model.warm_up()
        core = _embedding(config, model, on_started)
        ranks = model.pooling == "rank"
        cores = Cores(vectors=None if ranks else core, scores=core if ranks else None)
        return Assembly(model, cores, cores.describe(model.describe(config.model, config.n_slots)))
    runner = _load(config, path, loading)
    cores = _with_vectors(config, runner, header, on_started)
    return Assembly(runner, cores, cores.describe(runner.info))


def _load(config: EngineConfig, path: Path, loading: dict[str, Any]) -> llama.Llama:
    n_seq_max = config.n_slots + N_CACHED_PREFIXES
    runner = llama.Llama(
        path,
        n_ctx=config.n_ctx,
        n_slots=config.n_slots,
        n_seq_max=n_seq_max,
        n_batch=max(config.n_batch, n_seq_max),
        n_threads=config.n_threads or usable_cpus(),
        flash_attn=config.flash_attn,
        lora=config.lora,
        options=config.llama,
        mmproj=functools.partial(_projector, config) if config.mmproj else None,
        **loading,
    )
    if config.llama.warmup:
        runner.warm_up()
    return runner


def _projector(config: EngineConfig, model: Any) -> Projector:
    return Projector(
        Path(config.mmproj),
        model,
        n_batch=max(config.n_batch, config.n_slots + N_CACHED_PREFIXES),
        n_threads=config.n_threads or usable_cpus(),
        use_gpu=config.mmproj_offload and uses_gpu(config.llama),
        image_min_tokens=config.image_min_tokens,
        image_max_tokens=config.image_max_tokens,
    )


def _options(config: EngineConfig) -> dict[str, Any]:
    return {
        "pooling": config.pooling,
        "n_ctx": config.n_ctx,
        "n_batch": config.n_batch,
        "n_ubatch": config.n_ubatch,
        "n_threads": config.n_threads or usable_cpus(),
        "flash_attn": config.flash_attn,
        "options": config.llama,
    }


def _with_vectors(
    config: EngineConfig, runner: llama.Llama, header: Header, on_started: Started
) -> Cores:
    budget = _budget(config, runner)
    generation = _generation(config, runner, budget, on_started)
    if not config.embeddings and config.pooling is None:
        return Cores(generation=generation)
    model = EmbeddingModel.beside(runner, header, **_options(config))
    if config.llama.warmup:
        model.warm_up()
    vectors = _embedding(config, model, on_started)
    return Cores(generation=generation, vectors=vectors, room=budget.tokens)


def _scripted(config: EngineConfig, on_started: Started) -> Assembly:
    runner = fake.FakeLlama(
        n_ctx=config.n_ctx or 4096,
        n_slots=config.n_slots,
        n_seq_max=config.n_slots + N_CACHED_PREFIXES,
        n_batch=max(config.n_slots, min(config.n_batch, 64)),
        step_ms=2.0,
        lora=config.lora,
        vision=bool(config.mmproj),
    )
    budget = _budget(config, runner)
    generation = _generation(config, runner, budget, on_started)
    vectors = FakeEmbedder(pooling=config.pooling or "mean")
    scores = FakeEmbedder(pooling="rank", can_split=False)
    cores = Cores(
        generation=generation,
        vectors=_embedding(config, vectors, on_started),
        scores=_embedding(config, scores, on_started),
        room=budget.tokens,
    )
    return Assembly(runner, cores, cores.describe(runner.info), (vectors, scores))


def _budget(config: EngineConfig, runner: llama.Llama | fake.FakeLlama) -> PromptBudget:
    return PromptBudget(
        n_batch=runner.n_batch, target_ms=config.step_target_ms, tile_rows=runner.tile_rows
    )


def _generation(
    config: EngineConfig,
    runner: llama.Llama | fake.FakeLlama,
    budget: PromptBudget,
    on_started: Started,
) -> EngineCore:
    core = EngineCore(
        runner,
        n_slots=config.n_slots,
        max_queue=config.max_queue,
        budget=budget,
        threads=Threads(usable_cpus(), fixed=config.n_threads),
        on_started=on_started,
        media_bytes=config.media_cache_mib << 20,
    )
    core.memory.configure(config)
    core.prepare()
    return core


def _embedding(config: EngineConfig, model: Embedder, on_started: Started) -> EmbeddingCore:
    return EmbeddingCore(
        model,
        n_slots=config.n_slots,
        max_queue=config.max_queue,
        threads=Threads(usable_cpus(), fixed=config.n_threads),
        on_started=on_started,
    )


def usable_cpus() -> int:
    """CPUs this process may use: those it is bound to, fewer if its control group has a quota."""
    bound = getattr(os, "sched_getaffinity", None)  # not everywhere
    n = len(bound(0)) if bound is not None else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        n = min(n, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no quota
    return max(1, n)
