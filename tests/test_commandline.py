"""Where settings come from: arguments, environment, a file; and which of them counts."""

import dataclasses
from pathlib import Path

import pytest

from corral.backend.commandline import load, parse
from corral.backend.errors import Refused
from corral.backend.settings import Settings, fields, knobs


def refusal(argv: list[str], environ: dict[str, str] | None = None) -> str:
    with pytest.raises(Refused) as caught:
        load(argv, environ or {})
    return caught.value.message


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "name", "expected"),
    [
        (["-np", "4"], "n_slots", 4),
        (["-np=4"], "n_slots", 4),
        (["--parallel=4"], "n_slots", 4),
        (["-cram", "0"], "cache_ram", 0),
        (["-fa"], "flash_attn", True),
        (["-fa", "off"], "flash_attn", False),
        (["-fa", "auto"], "flash_attn", None),
        (["--ctx_size", "4096"], "n_ctx", 4096),
        (["--n_predict=5"], "max_tokens", 5),
        (["-n", "-1"], "max_tokens", -1),
        (["--alias", "a=b"], "alias", "a=b"),
        (["--alias=a=b"], "alias", "a=b"),
        (["--alias", ""], "alias", ""),
        (["--context-shift"], "context_shift", True),
        (["--context-shift", "--no-context-shift"], "context_shift", False),
        (["--no-context-shift", "--context-shift"], "context_shift", True),
        (["-v"], "log_level", "debug"),
        (["-lv", "1"], "log_level", "error"),
        (["--verbosity", "3"], "log_level", "info"),
        (["-v", "--log-level", "warning"], "log_level", "warning"),
        (["--log-disable"], "log_level", "none"),
        (["--no-log-prefix"], "log_prefix", False),
        (["--port", "1", "--port", "2"], "port", 2),
        (["--samplers", "top_k; min-p;temp"], "samplers", ("top_k", "min_p", "temperature")),
        (["--sampling-seq", "kmt"], "samplers", ("top_k", "min_p", "temperature")),
        (["--sampler-seq", "temp"], "samplers", ("temperature", "penalties", "min_p", "top_p")),
        (["--samplers", ""], "samplers", ()),
        (["-l", "15043+1.5", "-l", "7-inf"], "logit_bias", ((15043, 1.5), (7, float("-inf")))),
        (["--logit-bias=7-2"], "logit_bias", ((7, -2.0),)),
        (["-r", "User:", "-r", "a\\nb\\x41"], "stop", ("User:", "a\nbA")),
        (["-r", "a\\nb", "--no-escape"], "stop", ("a\\nb",)),
        (["-r=-e"], "stop", ("-e",)),
        (["--dry-sequence-breaker", "\\n"], "dry_sequence_breakers", ("\n",)),
        (["--dry-sequence-breaker", "none"], "dry_sequence_breakers", ()),
        ([], "dry_sequence_breakers", None),
        (["--json-schema", "{}"], "json_schema", '{"type":"object"}'),
        (["--api-key", "a,b", "--api-key", "c"], "api_keys", ("a", "b", "c")),
        (
            ["--lora", "a.gguf,b.gguf:0.5", "--lora-scaled", "c.gguf:2"],
            "lora",
            ((Path("a.gguf"), 1.0), (Path("b.gguf"), 0.5), (Path("c.gguf"), 2.0)),
        ),
        (["--no-cache-prompt"], "cache_prompt", False),
    ],
)
def test_flags_are_whole_words_with_their_values(
    argv: list[str], name: str, expected: object
) -> None:
    settings = parse([*argv, "--max-queue", "3"], {})
    assert getattr(settings, name) == expected
    assert settings.max_queue == 3


