"""The items of a response's output and their stream events, one for each block of the answer."""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct, UnsetType

from corral.backend.api.answer import Block, BlockKind
from corral.backend.api.probs import TokenLogprob
from corral.backend.api.responses_events import (
    ArgumentsDeltaEvent,
    ArgumentsDoneEvent,
    ContentPartEvent,
    OutputItemEvent,
    ReasoningDeltaEvent,
    ReasoningDoneEvent,
    TextDeltaEvent,
    TextDoneEvent,
    call_item,
    message_item,
    reasoning_item,
    reasoning_part,
    text_part,
)
from corral.backend.api.timings import WireTimings

_PREFIX: dict[BlockKind, str] = {"text": "msg", "thought": "rs", "call": "fc"}


class Blocks:
    """Tells of blocks as they begin, grow and end. ``item_id`` names item number i of a kind;
    ``next_number`` counts the events; ``logprobs`` shows a block's from token number n on."""

    def __init__(
        self,
        item_id: Callable[[str, int], str],
        next_number: Callable[[], int],
        logprobs: Callable[[Block, int], list[TokenLogprob]],
    ) -> None:
        self._item_id = item_id
        self._next = next_number
        self._logprobs = logprobs
        self._index = -1
        self._block: Block | None = None
        self._kind: BlockKind = "text"
        self._n_pieces = self._n_probs = 0

    def item(self, block: Block, index: int, status: str) -> dict[str, Any]:
        """A block as an item of the output."""
        name = self._item_id(_PREFIX[block.kind], index)
        match block.kind:
            case "text":
                return message_item(name, status, [self._part_of(block)])
            case "thought":
                return reasoning_item(name, status, [self._part_of(block)])
            case "call":
                return self._call(name, status, block, block.text)

    def show(self, blocks: list[Block], timings: WireTimings | UnsetType) -> Iterator[Struct]:
        """What an answer's blocks have become since the last time."""
        for index in range(max(self._index, 0), len(blocks)):
            block = blocks[index]
            if index > self._index:
                yield from self.close("completed")
                yield from self._open(block, index)
            fresh = block.pieces[self._n_pieces :]
            self._n_pieces = len(block.pieces)
            if text := "".join(fresh):
                yield self._delta(block, text, timings)

    def close(self, status: str) -> Iterator[Struct]:
        """The open block is over."""
        block, self._block = self._block, None
        if block is None:
            return
        name, at = self._name, self._index
        common: dict[str, Any] = {"item_id": name, "output_index": at}
        match block.kind:
            case "text":
                yield TextDoneEvent(
                    type="response.output_text.done",
                    sequence_number=self._next(),
                    content_index=0,
                    text=block.text,
                    logprobs=self._logprobs(block, 0),
                    **common,
                )
            case "thought":
                yield ReasoningDoneEvent(
                    type="response.reasoning_text.done",
                    sequence_number=self._next(),
                    content_index=0,
                    text=block.text,
                    **common,
                )
            case "call":
                yield ArgumentsDoneEvent(
                    type="response.function_call_arguments.done",
                    sequence_number=self._next(),
                    name=block.name,
                    arguments=block.text,
                    **common,
                )
        if block.kind != "call":
            yield self._content("done", self._part_of(block))
        yield self._event("done", self.item(block, at, status))

    @property
    def _name(self) -> str:
        return self._item_id(_PREFIX[self._kind], self._index)

    def _open(self, block: Block, index: int) -> Iterator[Struct]:
        self._block, self._kind, self._index = block, block.kind, index
        self._n_pieces = self._n_probs = 0
        name = self._name
        match block.kind:
            case "text":
                yield self._event("added", message_item(name, "in_progress", []))
                yield self._content("added", text_part("", []))
            case "thought":
                yield self._event("added", reasoning_item(name, "in_progress", []))
                yield self._content("added", reasoning_part(""))
            case "call":
                yield self._event("added", self._call(name, "in_progress", block, ""))

    def _delta(self, block: Block, text: str, timings: WireTimings | UnsetType) -> Struct:
        common: dict[str, Any] = {
            "sequence_number": self._next(),
            "item_id": self._name,
            "output_index": self._index,
            "delta": text,
        }
        match block.kind:
            case "text":
                logprobs = self._logprobs(block, self._n_probs)
                self._n_probs = len(block.probs)
                return TextDeltaEvent(
                    type="response.output_text.delta",
                    content_index=0,
                    logprobs=logprobs,
                    timings=timings,
                    **common,
                )
            case "thought":
                kind = "response.reasoning_text.delta"
                return ReasoningDeltaEvent(type=kind, content_index=0, **common)
            case "call":
                kind = "response.function_call_arguments.delta"
                return ArgumentsDeltaEvent(type=kind, **common)

    def _part_of(self, block: Block) -> dict[str, Any]:
        if block.kind == "thought":
            return reasoning_part(block.text)
        return text_part(block.text, self._logprobs(block, 0))

    def _call(self, name: str, status: str, block: Block, arguments: str) -> dict[str, Any]:
        return call_item(name, status, call_id=block.call_id, name=block.name, arguments=arguments)

    def _event(self, kind: str, item: dict[str, Any]) -> OutputItemEvent:
        return OutputItemEvent(
            type=f"response.output_item.{kind}",
            sequence_number=self._next(),
            output_index=self._index,
            item=item,
        )

    def _content(self, kind: str, part: dict[str, Any]) -> ContentPartEvent:
        return ContentPartEvent(
            type=f"response.content_part.{kind}",
            sequence_number=self._next(),
            item_id=self._name,
            output_index=self._index,
            content_index=0,
            part=part,
        )
