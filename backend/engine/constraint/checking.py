"""Constraints that are only looked at: compiled for a person who is writing one, run by nobody."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Final

from corral.backend.engine.constraint import Vocabulary, compile_constraint
from corral.backend.engine.constraint.errors import BadConstraint
from corral.backend.engine.messages import Constraint, Verdict

#: Seconds after which nobody waits for an answer any more.
PATIENCE_S: Final = 10.0
#: Constraints that may wait; people write slower than this fills.
MAX_WAITING: Final = 16


Then = Callable[[Verdict], None]


class Checks:
    """Compiles on a thread of its own, one after the other: neither a step nor a request waits for
    what somebody is typing."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._waiting: queue.Queue[tuple[Constraint, float, Then]] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None

    def ask(self, constraint: Constraint, then: Then) -> None:
        """Has ``then`` called with the verdict, on any thread. For one thread to call."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True, name="checks")
            self._thread.start()
        try:
            self._waiting.put_nowait((constraint, time.monotonic(), then))
        except queue.Full:
            then(Verdict(problem="too many are being checked; try again in a moment"))

    def _work(self) -> None:
        while True:
            constraint, since_s, then = self._waiting.get()
            if time.monotonic() - since_s > PATIENCE_S:
                then(Verdict(problem="others took too long; try again in a moment"))
            else:
                then(check(constraint, self._vocabulary))


def check(constraint: Constraint, vocabulary: Vocabulary) -> Verdict:
    """Compiles a constraint and forgets it."""
    began_s = time.monotonic()
    try:
        compile_constraint(constraint, vocabulary)
        problem = path = ""
    except BadConstraint as error:
        problem, path = error.message, error.path
    return Verdict(problem=problem, path=path, compile_ms=(time.monotonic() - began_s) * 1e3)
