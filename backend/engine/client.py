"""The server's end of the seam: one engine process, from start to exit. Owned by the event loop."""

import asyncio
import collections
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from corral.backend.engine.messages import (
    Abort,
    Add,
    Call,
    Command,
    Embed,
    EngineConfig,
    FrameReader,
    LoadFailed,
    Loading,
    ModelInfo,
    Output,
    Ready,
    Reply,
    Snapshot,
    Step,
    decode_report,
    frame,
)

log = logging.getLogger("corral.engine")

#: Set before llama.cpp is loaded. Without the first, an abort starts a debugger; the second bounds
#: how long a thread spins at a barrier while its partner does not run.
ENVIRONMENT = {"GGML_NO_BACKTRACE": "1", "GOMP_SPINCOUNT": "1000"}

#: An engine process gets this long to go before it is killed.
CLOSE_PATIENCE_S = 5.0


class ModelNotLoaded(Exception):
    """The engine said why it cannot serve the model."""


class EngineDied(Exception):
    """The engine process ended; the message says how."""


class CallRefused(Exception):
    """The engine could not answer a call; the message says why. ``code`` is its kind of error,
    ``param`` the field at fault."""

    def __init__(self, message: str, code: str, param: str) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class EngineClient:
    """Starts and talks to one engine process.

    ``on_outputs`` gets each step's outputs as they arrive. ``exited`` resolves, with the reason in
    words, once the process is gone; nothing arrives after that.
    """

    def __init__(self, config: EngineConfig, on_outputs: Callable[[list[Output]], None]) -> None:
        self._config = config
        self._on_outputs = on_outputs
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._next_call = 0
        self._stderr: collections.deque[str] = collections.deque(maxlen=50)
        self.load_progress = 0.0
        self.snapshot: Snapshot | None = None
        self.pid = 0
        self._said_why = False
        self._watch: asyncio.Task[None] | None = None
        self._link_closed = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.WriteTransport | None = None

    async def start(self) -> ModelInfo:
        """Starts the process and loads the model. Raises ModelNotLoaded or EngineDied."""
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[str] = loop.create_future()
        self._ready: asyncio.Future[ModelInfo] = loop.create_future()
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        with theirs:
            # The link first: from here on ``close`` works, wherever this is cancelled.
            link, _ = await loop.create_unix_connection(lambda: _Link(self), sock=ours)
            self._transport = link
            try:
                self._process = await self._spawn(theirs)
            except OSError as error:
                link.close()
                raise EngineDied(f"could not be started: {error.strerror}") from None
        self.pid = self._process.pid
        self._watch = asyncio.create_task(self._wait_for_exit())
        return await self._ready

    async def _spawn(self, theirs: socket.socket) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "corral.backend.engine.worker",
            str(theirs.fileno()),
            msgspec.json.encode(self._config).decode(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(theirs.fileno(),),
            env={**ENVIRONMENT, **os.environ},
            start_new_session=True,  # Ctrl-C in a terminal is the server's to handle
        )

    def submit(self, add: Add | Embed) -> None:
        """Sends a request; its outputs come through ``on_outputs``."""
        self._send(add)

    def abort(self, request_id: int) -> None:
        """Asks to end a request. Safe to call at any time, also from a cancelled task."""
        self._send(Abort(request_id))

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """Asks the vocabulary. Raises CallRefused or EngineDied."""
        if self.exited.done():
            raise EngineDied(self.exited.result())
        self._next_call += 1
        call = Call(self._next_call, method, args)
        future = self._calls[call.id] = asyncio.get_running_loop().create_future()
        try:
            self._send(call)
            return await future
        finally:
            del self._calls[call.id]

    async def close(self) -> None:
        """Ends the process: closing the socket is its order to go."""
        if self._transport is not None:
            self._transport.close()
        if self._process is None:
            return
        # Not ``exited``: a server that stops in a hurry cancels the task that would resolve it.
        if self._watch is not None:
            await asyncio.wait({self._watch}, timeout=CLOSE_PATIENCE_S)
        if not self.exited.done():
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            if self._watch is not None:
                await asyncio.wait({self._watch}, timeout=CLOSE_PATIENCE_S)

    def _send(self, command: Command) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(command))

    # --- what arrives ---------------------------------------------------------------------------

    def _receive(self, body: bytes) -> None:
        report = decode_report(body)
        match report:
            case Step(outputs, snapshot):
                if snapshot is not None:
                    self.snapshot = snapshot
                if outputs:
                    self._on_outputs(outputs)
            case Reply(id, value, error, param, code):
                refused = None if error is None else CallRefused(error, code, param)
                _settle(self._calls.get(id), refused or value)
            case Loading(progress):
                self.load_progress = progress
            case Ready(info):
                self.load_progress = 1.0
                _settle(self._ready, info)
            case LoadFailed(message):
                self._said_why = True
                _settle(self._ready, ModelNotLoaded(message))

    async def _wait_for_exit(self) -> None:
        assert self._process is not None and self._process.stderr is not None
        tail = b""  # not by lines: asyncio gives up at one that is too long
        while data := await self._process.stderr.read(1 << 14):
            *lines, tail = (tail + data).split(b"\n")
            self._log_lines(lines)
            if len(tail) > 1 << 14:
                self._log_lines([tail])
                tail = b""
        self._log_lines([tail] if tail else [])
        code = await self._process.wait()
        await self._link_closed.wait()
        reason = _how_it_ended(code)
        if code != 0 and not self._said_why:
            log.error("engine process %d %s", self.pid, reason)
            for text in self._stderr:
                log.error("  %s", text)
        for future in (self._ready, *self._calls.values()):
            _settle(future, EngineDied(reason))
        self.exited.set_result(reason)

    def _log_lines(self, lines: list[bytes]) -> None:
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip()
            self._stderr.append(text)
            log.debug("engine: %s", text)


class _Link(asyncio.Protocol):
    """Frames from the socket to the client."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._frames = FrameReader()

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            self._client._receive(body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client._link_closed.set()


def _settle(future: asyncio.Future[Any] | None, result: Any) -> None:
    """Resolves a future, unless nobody waits for it any more."""
    if future is None or future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def _how_it_ended(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"
