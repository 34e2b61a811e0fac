import dataclasses
import re
from pathlib import Path

import pytest

from corral.backend import settings
from corral.backend.commandline import parse
from corral.backend.errors import Refused
from corral.backend.settings import Settings, knobs
from corral.backend.usage import usage


def test_nothing_given_leaves_every_default() -> None:
    assert parse([], {}) == Settings()
    assert Settings().slots == 4


def test_a_flag_beats_the_environment() -> None:
    assert parse(["--port", "9000"], {"CORRAL_PORT": "9001"}).port == 9000


def test_corrals_own_variable_beats_llama_servers() -> None:
    both = {"CORRAL_CTX_SIZE": "4096", "LLAMA_ARG_CTX_SIZE": "2048"}
    assert parse([], both).n_ctx == 4096
    assert parse([], {"LLAMA_ARG_CTX_SIZE": "2048"}).n_ctx == 2048


def test_an_empty_variable_counts_as_unset() -> None:
    assert parse([], {"CORRAL_PORT": "", "LLAMA_ARG_PORT": "9001"}).port == 9001


@pytest.mark.parametrize(
    ("variable", "value", "name", "expected"),
    [
        ("LLAMA_ARG_MODEL", "/m.gguf", "model", Path("/m.gguf")),
        ("LLAMA_ARG_N_PARALLEL", "8", "n_slots", 8),
        ("LLAMA_ARG_BATCH", "256", "n_batch", 256),
        ("LLAMA_ARG_N_PREDICT", "10", "max_tokens", 10),
        ("LLAMA_ARG_THREADS", "-1", "n_threads", 0),
        ("LLAMA_ARG_HOST", "0.0.0.0", "host", "0.0.0.0"),
        ("LLAMA_API_KEY", "a, b,,c", "api_keys", ("a", "b", "c")),
    ],
)
def test_llama_servers_variables_are_understood(
    variable: str, value: str, name: str, expected: object
) -> None:
    assert getattr(parse([], {variable: value}), name) == expected


@pytest.mark.parametrize(
    ("argv", "name", "expected"),
    [
        (["-m", "x.gguf"], "model", Path("x.gguf")),
        (["-np", "auto"], "n_slots", 0),
        (["-np", "-1"], "n_slots", 0),
        (["-t", "3"], "n_threads", 3),
        (["-n", "-1"], "max_tokens", -1),
        (["--seed", "0"], "seed", 0),
        (["--seed", "-1"], "seed", -1),
        (["--temp", "0"], "temperature", 0.0),
        (["--fake"], "fake", True),
        (["--fake", "off"], "fake", False),
        (["--api-key", "a,b"], "api_keys", ("a", "b")),
        (["--presence-penalty", "-1.5"], "presence_penalty", -1.5),
        (["--log-level", "WARNING"], "log_level", "warning"),
    ],
)
def test_flags_are_read_as_llama_server_reads_them(
    argv: list[str], name: str, expected: object
) -> None:
    assert getattr(parse(argv, {}), name) == expected


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--port", "x"], "--port is not a valid value: 'x'"),
        (["--port", "65536"], "--port must be between 0 and 65535: '65536'"),
        (["-c", "-5"], "-c must be between 0 and 2147483647: '-5'"),
        (["-c", "99999999999"], "-c must be between"),
        (["-np", "65"], "-np must be between 1 and 64: '65'"),
        (["-t", "513"], "-t must be between 1 and 512: '513'"),
        (["-b", "0"], "-b must be between 1"),
        (["--temp", "nan"], "--temp must be between"),
        (["--top-p", "1.5"], "--top-p must be between 0 and 1: '1.5'"),
        (["--seed", "4294967295"], "--seed must be between -1 and 4294967294"),
        (["--drain-timeout", "inf"], "--drain-timeout must be between"),
        (["--log-level", "loud"], "--log-level must be debug, info, warning, error or none"),
        (["--fake", "maybe"], "--fake must be on or off: 'maybe'"),
    ],
)
def test_a_bad_flag_is_named_with_its_value(argv: list[str], message: str) -> None:
    with pytest.raises(Refused) as caught:
        parse(argv, {})
    assert caught.value.message.startswith(message)


def test_a_bad_variable_is_named_even_where_another_one_is_good() -> None:
    with pytest.raises(Refused) as caught:
        parse([], {"CORRAL_PORT": "x", "LLAMA_ARG_PORT": "9001"})
    assert caught.value.message == "CORRAL_PORT is not a valid value: 'x'"
    assert caught.value.param == "port"


def test_settings_cannot_be_changed_once_read() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]


def test_no_two_knobs_share_a_flag_or_a_variable() -> None:
    flags = [flag for knob in knobs() for flag in knob.flags]
    names = [name for knob in knobs() for name in knob.env]
    assert len(flags) == len(set(flags))
    assert len(names) == len(set(names))


def test_every_default_passes_its_own_check() -> None:
    for knob in knobs():
        if knob.default:
            read = parse([], {knob.env[0]: knob.default})
            assert read == Settings(), knob.name


def test_help_shows_every_knob_with_its_default_and_variables() -> None:
    shown = usage(1000)
    lines = [re.sub(r" \[?VALUE\]?", "", line) for line in shown.splitlines()]
    for knob in knobs():
        default = f" (default: {knob.default})" if knob.default else ""
        assert f"  {', '.join(knob.flags)}" in lines
        assert f"      {knob.help}{default} [{', '.join(knob.env)}]\n" in shown
        assert f"\n{knob.group}:\n" in shown


def test_help_says_which_flags_take_a_value() -> None:
    lines = usage(1000).splitlines()
    assert "  -np, --parallel VALUE" in lines
    assert "  -fa, --flash-attn [VALUE]" in lines
    assert "  --context-shift, --no-context-shift" in lines
    assert "  --grammar VALUE, --grammar-file VALUE" in lines


def test_help_fits_the_terminal() -> None:
    assert max(map(len, usage(72).splitlines())) <= 100
    body = usage(72).split("Model:")[1].splitlines()
    assert max(map(len, body)) <= 72


def test_data_goes_to_the_users_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert settings.default_data_dir() == tmp_path / "corral"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings.default_data_dir() == tmp_path / ".local" / "share" / "corral"


@pytest.mark.parametrize("text", ["", ",", " , "])
def test_a_key_flag_that_holds_no_key_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="--api-key must hold at least one key"):
        parse(["--api-key", text], {})


def test_a_key_variable_set_to_nothing_counts_as_not_set() -> None:
    assert parse([], {"CORRAL_API_KEY": ""}).api_keys == ()
