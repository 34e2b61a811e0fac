"""Whose inputs are computed in the next call. Pure; knows no model, clock or socket."""

from __future__ import annotations

import collections
from array import array
from typing import Any, NamedTuple

from numpy.typing import NDArray


class Job:
    """A request with its inputs, as tokens: ``next`` is the first that no call has taken yet."""

    def __init__(self, request_id: int, tokens: list[array[int]], now: float) -> None:
        self.id = request_id
        self.tokens = tokens
        self.n_prompt = sum(map(len, tokens))
        self.next = 0
        self.n_open = len(tokens)
        self.n_computed = 0
        self.slot = -1
        self.arrived_s = now
        self.started_s: float | None = None
        #: What there is of an input that comes in several calls.
        self.parts: list[NDArray[Any]] = []

    @property
    def has_more(self) -> bool:
        """Whether there are inputs that no call has taken yet."""
        return self.next < len(self.tokens)


class Piece(NamedTuple):
    """Tokens ``[start, start + n)`` of input ``number``, for one call."""

    job: Job
    number: int
    start: int
    n: int

    @property
    def is_last(self) -> bool:
        """Whether the input is complete after it."""
        return self.start + self.n == len(self.job.tokens[self.number])

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the input."""
        return self.n == len(self.job.tokens[self.number])


class Rounds:
    """The running requests, in the order of their turns.

    At most one input is in the middle of its calls at any time, so a context needs room for one.
    ``can_split``: inputs may come in parts. A call holds up to ``n_pieces``.
    """

    def __init__(self, *, n_pieces: int, can_split: bool) -> None:
        self.running: collections.deque[Job] = collections.deque()
        #: What came last of an input that is not yet whole.
        self.split: Piece | None = None
        self._n_pieces = n_pieces
        self._can_split = can_split

    def plan(self, room: int) -> list[Piece]:
        """Inputs for a call, one from each request in turn until ``room`` tokens are taken.

        An input that must be computed whole may take more than that, but only as the first. One
        that is split leaves half to the others.
        """
        pieces: list[Piece] = []
        if self.split is not None:
            job, number, start, n = self.split
            start += n
            has_others = any(j.has_more for j in self.running if j is not job)
            most = max(1, room // 2) if has_others else room
            pieces.append(Piece(job, number, start, min(most, len(job.tokens[number]) - start)))
            room -= pieces[0].n
        # Whoever was first in the last call is last in this one.
        self.running.rotate(-1)
        candidates = list(self.running)
        while candidates:
            taken = []
            for job in candidates:
                piece = self._next_of(job, room, n_taken=len(pieces))
                if piece is None:
                    continue
                job.next += 1
                room -= piece.n
                pieces.append(piece)
                taken.append(job)
                if not piece.is_last:
                    self.split = piece
            candidates = taken
        return pieces

    def _next_of(self, job: Job, room: int, *, n_taken: int) -> Piece | None:
        if not job.has_more or n_taken >= self._n_pieces:
            return None
        n = len(job.tokens[job.next])
        if n <= room or (n_taken == 0 and not self._can_split):
            return Piece(job, job.next, 0, n)
        if self._can_split and self.split is None and room > 0:
            return Piece(job, job.next, 0, room)
        return None

    def leave(self, job: Job) -> bool:
        """Takes a request out; True when it leaves an input half done."""
        self.running.remove(job)
        was_split = self.split is not None and self.split.job is job
        if was_split:
            self.split = None
        return was_split
