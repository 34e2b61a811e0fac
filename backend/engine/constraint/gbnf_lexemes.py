"""Which parts of a GBNF grammar may be lexemes of llguidance.

Lexemes make masks hundreds of times cheaper than single characters, but llguidance cuts text into
them greedily, which GBNF knows nothing of: with the lexemes ``"a"*`` and ``"ab"`` an answer to
``"a"* "ab"`` would never end. A part may be a lexeme when greed cannot matter: wherever it may
end, no character that may follow it continues it or any other lexeme. Where that does not hold the
parts concerned are cut smaller, in the end to single characters, for which it always does.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from corral.backend.engine.constraint.gbnf import Chars, Choice, Grammar, Item, Ref, Repeat, Token

#: Items of a sequence that stand together.
Run: TypeAlias = tuple[Item, ...]
#: A set of characters: one bit for each class of those that the grammar treats alike.
Set: TypeAlias = int

#: Sizes up to which parts are looked for; the work stays below about a third of a second.
MAX_RULES: Final = 300
MAX_ITEMS: Final = 3_000
MAX_STATES: Final = 3_000
MAX_WORK: Final = 1_000_000
MAX_DEPTH: Final = 120
#: Repetitions in one lexeme: its automaton in llguidance grows with their square.
MAX_REPEATS: Final = 1_000


class _TooLarge(Exception):
    """The grammar is larger than what is analysed."""


class Cut:
    """Decides what stays together. ``parts`` of a sequence are runs, each a lexeme, and items that
    hold more than one lexeme."""

    def __init__(self, grammar: Grammar) -> None:
        self._regular = regular_rules(grammar)
        #: Cut into their items, though they could be a lexeme.
        self._opened: set[Run | Item] = set()

    def parts(self, sequence: Run) -> Iterator[Run | Item]:
        """The parts of a sequence in order; runs are tuples."""
        run: list[Item] = []
        for item in sequence:
            if not self._is_whole(item):
                if run:
                    yield tuple(run)
                run = []
                yield item
            elif sequence in self._opened:
                yield (item,)
            else:
                run.append(item)
        if run:
            yield tuple(run)

    def open(self, run: Run, sequence: Run) -> None:
        """Cuts a run of a sequence smaller."""
        if len(run) > 1:
            self._opened.add(sequence)
        else:
            self._opened.add(run[0])

    def _is_whole(self, item: Item) -> bool:
        if isinstance(item, Chars):
            return True
        if item in self._opened:
            return False
        return all(
            not isinstance(inner, Token)
            and not (isinstance(inner, Ref) and inner.name not in self._regular)
            for inner in inside(item)
        )


def lexemes(grammar: Grammar) -> Cut | None:
    """How to cut a grammar, None for into single characters."""
    cut = Cut(grammar)
    root = grammar["root"]
    whole = (Ref("root"),)
    if list(cut.parts(whole)) == [whole]:
        n_repeats = sum(isinstance(item, Repeat) for c in grammar.values() for item in inside(c))
        return cut if n_repeats <= MAX_REPEATS else None
    every = [item for choice in grammar.values() for item in inside(choice)]
    if (
        len(grammar) > MAX_RULES
        or len(every) > MAX_ITEMS
        or any(isinstance(item, Token) for item in every)
    ):
        return None
    try:
        analysis = _Analysis(grammar, every)
        while clashes := analysis.clashes(cut, root):
            for run, sequence in clashes:
                cut.open(run, sequence)
    except _TooLarge:
        return None
    return cut


def regular_rules(grammar: Grammar) -> set[str]:
    """The rules that a regular expression could stand for: they name no token and lead to no rule
    that leads back to itself."""
    users: dict[str, list[str]] = defaultdict(list)
    n_open: dict[str, int] = {}
    for name, choice in grammar.items():
        n_open[name] = 0
        for item in inside(choice):
            if isinstance(item, Ref):
                users[item.name].append(name)
                n_open[name] += 1
            elif isinstance(item, Token):
                n_open[name] += 1  # and is never closed
    free = [name for name, n in n_open.items() if n == 0]
    regular = set()
    while free:
        name = free.pop()
        regular.add(name)
        for user in users[name]:
            n_open[user] -= 1
            if n_open[user] == 0:
                free.append(user)
    return regular


def inside(item: Item) -> Iterator[Item]:
    """An item and everything in it, at any depth, but not the rules it refers to."""
    pending: list[Item] = [item]
    while pending:
        item = pending.pop()
        yield item
        if isinstance(item, Repeat):
            pending.append(item.item)
        elif isinstance(item, Choice):
            pending += [inner for option in item.options for inner in option]


class _Analysis:
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
        """Counts work. Raises ``_TooLarge`` when it was too much."""
        self._n_work += n
        if self._n_work > MAX_WORK:
            raise _TooLarge

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
            raise _TooLarge
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
                return _union(first for first, _ in found), any(empty for _, empty in found)
        raise _TooLarge  # a token

    def first_of(self, run: Run, depth: int = 0) -> tuple[Set, bool]:
        """The same for a sequence."""
        first: Set = 0
        for item in run:
            more, empty = self._first(item, depth + 1)
            first |= more
            if not empty:
                return first, False
        return first, True

    def clashes(self, cut: Cut, root: Choice) -> list[tuple[Run, Run]]:
        """Runs for which greed would matter, with the sequences they stand in."""
        follows = _Follows(self, cut, self._grammar)
        automaton = _Automaton(self, self._grammar, list(follows.after))
        found = automaton.clashes(follows.after)
        return [(run, sequence) for run in found for sequence in follows.sequences[run]]


class _Follows:
    """What may come after each run: ``after``, and in which ``sequences`` it stands."""

    def __init__(self, analysis: _Analysis, cut: Cut, grammar: Grammar) -> None:
        self._analysis = analysis
        self._cut = cut
        self.after: dict[Run, Set] = {}
        self.sequences: dict[Run, set[Run]] = defaultdict(set)
        self._after_rule: dict[str, Set] = {}
        self._visit((Ref("root"),), 0)
        while True:
            before = (dict(self.after), dict(self._after_rule))
            for name, after in before[1].items():
                for option in grammar[name].options:
                    self._visit(option, after)
            if before == (self.after, self._after_rule):
                break

    def _visit(self, sequence: Run, after: Set) -> None:
        """Takes in that ``after`` may follow a sequence."""
        for part in reversed(list(self._cut.parts(sequence))):
            self._analysis.spend(1)
            run = part if isinstance(part, tuple) else (part,)
            if isinstance(part, tuple):
                self.after[part] = self.after.get(part, 0) | after
                self.sequences[part].add(sequence)
            first, empty = self._analysis.first_of(run)
            match part:
                case Ref(name):
                    self._after_rule[name] = self._after_rule.get(name, 0) | after
                case Repeat(inner, _, high) if high != 0:
                    self._visit((inner,), after | first)
                case Choice(options):
                    for option in options:
                        self._visit(option, after)
            after = first | after if empty else first


class _Automaton:
    """All runs side by side, as an automaton with moves on characters and free moves."""

    def __init__(self, analysis: _Analysis, grammar: Grammar, runs: list[Run]) -> None:
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
        left, targets = _union(chars for chars, _, _ in moves), set()
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
            raise _TooLarge
        self._moves.append([])
        self._free.append([])
        self._owner.append(self._run)
        return len(self._moves) - 1

    def _add(self, run: Run, start: int, depth: int) -> int:
        """Puts a sequence behind a state; returns the state behind it."""
        if depth > MAX_DEPTH:
            raise _TooLarge
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
        raise _TooLarge  # a token

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


def _union(sets: Iterable[Set]) -> Set:
    total: Set = 0
    for one in sets:
        total |= one
    return total
