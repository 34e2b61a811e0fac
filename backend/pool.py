"""Models by name, each served by an engine that outlives its processes; one is the case n = 1.

Life of an ``Engine``: loading → ready → (restarting → ready)* → closed; failed when the first load
does not succeed. ``draining`` refuses new requests while the running ones finish.
"""

import asyncio
import collections
import contextlib
import itertools
import logging
import time
from asyncio import sleep
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from corral.backend.engine.client import CallRefused, EngineClient, EngineDied, ModelNotLoaded
from corral.backend.engine.messages import (
    Accepted,
    Add,
    Done,
    Embed,
    EngineConfig,
    Failed,
    ModelInfo,
    Output,
    Snapshot,
    Started,
    Stats,
)
from corral.backend.errors import Broken, CorralError, from_engine
from corral.backend.placement import llama_options
from corral.backend.settings import Settings

log = logging.getLogger("corral.pool")

State: TypeAlias = Literal["loading", "ready", "restarting", "draining", "failed", "closed"]

#: Seconds before the first restart; doubled for each that follows soon, up to the limit.
BACKOFF_S, BACKOFF_LIMIT_S = 0.1, 10.0
#: An engine that lived this long starts again without delay.
STEADY_S = 5.0
#: A request that comes during a restart waits this long for it.
RESTART_PATIENCE_S = 10.0

#: How a CPU that cannot run the kernels, or a compiler that got them wrong, ends the process.
KERNEL_SIGNALS = ("SIGILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE")

_ids = itertools.count(1)


class Request:
    """A request given to an engine: its outputs wait here, however slow the reader is."""

    def __init__(self, add: Add | Embed) -> None:
        self.add = add
        self.accepted: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        self.has_started = False
        self.was_resent = False
        self.was_aborted = False
        self.has_ended = False
        self._outputs: collections.deque[Output] = collections.deque()
        self._arrived = asyncio.Event()

    def put(self, output: Output) -> None:
        """An output from the engine, or made up when the engine is gone."""
        match output:
            case Accepted():
                if not self.accepted.done():
                    self.accepted.set_result(output)
                return
            case Failed() if not self.accepted.done():
                self.accepted.set_exception(
                    from_engine(output.code, output.message, output.extra, output.param)
                )
            case Started():
                self.has_started = True
        self.has_ended = self.has_ended or isinstance(output, Done | Failed)
        self._outputs.append(output)
        self._arrived.set()

    async def get(self) -> Output:
        """The next output, in order."""
        while not self._outputs:
            self._arrived.clear()
            await self._arrived.wait()
        return self._outputs.popleft()


