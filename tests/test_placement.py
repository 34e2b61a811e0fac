"""Flags of how llama.cpp loads a model, up to the options that cross the seam."""

from pathlib import Path

import msgspec
import pytest

from corral.backend import preflight
from corral.backend.__main__ import main
from corral.backend.commandline import parse
from corral.backend.engine.messages import EngineConfig
from corral.backend.engine.options import LlamaOptions
from corral.backend.errors import Refused
from corral.backend.placement import llama_options
from corral.backend.pool import engine_config
from corral.backend.settings import Settings


def options(*flags: str, **variables: str) -> LlamaOptions:
    return llama_options(parse(list(flags), variables))


def test_nothing_given_leaves_everything_to_llama_cpp() -> None:
    assert options() == LlamaOptions()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("-ngl 20", {"n_gpu_layers": 20}),
        ("--gpu-layers auto", {"n_gpu_layers": -1}),
        ("--n-gpu-layers all", {"n_gpu_layers": -1}),
        ("-sm row -mg 2", {"split_mode": "row", "main_gpu": 2}),
        ("-ts 3,1", {"tensor_split": (3.0, 1.0)}),
        ("-ts 3/0/1.5", {"tensor_split": (3.0, 0.0, 1.5)}),
        ("--device none", {"devices": ()}),
        ("-dev CUDA0,CUDA1", {"devices": ("CUDA0", "CUDA1")}),
        ("-cmoe", {"n_cpu_moe": -1}),
        ("-ncmoe 4 -ncffn 3", {"n_cpu_moe": 4, "n_cpu_ffn": 3}),
        ("-ot exps=CPU -ot a=b", {"override_tensors": (("exps", "CPU"), ("a", "b"))}),
        ("-ot a=b,c=d", {"override_tensors": (("a", "b"), ("c", "d"))}),
        ("--mmap", {"load_mode": "mmap"}),
        ("--no-mmap", {"load_mode": "none"}),
        ("--mlock", {"load_mode": "mmap+mlock"}),
        ("--no-mmap --mlock", {"load_mode": "mlock"}),
        ("-dio", {"load_mode": "dio"}),
        ("-lm mmap+mlock", {"load_mode": "mmap+mlock"}),
        ("-nr --no-host", {"repack": False, "host_buffers": False}),
        ("-nkvo --no-op-offload", {"kv_offload": False, "op_offload": False}),
        ("-ctk q8_0 -ctv iq4_nl", {"cache_type_k": "q8_0", "cache_type_v": "iq4_nl"}),
        ("-ctv q8_0 -fa on", {"cache_type_v": "q8_0"}),
        ("--rope-scaling yarn --rope-scale 4", {"rope_scaling": "yarn", "rope_freq_scale": 0.25}),
        (
            "--rope-freq-scale 0.5 --rope-freq-base 1e6",
            {"rope_freq_scale": 0.5, "rope_freq_base": 1e6},
        ),
        (
            "--yarn-orig-ctx 4096 --yarn-ext-factor 0 --yarn-attn-factor 1.5",
            {"yarn_orig_ctx": 4096, "yarn_ext_factor": 0.0, "yarn_attn_factor": 1.5},
        ),
        (
            "--yarn-beta-slow 2 --yarn-beta-fast -1",
            {"yarn_beta_slow": 2.0, "yarn_beta_fast": -1.0},
        ),
        ("-tb 3 --numa isolate", {"n_threads_batch": 3, "numa": "isolate"}),
        ("--no-warmup", {"warmup": False}),
    ],
)
def test_each_flag_becomes_its_option(flags: str, expected: dict[str, object]) -> None:
    assert options(*flags.split()) == LlamaOptions(**expected)  # type: ignore[arg-type]


