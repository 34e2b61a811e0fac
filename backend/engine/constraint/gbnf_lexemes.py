"""Which parts of a GBNF grammar may be lexemes of llguidance.

Lexemes make masks hundreds of times cheaper than single characters, but llguidance cuts text into
them greedily, which GBNF knows nothing of: with the lexemes ``"a"*`` and ``"ab"`` an answer to
``"a"* "ab"`` would never end. A part may be a lexeme when greed cannot matter: wherever it may
end, no character that may follow it continues it or any other lexeme. Where that does not hold the
parts concerned are cut smaller, in the end to single characters, for which it always does.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from corral.backend.engine.constraint.gbnf import (
    Chars,
    Choice,
    Grammar,
    Item,
    Ref,
    Repeat,
    Run,
    Token,
    inside,
)
from corral.backend.engine.constraint.gbnf_automaton import (
    Analysis,
    Automaton,
    Set,
    TooLarge,
)

#: Sizes up to which parts are looked for.
MAX_RULES: Final = 300
MAX_ITEMS: Final = 3_000
#: Repetitions in one lexeme: its automaton in llguidance grows with their square.
MAX_REPEATS: Final = 1_000


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
        analysis = Analysis(grammar, every)
        while clashes := _clashes(analysis, cut, grammar):
            for run, sequence in clashes:
                cut.open(run, sequence)
    except TooLarge:
        return None
    return cut


def _clashes(analysis: Analysis, cut: Cut, grammar: Grammar) -> list[tuple[Run, Run]]:
    """Runs for which greed would matter, with the sequences they stand in."""
    follows = _Follows(analysis, cut, grammar)
    found = Automaton(analysis, grammar, list(follows.after)).clashes(follows.after)
    return [(run, sequence) for run in found for sequence in follows.sequences[run]]


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


class _Follows:
    """What may come after each run: ``after``, and in which ``sequences`` it stands."""

    def __init__(self, analysis: Analysis, cut: Cut, grammar: Grammar) -> None:
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
                    self._visit((inner,), after if high == 1 else after | first)
                case Choice(options):
                    for option in options:
                        self._visit(option, after)
            after = first | after if empty else first
