import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from corral.backend import pool as pools
from corral.backend.engine.client import EngineDied, ModelNotLoaded
from corral.backend.engine.messages import (
    Add,
    Delta,
    Done,
    EngineConfig,
    Failed,
    ModelInfo,
    Output,
    Started,
)
from corral.backend.errors import Broken, Refused
from corral.backend.pool import Engine, Pool, Request, engine_config, model_name, next_request_id
from corral.backend.settings import Settings

CONFIG = EngineConfig(model="", fake=True, n_slots=2, max_queue=8)


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    monkeypatch.setattr(pools, "BACKOFF_S", 0.01)
    engine = Engine("fake", CONFIG)
    engine.start()
    async with asyncio.timeout(20):
        await engine.until_loaded()
    yield engine
    await engine.close()


async def _submit(engine: Engine, prompt: str = "hello", **fields: Any) -> Request:
    return await engine.submit(Add(id=next_request_id(), prompt=prompt, **fields))


async def _until(request: Request, *kinds: type) -> Output:
    async with asyncio.timeout(20):
        while True:
            output = await request.get()
            if isinstance(output, kinds):
                return output


async def _holds(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  nothing tells of it
            await asyncio.sleep(0)


async def _end(request: Request) -> Done | Failed:
    """The terminal output, after which nothing may come."""
    end = await _until(request, Done, Failed)
    assert isinstance(end, Done | Failed)
    assert request.has_ended and not request._outputs
    return end


#: A conversation that the fake answers with this many letters.
ANSWER = "x" * 1000
LONG = f"<|im_start|>user\n{ANSWER}<|im_end|>\n<|im_start|>assistant\n"


async def _run(engine: Engine, n: int) -> list[Request]:
    """``n`` requests in the middle of long answers."""
    await engine.call("control", {"step_ms": 20})
    requests = [await _submit(engine, LONG) for _ in range(n)]
    for request in requests:
        await _until(request, Delta)
    return requests


async def _hold(engine: Engine, **args: Any) -> None:
    await engine.call("control", {"hold": "decode", "after": 1} | args)


async def _until_state(engine: Engine, *states: str) -> None:
    async with asyncio.timeout(20):
        await engine._wait_for(lambda: engine.state in states)


class Scripted:
    """A client whose starts end as told: an exception, or "ready"."""

    script: ClassVar[list[Exception | str]] = []
    configs: ClassVar[list[EngineConfig]] = []

    def __init__(self, config: EngineConfig, on_outputs: Any) -> None:
        self.configs.append(config)
        self.load_progress = 0.5
        self.snapshot = None
        self.pid = 1
        self.sent: list[Add] = []
        self.exited: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def start(self) -> ModelInfo | None:
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return None

    def submit(self, add: Add) -> None:
        self.sent.append(add)

    def abort(self, request_id: int) -> None: ...

    async def close(self) -> None: ...


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    monkeypatch.setattr(pools, "BACKOFF_S", 0.0)
    monkeypatch.setattr(pools, "EngineClient", Scripted)
    Scripted.configs = []
    return Scripted


# --- when the process dies --------------------------------------------------------------


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGABRT], ids=lambda s: s.name)
async def test_running_requests_fail_once_and_waiting_ones_are_answered_by_the_next_process(
    engine: Engine, sig: signal.Signals
) -> None:
    running = await _run(engine, 2)
    waiting = [await _submit(engine, c, max_tokens=3) for c in "cde"]
    dead = engine.pid
    os.kill(dead, sig)
    for request in running:
        end = await _end(request)
        assert isinstance(end, Failed) and end.code == "engine_died"
        assert sig.name in end.message
    for request in waiting:
        assert isinstance(await _end(request), Done)
    assert engine.pid != dead and engine.n_restarts == 1
    assert isinstance(await _end(await _submit(engine, max_tokens=3)), Done)


async def test_a_process_that_aborts_by_itself_is_replaced(engine: Engine) -> None:
    (request,) = await _run(engine, 1)
    await engine.call("control", {"crash": "abort"})
    end = await _end(request)
    assert isinstance(end, Failed) and "SIGABRT" in end.message
    assert isinstance(await _end(await _submit(engine, max_tokens=3)), Done)


