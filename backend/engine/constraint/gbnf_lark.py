"""GBNF for llguidance, as a Lark grammar.

llguidance cuts a text into lexemes greedily, which GBNF knows nothing of: with lexemes ``"a"*
"ab"`` would never end. So a grammar is one lexeme where it can be, when no rule leads back to
itself, and else every single character is one; both mean exactly what GBNF means.
"""

from collections.abc import Iterator
from typing import Final

from llguidance import LLMatcher

from corral.backend.engine.constraint.gbnf import (
    Chars,
    Choice,
    Grammar,
    Item,
    Ref,
    Repeat,
    Token,
    parse,
)

#: Repetitions in one lexeme: its automaton grows with their square.
MAX_LEXEME_REPEATS: Final = 1_000


def translate(source: str) -> str:
    """llguidance's grammar for a GBNF grammar. Raises ``BadConstraint``."""
    grammar = parse(source)
    lines = _Writer(grammar, as_lexeme=is_lexeme(grammar)).lines()
    return LLMatcher.grammar_from_lark("\n".join(lines))


def is_lexeme(grammar: Grammar) -> bool:
    """Whether no rule leads back to itself and no token is named, so that a regular expression
    could say the same, and one of a bearable size."""
    n_repeats = 0
    n_uses = dict.fromkeys(grammar, 0)
    below: dict[str, list[str]] = {}
    for name, choice in grammar.items():
        refs = []
        for item in items(choice):
            n_repeats += isinstance(item, Repeat)
            if isinstance(item, Token) or n_repeats > MAX_LEXEME_REPEATS:
                return False
            if isinstance(item, Ref):
                refs.append(item.name)
                n_uses[item.name] += 1
        below[name] = refs
    free = [name for name, n in n_uses.items() if n == 0]
    n_free = 0
    while free:
        n_free += 1
        for name in below[free.pop()]:
            n_uses[name] -= 1
            if n_uses[name] == 0:
                free.append(name)
    return n_free == len(grammar)


def items(choice: Choice) -> Iterator[Item]:
    """Everything inside a rule, at any depth."""
    pending: list[Item] = [choice]
    while pending:
        item = pending.pop()
        yield item
        if isinstance(item, Repeat):
            pending.append(item.item)
        elif isinstance(item, Choice):
            pending += [inner for option in item.options for inner in option]


class _Writer:
    """Every group becomes a rule of its own, so that the Lark text is not nested. Names in capitals
    are parts of a lexeme."""

    def __init__(self, grammar: Grammar, *, as_lexeme: bool) -> None:
        self._rule, self._groups = ("R", "G") if as_lexeme else ("r", "g")
        self._names = {name: f"{self._rule}{i}" for i, name in enumerate(grammar)}
        self._pending = [(self._names[name], choice) for name, choice in grammar.items()]
        self._n_groups = 0

    def lines(self) -> Iterator[str]:
        """The rules of the Lark grammar."""
        yield f"start: {self._names['root']}"
        while self._pending:
            name, choice = self._pending.pop()
            options = [" ".join(map(self._item, option)) or '""' for option in choice.options]
            yield f"{name}: {' | '.join(options)}"

    def _item(self, item: Item) -> str:
        match item:
            case Chars():
                return characters(item)
            case Ref(name):
                return self._names[name]
            case Token(text):
                return text
            case Repeat(_, _, 0):
                return '""'
            case Repeat(inner, low, high):
                if isinstance(inner, Repeat):
                    inner = Choice(((inner,),))
                return f"{self._item(inner)}{_times(low, high)}"
            case Choice():
                return self._group(item)

    def _group(self, choice: Choice) -> str:
        self._n_groups += 1
        name = f"{self._groups}{self._n_groups}"
        self._pending.append((name, choice))
        return name


def characters(chars: Chars) -> str:
    """A regular expression for one character."""
    inside = "".join(
        f"\\x{{{low:X}}}" if low == high else f"\\x{{{low:X}}}-\\x{{{high:X}}}"
        for low, high in chars.ranges
    )
    return f"/[{inside}]/"


def _times(low: int, high: int | None) -> str:
    plain = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
    return plain or f"{{{low},{'' if high is None else high}}}"
