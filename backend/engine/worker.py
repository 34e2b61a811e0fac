"""An engine process: ``python -m corral.backend.engine.worker FD CONFIG``.

Three threads. The *reader* takes frames from the socket and ends the process when the server is
gone. The *text* thread tokenises, so that a long prompt never holds up a step. The *step* thread,
the main one, owns the model and everything in ``core``.
"""

import logging
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from corral.backend.engine import fake, llama
from corral.backend.engine.core import Admitted, EngineCore
from corral.backend.engine.messages import (
    Abort,
    Accepted,
    Call,
    Command,
    EngineConfig,
    Failed,
    FrameReader,
    LoadFailed,
    Loading,
    Output,
    Ready,
    Reply,
    Report,
    Step,
    decode_command,
    frame,
)
from corral.backend.engine.pace import PromptBudget, Threads

log = logging.getLogger("corral.engine")

EXIT_LOAD_FAILED = 2
EXIT_BROKEN = 70
#: Cache sequences beside the running ones: how many finished prompts can be remembered.
N_CACHED_PREFIXES = 32


class Worker:
    """The three threads and what they pass each other."""

    def __init__(self, connection: socket.socket, config: EngineConfig) -> None:
        self._connection = connection
        self._config = config
        self._send_lock = threading.Lock()
        self._texts: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._inbox: queue.SimpleQueue[Admitted | Abort | Call] = queue.SimpleQueue()

    def run(self) -> NoReturn:
        """Loads the model and serves until the server goes away."""
        threading.Thread(target=self._read, daemon=True, name="reader").start()
        try:
            self._runner = self._load()
        except llama.LoadError as error:
            self._send(LoadFailed(str(error)))
            os._exit(EXIT_LOAD_FAILED)
        config = self._config
        self._core = EngineCore(
            self._runner,
            n_slots=config.n_slots,
            max_queue=config.max_queue,
            budget=PromptBudget(
                n_batch=self._runner.n_batch,
                target_ms=config.step_target_ms,
                tile_rows=self._runner.tile_rows,
            ),
            threads=Threads(usable_cpus(), fixed=config.n_threads),
            on_started=self._publish,
        )
        self._send(Ready(self._runner.info))
        self._send(Step([], self._core.snapshot()))
        threading.Thread(target=self._tokenize, daemon=True, name="text").start()
        while True:
            self._turn()

    def _load(self) -> llama.Llama | fake.FakeLlama:
        config = self._config
        n_seq_max = config.n_slots + N_CACHED_PREFIXES
        if config.fake:
            return fake.FakeLlama(
                n_ctx=config.n_ctx or 4096,
                n_slots=config.n_slots,
                n_seq_max=n_seq_max,
                n_batch=max(config.n_slots, min(config.n_batch, 64)),
                step_ms=2.0,
            )
        runner = llama.Llama(
            Path(config.model),
            n_ctx=config.n_ctx,
            n_slots=config.n_slots,
            n_seq_max=n_seq_max,
            n_batch=max(config.n_batch, n_seq_max),
            n_threads=config.n_threads or usable_cpus(),
            check_tensors=config.check_tensors,
            plain_buffers=config.plain_buffers,
            flash_attn=config.flash_attn,
            on_progress=self._report_loading(),
        )
        runner.warm_up()
        return runner

    def _report_loading(self) -> Any:
        last = -1.0

        def report(progress: float) -> None:
            nonlocal last
            if progress - last >= 0.02:
                last = progress
                self._send(Loading(progress))

        return report

    # --- reader thread --------------------------------------------------------------------------

    def _read(self) -> None:
        frames = FrameReader()
        while True:
            try:
                data = self._connection.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                os._exit(0)  # the server is gone, and nothing here outlives it
            for body in frames.feed(data):
                command = decode_command(body)
                # An abort goes both ways: at once, and behind its request, which it may overtake.
                if isinstance(command, Abort):
                    self._inbox.put(command)
                self._texts.put(command)

    # --- text thread ----------------------------------------------------------------------------

    def _tokenize(self) -> None:
        while True:
            command = self._texts.get()
            if isinstance(command, Call):
                self._answer(command)
                continue
            if isinstance(command, Abort):
                self._inbox.put(command)
                continue
            admitted = self._core.admit(command)
            if isinstance(admitted, Failed):
                self._send(Step([admitted]))
            else:
                # Told at once: the client's headers do not wait for the running step.
                self._send(Step([Accepted(command.id, len(admitted.tokens))]))
                self._inbox.put(admitted)

    def _answer(self, call: Call) -> None:
        args = call.args
        match call.method:
            case "tokenize":
                self._send(Reply(call.id, self._tokens_of(args)))
            case "pieces":
                bad = [t for t in args["tokens"] if not 0 <= t < self._runner.n_vocab]
                if bad:
                    self._send(Reply(call.id, error=f"token id {bad[0]} is not in the vocabulary"))
                    return
                pieces = [self._runner.piece(t, special=args["special"]) for t in args["tokens"]]
                self._send(Reply(call.id, pieces))
            case "control" if isinstance(self._runner, fake.FakeLlama):
                self._inbox.put(call)
            case _:
                self._send(Reply(call.id, error=f"no method {call.method}"))

    def _tokens_of(self, args: dict[str, Any]) -> list[int]:
        content = args["content"]
        add_special, tokens = args["add_special"], list[int]()
        for part in [content] if isinstance(content, str) else content:
            if isinstance(part, int):
                tokens.append(part)
            else:
                tokens += self._runner.tokenize(
                    part, add_special=add_special, parse_special=args["parse_special"]
                )
            add_special = False  # once, and only in front of text
        return tokens

    # --- step thread ----------------------------------------------------------------------------

    def _turn(self) -> None:
        """Takes what came in and makes one step."""
        timeout = (0.02 if self._is_held() else 0.0) if self._core.has_work else None
        try:
            self._take(self._inbox.get(timeout != 0, timeout))
            while True:
                self._take(self._inbox.get_nowait())
        except queue.Empty:
            pass
        outputs = self._core.drain() if self._is_held() else self._core.step()
        self._publish(outputs)

    def _is_held(self) -> bool:
        return isinstance(self._runner, fake.FakeLlama) and self._runner.holds(self._core.scheduler)

    def _take(self, item: Admitted | Abort | Call) -> None:
        if isinstance(item, Call):
            assert isinstance(self._runner, fake.FakeLlama)
            self._runner.control(item.args)
            self._send(Reply(item.id))
        elif isinstance(item, Abort):
            self._core.abort(item.id)
        else:
            self._core.add(item)

    def _publish(self, outputs: list[Output]) -> None:
        report = self._core.report(outputs)
        if report is not None:
            self._send(report)

    def _send(self, report: Report) -> None:
        data = frame(report)
        try:
            with self._send_lock:
                self._connection.sendall(data)
        except OSError:
            os._exit(0)


