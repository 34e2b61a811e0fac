"""From events to the Responses API's objects and stream events. The same events give the same
structs; the clock is handed in."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from corral.backend.api.answer import Answer, Block, Wishes
from corral.backend.api.probs import TokenLogprob, for_chat
from corral.backend.api.responses_blocks import Blocks
from corral.backend.api.responses_events import ResponseEvent, StreamErrorEvent
from corral.backend.api.responses_object import (
    IncompleteDetails,
    InputDetails,
    OutputDetails,
    ResponseFault,
    ResponseObject,
    ResponseUsage,
)
from corral.backend.api.responses_schema import ResponsesBody
from corral.backend.api.timings import wire_progress, wire_timings
from corral.backend.chat.types import Event, Finished, Reading, Text
from corral.backend.engine.messages import FinishKind
from corral.backend.errors import CorralError

_STATUS: dict[FinishKind, str] = {
    "eos": "completed",
    "word": "completed",
    "limit": "incomplete",
    "cancelled": "cancelled",
}


class Facts(Struct, frozen=True, kw_only=True):
    """What is known of a response before it begins. ``suffix`` is what its id and those of its
    items share; ``temperature`` and ``top_p`` are those in force."""

    suffix: str
    created_at: int
    model: str
    body: ResponsesBody
    temperature: float
    top_p: float

    @property
    def id(self) -> str:
        """The response's name."""
        return f"resp_{self.suffix}"

    def item_id(self, prefix: str, number: int) -> str:
        """The name of an item of its input or output."""
        return f"{prefix}_{self.suffix}{number:04x}"


def usage(answer: Answer) -> ResponseUsage:
    """Token counts of a request."""
    t = answer.last.timings
    return ResponseUsage(
        input_tokens=t.n_prompt,
        input_tokens_details=InputDetails(cached_tokens=t.n_cached),
        output_tokens=t.n_generated,
        output_tokens_details=OutputDetails(reasoning_tokens=answer.n_reasoning),
        total_tokens=t.n_prompt + t.n_generated,
    )


class ResponsesRender:
    """One response, whole and streamed. Owned by the request's task.

    ``final`` is the response once it has ended: it is made once, so that what is kept and what is
    sent are the same.
    """

    says_done = False
    names_events = True

    def __init__(self, facts: Facts, wishes: Wishes, now_s: Callable[[], float]) -> None:
        self.facts = facts
        self.wishes = wishes
        self.final: ResponseObject | None = None
        self._now_s = now_s
        self._n_sent = 0
        self._answer: Answer | None = None
        self._blocks = Blocks(facts.item_id, self._next, self._logprobs)

    # --- the response as it stands ----------------------------------------------------------------

    def standing(self, status: str = "in_progress") -> ResponseObject:
        """The response without what comes of it."""
        body = self.facts.body
        text = body.text
        reasoning = body.reasoning
        return ResponseObject(
            id=self.facts.id,
            created_at=self.facts.created_at,
            status=status,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            max_tool_calls=body.max_tool_calls,
            metadata=body.metadata or {},
            model=self.facts.model,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            prompt_cache_key=body.prompt_cache_key,
            prompt_cache_retention=body.prompt_cache_retention,
            reasoning={
                "effort": None if reasoning is None else reasoning.effort,
                "summary": None if reasoning is None else reasoning.summary,
            },
            safety_identifier=body.safety_identifier,
            store=body.store is not False,
            temperature=self.facts.temperature,
            text={
                "format": (None if text is None else text.format) or {"type": "text"},
                "verbosity": (None if text is None else text.verbosity) or "medium",
            },
            tool_choice=body.tool_choice or "auto",
            tools=body.tools or [],
            top_logprobs=body.top_logprobs or 0,
            top_p=self.facts.top_p,
            user=body.user,
        )

    def so_far(self) -> ResponseObject:
        """The response for those who ask while it runs."""
        if self.final is not None:
            return self.final
        output = [] if self._answer is None else self._output(self._answer, "in_progress")
        return replace(self.standing(), output=output)

    def complete(self, answer: Answer) -> ResponseObject:
        """The response when its answer has ended."""
        if self.final is None:
            end = answer.last
            status = _STATUS[end.finish]
            self.final = replace(
                self.standing(status),
                completed_at=int(self._now_s()) if status == "completed" else None,
                incomplete_details=(
                    IncompleteDetails("max_output_tokens") if status == "incomplete" else None
                ),
                output=self._output(answer, _item_status(end)),
                usage=usage(answer),
                timings=wire_timings(end.timings),
                seed=end.seed,
            )
        return self.final

    def broken(self, error: CorralError) -> ResponseObject:
        """The response when it failed, be it only at keeping it."""
        if self.final is None or self.final.status != "failed":
            output = [] if self._answer is None else self._output(self._answer, "incomplete")
            fault = ResponseFault(message=error.message)
            self.final = replace(self.standing("failed"), error=fault, output=output)
        return self.final

    def _output(self, answer: Answer, status: str) -> list[dict[str, Any]]:
        blocks = answer.blocks or [Block("text")]  # an answer of nothing is an empty message
        last = len(blocks) - 1
        return [
            self._blocks.item(block, i, status if i == last else "completed")
            for i, block in enumerate(blocks)
        ]

    def _logprobs(self, block: Block, start: int) -> list[TokenLogprob]:
        shape = self.wishes.probs
        return [] if shape is None else for_chat(block.probs[start:], shape).content

    # --- Render -----------------------------------------------------------------------------------

    def opening(self) -> Sequence[Struct]:
        """The response, before anything is known of it."""
        return [self._stage("response.created"), self._stage("response.in_progress")]

    def chunks(self, event: Event, answer: Answer) -> Sequence[Struct]:
        """An event's stream events; see ``Render``."""
        self._answer = answer
        match event:
            case Reading() if self.wishes.progress:
                seen = replace(self.standing(), prompt_progress=wire_progress(event))
                return [self._stage("response.in_progress", seen)]
            case Text(timings=timings):
                times = wire_timings(timings) if self.wishes.timings else UNSET
                return list(self._blocks.show(answer.blocks, times))
            case Finished():
                blocks = answer.blocks or [Block("text")]
                shown = self._blocks.show(blocks, UNSET)
                return [*shown, *self._blocks.close(_item_status(event))]
            case _:
                return []

    def closing(self, answers: Sequence[Answer]) -> Sequence[Struct]:
        """The whole response."""
        final = self.complete(answers[0])
        # There is no event for a cancelled one; it is as incomplete as one that was cut.
        kind = "completed" if final.status == "completed" else "incomplete"
        return [self._stage(f"response.{kind}", final)]

    def reply(self, answers: Sequence[Answer]) -> ResponseObject:
        """The whole response; see ``Render``."""
        return self.complete(answers[0])

    def failure(self, error: CorralError) -> Sequence[Struct]:
        """What went wrong, and the response it was for."""
        fault = StreamErrorEvent(
            type="error",
            sequence_number=self._next(),
            code=error.wire.code,
            message=error.message,
            param=error.param,
        )
        return [fault, self._stage("response.failed", self.broken(error))]

    # --- events -----------------------------------------------------------------------------------

    def _next(self) -> int:
        self._n_sent += 1
        return self._n_sent - 1

    def _stage(self, kind: str, response: ResponseObject | None = None) -> ResponseEvent:
        return ResponseEvent(
            type=kind, sequence_number=self._next(), response=response or self.standing()
        )


def _item_status(end: Finished) -> str:
    return "completed" if _STATUS[end.finish] == "completed" else "incomplete"
