"""One request's tokens and where it stands. Owned by the step thread; no locks."""

from array import array
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from corral.backend.engine.constraint import Constrained
from corral.backend.engine.detokenize import Detokenizer
from corral.backend.engine.lines import Lines
from corral.backend.engine.media import Layout, Placed
from corral.backend.engine.messages import AdapterSet, Add, TokenProbs
from corral.backend.engine.reasoning import Reasoning

PROBS_CHUNK = 32


class Sequence:
    """A request on its way. ``tokens`` are the prompt and what was generated; the first
    ``n_computed`` of them are in the cache under ``seq_id`` (-1: none)."""

    def __init__(
        self,
        add: Add,
        tokens: list[int],
        *,
        order: int,
        now: float = 0.0,
        sampler: Any = None,
        seed: int = 0,
        constraint: Constrained | None = None,
        adapters: AdapterSet = (),
        marks: Mapping[int, str] = MappingProxyType({}),
        reasoning: Reasoning | None = None,
        layout: Layout | None = None,
    ) -> None:
        self.add = add
        self.id = add.id
        self.order = order
        self.tokens = array("i", tokens)
        self.n_prompt = len(tokens)
        self.n_computed = 0
        self.n_cached = 0
        self.seq_id = -1
        self.slot = -1
        # The older sequence whose computation of the first n tokens this one waits for.
        self.leader: tuple[Sequence, int] | None = None
        self.text = Detokenizer(add.stop)
        self.lines = Lines(add.n_indent, add.t_max_predict_ms)
        self.sampler = sampler
        self.seed = seed
        self.constraint = constraint
        self.marks = marks  # tags by their token
        self.reasoning = reasoning
        self.layout = layout  # of its pictures and sounds
        self.shifts = () if layout is None else layout.shifts
        self.adapters = adapters  # the LoRA set it is computed with
        self.n_reported = -1  # prompt tokens in the last Progress
        self.unsent: list[int] = []
        self.unsent_probs: list[TokenProbs] = []
        self.n_prompt_probs = 0  # prompt tokens whose probabilities were sent
        self.n_discarded = 0  # tokens forgotten by context shifts
        self.n_overtaken = 0  # younger requests that were let in before this one
        self.arrived_s = now
        self.started_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s = now

    @property
    def n_generated(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) + self.n_discarded - self.n_prompt

    @property
    def binding(self) -> Constrained | None:
        """What the next token must match. A constraint is about the answer, not about reasoning
        before it, but for a grammar that knows of reasoning itself."""
        if self.reasoning is None or self._has_whole_grammar or not self.reasoning.is_free:
            return self.constraint
        return None

    @property
    def may_reason(self) -> bool:
        """Reasoning may begin with the next token, whatever the constraint says."""
        return self.reasoning is not None and not self._has_whole_grammar and self.n_generated == 0

    @property
    def _has_whole_grammar(self) -> bool:
        return self.add.constraint is not None and self.add.constraint.kind == "calls"

    @property
    def max_chunk(self) -> int:
        """Most tokens to compute in one call: each with its logits takes the vocabulary's size, and
        text and items are never computed together."""
        if self.layout is not None:
            return self.layout.n_alike(self.n_computed)
        return PROBS_CHUNK if self.add.prompt_probs else 1 << 30

    @property
    def item(self) -> Placed | None:
        """The picture or sound, or part of one, that the next token belongs to."""
        return None if self.layout is None else self.layout.at(self.n_computed)

    @property
    def is_blind(self) -> bool:
        """An item comes next that has to be encoded first."""
        placed = self.item
        return placed is not None and placed.item.rows is None

    @property
    def n_left(self) -> int:
        """Tokens that are known but not in the cache."""
        return len(self.tokens) - self.n_computed

    @property
    def is_reading(self) -> bool:
        """Still computing known tokens (the prompt, or all of them after a preemption)."""
        return self.n_generated == 0 or self.n_left > 1

    @property
    def is_running(self) -> bool:
        """Holds a slot."""
        return self.slot >= 0
