"""What the renderers of all APIs share: the answers so far, and what a client asked to see."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from corral.backend.api.probs import Shape
from corral.backend.chat.types import (
    CallArguments,
    CallBegin,
    Content,
    Event,
    Finished,
    Part,
    Scored,
    Text,
    Thought,
)
from corral.backend.engine.messages import TokenProbs
from corral.backend.errors import CorralError

BlockKind: TypeAlias = Literal["text", "thought", "call"]
#: What goes out as one JSON value.
Shown: TypeAlias = Struct | dict[str, Any]


class Wishes(Struct, frozen=True, kw_only=True):
    """What a client wants to see beside the text. ``probs`` None: no probabilities."""

    usage: bool = False
    timings: bool = False
    progress: bool = False
    probs: Shape | None = None


class Block:
    """A stretch of a chat's answer: text, reasoning, or a tool call with its ``call_id`` and
    ``name``, whose text are the arguments. ``probs`` one for each token of a text, where they were
    asked for."""

    def __init__(self, kind: BlockKind, call_id: str = "", name: str = "") -> None:
        self.kind: BlockKind = kind
        self.call_id = call_id
        self.name = name
        self.probs: list[TokenProbs] = []
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self.pieces)


class Answer:
    """One answer as it grows. Owned by the request's task.

    ``n_chars`` of text; ``probs`` one for each token, and ``prompt_probs`` for those of the prompt,
    where they were asked for. ``prompt_index`` numbers the prompts of a request; ``end`` is None
    until it is complete. A chat's answer is made of ``blocks``, in the order they began;
    ``n_reasoning`` of its tokens are reasoning.
    """

    def __init__(self, index: int = 0, prompt_index: int = 0) -> None:
        self.index = index
        self.prompt_index = prompt_index
        self.n_chars = 0
        self.tokens: list[int] = []
        self.probs: list[TokenProbs] = []
        self.prompt_probs: list[TokenProbs] = []
        self.has_new_line = False
        self.end: Finished | None = None
        self.blocks: list[Block] = []
        self.n_reasoning = 0
        self._texts: list[str] = []
        self._loose: list[TokenProbs] = []  # of tokens that have shown nothing yet

    def take(self, event: Event) -> None:
        """Notes what an event brings."""
        match event:
            case Text():
                self._texts.append(event.text)
                self._loose += event.probs
                for part in event.parts:
                    self._take_part(part)
                self._settle(len(event.tokens))
                self.n_chars += len(event.text)
                self.tokens += event.tokens
                self.probs += event.probs
                self.has_new_line = self.has_new_line or "\n" in event.text
            case Scored():
                self.prompt_probs += event.probs
            case Finished():
                self.end = event
                if self.blocks:
                    self.blocks[-1].probs += self._loose

    def _take_part(self, part: Part) -> None:
        match part:
            case Content(text):
                self._block("text").pieces.append(text)
            case Thought(text):
                self._block("thought").pieces.append(text)
            case CallBegin(_, call_id, name):
                self.blocks.append(Block("call", call_id, name))
            case CallArguments(index, text):
                self.calls[index].pieces.append(text)

    def _block(self, kind: BlockKind) -> Block:
        if not self.blocks or self.blocks[-1].kind != kind:
            self.blocks.append(Block(kind))
        return self.blocks[-1]

    def _settle(self, n_tokens: int) -> None:
        """Tokens belong to the block that has been shown last."""
        if not self.blocks:
            return
        self.n_reasoning += n_tokens * (self.blocks[-1].kind == "thought")
        self.blocks[-1].probs += self._loose
        self._loose = []

    def _joined(self, kind: BlockKind) -> str:
        return "".join(block.text for block in self.blocks if block.kind == kind)

    @property
    def text(self) -> str:
        """The whole text so far, as it was generated."""
        return "".join(self._texts)

    @property
    def content(self) -> str:
        """What a chat's answer says so far."""
        return self._joined("text")

    @property
    def thoughts(self) -> str:
        """The reasoning of a chat's answer so far."""
        return self._joined("thought")

    @property
    def calls(self) -> list[Block]:
        """The tool calls of a chat's answer so far."""
        return [block for block in self.blocks if block.kind == "call"]

    @property
    def last(self) -> Finished:
        """How it ended; for those who know that it has."""
        assert self.end is not None
        return self.end


class Render(Protocol):
    """From events to one API's wire structs. Pure: the same events give the same structs."""

    @property
    def says_done(self) -> bool:
        """Whether a stream ends in OpenAI's ``[DONE]``."""
        ...

    @property
    def names_events(self) -> bool:
        """Whether an event of a stream is named on the wire, by its member ``type``."""
        ...

    def opening(self) -> Sequence[Shown]:
        """What a stream begins with, before any event."""
        ...

    def chunks(self, event: Event, answer: Answer) -> Sequence[Shown]:
        """What an event adds to a stream; ``answer``, whose event it is, includes it."""
        ...

    def closing(self, answers: Sequence[Answer]) -> Sequence[Shown]:
        """What a stream ends with, after the last answer's end."""
        ...

    def reply(self, answers: Sequence[Answer]) -> Shown | Sequence[Shown]:
        """All answers, complete, in one."""
        ...

    def failure(self, error: CorralError) -> Shown | Sequence[Shown]:
        """What ends a stream badly."""
        ...
