"""Vectors and scores of texts: one request of many inputs to an engine, and what came of it."""

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from corral.backend.chat.types import Prompt
from corral.backend.engine.messages import Done, Embed, Embedded, Failed
from corral.backend.errors import Broken, CorralError, from_engine
from corral.backend.pool import Engine, Request, next_request_id


class EmbedRequest(Struct, frozen=True, kw_only=True):
    """Inputs to compute vectors of, or with ``query`` documents to score for it.

    ``at`` is what the caller calls them, a list of them with ``is_list``. ``truncate`` cuts inputs
    that are too long.
    """

    inputs: tuple[Prompt, ...]
    at: str
    is_list: bool
    query: str | None = None
    truncate: bool = False
    model: str | None = None

    def place(self, index: int) -> str:
        """What the caller calls an input."""
        return f"{self.at}[{index}]" if self.is_list else self.at


class Vectors(Struct, frozen=True, kw_only=True):
    """For each input what the model made of it, shape (1, width), without pooling (n, width) with a
    row for each token; and how many tokens the inputs have together."""

    model: str
    rows: list[NDArray[np.float32]]
    n_tokens: int


async def compute(engine: Engine, asked: EmbedRequest) -> Vectors:
    """Has an engine compute a request. Raises Refused, before any work and naming the input at
    fault, or Broken. Cancelling it ends the request."""
    embed = Embed(
        id=next_request_id(),
        inputs=list(asked.inputs),
        query=asked.query,
        truncate=asked.truncate,
    )
    try:
        request = await engine.submit(embed)
    except CorralError as error:
        _rename(error, asked)
        raise
    try:
        found = await _collect(request)
    finally:
        if not request.has_ended:
            engine.abort(embed.id)
    assert engine.info is not None and len(found) == len(asked.inputs)
    width = engine.info.n_embd_out if asked.query is None else 1
    rows = [np.frombuffer(found[i].data, "<f4") for i in range(len(found))]
    if asked.query is not None:
        # A score stands first in what a classification head says.
        rows = [row[:1] for row in rows]
    return Vectors(
        model=engine.name,
        rows=[row.reshape(-1, width) for row in rows],
        n_tokens=sum(e.n_tokens for e in found.values()),
    )


async def _collect(request: Request) -> dict[int, Embedded]:
    found: dict[int, Embedded] = {}
    while True:
        output: Any = await request.get()
        match output:
            case Embedded():
                found[output.index] = output
            case Done(_, "eos"):
                return found
            case Done():
                raise Broken("the request was cancelled", kind="engine_error")
            case Failed(_, code, message, extra, param):
                raise from_engine(code, message, extra, param)


def _rename(error: CorralError, asked: EmbedRequest) -> None:
    """Puts the caller's name of the input at fault where the engine's was."""
    param = error.param or ""
    if param.startswith("inputs["):
        error.param = asked.place(int(param[len("inputs[") : -1]))
        error.message = f"{error.param} {error.message}"