async def test_a_request_that_kills_every_process_it_is_given_to_is_not_sent_for_ever(
    scripted: type[Scripted],
) -> None:
    scripted.script = ["ready"] * 9
    engine = Engine("m", CONFIG)
    engine.start()
    await engine.until_loaded()
    submit = asyncio.create_task(_submit(engine))
    await _holds(lambda: len(engine._requests) == 1)
    for _ in range(2):
        client = engine._client
        assert isinstance(client, Scripted) and len(client.sent) == 1
        client.exited.set_result("was killed by SIGSEGV")
        await _holds(lambda: engine._client is not client and engine.state == "ready")  # noqa: B023
    with pytest.raises(Broken, match="was killed by SIGSEGV while working on this request"):
        await submit
    assert isinstance(engine._client, Scripted) and not engine._client.sent
    await engine.close()


async def test_a_request_that_comes_during_a_restart_waits_for_it(engine: Engine) -> None:
    os.kill(engine.pid, signal.SIGKILL)
    await _until_state(engine, "restarting")
    assert isinstance(await _end(await _submit(engine, max_tokens=3)), Done)


async def test_a_request_does_not_wait_for_ever_for_a_restart(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "RESTART_PATIENCE_S", 0.0)
    os.kill(engine.pid, signal.SIGKILL)
    await _until_state(engine, "restarting")
    with pytest.raises(Broken, match="restarting") as caught:
        await _submit(engine)
    assert caught.value.kind == "engine_died" and caught.value.retry_after_s


async def test_a_call_that_waits_when_the_process_dies_says_so(engine: Engine) -> None:
    os.kill(engine.pid, signal.SIGSTOP)
    call = asyncio.create_task(engine.call("pieces", {"tokens": [97], "special": True}))
    await asyncio.sleep(0)
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(Broken) as caught:
        await call
    assert caught.value.kind == "engine_died"


async def test_a_waiting_request_that_was_aborted_as_the_process_died_is_not_run_again(
    engine: Engine,
) -> None:
    running = await _run(engine, 2)
    waiting, aborted = await _submit(engine, "c", max_tokens=2), await _submit(engine, "d")
    # The order to abort goes to a process that will never read it.
    os.kill(engine.pid, signal.SIGSTOP)
    engine.abort(aborted.add.id)
    engine.abort(running[0].add.id)
    os.kill(engine.pid, signal.SIGKILL)
    for request in (aborted, running[0]):
        end = await _end(request)
        assert isinstance(end, Done) and end.finish == "cancelled"
    assert isinstance(await _end(running[1]), Failed)
    assert isinstance(await _end(waiting), Done)
    assert not engine._requests


async def test_a_waiting_request_can_be_aborted_during_a_restart(engine: Engine) -> None:
    await _run(engine, 2)
    waiting = await _submit(engine, "c")
    os.kill(engine.pid, signal.SIGKILL)
    await _until_state(engine, "restarting")
    engine.abort(waiting.add.id)
    end = await _end(waiting)
    assert isinstance(end, Done) and end.finish == "cancelled"
    assert not engine._requests


