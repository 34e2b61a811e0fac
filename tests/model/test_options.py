"""How llama.cpp is told to load a model: that each option reaches it, by what it changes."""

import ctypes
import re
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from corral.backend.engine.llama import Llama, LoadError, Row, loading
from corral.backend.engine.llama.header import read_header
from corral.backend.engine.llama.native import lib
from corral.backend.engine.llama.placing import CACHE_TYPES, devices, model_params
from corral.backend.engine.options import LlamaOptions

Load = Callable[..., Llama]

PROMPT = "Once upon a time in a small village there lived"


def greedy(model: Llama, n: int = 16) -> str:
    """The likeliest continuation of the prompt."""
    tokens = model.tokenize(PROMPT, add_special=True, parse_special=False)
    position, text = 0, b""
    for _ in range(n):
        index = model.decode([Row(0, position, array("i", tokens), True)])[-1]
        position += len(tokens)
        tokens = [int(model.logits(index).argmax())]
        text += model.piece(tokens[0])
    return text.decode()


def bytes_per_token(model: Llama) -> float:
    """What llama.cpp's own account of a sequence grows by with each token."""
    before = len(model.save_state(0))
    n = 32
    at = 1 + int(lib.llama_memory_seq_pos_max(model._memory, 0))
    model.decode([Row(0, at, array("i", [10] * n), True)])
    return (len(model.save_state(0)) - before) / n


@pytest.fixture
def load(model_path: Path) -> Iterator[Load]:
    """Loads the model with changed options; all are closed in the end."""
    models: list[Llama] = []

    def one(n_ctx: int = 512, **changes: object) -> Llama:
        options = LlamaOptions(**changes)  # type: ignore[arg-type]
        sizes = {"n_slots": 4, "n_seq_max": 12, "n_batch": 256, "n_threads": 1}
        models.append(Llama(model_path, n_ctx=n_ctx, options=options, **sizes))
        return models[-1]

    yield one
    for model in models:
        model.close()


@pytest.fixture(scope="module")
def plain(llama: Llama) -> str:
    return greedy(llama)


