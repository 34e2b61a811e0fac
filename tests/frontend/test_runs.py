"""Texts that are being written for the tools' pages: each ends once, whatever happens."""

import asyncio
from typing import Any

import pytest

from corral.backend.chat.types import CompletionRequest, Finished, Text, Timings
from corral.backend.errors import Broken, Refused
from corral.frontend.tools.runs import MAX_ENDED, Run, Runs

ASKED = CompletionRequest(prompts=("a",))
TIMINGS = Timings(n_prompt=1, n_cached=0, n_generated=1, prompt_ms=1.0, predicted_ms=1.0)


class Script:
    """A service and a generation of it: plays ``events``, raising those that are errors, and waits
    at a None until it is aborted."""

    state = "ready"

    def __init__(self, *events: Any) -> None:
        self.events = events
        self.aborted = asyncio.Event()

    @property
    def generations(self) -> list["Script"]:
        return [self]

    def abort(self) -> None:
        self.aborted.set()

    async def complete(self, _: CompletionRequest) -> "Script":
        if self.events and isinstance(self.events[0], Refused):
            raise self.events[0]
        return self

    async def __aiter__(self) -> Any:
        for event in self.events:
            if event is None:
                await self.aborted.wait()
                yield ended("cancelled")
                return
            if isinstance(event, Exception):
                raise event
            yield event


def ended(finish: Any = "stop") -> Finished:
    return Finished(finish, "", False, 0, 0, TIMINGS)


def said(text: str) -> Text:
    return Text(text, [1], TIMINGS)


async def finished(*events: Any, stop: bool = False, keep: Any = None) -> Run:
    runs = Runs(Script(*events))  # type: ignore[arg-type]
    run = runs.start("k", ASKED, keep) if keep else runs.start("k", ASKED)
    if stop:
        run.stop()
    async with asyncio.timeout(10):
        await run.ended.wait()
    assert runs.get("k") is None and runs.last("k") is run
    await asyncio.gather(run.task, return_exceptions=True)  # type: ignore[arg-type]
    return run


async def test_a_text_is_what_was_said() -> None:
    run = await finished(said("a"), said("b"), ended("limit"))
    assert (run.text, run.status, run.is_cut) == ("ab", "done", True)


@pytest.mark.parametrize("events", [(None,), (said("a"), None)])
async def test_one_that_is_stopped_before_it_begins_ends_too(events: tuple[Any, ...]) -> None:
    run = await finished(*events, stop=True)
    assert (run.status, run.error) == ("stopped", "")


async def test_one_that_is_stopped_later_keeps_what_there_is() -> None:
    runs = Runs(Script(said("a"), None))  # type: ignore[arg-type]
    run = runs.start("k", ASKED)
    while not run.text:
        await run.changed(run.version, 5)
    await runs.end("k")
    assert (run.text, run.status) == ("a", "stopped")
    await runs.end("k")  # once more is no error


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ((Refused("the queue is full"),), "The queue is full"),
        ((said("a"), Broken("the engine died")), "The engine died"),
        ((said("a"),), "The answer broke off without an end"),
        ((said("a"), ZeroDivisionError()), "Something went wrong in the server; see its log"),
    ],
)
async def test_what_went_wrong_is_said_and_the_engine_let_go(
    events: tuple[Any, ...], error: str
) -> None:
    run = await finished(*events)
    assert (run.status, run.error) == ("error", error)


async def test_a_disk_that_is_full_is_said_to_whoever_looks() -> None:
    async def keep(run: Run) -> None:
        raise Broken("the disk is full")

    run = await finished(said("a"), ended(), keep=keep)
    assert (run.status, run.error, run.text) == ("error", "The disk is full", "a")


async def test_it_is_kept_when_it_has_ended() -> None:
    kept: list[tuple[str, str]] = []

    async def keep(run: Run) -> None:
        kept.append((run.status, run.text))

    await finished(said("a"), ended(), keep=keep)
    assert kept == [("done", "a")]


async def test_a_server_that_stops_ends_all_and_only_so_many_are_remembered() -> None:
    runs = Runs(Script(said("a"), None))  # type: ignore[arg-type]
    for i in range(MAX_ENDED + 3):
        runs.start(f"{i}", ASKED)
    await asyncio.sleep(0)
    await runs.close()
    found = [runs.last(f"{i}") for i in range(MAX_ENDED + 3)]
    assert found.count(None) == 3 and all(r.status == "stopped" for r in found if r)
