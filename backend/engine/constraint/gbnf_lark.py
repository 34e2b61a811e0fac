"""GBNF for llguidance, as a Lark grammar."""

from collections.abc import Iterator

from llguidance import LLMatcher

from corral.backend.engine.constraint.gbnf import (
    Chars,
    Choice,
    Grammar,
    Item,
    Ref,
    Repeat,
    Run,
    Token,
    parse,
)
from corral.backend.engine.constraint.gbnf_lexemes import Cut, lexemes


def translate(source: str) -> str:
    """llguidance's grammar for a GBNF grammar. Raises ``BadConstraint``."""
    grammar = parse(source)
    return LLMatcher.grammar_from_lark("\n".join(Writer(grammar, lexemes(grammar)).lines()))


class Writer:
    """Every group becomes a rule of its own, so that the Lark text is not nested. Names in capitals
    are lexemes and their parts. Without a ``cut`` only single characters are lexemes."""

    def __init__(self, grammar: Grammar, cut: Cut | None) -> None:
        self._grammar = grammar
        self._cut = cut
        self._numbers = {name: i for i, name in enumerate(grammar)}
        self._names: dict[tuple[Choice | str, bool], str] = {}
        self._pending: list[tuple[str, Choice, bool]] = []

    def lines(self) -> Iterator[str]:
        """The rules of the Lark grammar."""
        yield f"start: {self._sequence((Ref('root'),), in_lexeme=False)}"
        while self._pending:
            name, choice, in_lexeme = self._pending.pop()
            options = [self._sequence(o, in_lexeme=in_lexeme) or '""' for o in choice.options]
            yield f"{name}: {' | '.join(options)}"

    def _sequence(self, sequence: Run, *, in_lexeme: bool) -> str:
        if in_lexeme or self._cut is None:
            return " ".join(self._item(item, in_lexeme=in_lexeme) for item in sequence)
        return " ".join(
            self._lexeme(part) if isinstance(part, tuple) else self._item(part, in_lexeme=False)
            for part in self._cut.parts(sequence)
        )

    def _lexeme(self, run: Run) -> str:
        if len(run) == 1 and isinstance(run[0], Chars):
            return characters(run[0])
        return self._group(Choice((run,)), in_lexeme=True)

    def _item(self, item: Item, *, in_lexeme: bool) -> str:
        match item:
            case Chars():
                return characters(item)
            case Ref(name):
                key = (name, in_lexeme)
                if key not in self._names:
                    self._names[key] = f"{'R' if in_lexeme else 'r'}{self._numbers[name]}"
                    self._pending.append((self._names[key], self._grammar[name], in_lexeme))
                return self._names[key]
            case Token(text):
                return text
            case Repeat(_, _, 0):
                return '""'
            case Repeat(inner, low, high):
                return f"{self._atom(inner, in_lexeme=in_lexeme)}{_times(low, high)}"
            case Choice():
                return self._group(item, in_lexeme=in_lexeme)

    def _atom(self, item: Item, *, in_lexeme: bool) -> str:
        """What a repetition can stand behind."""
        if isinstance(item, Repeat):
            return self._group(Choice(((item,),)), in_lexeme=in_lexeme)
        if in_lexeme or self._cut is None:
            return self._item(item, in_lexeme=in_lexeme)
        return self._sequence((item,), in_lexeme=False)

    def _group(self, choice: Choice, *, in_lexeme: bool) -> str:
        key = (choice, in_lexeme)
        if key not in self._names:
            self._names[key] = f"{'G' if in_lexeme else 'g'}{len(self._names)}"
            self._pending.append((self._names[key], choice, in_lexeme))
        return self._names[key]


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