@pytest.mark.parametrize("kind", ["f32", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"])
def test_the_cache_has_the_type_asked_for_and_the_estimate_knows_it(kind: str, load: Load) -> None:
    model = load(cache_type_k=kind, cache_type_v=kind)
    options = LlamaOptions(cache_type_k=kind, cache_type_v=kind)  # type: ignore[arg-type]
    estimate = loading._kv_bytes_per_token(model._model, options)
    assert greedy(model, 4).strip()
    # A token's place in the saved state is some bytes more than its cells.
    assert estimate <= bytes_per_token(model) < estimate + 40


def test_sizes_of_cache_types_are_llama_cpps() -> None:
    row_size = lib._lib.ggml_row_size
    row_size.restype, row_size.argtypes = ctypes.c_size_t, (ctypes.c_int, ctypes.c_int64)
    for kind, n_bytes, n_values in CACHE_TYPES.values():
        assert row_size(kind, n_values) == n_bytes
    name = lib._lib.ggml_type_name
    name.restype, name.argtypes = ctypes.c_char_p, (ctypes.c_int,)
    assert [name(kind).decode() for kind, _, _ in CACHE_TYPES.values()] == list(CACHE_TYPES)


def test_a_smaller_cache_type_fits_a_longer_context(
    llama: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "available_bytes", lambda: 30 << 20)

    def fits(kind: str) -> int:
        options = LlamaOptions(cache_type_k=kind, cache_type_v=kind)  # type: ignore[arg-type]
        return loading.fit_context(llama._model, 8192, options, may_shrink=True)

    # 15 MiB, at 30 layers of 3 heads of 64 keys and as many values, in multiples of 256.
    assert fits("f16") == (15 << 20) // (30 * 3 * 128 * 2) // 256 * 256 == 512
    assert fits("q4_0") == (15 << 20) // (30 * 3 * 128 * 18 // 32) // 256 * 256 == 2304


def test_quantised_values_switch_flash_attention_on(load: Load) -> None:
    assert load(cache_type_v="q8_0").tile_rows == 64
    assert load(cache_type_k="q8_0").tile_rows == 0


def test_a_type_whose_blocks_do_not_divide_the_heads_is_refused(
    monkeypatch: pytest.MonkeyPatch, load: Load
) -> None:
    monkeypatch.setattr(loading, "_head_sizes", lambda model: (80, 96))
    with pytest.raises(LoadError, match="-ctk q8_0: the model's heads are 80 wide"):
        load(cache_type_k="q8_0")
    load(cache_type_v="q8_0")


def test_states_are_of_no_use_to_another_cache_or_other_positions(load: Load) -> None:
    changes: list[dict[str, object]] = [
        {},
        {"cache_type_k": "q8_0"},
        {"rope_freq_base": 1e6},
        {"yarn_ext_factor": 0.0},
        {"override_kv": (("llama.rope.freq_base", 1e6),)},
    ]
    assert len({load(**change).fingerprint for change in changes}) == len(changes)


def test_the_rope_base_reaches_the_model_as_flag_and_as_metadata(load: Load, plain: str) -> None:
    as_flag = greedy(load(rope_freq_base=500.0))
    assert as_flag == greedy(load(override_kv=(("llama.rope.freq_base", 500.0),))) != plain
    assert greedy(load(override_kv=(("llama.rope.freq_base", 100000.0),))) == plain


@pytest.mark.parametrize(
    "change",
    [
        {"rope_scaling": "linear", "rope_freq_scale": 0.25},
        {"rope_scaling": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 64},
        {"rope_scaling": "yarn", "yarn_ext_factor": 0.0, "yarn_attn_factor": 2.0},
        {"rope_scaling": "yarn", "rope_freq_scale": 0.25, "yarn_ext_factor": 0.0},
        {"rope_scaling": "yarn", "rope_freq_scale": 0.25, "yarn_beta_slow": 100.0},
        {"rope_scaling": "yarn", "rope_freq_scale": 0.25, "yarn_beta_fast": 0.01},
    ],
    ids=lambda change: list(change)[-1],
)
def test_each_option_of_positions_changes_the_logits(change: dict[str, object], load: Load) -> None:
    def logits(**options: object) -> list[float]:
        model = load(**options)
        tokens = model.tokenize(PROMPT, add_special=True, parse_special=False)
        index = model.decode([Row(0, 0, array("i", tokens), True)])[-1]
        return model.logits(index)[:50].tolist()

    one_less = {name: value for name, value in change.items() if name != list(change)[-1]}
    assert logits(**change) != logits(**one_less)


def test_a_stretched_context_may_be_longer_than_the_training(load: Load) -> None:
    assert load(n_ctx=8960).n_ctx == 8192
    assert load(n_ctx=8960, rope_scaling="none").n_ctx == 8192
    assert load(n_ctx=8960, rope_scaling="yarn", rope_freq_scale=0.5).n_ctx == 8960


def test_metadata_given_in_place_of_the_files_is_obeyed(model_path: Path, load: Load) -> None:
    model = load(
        n_ctx=2048,
        override_kv=(
            ("llama.context_length", 1024),
            ("tokenizer.ggml.add_bos_token", True),
            ("tokenizer.ggml.eos_token_id", 5),
            ("general.sampling.temp", 0.25),
            ("general.sampling.sequence", "x"),
        ),
    )
    assert model.info.n_ctx_train == model.n_ctx == 1024
    assert model.info.add_bos
    assert 5 in model.eog_tokens
    assert model.info.sampling == {"temperature": 0.25}
    header = read_header(model_path, (("llama.pooling_type", 3), ("llama.attention.causal", False)))
    assert header.pooling == "last" and not header.is_causal
    assert read_header(model_path).pooling is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.block_count", 0, "describes the weights"),
        ("llama.expert_count", 5, "describes the weights"),
        ("llama.context_length", 0, "must be between 1 and"),
        ("llama.context_length", "long", "a value of type int there, not str"),
        ("llama.context_length", 1.5, "a value of type int there, not float"),
        ("llama.vocab_size", -1, "must be between 0 and 4294967295"),
        ("llama.expert_used_count", 2, "the model has no experts"),
        ("llama.attention.layer_norm_rms_epsilon", -1.0, "must not be negative"),
        ("tokenizer.ggml.bos_token_id", 49152, "must be between 0 and 49151"),
        ("tokenizer.ggml.eot_token_id", -1, "must be between 0 and 49151"),
        ("tokenizer.ggml.add_bos_token", 1, "a value of type bool there, not int"),
        ("tokenizer.ggml.tokens", 1, "a value of type array there, not int"),
    ],
)
def test_metadata_that_llama_cpp_would_drop_or_abort_on_is_refused(
    key: str, value: int | float | str, message: str, load: Load
) -> None:
    with pytest.raises(LoadError, match=f"--override-kv {re.escape(key)}: .*{message}"):
        load(override_kv=((key, value),))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": ("CUDA7",)}, "--device CUDA7: no such device; there are: none"),
        ({"tensor_split": (1.0, 1.0)}, "--tensor-split: 2 shares for 0 devices"),
        ({"override_tensors": (("ffn", "CUDA7"),)}, "no such buffer; there are: CPU"),
        ({"override_tensors": (("(?P<a>x)", "CPU"),)}, "cannot be loaded"),
    ],
    ids=["device", "shares", "buffer", "pattern"],
)
def test_devices_that_are_not_there_are_named(
    options: dict[str, object], message: str, load: Load
) -> None:
    with pytest.raises(LoadError, match=re.escape(message)):
        load(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"split_mode": "none"},
        {"split_mode": "row", "main_gpu": 3, "n_gpu_layers": 99},
        {"devices": (), "n_gpu_layers": 0},
        {"n_cpu_moe": -1, "n_cpu_ffn": 2, "override_tensors": (("ffn_up", "CPU"),)},
        {"load_mode": "none", "repack": False, "host_buffers": False},
        {"load_mode": "dio"},
        {"kv_offload": False, "op_offload": False, "n_threads_batch": 2},
    ],
    ids=lambda options: "-".join(options),
)
def test_where_a_model_is_put_does_not_change_what_it_says(
    options: dict[str, object], load: Load, plain: str
) -> None:
    assert greedy(load(**options)) == plain