def test_metadata_keeps_its_types_and_its_commas() -> None:
    found = options(
        "--override-kv",
        "a.b=int:-3,c=float:1e3,d=bool:true,e=str:x,y=z",
        "--override-kv",
        "f=str:",
    )
    assert found.override_kv == (
        *(("a.b", -3), ("c", 1000.0), ("d", True), ("e", "x,y=z"), ("f", "")),
    )
    config = EngineConfig(model="", llama=found)
    back = msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig)
    assert back == config
    assert [type(value) for _, value in back.llama.override_kv] == [int, float, bool, str, str]


def test_llama_servers_variables_mean_the_same() -> None:
    found = options(
        LLAMA_ARG_N_GPU_LAYERS="5",
        LLAMA_ARG_CACHE_TYPE_K="q4_0",
        LLAMA_ARG_ROPE_SCALE="2",
        LLAMA_ARG_NO_REPACK="1",
        LLAMA_ARG_LOAD_MODE="none",
        CORRAL_YARN_ORIG_CTX="64",
    )
    assert found == LlamaOptions(
        n_gpu_layers=5,
        cache_type_k="q4_0",
        rope_freq_scale=0.5,
        repack=False,
        load_mode="none",
        yarn_orig_ctx=64,
    )


@pytest.mark.parametrize(
    "flags",
    [
        "-ngl some",
        "-ngl -3",
        "-ngl nan",
        "-sm tensor",
        "-mg -1",
        "-mg 16",
        "-ts 0,0",
        "-ts nan",
        "-ts -1,2",
        "-ts inf,1",
        "-ts 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1",
        "-dev a,a",
        "-dev ,",
        "-ncmoe 513",
        "-ot exps",
        "-ot (=CPU",
        "-ot =CPU",
        "-lm fast",
        "--numa mirror",
        "-ctk q8_1",
        "-ctv f64",
        "--rope-scaling longrope",
        "--rope-scale nan",
        "--rope-scale -2",
        "--rope-scale 1e300",
        "--rope-freq-base 1",
        "--rope-freq-base inf",
        "--rope-freq-scale nan",
        "--rope-freq-scale 1e-300",
        "--yarn-orig-ctx 2147483648",
        "--yarn-ext-factor nan",
        "--yarn-attn-factor -2",
        "--yarn-beta-slow 0",
        "--yarn-beta-fast inf",
        "-tb 513",
        "--override-kv a=int:1.5",
        "--override-kv a=int:9223372036854775808",
        "--override-kv a=float:nan",
        "--override-kv a=float:inf",
        "--override-kv a=bool:1",
        "--override-kv a=double:1",
        "--override-kv a",
        "--override-kv =int:1",
        f"--override-kv {'k' * 128}=int:1",
        f"--override-kv k=str:{'v' * 128}",
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_flag(flags: str) -> None:
    flag = flags.split()[0]
    with pytest.raises(Refused, match=f"^{flag} must|^{flag} is not a valid value"):
        parse(flags.split(), {})


@pytest.mark.parametrize(
    ("flags", "param"),
    [
        ("-fa off -ctv q8_0", "cache_type_v"),
        ("--rope-scale 2 --rope-freq-scale 0.5", "rope_scale"),
        ("--load-mode none --mlock", "load_mode"),
        ("--load-mode dio --mmap", "load_mode"),
    ],
)
def test_flags_that_contradict_each_other_are_refused_before_anything_loads(
    flags: str, param: str, tmp_path: Path
) -> None:
    settings = parse([*flags.split(), "--data-dir", str(tmp_path)], {})
    with pytest.raises(Refused) as refused:
        preflight.check(settings)
    assert refused.value.param == param


def test_the_engine_is_started_with_them() -> None:
    config = engine_config(Settings(fake=True, cache_type_k="q8_0"))
    assert config.llama == LlamaOptions(cache_type_k="q8_0")


def test_devices_are_listed_without_a_model(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--list-devices"])
    assert ended.value.code == 0
    assert capfd.readouterr().out.startswith("Available devices:\n")
