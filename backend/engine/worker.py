"""An engine process: ``python -m corral.backend.engine.worker FD CONFIG``.

Three threads, and two for files. The *reader* takes frames from the socket and ends the process
when the server is gone. The *text* thread tokenises, so that a long prompt never holds up a step.
The *step* thread, the main one, owns the model and everything in ``core``.
"""

import functools
import logging
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from corral.backend.engine import fake, llama
from corral.backend.engine.admission import Admitted
from corral.backend.engine.assembly import assemble
from corral.backend.engine.cores import AnyAdmitted
from corral.backend.engine.embedding import AdmittedEmbed
from corral.backend.engine.llama import formats
from corral.backend.engine.media import BadMedia
from corral.backend.engine.messages import (
    Abort,
    Accepted,
    Call,
    Command,
    Constraint,
    EngineConfig,
    Failed,
    FrameReader,
    LoadFailed,
    Loading,
    Media,
    Output,
    Prompt,
    Ready,
    Reply,
    Report,
    Step,
    decode_command,
    frame,
)
from corral.backend.engine.slots import Job
from corral.backend.engine.slots import Threads as FileThreads

log = logging.getLogger("corral.engine")

EXIT_LOAD_FAILED = 2
EXIT_BROKEN = 70


class Worker:
    """The three threads and what they pass each other."""

    def __init__(self, connection: socket.socket, config: EngineConfig) -> None:
        self._connection = connection
        self._config = config
        self._send_lock = threading.Lock()
        self._texts: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._inbox: queue.SimpleQueue[AnyAdmitted | Abort | Call | Job] = queue.SimpleQueue()

    def run(self) -> NoReturn:
        """Loads the model and serves until the server goes away."""
        threading.Thread(target=self._read, daemon=True, name="reader").start()
        try:
            made = assemble(
                self._config, on_progress=self._report_loading(), on_started=self._publish
            )
        except llama.LoadError as error:
            self._send(LoadFailed(str(error)))
            os._exit(EXIT_LOAD_FAILED)
        self._words, self._core, self._fakes = made.words, made.cores, made.fakes
        self._memory = None if self._core.generation is None else self._core.generation.memory
        if self._memory is not None:
            self._memory.connect(
                FileThreads(self._send, _thread("reads"), _thread("writes"), self._inbox.put)
            )
        self._send(Ready(made.info))
        self._send(Step([], self._core.snapshot()))
        threading.Thread(target=self._tokenize, daemon=True, name="text").start()
        while True:
            self._turn()

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
                self._put_after_reads(command)
                continue
            admitted = self._core.admit(command)
            if isinstance(admitted, Failed):
                self._send(Step([admitted]))
            else:
                # Told at once: the client's headers do not wait for the running step.
                self._send(Step([Accepted(command.id, _n_prompt(admitted))]))
                self._put_when_read(admitted)

    def _put_when_read(self, admitted: AnyAdmitted) -> None:
        """Hands a request on, once what the disk has of its prompt is in memory."""
        if isinstance(admitted, Admitted) and self._memory is not None:
            then = functools.partial(self._inbox.put, admitted)
            if self._memory.fetch(admitted.tokens, admitted.add.lora, then):
                return
        self._inbox.put(admitted)

    def _put_after_reads(self, abort: Abort) -> None:
        """Hands an abort on behind its request, which may wait for the disk."""
        if self._memory is None:
            self._inbox.put(abort)
        else:
            self._memory.after_fetches(functools.partial(self._inbox.put, abort))

    def _answer(self, call: Call) -> None:
        args = call.args
        match call.method:
            case "tokenize":
                self._send(Reply(call.id, self._tokens_of(args)))
            case "tokenize_prompt":
                self._send(self._prompt_tokens(call))
            case "format_chat":
                self._send(_formatted(call))
            case "check_constraint" if self._core.generation is not None:
                constraint = msgspec.convert(args["constraint"], Constraint)
                reply = functools.partial(Reply, call.id)
                self._core.generation.check(constraint, lambda found: self._send(reply(found)))
            case "pieces":
                bad = [t for t in args["tokens"] if not 0 <= t < self._words.n_vocab]
                if bad:
                    self._send(Reply(call.id, error=f"token id {bad[0]} is not in the vocabulary"))
                    return
                pieces = [self._words.piece(t, special=args["special"]) for t in args["tokens"]]
                self._send(Reply(call.id, pieces))
            case method if self._memory is not None and method in self._memory.METHODS:
                self._inbox.put(call)
            case "end_thinking":
                self._inbox.put(call)
            case "control" if isinstance(self._words, fake.FakeLlama):
                self._inbox.put(call)
            case _:
                self._send(Reply(call.id, error=f"no method {call.method}"))

    def _prompt_tokens(self, call: Call) -> Reply:
        prompt = msgspec.convert(call.args["prompt"], Prompt)
        media = msgspec.convert(call.args.get("media", ()), tuple[Media, ...])
        try:
            tokens = self._core.prompt_tokens(prompt, media)
        except BadMedia as error:
            return Reply(call.id, error=str(error), param="prompt")
        return Reply(call.id, self._words.tokenize_prompt(prompt) if tokens is None else tokens)

    def _tokens_of(self, args: dict[str, Any]) -> list[int]:
        content = args["content"]
        add_special, tokens = args["add_special"], list[int]()
        for part in [content] if isinstance(content, str) else content:
            if isinstance(part, int):
                tokens.append(part)
            else:
                tokens += self._words.tokenize(
                    part, add_special=add_special, parse_special=args["parse_special"]
                )
            add_special = False  # once, and only in front of text
        return tokens

    # --- step thread ----------------------------------------------------------------------------

    def _turn(self) -> None:
        """Takes what came in and makes one step."""
        timeout = (0.02 if self._is_held() else 0.0) if self._core.has_work else self._rest()
        try:
            self._take(self._inbox.get(timeout != 0, timeout))
            while True:
                self._take(self._inbox.get_nowait())
        except queue.Empty:
            pass
        outputs = self._core.drain() if self._is_held() else self._core.step()
        self._publish(outputs)

    def _rest(self) -> float | None:
        """Seconds to wait for work: none as long as there are prefixes to save meanwhile."""
        return 0.0 if self._memory is not None and self._memory.save_ahead() else None

    def _is_held(self) -> bool:
        runner, generation = self._words, self._core.generation
        if not isinstance(runner, fake.FakeLlama) or generation is None:
            return False
        return runner.holds(generation.scheduler)

    def _take(self, item: AnyAdmitted | Abort | Call | Job) -> None:
        if isinstance(item, Call) and item.method == "end_thinking":
            self._send(Reply(item.id, self._core.end_thinking(item.args["id"])))
        elif isinstance(item, Call) and self._memory is not None and item.method != "control":
            self._memory.call(item)
        elif isinstance(item, Call):
            assert isinstance(self._words, fake.FakeLlama)
            self._words.control(item.args)
            for embedder in self._fakes:
                embedder.step_ms = item.args.get("step_ms", embedder.step_ms)
            self._send(Reply(item.id))
        elif isinstance(item, Abort):
            self._core.abort(item.id)
        elif callable(item):
            item()
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


def _thread(name: str) -> Callable[[Job], None]:
    """Starts a thread that does jobs in order."""
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()

    def work() -> None:
        while True:
            jobs.get()()

    threading.Thread(target=work, daemon=True, name=name).start()
    return jobs.put


def _formatted(call: Call) -> Reply:
    args = call.args | {"messages": [(role, text) for role, text in call.args["messages"]]}
    try:
        return Reply(call.id, formats.format_chat(**args))
    except (formats.UnknownFormat, formats.Unspoken) as error:
        return Reply(call.id, error=str(error), param="messages", code="template_error")


def _n_prompt(admitted: AnyAdmitted) -> int:
    return admitted.n_prompt if isinstance(admitted, AdmittedEmbed) else len(admitted.tokens)


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
