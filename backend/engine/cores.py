"""What one model's engine can do, behind one engine's verbs: generate, compute vectors, rank. They
take turns, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec.structs import astuple, replace

from corral.backend.engine.admission import Admitted
from corral.backend.engine.core import EngineCore
from corral.backend.engine.embedding import AdmittedEmbed, EmbeddingCore
from corral.backend.engine.messages import (
    Add,
    Counters,
    Embed,
    Failed,
    Media,
    ModelInfo,
    Output,
    Prompt,
    Snapshot,
    Step,
)

AnyAdmitted: TypeAlias = Admitted | AdmittedEmbed

_NO_TEXT = "this model computes vectors or scores of texts and generates none"
_NO_VECTORS = "this server computes no vectors; serve an embedding model or start with --embeddings"
_NO_SCORES = "this server ranks no documents; serve a model that does, with --reranking if need be"


class Cores:
    """One or more of the three; what takes one that is not there is refused.

    ``room`` gives how many tokens of inputs may be computed beside that many running answers.
    """

    def __init__(
        self,
        *,
        generation: EngineCore | None = None,
        vectors: EmbeddingCore | None = None,
        scores: EmbeddingCore | None = None,
        room: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        self.generation = generation
        self._vectors = vectors
        self._scores = scores
        self._room = room
        self._embedding = [c for c in (vectors, scores) if c is not None]
        assert generation is not None or self._embedding

    def describe(self, info: ModelInfo) -> ModelInfo:
        """The model's description with what is served of it."""
        core = self._vectors or self._scores
        if core is None:
            return info
        model = core.model
        return replace(
            info,
            generates=self.generation is not None,
            pooling=model.pooling,
            ranks=self._scores is not None,
            n_embd_out=model.width,
            n_input=model.n_input,
        )

    # --- requests come ----------------------------------------------------------------------------

    def admit(self, command: Add | Embed) -> AnyAdmitted | Failed:
        """See ``EngineCore.admit`` and ``EmbeddingCore.admit``. For one other thread."""
        if isinstance(command, Add):
            if self.generation is None:
                return Failed(command.id, "unsupported", _NO_TEXT)
            return self.generation.admit(command)
        core = self._core_for(command)
        if core is None:
            message = _NO_VECTORS if command.query is None else _NO_SCORES
            return Failed(command.id, "not_supported", message)
        return core.admit(command)

    def prompt_tokens(self, prompt: Prompt, media: Sequence[Media]) -> list[int] | None:
        """See ``EngineCore.prompt_tokens``; None: this engine generates nothing."""
        return None if self.generation is None else self.generation.prompt_tokens(prompt, media)

    def add(self, admitted: AnyAdmitted) -> None:
        """Queues a request that ``admit`` let in."""
        if isinstance(admitted, AdmittedEmbed):
            core = self._core_for(admitted.embed)
            assert core is not None
            core.add(admitted)
        else:
            assert self.generation is not None
            self.generation.add(admitted)

    def _core_for(self, embed: Embed) -> EmbeddingCore | None:
        # A model that ranks pairs also says what it makes of a single text.
        return self._scores if embed.query is not None else self._vectors or self._scores

    def abort(self, request_id: int) -> bool:
        """Ends a request, whoever has it. False if unknown."""
        if self.generation is not None and self.generation.abort(request_id):
            return True
        return any(core.abort(request_id) for core in self._embedding)

    def end_thinking(self, request_id: int) -> bool:
        """See ``EngineCore.end_thinking``."""
        return self.generation is not None and self.generation.end_thinking(request_id)

    # --- steps ------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would do anything."""
        return self._generates or any(core.has_work for core in self._embedding)

    @property
    def _generates(self) -> bool:
        return self.generation is not None and self.generation.has_work

    def step(self) -> list[Output]:
        """A step of each that has something to do."""
        outputs: list[Output] = []
        room = None
        if self.generation is not None and self.generation.has_work:
            outputs += self.generation.step()
            room = self._room(self.generation.scheduler.n_generating)
        for core in self._embedding:
            if core.has_work:
                outputs += core.step(room)
        return outputs

    def drain(self) -> list[Output]:
        """What ended or began since the last step."""
        outputs = [] if self.generation is None else self.generation.drain()
        for core in self._embedding:
            outputs += core.drain()
        return outputs

    # --- looking in -------------------------------------------------------------------------------

    def report(self, outputs: list[Output]) -> Step | None:
        """A step's outputs for the server, with a snapshot when one is due."""
        first = self.generation or self._embedding[0]
        step = first.report(outputs)
        if step is None or step.snapshot is None:
            return step
        return replace(step, snapshot=self._with_embedding(step.snapshot))

    def snapshot(self) -> Snapshot:
        """All as it is now. Inputs being computed beside a generating model have rows of their own,
        behind its slots."""
        first = self.generation or self._embedding[0]
        return self._with_embedding(first.snapshot())

    def _with_embedding(self, snapshot: Snapshot) -> Snapshot:
        others = self._embedding if self.generation is not None else self._embedding[1:]
        slots, waiting, counters = list(snapshot.slots), list(snapshot.waiting), snapshot.counters
        for core in others:
            found = core.snapshot()
            busy = [row for row in found.slots if row.state != "idle"]
            slots += [replace(row, id=len(slots) + i) for i, row in enumerate(busy)]
            waiting += found.waiting
            sums = zip(astuple(counters), astuple(found.counters), strict=True)
            counters = Counters(*(a + b for a, b in sums))
        return replace(snapshot, slots=slots, waiting=waiting, counters=counters)