def usable_cpus() -> int:
    """CPUs this process may use: those it is bound to, fewer if its control group has a quota."""
    bound = getattr(os, "sched_getaffinity", None)  # not everywhere
    n = len(bound(0)) if bound is not None else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        n = min(n, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no quota
    return max(1, n)


def _on_thread_error(error: threading.ExceptHookArgs) -> None:
    """A thread that dies must not leave a process that looks alive and answers nothing."""
    traceback.print_exception(error.exc_type, error.exc_value, error.exc_traceback)
    os._exit(EXIT_BROKEN)


def main() -> NoReturn:
    """Entry of the engine process."""
    # A service manager may signal the whole group: running requests then still finish, because the
    # server closes the connection when it wants this process gone.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.excepthook = _on_thread_error
    connection = socket.socket(fileno=int(sys.argv[1]))
    config = msgspec.json.decode(sys.argv[2], type=EngineConfig)
    os.dup2(2, 1)  # nothing C prints may get lost on a closed stdout
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    # After a long call the step thread waits for the GIL at most this long.
    sys.setswitchinterval(0.0005)
    try:
        Worker(connection, config).run()
    except BaseException:  # noqa: BLE001 the last line of defence: say what happened and go
        traceback.print_exc()
        os._exit(EXIT_BROKEN)


if __name__ == "__main__":
    main()
