"""The start of the application, and what is said when it cannot be."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from corral.backend.errors import CorralError

#: An application as ASGI has it.
App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]


class Starting:
    """Stands before the application. ``failure``: why it could not start, when that is known and
    wants a line and no traceback."""

    def __init__(self, app: App) -> None:
        self.failure: CorralError | None = None
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Passes everything on, but for the traceback of a start that failed for a known reason."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        withheld: list[dict[str, Any]] = []

        async def tell(message: dict[str, Any]) -> None:
            if message["type"] == "lifespan.startup.failed":
                withheld.append(message)
            else:
                await send(message)

        try:
            await self._app(scope, receive, tell)
        except BaseException as error:
            self.failure = known(error) if withheld else None
            if self.failure is not None:
                logging.getLogger("uvicorn.error").disabled = True
                withheld = [{"type": "lifespan.startup.failed", "message": ""}]
            for message in withheld:
                await send(message)
            raise


def known(error: BaseException) -> CorralError | None:
    """An error of our own, be it within groups of them."""
    if isinstance(error, BaseExceptionGroup):
        return next((one for one in map(known, error.exceptions) if one is not None), None)
    return error if isinstance(error, CorralError) else None
