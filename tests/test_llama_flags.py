"""Every flag that llama-server has: a setting, or taken, or refused with a reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from corral.backend.commandline import load
from corral.backend.errors import Refused
from corral.backend.llama_flags import ALWAYS, REFUSED
from corral.backend.settings import Settings, fields, knobs
from corral.backend.spellings import DEVICES, HELP, VERSION

#: All of llama-server's flags at the commit that the bindings carry, read out of its arg.cpp:
#: spellings, those of the opposite, the variable, and how many values follow.
FLAGS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "llama_server_flags.json").read_text()
)
SPELLINGS = [
    (name, flag, is_opposite)
    for flag in FLAGS
    for is_opposite, names in ((False, flag["flags"]), (True, flag["negative"]))
    for name in names
]
SETTINGS = {name for knob in knobs() for name in knob.flags}
#: A value that a setting takes, where the one made up below would not do.
VALUES = {
    "--model": "m.gguf",
    "--pooling": "mean",
    "--logit-bias": "7+1",
    "--json-schema": "{}",
    "--samplers": "top_k",
    "--sampling-seq": "k",
    "--host": "127.0.0.1",
    "--load-mode": "mmap",
    "--split-mode": "layer",
    "--tensor-split": "1",
    "--numa": "distribute",
    "--rope-scaling": "yarn",
    "--cache-type-k": "q8_0",
    "--cache-type-v": "q8_0",
    "--override-kv": "a.b=int:1",
    "--override-tensor": "a=CPU",
    "--device": "none",
    "--log-colors": "on",
    "--flash-attn": "on",
    "--api-prefix": "/x",
    "--adaptive-decay": "0.5",
    "--rope-freq-base": "10000",
    "--reasoning-format": "none",
    "--reasoning": "on",
    "--reasoning-effort": "low",
    "--chat-template": "llama3",
    "--chat-template-kwargs": "{}",
}


@pytest.mark.parametrize(("name", "flag", "is_opposite"), SPELLINGS, ids=lambda v: str(v)[:30])
def test_each_spelling_is_in_exactly_one_place(
    name: str, flag: dict[str, Any], is_opposite: bool
) -> None:
    places = [
        name in SETTINGS,
        name in (*HELP, *VERSION, *DEVICES),
        any(name in other.flags for other in ALWAYS),
        any(name in other.flags for other in REFUSED),
    ]
    assert sum(places) == 1, f"{name}: a setting, help, always so, refused: {places}"


def test_nothing_is_taken_or_refused_that_llama_server_does_not_have() -> None:
    known = {name: (flag, is_opposite) for name, flag, is_opposite in SPELLINGS}
    for other in (*ALWAYS, *REFUSED):
        flag, is_opposite = known[other.flags[0]]
        assert set(other.flags) == set(flag["negative" if is_opposite else "flags"])
        assert other.n_values == (0 if is_opposite else flag["values"]), other
        env = flag["env"] or ""
        assert other.env == (env.replace("_ARG_", "_ARG_NO_") if is_opposite else env), other


def test_settings_have_all_of_a_flags_spellings_its_opposites_and_its_variable() -> None:
    for field in fields():
        own = {*field.metadata["flags"], *field.metadata["also"]}
        for flag in FLAGS:
            names = set(flag["flags"])
            if names & own and not names & {f for f, m in field.metadata["also"].items()}:
                assert names <= own and set(flag["negative"]) <= own, flag
                assert field.metadata["env"] == (flag["env"] or ""), flag


def test_a_variable_that_llama_server_does_not_have_is_not_made_up() -> None:
    older = {"LLAMA_ARG_MMAP", "LLAMA_ARG_MLOCK"}  # which became --load-mode
    known = {flag["env"] for flag in FLAGS} | older
    for knob in knobs():
        assert [name for name in knob.env if not name.startswith("CORRAL_")] == [
            name for name in knob.env if name in known
        ]


@pytest.mark.parametrize(
    ("name", "flag"),
    [(name, flag) for name, flag, _ in SPELLINGS if name in SETTINGS],
    ids=lambda v: str(v)[:30],
)
def test_a_flag_of_a_setting_is_read_with_as_many_values_as_llama_server_wants(
    name: str, flag: dict[str, Any], tmp_path: Path
) -> None:
    words = [name]
    if flag["values"]:
        long = next(f for f in flag["flags"] if f.startswith("--"))
        text = next((VALUES[f] for f in flag["flags"] if f in VALUES), "1")
        if long.endswith("-file"):
            (tmp_path / "file").write_text("{}")
            text = str(tmp_path / "file")
        words.append(text)
    loaded = load([*words, "--port", "9"], {})
    assert loaded.settings.port == 9  # what follows is a flag again
    assert loaded.settings.given >= {"port"} and loaded.notes == ()


@pytest.mark.parametrize("flag", ALWAYS, ids=lambda flag: flag.flags[-1])
def test_what_is_always_so_is_taken_with_its_values_and_a_line(flag: Any) -> None:
    for name in flag.flags:
        loaded = load([name, *["1"] * flag.n_values, "--port", "9"], {})
        assert loaded.settings.port == 9
        assert loaded.notes == (f"{name} changes nothing: {flag.why}",)


@pytest.mark.parametrize("flag", REFUSED, ids=lambda flag: flag.flags[-1])
def test_what_cannot_be_done_is_refused_with_the_reason(flag: Any) -> None:
    for name in flag.flags:
        with pytest.raises(Refused) as caught:
            load([name, *["1"] * flag.n_values], {})
        assert caught.value.message == (
            f"llama-server's {name} is not supported by Corral: {flag.why}"
        )


def test_a_variable_of_what_cannot_be_done_is_named_and_does_not_stop_the_start() -> None:
    loaded = load([], {"LLAMA_ARG_RPC": "host:1", "HF_TOKEN": "secret", "LLAMA_ARG_PORT": "9"})
    assert loaded.settings == Settings(port=9)
    (note,) = loaded.notes
    assert note.startswith("LLAMA_ARG_RPC is set, but llama-server's --rpc is not supported")


def test_a_variable_that_would_switch_off_what_is_always_so_is_named() -> None:
    name, why = "LLAMA_ARG_ENDPOINT_METRICS", "/metrics is always there"
    assert load([], {name: "0"}).notes == (f"{name} is off, but {why}",)
    (note,) = load([], {"LLAMA_ARG_NO_KV_UNIFIED": ""}).notes
    assert note.startswith("LLAMA_ARG_NO_KV_UNIFIED is set, but llama-server's --no-kv-unified is")


def test_a_variable_for_what_is_always_so_needs_no_words() -> None:
    assert load([], {"LLAMA_ARG_KV_UNIFIED": "1", "LLAMA_ARG_ENDPOINT_METRICS": "on"}).notes == ()