def test_a_file_of_a_grammar_or_a_schema_is_read(tmp_path: Path) -> None:
    (tmp_path / "g").write_text('root ::= "a"')
    (tmp_path / "s").write_text('{"type": "array"}')
    assert parse(["--grammar-file", str(tmp_path / "g")], {}).grammar == 'root ::= "a"'
    assert parse(["-jf", str(tmp_path / "s")], {}).json_schema == '{"type": "array"}'
    assert parse([], {"CORRAL_GRAMMAR_FILE": str(tmp_path / "g")}).grammar == 'root ::= "a"'


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--no-such-flag"], "--no-such-flag is no flag"),
        (["--para", "2"], "--para is no flag; did you mean --parallel?"),
        (["--temprature", "1"], "--temprature is no flag; did you mean --temperature?"),
        (["-nq", "4"], "-nq is no flag"),
        (["-c4096"], "-c4096 is no flag"),
        (["model.gguf"], "'model.gguf' is no flag, and belongs to none"),
        (["--port"], "--port needs a value"),
        (["--model", "--port", "80"], "--model needs a value"),
        (["--model", "--port=80"], "--model needs a value"),
        (["--no-context-shift=on"], "--no-context-shift takes no value: 'on'"),
        (["--samplers", "top_k;tfs"], "--samplers must name samplers, each once (samplers[1]"),
        (["--samplers", "temp;temperature"], "--samplers must name samplers, each once"),
        (["--sampling-seq", "kz"], "--sampling-seq must be letters of samplers, each once"),
        (["-l", "15043"], "-l must be TOKEN_ID+BIAS or TOKEN_ID-BIAS: '15043'"),
        (["-l", "7+inf"], "-l must be TOKEN_ID+BIAS or TOKEN_ID-BIAS"),
        (["-l", "7+101"], "-l must be a bias from -100 to 100"),
        (["-l", "-7+1"], "-l must be TOKEN_ID+BIAS"),
        (["-r", ""], "-r must not be empty"),
        (["-j", "{"], "-j must be a JSON Schema: it is not JSON: '{'"),
        (["-j", "[]"], "-j must be a JSON Schema, which is an object"),
        (["-j", "[" * 100_000], "-j must be a JSON Schema: it is not JSON"),
        (["--grammar-file", "/no/such"], "--grammar-file must be a file that can be read (No such"),
        (["-lv", "9x"], "-lv must be debug"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_a_wrong_flag_is_named(argv: list[str], message: str) -> None:
    assert refusal(argv).startswith(message)


def test_settings_know_which_of_them_were_given() -> None:
    assert parse(["--temp", "0.8"], {"CORRAL_TOP_K": "40"}).given == {"temperature", "top_k"}
    assert parse([], {}).given == frozenset()


# --- environment ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "name", "expected"),
    [
        ({"LLAMA_ARG_TEMPERATURE": "0.5"}, "temperature", 0.5),
        ({"LLAMA_ARG_CONTEXT_SHIFT": "enabled"}, "context_shift", True),
        ({"LLAMA_ARG_CONTEXT_SHIFT": "false"}, "context_shift", False),
        ({"LLAMA_ARG_EMBEDDINGS": "1"}, "embeddings", True),
        ({"LLAMA_ARG_NO_CACHE_PROMPT": "1"}, "cache_prompt", False),
        ({"LLAMA_ARG_NO_CACHE_PROMPT": "0"}, "cache_prompt", False),
        ({"LLAMA_ARG_NO_CACHE_PROMPT": ""}, "cache_prompt", False),
        ({"LLAMA_ARG_NO_CACHE_PROMPT": "1", "LLAMA_ARG_CACHE_PROMPT": "1"}, "cache_prompt", False),
        ({"LLAMA_ARG_NO_CACHE_PROMPT": "1", "CORRAL_CACHE_PROMPT": "on"}, "cache_prompt", True),
        ({"LLAMA_ARG_FLASH_ATTN": "-1"}, "flash_attn", None),
        ({"LLAMA_ARG_LOG_VERBOSITY": "4"}, "log_level", "debug"),
        ({"LLAMA_ARG_TEMP": "0.5", "LLAMA_ARG_SEED": "7", "LLAMA_ARG_NO_PORT": "1"}, "seed", -1),
        ({"CORRAL_REVERSE_PROMPT": "User:"}, "stop", ("User:",)),
        ({"CORRAL_SAMPLING_SEQ": "kt"}, "samplers", ("top_k", "temperature")),
    ],
    ids=str,
)
def test_variables_are_those_of_llama_server_and_corrals_own(
    environ: dict[str, str], name: str, expected: object
) -> None:
    assert getattr(parse([], environ), name) == expected


def test_every_setting_has_a_variable_of_corrals_own() -> None:
    for knob in knobs():
        assert knob.env[0].startswith("CORRAL_"), knob.name


def test_two_variables_of_one_setting_are_refused() -> None:
    both = {"CORRAL_GRAMMAR": 'root ::= "a"', "CORRAL_GRAMMAR_FILE": "x"}
    assert "CORRAL_GRAMMAR_FILE and CORRAL_GRAMMAR exclude each other" in refusal([], both)


def test_a_variable_that_no_setting_has_is_named_with_the_nearest_one() -> None:
    (note,) = load([], {"CORRAL_CTX": "4096"}).notes
    assert note == "CORRAL_CTX is no setting; did you mean CORRAL_CTX_SIZE?"


def test_what_kubernetes_sets_for_a_service_called_corral_is_passed_over() -> None:
    links = {
        "CORRAL_SERVICE_HOST": "10.0.0.1",
        "CORRAL_SERVICE_PORT": "80",
        "CORRAL_PORT": "tcp://10.0.0.1:80",
        "CORRAL_PORT_80_TCP_ADDR": "10.0.0.1",
        "CORRAL_HOST": "0.0.0.0",
    }
    assert load([], links) == (Settings(host="0.0.0.0"), ())


