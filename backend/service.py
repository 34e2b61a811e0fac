"""Use cases: a request becomes a running generation whose events any renderer can show."""

from collections.abc import AsyncIterator
from typing import Any, Protocol

from corral.backend.chat.types import ChatRequest, CompletionRequest, Effective, Event
from corral.backend.engine.messages import ModelInfo, Snapshot


class Generation(Protocol):
    """A request the engine accepted. Iterate for its events; the last one is ``Finished``.

    Iterating raises ``CorralError`` when it ends badly. Leaving early without ``abort()`` leaves it
    running, so whoever iterates calls ``abort()`` (synchronous, idempotent) in a ``finally``.
    """

    id: int
    model: str
    created: int
    prompt: str | list[int | str]
    n_prompt: int
    effective: Effective

    def __aiter__(self) -> AsyncIterator[Event]: ...
    def abort(self) -> None: ...


class ServiceSketch(Protocol):
    """What API and frontend may ask for."""

    async def chat(self, request: ChatRequest) -> Generation:
        """Starts answering; returns once the prompt is tokenised, fits and is queued or running.
        Raises Refused (bad template input, too long, queue full) or Broken (loading, draining)."""
        ...

    async def complete(self, request: CompletionRequest) -> Generation: ...
    async def render(self, request: ChatRequest) -> str:
        """The prompt text a conversation becomes."""
        ...

    async def tokenize(self, content: str | list[int | str], *, add_special: bool, parse_special: bool) -> list[int]: ...
    async def pieces(self, tokens: list[int]) -> list[bytes]: ...
    async def detokenize(self, tokens: list[int]) -> str: ...

    @property
    def state(self) -> str:
        """loading, ready, restarting, draining or failed."""
        ...

    @property
    def load_progress(self) -> float: ...
    @property
    def model_name(self) -> str: ...
    @property
    def info(self) -> ModelInfo | None: ...
    @property
    def snapshot(self) -> Snapshot | None: ...
    @property
    def defaults(self) -> Effective: ...
    def waiting_ahead(self, generation_id: int) -> int | None:
        """Requests before this one in the queue; None when it is not waiting."""
        ...
    def metrics(self) -> Any: ...