class Engine:
    """One model's engine. Requests survive its processes as far as they can: those that had not
    started are sent to the next one, those that had end in ``engine_died``, once."""

    def __init__(self, name: str, config: EngineConfig) -> None:
        self.name = name
        self.state: State = "loading"
        self.info: ModelInfo | None = None
        self.failure = ""
        self.n_restarts = 0
        self._config = config
        self._client: EngineClient | None = None
        self._is_up = False  # the client's process has been given the requests
        self._requests: dict[int, Request] = {}
        self._state_changed = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to load the model."""
        self._supervisor = asyncio.create_task(self._supervise())

    async def until_loaded(self) -> None:
        """Waits for the first load. Raises Broken with the reason when it fails."""
        await self._wait_for(lambda: self.state != "loading")
        if self.state == "failed":
            raise Broken(self.failure, kind="engine_error")

    async def drain(self, timeout_s: float) -> None:
        """Refuses new requests and waits until the running ones are done, or the time is over:
        those left then end in ``draining``."""
        self._set_state("draining")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wait_for(lambda: not self._requests), timeout_s)
        for request in list(self._requests.values()):
            if self._is_up and self._client is not None:
                self._client.abort(request.add.id)
            self._deliver(Failed(request.add.id, "draining", "the server is shutting down"))

    async def close(self) -> None:
        """Ends the engine process and every request."""
        self._set_state("closed")
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        if self._client is not None:
            await self._client.close()
        for request in list(self._requests.values()):
            self._deliver(Failed(request.add.id, "draining", "the server is shutting down"))

    async def _supervise(self) -> None:
        delay_s = BACKOFF_S
        config = self._config
        while True:
            client = self._client = EngineClient(config, self._on_outputs)
            began = time.monotonic()
            try:
                self.info = await client.start()
            except ModelNotLoaded as error:
                self._give_up(str(error))
            except EngineDied as error:
                log.error("the engine died while loading: it %s", error)
                if not config.plain_buffers and any(s in str(error) for s in KERNEL_SIGNALS):
                    # Some CPUs and compilers disagree about matrix instructions: try without.
                    config = msgspec.structs.replace(config, plain_buffers=True)
                else:
                    self._give_up(f"the engine {error} while loading the model")
            else:
                self._come_up(client)
                reason = await asyncio.shield(client.exited)
                self._go_down(reason)
                if time.monotonic() - began > STEADY_S:
                    delay_s = BACKOFF_S
            if self.state == "failed":
                return
            await sleep(delay_s)
            delay_s = min(2 * delay_s, BACKOFF_LIMIT_S)
            self.n_restarts += 1

    def _give_up(self, message: str) -> None:
        """The model cannot be loaded: for good when it never was, until the next try otherwise."""
        self.failure = message
        log.error("%s", message)
        if self.state == "loading":
            self._set_state("failed")
        self._fail_all(lambda _: True, message)

    def _come_up(self, client: EngineClient) -> None:
        if self.state != "draining":
            self._set_state("ready")
        self._is_up = True
        for request in self._requests.values():
            request.was_resent = True
            client.submit(request.add)

    def _go_down(self, reason: str) -> None:
        log.error("the engine %s; starting another", reason)
        if self.state != "draining":
            self._set_state("restarting")
        self._is_up = False
        for request in [r for r in self._requests.values() if r.was_aborted]:
            self._deliver(_cancelled(request))
        message = f"the engine {reason} while working on this request"
        self._fail_all(lambda r: r.has_started or r.was_resent, message)

    def _fail_all(self, which: Callable[[Request], bool], message: str) -> None:
        for request in [r for r in self._requests.values() if which(r)]:
            self._deliver(Failed(request.add.id, "engine_died", message))

    # --- requests ---------------------------------------------------------------------------------

    async def submit(self, add: Add | Embed) -> Request:
        """Gives a request to the engine; returns once it is tokenised, fits and has its place.
        Raises Refused or Broken. Leaving early aborts it."""
        client = await self._ready_client(joins=isinstance(add, Add) and add.joins)
        request = Request(add)
        client.submit(add)
        self._requests[add.id] = request
        try:
            await request.accepted
        except BaseException:
            self.abort(add.id)
            raise
        return request

    def abort(self, request_id: int) -> None:
        """Ends a request; its last output says so."""
        request = self._requests.get(request_id)
        if request is None:
            return
        request.was_aborted = True
        if self._is_up and self._client is not None:
            self._client.abort(request_id)
        else:
            self._deliver(_cancelled(request))

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """Asks the vocabulary. Raises Refused or Broken."""
        client = await self._ready_client()
        try:
            return await client.call(method, args)
        except CallRefused as error:
            raise from_engine(error.code, str(error), param=error.param) from None
        except EngineDied as error:
            raise from_engine("engine_died", f"the engine {error}") from None

    async def _ready_client(self, *, joins: bool = False) -> EngineClient:
        if self.state == "restarting":
            with contextlib.suppress(TimeoutError):
                ready = self._wait_for(lambda: self.state != "restarting")
                await asyncio.wait_for(ready, RESTART_PATIENCE_S)
        # What was accepted is finished, also after no more is.
        if self.state != "ready" and not (joins and self.state == "draining" and self._is_up):
            raise self.refusal()
        assert self._client is not None
        return self._client

    def refusal(self) -> CorralError:
        """Why no request can be taken now."""
        match self.state:
            case "loading":
                return from_engine("loading", "Loading model")
            case "draining" | "closed":
                return from_engine("draining", "the server is shutting down")
            case "failed":
                return from_engine("engine_error", self.failure)
            case _:
                return from_engine("engine_died", "the engine is restarting")

    def _on_outputs(self, outputs: list[Output]) -> None:
        for output in outputs:
            self._deliver(output)

    def _deliver(self, output: Output) -> None:
        request = self._requests.get(output.id)
        if request is None:
            return
        request.put(output)
        if request.has_ended:
            del self._requests[output.id]
            if not self._requests:
                self._state_changed.set()

    # --- looking in -------------------------------------------------------------------------------

    @property
    def load_progress(self) -> float:
        """How much of the model is loaded, 0 to 1."""
        return 1.0 if self.state == "ready" else self._client.load_progress if self._client else 0.0

    @property
    def snapshot(self) -> Snapshot | None:
        """The engine's state after its last step; None before there was one."""
        return self._client.snapshot if self._client is not None else None

    @property
    def pid(self) -> int:
        """The engine's process."""
        return self._client.pid if self._client is not None else 0

    def _set_state(self, state: State) -> None:
        self.state = state
        self._state_changed.set()

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._state_changed.clear()
            await self._state_changed.wait()