def test_places_are_written_where_llama_cpp_reads_them() -> None:
    options = LlamaOptions(
        n_gpu_layers=7, devices=(), n_cpu_moe=2, n_cpu_ffn=1, override_tensors=(("a.b", "CPU"),)
    )
    params, kept = model_params(options)
    assert params.n_gpu_layers == 7
    assert ctypes.cast(params.devices, ctypes.POINTER(ctypes.c_void_p))[0] is None
    rules = kept[1]
    assert [rule.pattern for rule in rules] == [
        b"a.b",
        rb"blk\.0\.ffn_(up|down|gate|gate_up)_(ch)?exps",
        rb"blk\.1\.ffn_(up|down|gate|gate_up)_(ch)?exps",
        rb"blk\.0\.ffn_(up|down|gate)\.",
        None,
    ]
    assert params.tensor_buft_overrides == ctypes.addressof(rules)
    assert len({rule.buffer_type for rule in rules} - {None}) == 1
    assert [device.name for device in devices() if device.is_cpu] == ["CPU"]


def test_a_server_takes_them_as_flags(model_path: Path, serve: Callable[..., Any]) -> None:
    flags = ["-m", str(model_path), "-c", "1024", "--threads", "1", "-tb", "1"]
    flags += ["--no-mmap", "-ctk", "q8_0", "-ctv", "q8_0", "-ngl", "99", "--no-warmup"]
    flags += ["--override-kv", "llama.context_length=int:512,general.sampling.temp=float:0.25"]
    with serve(*flags) as server:
        props = httpx.get(server.url + "/props", timeout=10).json()
        assert props["default_generation_settings"]["n_ctx"] == 512
        assert props["default_generation_settings"]["params"]["temperature"] == 0.25
        maps = Path(f"/proc/{server.engine_pid()}/maps").read_text()
        assert model_path.name not in maps
        answer = httpx.post(
            server.url + "/completion", json={"prompt": "A", "n_predict": 3}, timeout=30
        )
        assert answer.json()["tokens_predicted"] == 3


def test_a_file_is_mapped_when_told_so(model_path: Path, serve: Callable[..., Any]) -> None:
    with serve("-m", str(model_path), "-c", "512", "--threads", "1", "--mmap") as server:
        assert server.url
        assert model_path.name in Path(f"/proc/{server.engine_pid()}/maps").read_text()


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["-ctv", "q8_0", "-fa", "off"], 2, "--cache-type-v q8_0 needs flash attention"),
        (["-ctk", "q3_K"], 2, "-ctk must be f32"),
        (["--override-kv", "llama.block_count=int:9"], 3, "--override-kv llama.block_count"),
        (["--device", "CUDA9"], 3, "--device CUDA9: no such device"),
    ],
    ids=["values", "keys", "metadata", "device"],
)
def test_what_cannot_be_had_ends_the_start_with_its_flag(
    model_path: Path, flags: list[str], code: int, message: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "corral.backend", "serve", "--port", "0", "-m", model_path, *flags],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == code, ended.stderr
    assert message in ended.stderr
