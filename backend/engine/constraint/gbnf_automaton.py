"""GBNF grammars as sets of characters and as automata. See ``gbnf_lexemes``."""

from collections.abc import Iterable
from typing import Final, TypeAlias

from corral.backend.engine.constraint.gbnf import Chars, Choice, Grammar, Item, Ref, Repeat, Run

#: A set of characters: one bit for each class of those that the grammar treats alike.
Set: TypeAlias = int

#: Sizes up to which grammars are looked at; the work stays below about a third of a second.
MAX_STATES: Final = 3_000
MAX_WORK: Final = 1_000_000
MAX_DEPTH: Final = 120


class TooLarge(Exception):
    """The grammar is larger than what is analysed."""


class Analysis:
    """First and following characters of everything in a grammar, as sets."""

    def __init__(self, grammar: Grammar, every: list[Item]) -> None:
        self._grammar = grammar
        self._n_work = 0
        ranges = [r for item in every if isinstance(item, Chars) for r in item.ranges]
        self._starts = sorted({low for low, _ in ranges} | {high + 1 for _, high in ranges})
        self._sets: dict[Chars, Set] = {}
        self.firsts: dict[str, Set] = dict.fromkeys(grammar, 0)
        self.empties: dict[str, bool] = dict.fromkeys(grammar, False)
        while True:
            before = (dict(self.firsts), dict(self.empties))
            for name, choice in grammar.items():
                self.firsts[name], self.empties[name] = self._first(choice, 0)
            if (self.firsts, self.empties) == before:
                break

    def spend(self, n: int) -> None:
        """Counts work. Raises ``TooLarge`` when it was too much."""
        self._n_work += n
        if self._n_work > MAX_WORK:
            raise TooLarge

    def set_of(self, chars: Chars) -> Set:
        """The classes of characters in ``chars``."""
        if chars not in self._sets:
            self.spend(len(self._starts))
            self._sets[chars] = sum(
                1 << i
                for i, start in enumerate(self._starts)
                if any(low <= start <= high for low, high in chars.ranges)
            )
        return self._sets[chars]

    def _first(self, item: Item, depth: int) -> tuple[Set, bool]:
        """The characters an item can begin with, and whether it can be empty."""
        self.spend(1)
        if depth > MAX_DEPTH:
            raise TooLarge
        match item:
            case Chars():
                return self.set_of(item), False
            case Ref(name):
                return self.firsts[name], self.empties[name]
            case Repeat(_, _, 0):
                return 0, True
            case Repeat(inner, low, _):
                first, empty = self._first(inner, depth + 1)
                return first, empty or low == 0
            case Choice(options):
                found = [self.first_of(option, depth) for option in options]
                return union(first for first, _ in found), any(empty for _, empty in found)
        raise TooLarge  # a token

    def first_of(self, run: Run, depth: int = 0) -> tuple[Set, bool]:
        """The same for a sequence."""
        first: Set = 0
        for item in run:
            more, empty = self._first(item, depth + 1)
            first |= more
            if not empty:
                return first, False
        return first, True


class Automaton:
    """All runs side by side, as an automaton with moves on characters and free moves."""

    def __init__(self, analysis: Analysis, grammar: Grammar, runs: list[Run]) -> None:
        self._analysis = analysis
        self._grammar = grammar
        self._moves: list[list[tuple[Set, int]]] = []
        self._free: list[list[int]] = []
        self._owner: list[Run] = []
        self._ends: dict[int, Run] = {}
        self._starts = []
        for run in runs:
            self._run = run
            start = self._new()
            self._starts.append(start)
            self._ends[self._add(run, start, 0)] = run

    def clashes(self, after: dict[Run, Set]) -> set[Run]:
        """The runs that would swallow a character meant for what comes after a run."""
        found: set[Run] = set()
        start = self._closure(self._starts)
        pending, seen = [start], {start}
        while pending:
            states = pending.pop()
            moves = [(chars, to, self._owner[s]) for s in states for chars, to in self._moves[s]]
            if states is not start:
                for run in (self._ends[s] for s in states if s in self._ends):
                    found |= {owner for chars, _, owner in moves if chars & after[run]}
            for targets in self._targets(moves):
                if (reached := self._closure(targets)) not in seen:
                    seen.add(reached)
                    pending.append(reached)
        return found

    def _targets(self, moves: list[tuple[Set, int, Run]]) -> set[tuple[int, ...]]:
        """The sets of states that single characters lead to."""
        left, targets = union(chars for chars, _, _ in moves), set()
        while left:
            bit = left & -left
            self._analysis.spend(len(moves))
            taken = [chars for chars, _, _ in moves if chars & bit]
            targets.add(tuple(to for chars, to, _ in moves if chars & bit))
            # Characters that every one of these moves takes and no other does lead the same way.
            same = left
            for chars in taken:
                same &= chars
            for chars, _, _ in moves:
                if not chars & bit:
                    same &= ~chars
            left &= ~same
        return targets

    def _closure(self, states: Iterable[int]) -> frozenset[int]:
        reached = set(states)
        pending = list(reached)
        while pending:
            for state in self._free[pending.pop()]:
                if state not in reached:
                    reached.add(state)
                    pending.append(state)
        self._analysis.spend(len(reached))
        return frozenset(reached)

    def _new(self) -> int:
        if len(self._moves) >= MAX_STATES:
            raise TooLarge
        self._moves.append([])
        self._free.append([])
        self._owner.append(self._run)
        return len(self._moves) - 1

    def _add(self, run: Run, start: int, depth: int) -> int:
        """Puts a sequence behind a state; returns the state behind it."""
        if depth > MAX_DEPTH:
            raise TooLarge
        for item in run:
            start = self._add_item(item, start, depth + 1)
        return start

    def _add_item(self, item: Item, start: int, depth: int) -> int:
        match item:
            case Chars():
                end = self._new()
                self._moves[start].append((self._analysis.set_of(item), end))
                return end
            case Ref(name):
                return self._add_item(self._grammar[name], start, depth)
            case Repeat():
                return self._add_repeat(item, start, depth)
            case Choice(options):
                end = self._new()
                for option in options:
                    self._free[self._add(option, start, depth)].append(end)
                return end
        raise TooLarge  # a token

    def _add_repeat(self, repeat: Repeat, start: int, depth: int) -> int:
        inner = (repeat.item,)
        for _ in range(repeat.low):
            start = self._add(inner, start, depth)
        end = self._new()
        if repeat.high is None:
            again = self._new()
            self._free[start].append(again)
            self._free[self._add(inner, again, depth)].append(again)
            self._free[again].append(end)
            return end
        self._free[start].append(end)
        for _ in range(repeat.high - repeat.low):
            start = self._add(inner, start, depth)
            self._free[start].append(end)
        return end


def union(sets: Iterable[Set]) -> Set:
    """All characters of several sets."""
    total: Set = 0
    for one in sets:
        total |= one
    return total
