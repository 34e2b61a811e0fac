"""What happens to a request before it may wait for a slot: tokens, limits, sampler, grammar.

Runs on the text thread, so that nothing here holds up a step.
"""

import math
import random
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from corral.backend.engine import sampling
from corral.backend.engine.adapters import lora_problem
from corral.backend.engine.constraint import (
    BadConstraint,
    Constrained,
    Vocabulary,
    compile_constraint,
)
from corral.backend.engine.constraint.checking import Checks
from corral.backend.engine.media import BadMedia, Layout, Part, Reading
from corral.backend.engine.messages import (
    Add,
    Constraint,
    Failed,
    LoraInfo,
    Media,
    Prompt,
    Sampling,
    Verdict,
    Written,
)
from corral.backend.engine.reasoning import Reasoning, marked

#: Compiled constraints kept for requests that ask for the same again.
N_COMPILED = 32


class Words(Protocol):
    """What admission needs of a model; part of ``core.Runner``."""

    # ruff: noqa: D102  documented in llama.Llama

    n_ctx: int
    n_vocab: int
    adapter_infos: list[LoraInfo]

    @property
    def eog_tokens(self) -> frozenset[int]: ...
    @property
    def row_bytes(self) -> int: ...
    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...
    def tokenize_prompt(self, prompt: Prompt) -> list[int]: ...
    def tokenize_stretches(self, prompt: Written) -> list[list[int]]: ...
    def see(self, media: Media) -> list[Part]: ...
    def piece(self, token: int, *, special: bool = False) -> bytes: ...
    def sampler(
        self,
        stages: list[sampling.Stage],
        prompt: Any,
        n_probs: int = 0,
        post_sampling: bool = False,
    ) -> Any: ...


class Admitted(NamedTuple):
    """A request that was tokenised, fits, and has all it needs to run."""

    add: Add
    tokens: list[int]
    seed: int
    sampler: Any
    constraint: Constrained | None
    marks: Mapping[int, str] = MappingProxyType({})
    reasoning: Reasoning | None = None
    layout: Layout | None = None


class Admission:
    """Decides on requests. Owned by one thread. ``media_bytes``: see ``media.Reading``."""

    def __init__(self, words: Words, n_slots: int, *, media_bytes: int = 256 << 20) -> None:
        self._words = words
        self._reading = Reading(words, max_bytes=media_bytes)
        self._n_slots = n_slots
        self._vocabulary = Vocabulary(words)
        self._checks = Checks(self._vocabulary)
        self._compiled: OrderedDict[Constraint, Constrained] = OrderedDict()

    def prepare(self) -> None:
        """Builds what the first constrained request would hold everybody up for."""
        self._vocabulary.prepare()

    def admit(self, add: Add) -> Admitted | Failed:
        """A request with all it needs, or why it cannot run."""
        try:
            tokens, layout = self._reading.read(add.prompt, add.media)
        except BadMedia as error:
            return Failed(add.id, "invalid", str(error), param="prompt")
        bias = self._resolve_bias(add.sampling)
        problem = self._problem(add, tokens, bias)
        if problem is not None:
            return problem
        constraint = None
        if add.constraint is not None:
            try:
                constraint = self._compile(add.constraint)
            except BadConstraint as error:
                return Failed(add.id, "invalid", str(error), param=error.path)
        seed = random.getrandbits(31) if add.sampling.seed is None else add.sampling.seed
        stages = sampling.chain(add.sampling, bias, seed=seed, n_ctx=self._words.n_ctx)
        text = tokens if layout is None else [token for token in tokens if token >= 0]
        sampler = self._words.sampler(
            stages, array("i", text), add.sampling.n_probs, add.sampling.post_sampling_probs
        )
        marks = marked(self._words, add.marks)
        reasoning = None if add.thinking is None else Reasoning(add.thinking, self._words)
        return Admitted(add, tokens, seed, sampler, constraint, marks, reasoning, layout)

    def check(self, constraint: Constraint, then: Callable[[Verdict], None]) -> None:
        """Finds out, meanwhile, whether a constraint could be enforced; see ``Checks``."""
        self._checks.ask(constraint, then)

    def tokens(self, prompt: Prompt, media: Sequence[Media]) -> list[int]:
        """The tokens of a prompt as a request would read them. Raises ``BadMedia``."""
        return self._reading.read(prompt, media)[0]

    def _problem(self, add: Add, tokens: list[int], bias: list[tuple[int, float]]) -> Failed | None:
        n, n_ctx, n_vocab = len(tokens), self._words.n_ctx, self._words.n_vocab
        if n == 0:
            return Failed(add.id, "invalid", "the prompt holds no tokens", param="prompt")
        outside = f"token ids must be from 0 to {n_vocab - 1}"
        if not add.media and any(not 0 <= t < n_vocab for t in tokens):
            return Failed(add.id, "invalid", outside, param="prompt")
        if any(not 0 <= t < n_vocab for t, _ in bias):
            return Failed(add.id, "invalid", outside, param="logit_bias")
        if add.id_slot >= self._n_slots:
            message = f"there are {self._n_slots} slots, numbered from 0"
            return Failed(add.id, "invalid", message, param="id_slot")
        if (problem := self._lora_problem(add)) is not None:
            return Failed(add.id, "invalid", problem, param="lora")
        if add.media and add.prompt_probs:
            message = "probabilities of a prompt with pictures or sounds cannot be had"
            return Failed(add.id, "invalid", message, param="prompt_probs")
        if n >= n_ctx:
            message = f"the prompt has {n} tokens; the context holds {n_ctx}, answer included"
            extra = {"n_prompt_tokens": n, "n_ctx": n_ctx}
            return Failed(add.id, "context_length_exceeded", message, extra, "prompt")
        return None

    def _lora_problem(self, add: Add) -> str | None:
        n = len(self._words.adapter_infos)
        for adapter_id, scale in add.lora or ():
            if problem := lora_problem(n, adapter_id, scale):
                return problem
        return None

    def _resolve_bias(self, asked: Sampling) -> list[tuple[int, float]]:
        bias: list[tuple[int, float]] = []
        for token, value in asked.logit_bias:
            if isinstance(token, int):
                bias.append((token, value))
            else:
                ids = self._words.tokenize(token, add_special=False, parse_special=True)
                bias += [(t, value) for t in ids]
        if asked.ignore_eos:
            bias += [(t, -math.inf) for t in sorted(self._words.eog_tokens)]
        return bias

    def _compile(self, asked: Constraint) -> Constrained:
        """A fresh start of a constraint, compiled once while it is in use."""
        made = self._compiled.pop(asked, None)
        if made is None:
            made = compile_constraint(asked, self._vocabulary)
        self._compiled[asked] = made
        while len(self._compiled) > N_COMPILED:
            self._compiled.popitem(last=False)
        return made.copy()
