"""Starts the servers under test as their users do, and stops them."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from bench.measure import embedded_model


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextlib.contextmanager
def _running(command: list[str], port: int, ready: str) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ)
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(url + ready).status_code == 200:
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"did not start: {' '.join(command)}")
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def corral(*flags: str, data_dir: Path | None = None) -> Iterator[str]:
    """A Corral server on the embedded model; yields its address."""
    port = _free_port()
    command = [sys.executable, "-m", "corral.backend", "serve", "--port", str(port)]
    command += ["--data-dir", str(data_dir or Path("/tmp/corral-bench")), *flags]
    with _running(command, port, "/health") as url:
        yield url


@contextlib.contextmanager
def packaged(n_threads: int) -> Iterator[str]:
    """The server that comes with llama-cpp-python, on the same model, context and threads."""
    port = _free_port()
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(embedded_model())]
    command += ["--port", str(port), "--n_ctx", "8192", "--interrupt_requests", "False"]
    command += ["--n_threads", str(n_threads), "--n_threads_batch", str(n_threads)]
    with _running(command, port, "/v1/models") as url:
        yield url
