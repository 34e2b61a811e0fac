"""Notices that a client has gone while a reply is being worked on."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from corral.backend.api.wire import AnyRequest, ClientGone

T = TypeVar("T")


async def _gone(request: AnyRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: AnyRequest, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``; cancels it and raises ``ClientGone`` when the client leaves first.

    The body must have been read before: what ``receive`` brings is thrown away.
    """
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
