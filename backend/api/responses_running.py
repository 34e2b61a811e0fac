"""Responses while they are answered, and how they come to be kept."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import cast

from corral.backend.api.answer import Answer
from corral.backend.api.responses_items import Item
from corral.backend.api.responses_object import ResponseObject
from corral.backend.api.responses_render import Facts, ResponsesRender
from corral.backend.api.responses_schema import ResponsesBody
from corral.backend.api.serving import wishes
from corral.backend.api.wire import AnyRequest, encode
from corral.backend.choices import Choices
from corral.backend.errors import CorralError
from corral.backend.store import Item as StoredItem
from corral.backend.store import Responses, Turn


def store_of(request: AnyRequest) -> Responses:
    """The application's kept responses."""
    return cast(Responses, request.app.state.responses)


def running_in(request: AnyRequest) -> "dict[str, Running]":
    """The application's running responses, by id."""
    return cast("dict[str, Running]", request.app.state.running_responses)


class Running:
    """A response that is being answered: known by its id as long as somebody waits for it, and
    kept when it has ended. Owned by its request's task; others look and cancel."""

    def __init__(self, request: AnyRequest, body: ResponsesBody) -> None:
        self.suffix = secrets.token_hex(12)
        self.items: list[Item] = []
        self.has_ended = asyncio.Event()
        self._body = body
        self._wishes = wishes(body)
        self._store = store_of(request)
        self._others = running_in(request)
        self._choices: Choices | None = None
        self._render: ResponsesRender | None = None

    def render_for(self, choices: Choices) -> ResponsesRender:
        """The render of the answer, which begins now."""
        sampling = choices.generations[0].effective.sampling
        facts = Facts(
            suffix=self.suffix,
            created_at=choices.created,
            model=choices.model,
            body=self._body,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
        )
        self._choices, self._render = choices, ResponsesRender(facts, self._wishes, time.time)
        self._others[facts.id] = self
        return self._render

    @property
    def render(self) -> ResponsesRender:
        """What shows it; for those who know that it has begun."""
        assert self._render is not None
        return self._render

    def cancel(self) -> None:
        """Ends it with the next step."""
        if self._choices is not None:
            self._choices.abort()

    async def ended(self, answers: Sequence[Answer], error: CorralError | None) -> None:
        """Keeps it, unless that is not wanted; see ``serving.Keeper``."""
        final = self.render.broken(error) if error else self.render.complete(answers[0])
        try:
            if self._body.store is not False:
                await self._store.put(_turn(final, self.items))
        finally:
            self.gone()

    def gone(self) -> None:
        """Nobody waits for it any more."""
        self.has_ended.set()
        self._others.pop(f"resp_{self.suffix}", None)


def _turn(final: ResponseObject, items: list[Item]) -> Turn:
    return Turn(
        id=final.id,
        previous_id=final.previous_response_id,
        body=encode(final),
        inputs=[StoredItem(item["id"], encode(item)) for item in items],
        outputs=[StoredItem(item["id"], encode(item)) for item in final.output],
    )
