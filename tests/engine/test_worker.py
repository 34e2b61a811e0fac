"""The engine process itself, spoken to through its socket."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from corral.backend.engine.assembly import usable_cpus
from corral.backend.engine.messages import (
    Abort,
    Accepted,
    Add,
    Call,
    Command,
    Delta,
    Done,
    EngineConfig,
    Failed,
    FrameReader,
    Output,
    Ready,
    Reply,
    Report,
    Started,
    Step,
    decode_report,
    frame,
)
from corral.backend.engine.worker import EXIT_BROKEN


class Child:
    """An engine process on the fake model."""

    def __init__(self, **fields: Any) -> None:
        self.link, theirs = socket.socketpair()
        self.link.settimeout(20)
        config = msgspec.json.encode(EngineConfig(model="", fake=True, **fields)).decode()
        command = [sys.executable, "-m", "corral.backend.engine.worker", str(theirs.fileno())]
        self.process = subprocess.Popen(
            [*command, config], pass_fds=[theirs.fileno()], stderr=subprocess.PIPE
        )
        theirs.close()
        self._frames = FrameReader()
        self._bodies: list[bytes] = []
        assert isinstance(self.read(), Ready)

    def send(self, *commands: Command) -> None:
        self.link.sendall(b"".join(frame(c) for c in commands))

    def read(self) -> Report:
        while not self._bodies:
            data = self.link.recv(1 << 16)
            assert data, "the engine went away"
            self._bodies = self._frames.feed(data)
        return decode_report(self._bodies.pop(0))

    def outputs(self, until: Callable[[Output], bool]) -> list[Output]:
        """All outputs up to the first of which ``until`` holds."""
        seen: list[Output] = []
        while True:
            report = self.read()
            for output in report.outputs if isinstance(report, Step) else []:
                seen.append(output)
                if until(output):
                    return seen

    def answer(self, call: Call) -> Reply:
        self.send(call)
        while True:
            report = self.read()
            if isinstance(report, Reply) and report.id == call.id:
                return report

    def close(self) -> None:
        self.link.close()
        self.process.wait(10)
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child(n_slots=2, max_queue=8)
    yield child
    child.close()


def _ends(request_id: int) -> Callable[[Output], bool]:
    return lambda o: isinstance(o, Done | Failed) and o.id == request_id


def test_a_request_is_answered_in_order_with_one_end(child: Child) -> None:
    child.send(Add(id=1, prompt="hello", max_tokens=5))
    kinds = [type(o) for o in child.outputs(_ends(1))]
    assert kinds[:2] == [Accepted, Started]
    assert kinds[-1] is Done and kinds.count(Done) == 1


def test_commands_may_arrive_in_pieces(child: Child) -> None:
    for byte in frame(Add(id=1, prompt="hello", max_tokens=3)):
        child.link.sendall(bytes([byte]))
    assert isinstance(child.outputs(_ends(1))[-1], Done)


def test_an_abort_that_overtakes_its_request_still_ends_it(child: Child) -> None:
    child.answer(Call(1, "control", {"hold": "decode", "after": 1}))
    # Tokenising the first takes so long that the abort is there before the second is.
    child.send(Add(id=1, prompt="x" * 3_000_000), Add(id=2, prompt="y"), Abort(2))
    outputs = child.outputs(_ends(2))
    assert isinstance(outputs[-1], Done) and outputs[-1].finish == "cancelled"


def test_requests_may_come_in_any_order_of_their_ids_and_be_aborted(child: Child) -> None:
    child.answer(Call(1, "control", {"hold": "decode", "after": 1}))
    child.send(Add(id=9, prompt="a"))
    child.outputs(lambda o: isinstance(o, Started))
    child.send(Add(id=1, prompt="x" * 3_000_000), Add(id=2, prompt="y"), Abort(2))
    assert isinstance(child.outputs(_ends(2))[-1], Done)


def test_an_abort_is_heard_while_a_prompt_is_read(child: Child) -> None:
    child.answer(Call(1, "control", {"hold": "prefill"}))
    child.send(Add(id=1, prompt="x" * 2000))
    child.outputs(lambda o: isinstance(o, Started))
    child.send(Abort(1))
    end = child.outputs(_ends(1))[-1]
    assert isinstance(end, Done) and end.stats.n_generated == 0


def test_unknown_aborts_and_calls_do_no_harm(child: Child) -> None:
    child.send(Abort(77))
    assert child.answer(Call(5, "nonsense", {})).error == "no method nonsense"
    args = {"content": "a<|im_end|>", "add_special": False, "parse_special": True}
    assert child.answer(Call(6, "tokenize", args)).value == [97, 257]
    args = {"tokens": [97, 257], "special": True}
    assert child.answer(Call(7, "pieces", args)).value == [b"a", b"<|im_end|>"]
    assert "999" in str(child.answer(Call(8, "pieces", {"tokens": [999], "special": True})).error)


def test_the_process_ends_with_its_connection(child: Child) -> None:
    child.send(Add(id=1, prompt="hello"))
    child.link.close()
    assert child.process.wait(10) == 0


def test_signals_meant_for_the_whole_service_do_not_end_it(child: Child) -> None:
    child.answer(Call(1, "control", {"hold": "decode", "after": 1}))
    child.send(Add(id=1, prompt="hello", max_tokens=20))
    child.outputs(lambda o: isinstance(o, Delta))
    for sig in (signal.SIGTERM, signal.SIGINT):
        os.kill(child.process.pid, sig)
    child.answer(Call(2, "control", {"hold": None}))
    assert isinstance(child.outputs(_ends(1))[-1], Done)


@pytest.mark.parametrize("body", [b"\xc1", b"\x93\x01\x02\x03"])
def test_what_cannot_be_understood_ends_the_process(child: Child, body: bytes) -> None:
    # A thread that died quietly would leave a process that answers nothing.
    child.link.sendall(len(body).to_bytes(4, "little") + body)
    assert child.process.wait(10) == EXIT_BROKEN
    assert child.process.stderr is not None
    assert b"Traceback" in child.process.stderr.read()


def test_an_error_while_tokenising_ends_the_process(child: Child) -> None:
    child.send(Call(1, "tokenize", {}))
    assert child.process.wait(10) == EXIT_BROKEN


def test_there_is_at_least_one_cpu() -> None:
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)
