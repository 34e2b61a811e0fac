"""What an answer must match: a JSON Schema or a grammar, as a set of tokens for each next place.

``compile`` is slow (up to a second or so) and belongs on the text thread; a ``Constrained`` is
owned by the step thread. Knows no model and no request, only a vocabulary.
"""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Protocol, TypeVar

import llguidance
import numpy as np
from numpy.typing import NDArray

from corral.backend.engine.constraint import calls, gbnf_lark, schema
from corral.backend.engine.constraint.errors import BadConstraint
from corral.backend.engine.messages import Constraint

__all__ = ["BadConstraint", "Constrained", "ConstraintFailed", "Vocabulary", "compile_constraint"]

#: Characters of a constraint's source. To tokenise a forced text of this length takes 0.5 s.
MAX_SOURCE: Final = 1 << 18
#: Characters of a regular expression: automata grow with its square, unbounded by llguidance.
MAX_REGEX: Final = 4_096
#: Repetitions in a Lark grammar, all together, for the same reason.
MAX_LARK_REPEATS: Final = 2_000
#: How hard a grammar may be to compile and to follow, in llguidance's units. Walking all tokens
#: ahead of time for large lexemes is not covered by its fuel, and took 9 s for a bad one.
LIMITS: Final = llguidance.LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_items_in_row=2_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    precompute_large_lexemes=False,
    verbose_errors=False,
)


T = TypeVar("T")

#: The size of stacks is one for the whole process, and more than one thread compiles.
_stack_size = threading.Lock()


class ConstraintFailed(Exception):
    """The constraint could not be followed to its end; the message is meant for the client."""


class Texts(Protocol):
    """What a constraint needs of a model: ``llama.Llama`` or ``fake.FakeLlama``."""

    n_vocab: int

    @property
    def eog_tokens(self) -> frozenset[int]: ...
    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...
    def piece(self, token: int, *, special: bool = False) -> bytes: ...