# --- file -----------------------------------------------------------------------------------------


def written(path: Path, text: str) -> str:
    path = path / "corral.toml"
    path.write_text(text)
    return str(path)


def test_a_file_gives_settings_by_their_long_flags(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        model = "m.gguf"
        ctx-size = 4096
        n_predict = 7
        temp = 0.5
        context-shift = true
        no-cache-prompt = true
        verbose = true
        flash-attn = "auto"
        api-key = ["a", "b,c"]
        reverse-prompt = "User:"
        logit-bias = ["7+1", "8-inf"]
        """,
    )
    settings, notes = load(["--config", file], {})
    assert notes == ()
    assert settings == Settings(
        model=Path("m.gguf"),
        n_ctx=4096,
        max_tokens=7,
        temperature=0.5,
        context_shift=True,
        cache_prompt=False,
        log_level="debug",
        api_keys=("a", "b", "c"),
        stop=("User:",),
        logit_bias=((7, 1.0), (8, float("-inf"))),
        config=Path(file),
    )
    assert parse([], {"CORRAL_CONFIG": file}) == settings


def test_flag_own_variable_llama_servers_file_and_default_count_in_this_order(
    tmp_path: Path,
) -> None:
    file = written(tmp_path, 'port = 4\nhost = "d"\nalias = "d"\nctx-size = 4\nmax-queue = 4')
    argv = ["--port", "1", "--config", file]
    own = {"CORRAL_PORT": "2", "CORRAL_HOST": "b"}
    llama = {"LLAMA_ARG_PORT": "3", "LLAMA_ARG_HOST": "c", "LLAMA_ARG_ALIAS": "c"}
    found = parse(argv, own | llama)
    assert (found.port, found.host, found.alias, found.n_ctx) == (1, "b", "c", 4)
    assert found.n_batch == Settings().n_batch


def test_a_list_of_a_stronger_source_takes_the_place_of_a_weaker_ones(tmp_path: Path) -> None:
    file = written(tmp_path, 'api-key = ["a"]')
    assert parse(["--config", file, "--api-key", "b"], {}).api_keys == ("b",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tempp = 1", ": tempp is no setting; did you mean temp?"),
        ("c = 1", ": c is no setting"),
        ('rpc = "x"', ": rpc: llama-server's --rpc is not supported by Corral: "),
        ("metrics = false", ": metrics: must be true, or not be there: /metrics is always there"),
        ("[server]\nport = 1", ": server is no setting"),
        ("port = 70000", ": port must be between 0 and 65535: '70000'"),
        ("port = [1]", ": port must be a text, a number, true or false"),
        ("port = 1979-05-27", ": port must be a text, a number, true or false"),
        ("api-key = [[1]]", ": api-key must be a text, a number, true or false, or a list of"),
        ("no-cache-prompt = false", ": no-cache-prompt must be true, or not be there"),
        ("temp = nan", ": temp must be between 0 and 100: 'nan'"),
        ('config = "x"', ": config: a file cannot name another"),
        ("temp = 1\ntemperature = 1", ": temperature and "),
        ("port = ", ": Invalid value"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_a_wrong_key_is_named_with_its_file(tmp_path: Path, text: str, message: str) -> None:
    file = written(tmp_path, text)
    assert f"{file}{message}" in refusal(["--config", file])


def test_what_is_always_so_may_stand_in_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "metrics = true")
    assert load(["--config", file], {}).notes == (
        f"{file}: metrics: --metrics changes nothing: /metrics is always there",
    )


@pytest.mark.parametrize("content", [None, b"\xff"], ids=["none", "not UTF-8"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "corral.toml"
    if content is not None:
        path.write_bytes(content)
    assert refusal(["--config", str(path)]).startswith(f"--config: {path}: ")


def test_every_setting_may_stand_in_the_file(tmp_path: Path) -> None:
    for field in fields():
        key = next(f for f in field.metadata["flags"] if f.startswith("--"))[2:]
        if dataclasses.is_dataclass(field.default) or not field.default or key == "config":
            continue
        default = field.default
        value = str(default).lower() if isinstance(default, bool | int | float) else f'"{default}"'
        read = parse(["--config", written(tmp_path, f"{key} = {value}")], {})
        assert read == Settings(config=tmp_path / "corral.toml"), key
        assert field.name in read.given


@pytest.mark.parametrize("key", ["api-key", "lora", "reverse-prompt"])
def test_a_list_of_nothing_in_a_file_is_refused(tmp_path: Path, key: str) -> None:
    file = written(tmp_path, f"{key} = []\n")
    with pytest.raises(Refused, match=f"{key} must hold something"):
        load(["--config", file], {})
