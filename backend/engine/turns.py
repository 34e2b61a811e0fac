"""Whose LoRA adapters a step computes with. Pure; knows no model or clock.

llama.cpp applies adapters to a whole context, so a step computes sequences of one set only. Sets
take turns: one with work keeps the turn for some steps, or some rows when they are prompts, and
then it goes to the set that has waited longest. Changing sets costs a step about a third more.
"""

from collections.abc import Iterable

from corral.backend.engine.messages import AdapterSet
from corral.backend.engine.sequence import Sequence

#: A turn ends after this many steps, or rows, while another set waits: rows bound it when steps
#: are long because they read prompts.
TURN_STEPS, TURN_ROWS = 8, 256


class Turns:
    """Which set computes now. Owned by the scheduler."""

    def __init__(self) -> None:
        self.current: AdapterSet = ()
        self.n_changes = 0
        self._n_steps = self._n_rows = 0
        self._last_turn: dict[AdapterSet, int] = {}

    def choose(self, running: Iterable[Sequence]) -> AdapterSet:
        """The set of the next step: one that somebody running has; the current one if nobody."""
        sets = dict.fromkeys(s.adapters for s in running)
        is_over = self._n_steps >= TURN_STEPS or self._n_rows >= TURN_ROWS
        if not sets or (self.current in sets and (len(sets) == 1 or not is_over)):
            return self.current
        self._last_turn[self.current] = self.n_changes
        sets.pop(self.current, None)
        # Those that had no turn yet come first, the one with the oldest request before the others.
        nxt = min(sets, key=lambda a: self._last_turn.get(a, -1))
        self._last_turn = {
            a: n for a, n in self._last_turn.items() if a in sets or a == self.current
        }
        self.current = nxt
        self.n_changes += 1
        self._n_steps = self._n_rows = 0
        return self.current

    def count(self, n_rows: int) -> None:
        """A step of ``n_rows`` rows was planned for the current set."""
        self._n_steps += 1
        self._n_rows += n_rows