class Vocabulary:
    """A model's tokens as llguidance wants them. ``prepare`` costs about 0.2 s and 20 MB for 49k
    tokens, 1.2 s and 120 MB for 262k, during which no other Python runs: best done at start."""

    def __init__(self, texts: Texts) -> None:
        self.n_vocab = texts.n_vocab
        self._texts = texts

    def prepare(self) -> None:
        """Builds what the first constrained request would have to wait for."""
        _ = self.tokenizer

    @property
    def tokenizer(self) -> llguidance.LLTokenizer:
        """llguidance's prefix tree over the vocabulary."""
        return self._built[0]

    @property
    def control_tokens(self) -> dict[str, int]:
        """Tokens that stand for no text in an answer, by their names."""
        return self._built[1]

    @functools.cached_property
    def _built(self) -> tuple[llguidance.LLTokenizer, dict[str, int]]:
        tokens = _Tokens(self._texts)
        tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(tokens),
            n_vocab=self.n_vocab,
            eos_token=sorted(self._texts.eog_tokens),
        )
        ids = reversed(tokens.special_token_ids)  # the first of a name counts
        return tokenizer, {tokens.tokens[t].decode("utf-8", "replace"): t for t in ids}

    @functools.cached_property
    def ends(self) -> NDArray[np.int32]:
        """The mask of the tokens that end a generation, and no other."""
        bits = np.zeros((self.n_vocab + 31) // 32 * 32, np.uint8)
        bits[sorted(self._texts.eog_tokens)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)


class _Tokens:
    """The vocabulary with the names llguidance looks for.

    A token is special when it stands for no text in an answer (control tokens): a constraint on
    text never allows it, a grammar may name it.
    """

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self.eos_token_id = min(texts.eog_tokens, default=0)
        self.bos_token_id = None
        self.tokens: list[bytes] = []
        self.special_token_ids: list[int] = []
        for token in range(texts.n_vocab):
            piece = texts.piece(token)
            if not piece and (name := texts.piece(token, special=True)):
                self.special_token_ids.append(token)
                piece = name
            self.tokens.append(piece)

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokens of a text inside an answer, whose pieces are exactly that text.

        Some tokenizers put a space in front of a text, or change it; such tokens would not match
        what the grammar forces, so the text is then spelled with the longest pieces.
        """
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        tokens = self._texts.tokenize(text, add_special=False, parse_special=False)
        data = text.encode()
        if b"".join([self.tokens[t] for t in tokens]) == data:
            return tokens
        # Behind a line break no tokenizer adds anything; the line break is then taken off again.
        tokens = self._texts.tokenize("\n" + text, add_special=False, parse_special=False)
        for start in range(1, min(3, len(tokens)) + 1):
            if b"".join([self.tokens[t] for t in tokens[start:]]) == data:
                return tokens[start:]
        return self._spell(data)

    @functools.cached_property
    def _by_piece(self) -> dict[bytes, int]:
        special = set(self.special_token_ids)
        return {p: t for t, p in enumerate(self.tokens) if p and t not in special}

    def _spell(self, data: bytes) -> list[int]:
        longest, tokens, start = 64, [], 0
        while start < len(data):
            for end in range(min(len(data), start + longest), start, -1):
                if (token := self._by_piece.get(data[start:end])) is not None:
                    tokens.append(token)
                    start = end
                    break
            else:
                return []  # a vocabulary without some byte: llguidance then forces nothing
        return tokens


class Constrained:
    """Where one answer stands in its constraint. Owned by the step thread.

    In each step: ``must_stop`` ends the answer; else choose a token that ``allows`` or ``apply``
    leave, ``accept`` it, and then ``forced`` may give tokens that can follow without being chosen
    (each is to be ``accept``ed likewise).
    """

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: Vocabulary) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._n_vocab = vocabulary.n_vocab
        self._mask: NDArray[np.int32] = np.zeros((self._n_vocab + 31) // 32, np.int32)
        self._bytes = self._mask.view(np.uint8)
        self._is_filled = False

    def copy(self) -> "Constrained":
        """Another answer at the same place; the compiled grammar is shared."""
        return Constrained(self._matcher.deep_copy(), self._vocabulary)

    @property
    def must_stop(self) -> bool:
        """The answer is complete and nothing may follow."""
        if self._matcher.is_error() or not self._matcher.is_accepting():
            return False
        if self._matcher.is_stopped():
            return True
        # llguidance does not see it when only empty rules are left.
        try:
            return bool(np.array_equal(self.mask(), self._vocabulary.ends))
        except ConstraintFailed:
            return False  # and is raised again by the next call

    @property
    def may_stop(self) -> bool:
        """The answer would be complete here; the tokens that end a generation are allowed."""
        return bool(self._matcher.is_accepting())

    def mask(self) -> NDArray[np.int32]:
        """One bit a token, lowest bit first, set where the token may come next; shape
        (ceil(n_vocab / 32),). Valid until the next ``accept``. Raises ``ConstraintFailed``."""
        if not self._is_filled:
            self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
            self._check()
            self._is_filled = True
        return self._mask

    def allows(self, token: int) -> bool:
        """Whether a token may come next. Raises ``ConstraintFailed``."""
        return bool(self.mask()[token >> 5] >> (token & 31) & 1)

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Sets the logits of all other tokens to -inf; shape (n_vocab,). Raises
        ``ConstraintFailed``."""
        self.mask()
        allowed = np.unpackbits(self._bytes, count=self._n_vocab, bitorder="little")
        np.putmask(logits, allowed == 0, -np.inf)

    def accept(self, token: int) -> None:
        """Goes on by a token that was chosen. Raises ``ConstraintFailed`` when it is not allowed
        here."""
        self._is_filled = False
        if not self._matcher.consume_token(token):
            self._check()
            raise ConstraintFailed(f"token {token} does not fit the constraint")

    def forced(self) -> list[int]:
        """The tokens that must come next, as the model's own tokenizer would write them; mostly
        none. Does not accept them. Raises ``ConstraintFailed``."""
        tokens = list(self._matcher.compute_ff_tokens())
        self._check()
        return tokens

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ConstraintFailed(_plain(self._matcher.get_error()))


def compile_constraint(constraint: Constraint, vocabulary: Vocabulary) -> Constrained:
    """A constraint at its beginning. Raises ``BadConstraint``, which names the place at fault."""
    name, source = _NAMES[constraint.kind], constraint.source
    if len(source) > (limit := MAX_REGEX if constraint.kind == "regex" else MAX_SOURCE):
        raise BadConstraint(f"is longer than {limit} characters", name)
    tokenizer = vocabulary.tokenizer
    if constraint.kind == "calls":
        grammar = calls.translate(source, vocabulary.control_tokens)
    else:
        grammar = _TRANSLATORS[constraint.kind](source)

    def build() -> Constrained | str:
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            return matcher.get_error().strip()
        made = Constrained(matcher, vocabulary)
        try:
            # Some grammars only show here that nothing matches them, or that they are too hard.
            made.forced()
            made.mask()
        except ConstraintFailed as error:
            return str(error)
        return made

    made = _on_deep_stack(build, len(source))
    if isinstance(made, Constrained):
        return made
    if constraint.kind == "calls":
        raise _on_deep_stack(lambda: calls.locate(source, made), len(source))
    if constraint.kind == "json_schema":
        name = schema.place(_on_deep_stack(lambda: schema.locate(source, made), len(source)))
    raise BadConstraint(_plain(made), name)


def _on_deep_stack(call: Callable[[], T], n_chars: int) -> T:
    """Runs a call on a stack that grows with the source: llguidance recurses along chains of rules
    and references, up to 0.8 KB a character, and a stack that overflows ends the process."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 raised again where it is waited for
            future.set_exception(error)

    thread = threading.Thread(target=run, name="constraint")
    with _stack_size:
        before = threading.stack_size((8 << 20) + n_chars * 2048 // 4096 * 4096)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return future.result()


def _plain(message: str) -> str:
    """llguidance's message without its state and its hints for programmers."""
    text = message.split("<non-verbose/>")[0].split("<state>")[0].strip()
    if text.startswith("NoExtension"):
        return "nothing can match it"
    if text.startswith("panic"):
        return "it is too large"
    if text.startswith("oneOf"):
        return (
            "it is not certain that the options of oneOf exclude each other: give each a required "
            "property with a const of its own, or use anyOf"
        )
    return text[:500]


def _lark(source: str) -> str:
    if sum(map(source.count, "*+?~")) > MAX_LARK_REPEATS:
        raise BadConstraint(f"holds more than {MAX_LARK_REPEATS} repetitions", "lark")
    return llguidance.LLMatcher.grammar_from_lark(source)


_NAMES: Final = {
    "json_schema": "json_schema",
    "gbnf": "grammar",
    "lark": "lark",
    "regex": "regex",
    "calls": "tools",
}
_TRANSLATORS: Final[dict[str, Callable[[str], str]]] = {
    "json_schema": schema.translate,
    "gbnf": gbnf_lark.translate,
    "lark": _lark,
    "regex": llguidance.LLMatcher.grammar_from_regex,
}