async def test_restarts_come_ever_more_slowly(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[float] = []

    async def note(delay: float) -> None:
        delays.append(delay)
        await asyncio.sleep(0)

    monkeypatch.setattr(pools, "sleep", note)
    monkeypatch.setattr(pools, "BACKOFF_LIMIT_S", 0.03)
    for _ in range(4):
        os.kill(engine.pid, signal.SIGKILL)
        await _until_state(engine, "restarting")
        await _until_state(engine, "ready")
    assert [d for d in delays if d] == [0.01, 0.02, 0.03, 0.03]
    monkeypatch.setattr(pools, "STEADY_S", 0.0)  # from now on each has lived long enough
    for _ in range(2):
        os.kill(engine.pid, signal.SIGKILL)
        await _until_state(engine, "restarting")
        await _until_state(engine, "ready")
    assert [d for d in delays if d][4:] == [0.01, 0.01]


# --- what does not disturb others -------------------------------------------------------


async def test_a_slow_reader_never_blocks_the_engine(engine: Engine) -> None:
    unread = await _submit(engine, "slow", max_tokens=400)
    for _ in range(5):
        assert isinstance(await _end(await _submit(engine, max_tokens=20)), Done)
    assert isinstance(await _end(unread), Done)


async def test_leaving_before_a_request_is_accepted_aborts_it(engine: Engine) -> None:
    await engine.call("control", {"step_ms": 20})
    os.kill(engine.pid, signal.SIGSTOP)
    submit = asyncio.create_task(_submit(engine, LONG))
    await _holds(lambda: len(engine._requests) == 1)
    submit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submit
    os.kill(engine.pid, signal.SIGCONT)
    async with asyncio.timeout(10):
        await engine._wait_for(lambda: not engine._requests)


async def test_aborting_twice_or_too_late_does_nothing(engine: Engine) -> None:
    await _hold(engine)
    request = await _submit(engine)
    await _until(request, Started)
    for _ in range(2):
        engine.abort(request.add.id)
    end = await _end(request)
    assert isinstance(end, Done) and end.finish == "cancelled"
    engine.abort(request.add.id)
    engine.abort(123456)


async def test_what_cannot_be_sent_leaves_nothing_behind(engine: Engine) -> None:
    with pytest.raises(UnicodeEncodeError):
        await _submit(engine, "\ud800")
    assert not engine._requests
    assert isinstance(await _end(await _submit(engine, max_tokens=2)), Done)


async def test_refusals_name_their_kind_and_counts(engine: Engine) -> None:
    with pytest.raises(Refused) as too_long:
        await _submit(engine, "x" * 5000)
    assert too_long.value.kind == "context_length_exceeded"
    assert too_long.value.extra == {"n_prompt_tokens": 5000, "n_ctx": 4096}
    await _hold(engine)
    taken = [await _submit(engine, str(i)) for i in range(CONFIG.n_slots + CONFIG.max_queue)]
    with pytest.raises(Broken) as full:
        await _submit(engine)
    assert full.value.kind == "queue_full" and full.value.wire.status == 503
    assert full.value.retry_after_s
    for request in taken:
        engine.abort(request.add.id)
        assert isinstance(await _end(request), Done)
    await _submit(engine, max_tokens=1)


# --- the end ----------------------------------------------------------------------------


async def test_closing_ends_every_request_and_the_process(
    engine: Engine, until_gone: Callable[[int], None]
) -> None:
    await _hold(engine)
    requests = [await _submit(engine, c) for c in "abc"]
    await engine.close()
    until_gone(engine.pid)
    for request in requests:
        end = await _end(request)
        assert isinstance(end, Failed) and end.code == "draining"
    with pytest.raises(Broken) as caught:
        await _submit(engine)
    assert caught.value.kind == "draining"


async def test_draining_lets_running_requests_finish_and_takes_no_more(engine: Engine) -> None:
    await _hold(engine)
    request = await _submit(engine, max_tokens=10)
    await _until(request, Delta)
    drain = asyncio.create_task(engine.drain(20))
    await asyncio.sleep(0)
    assert engine.state == "draining"
    with pytest.raises(Broken) as caught:
        await _submit(engine)
    assert caught.value.kind == "draining"
    assert engine._client is not None
    await engine._client.call("control", {"hold": None})
    end = await _end(request)
    assert isinstance(end, Done) and end.finish in ("limit", "eos")
    await drain


async def test_draining_ends_what_takes_too_long(engine: Engine) -> None:
    await _hold(engine)
    requests = [await _submit(engine, c) for c in "abc"]
    await engine.drain(0.01)
    for request in requests:
        end = await _end(request)
        assert isinstance(end, Failed) and end.code == "draining"


async def test_draining_survives_the_death_of_the_process(engine: Engine) -> None:
    running = await _run(engine, 2)
    waiting = await _submit(engine, "c", max_tokens=2)
    drain = asyncio.create_task(engine.drain(20))
    await asyncio.sleep(0)
    os.kill(engine.pid, signal.SIGKILL)
    for request in running:
        assert isinstance(await _end(request), Failed)
    assert isinstance(await _end(waiting), Done)
    await drain
    assert engine.state == "draining"


async def test_an_idle_engine_drains_at_once(engine: Engine) -> None:
    async with asyncio.timeout(5):
        await engine.drain(1000)


async def test_closing_while_loading_leaves_no_process(until_gone: Callable[[int], None]) -> None:
    engine = Engine("fake", CONFIG)
    engine.start()
    with pytest.raises(Broken) as caught:
        await _submit(engine)
    assert caught.value.kind == "loading"
    await _holds(lambda: engine.pid > 0)
    await engine.close()
    until_gone(engine.pid)
    assert engine.state == "closed"


async def test_an_engine_that_was_never_started_can_be_closed() -> None:
    await Engine("fake", CONFIG).close()


# --- loading ----------------------------------------------------------------------------


async def test_a_model_that_cannot_be_loaded_fails_with_the_reason(tmp_path: Path) -> None:
    engine = Engine("none", EngineConfig(model=str(tmp_path / "none.gguf")))
    engine.start()
    with pytest.raises(Broken, match=r"none\.gguf: no such file"):
        async with asyncio.timeout(20):
            await engine.until_loaded()
    assert engine.state == "failed" and "no such file" in engine.failure
    with pytest.raises(Broken, match="no such file"):
        await _submit(engine)
    await engine.close()


async def test_an_engine_that_dies_while_loading_is_tried_again_with_plain_buffers(
    scripted: type[Scripted],
) -> None:
    scripted.script = [EngineDied("was killed by SIGILL"), "ready"]
    engine = Engine("m", CONFIG)
    engine.start()
    await engine.until_loaded()
    assert [c.plain_buffers for c in scripted.configs] == [False, True]
    assert engine.state == "ready"
    await engine.close()


async def test_an_engine_that_dies_while_loading_again_fails(scripted: type[Scripted]) -> None:
    scripted.script = [EngineDied("was killed by SIGILL")] * 2
    engine = Engine("m", CONFIG)
    engine.start()
    with pytest.raises(Broken, match="was killed by SIGILL while loading"):
        await engine.until_loaded()
    assert engine.state == "failed"
    await engine.close()


async def test_a_model_that_is_gone_at_a_restart_fails_the_waiting_and_is_tried_again(
    scripted: type[Scripted],
) -> None:
    scripted.script = ["ready", ModelNotLoaded("m.gguf: no such file"), "ready"]
    engine = Engine("m", CONFIG)
    engine.start()
    await engine.until_loaded()
    submit = asyncio.create_task(_submit(engine))
    await _holds(lambda: len(engine._requests) == 1)
    first = engine._client
    assert isinstance(first, Scripted)
    first.exited.set_result("was killed by SIGKILL")
    with pytest.raises(Broken, match="no such file"):
        await submit
    await _until_state(engine, "ready")
    assert engine.n_restarts == 2
    await engine.close()


# --- names and settings -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (Settings(fake=True), "fake"),
        (Settings(model=Path("/m/Some-Model.Q4.gguf")), "Some-Model.Q4"),
        (Settings(model=Path("/m/Some-Model.Q4.gguf"), alias="mine"), "mine"),
    ],
)
def test_a_model_is_called_by_its_alias_or_its_file(settings: Settings, name: str) -> None:
    assert model_name(settings) == name


def test_the_engine_is_configured_by_the_settings() -> None:
    settings = Settings(
        model=Path("/m/x.gguf"),
        n_ctx=123,
        n_slots=3,
        max_queue=5,
        n_batch=77,
        n_threads=2,
        step_target_ms=40,
        check_tensors=True,
    )
    assert engine_config(settings) == EngineConfig(
        model="/m/x.gguf",
        n_ctx=123,
        n_slots=3,
        max_queue=5,
        n_batch=77,
        n_threads=2,
        step_target_ms=40,
        check_tensors=True,
        cache_ram_mib=2048,
    )
    assert engine_config(Settings(fake=True)).n_slots == 4


def test_every_name_means_the_one_model() -> None:
    async def run() -> None:
        pool = Pool(Settings(fake=True))
        assert pool.get("gpt-4o") is pool.get(None) is pool.engine
        await pool.close()

    asyncio.run(run())


def test_request_ids_are_never_used_twice() -> None:
    ids = [next_request_id() for _ in range(5)]
    assert len(set(ids)) == 5 and ids == sorted(ids)