def _cancelled(request: Request) -> Done:
    """How an aborted request ends when its engine is gone."""
    nothing = Stats(0, 0, 0, 0.0, 0.0, 0.0, 0, -1, False)
    return Done(request.add.id, "cancelled", "", nothing)


class Pool:
    """The models this server offers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.engine = Engine(model_name(settings), engine_config(settings))

    def start(self) -> None:
        """Begins to load."""
        self.engine.start()

    def get(self, model: str | None) -> Engine:
        """The engine for a model name. While one model is served every name means it, so that
        clients with a model name built in work unchanged."""
        return self.engine

    async def drain(self, timeout_s: float) -> None:
        """See ``Engine.drain``."""
        await self.engine.drain(timeout_s)

    async def close(self) -> None:
        """Ends all engines."""
        await self.engine.close()


def next_request_id() -> int:
    """A number no other request of this server process has."""
    return next(_ids)


def model_name(settings: Settings) -> str:
    """What the served model is called: its alias, or its file's name."""
    if settings.alias:
        return settings.alias.split(",")[0]
    return "fake" if settings.model is None else Path(settings.model).stem


def engine_config(settings: Settings) -> EngineConfig:
    """What the engine process needs of the settings."""
    return EngineConfig(
        model=str(settings.model or ""),
        n_ctx=settings.n_ctx,
        n_slots=settings.slots,
        max_queue=settings.max_queue,
        n_batch=settings.n_batch,
        n_threads=settings.n_threads,
        step_target_ms=settings.step_target_ms,
        check_tensors=settings.check_tensors,
        flash_attn=settings.flash_attn,
        embeddings=settings.embeddings,
        pooling="rank" if settings.reranking else settings.pooling,
        n_ubatch=settings.n_ubatch,
        lora=tuple((str(path), scale) for path, scale in settings.lora),
        lora_init_without_apply=settings.lora_init_without_apply,
        slot_save_path=str(settings.slot_save_path or ""),
        cache_ram_mib=settings.cache_ram,
        cache_disk=str(settings.cache_disk or ""),
        cache_disk_mib=settings.cache_disk_mb,
        llama=llama_options(settings),
        mmproj=str(settings.mmproj or "") if settings.mmproj_auto else "",
        mmproj_offload=settings.mmproj_offload,
        image_min_tokens=settings.image_min_tokens,
        image_max_tokens=settings.image_max_tokens,
        media_cache_mib=settings.media_cache_mib,
        fake=settings.fake,
    )
