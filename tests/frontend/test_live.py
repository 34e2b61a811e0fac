"""Running replies: each ends once, is on disk, and looks the same however it was watched."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.backend.chat.types import (
    CallArguments,
    CallBegin,
    ChatRequest,
    Content,
    Event,
    Finished,
    Part,
    Reading,
    Text,
    Thought,
    Timings,
)
from corral.backend.errors import Broken, Refused
from corral.backend.store import Call, Message, Outcome, Store
from corral.frontend import streams, views
from corral.frontend.answer import Answer
from corral.frontend.asking import to_request
from corral.frontend.live import Live
from corral.frontend.markdown import escape_code
from corral.frontend.reply import Reply
from corral.frontend.site import Site

T = Timings(10, 4, 0, 5.0, 0.0)


def text(words: str) -> Text:
    return Text(words, [1], Timings(10, 4, 1, 5.0, 1.0), parts=(Content(words),))


def said(*parts: Part) -> Text:
    return Text("", [1], Timings(10, 4, 1, 5.0, 1.0), parts=parts)


def end(finish: Any = "eos", *, truncated: bool = False) -> Finished:
    return Finished(finish, "", truncated, 0, 0, Timings(10, 4, 3, 5.0, 2.0))


class Script:
    """A generation whose events the test sends."""

    id = 7

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self.was_aborted = False

    def abort(self) -> None:
        if not self.was_aborted:
            self.was_aborted = True
            self.events.put_nowait(end("cancelled"))

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            event = await self.events.get()
            if isinstance(event, Exception):
                raise event
            yield event
            if isinstance(event, Finished):
                return


class Choices(NamedTuple):
    generations: list[Script]


class Model:
    """A service that the test scripts; ``error`` is what ``chat`` raises."""

    def __init__(self) -> None:
        self.generation = Script()
        self.error: Exception | None = None
        self.state = "ready"
        self.load_progress = 0.0
        self.loaded = asyncio.Event()
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.ahead: int | None = None
        self.requests: list[ChatRequest] = []

    async def chat(self, request: ChatRequest) -> Choices:
        self.requests.append(request)
        await self.may_start.wait()
        if self.error is not None:
            raise self.error
        return Choices([self.generation])

    async def until_loaded(self) -> None:
        await self.loaded.wait()

    def waiting_ahead(self, generation_id: int) -> int | None:
        return self.ahead


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
async def live(model: Model, store: Store) -> AsyncIterator[Live]:
    live = Live(model, store)
    yield live
    await live.close()


async def begin(live: Live, store: Store) -> Reply:
    conversation = await store.create("t")
    said, message = await store.add_turn(conversation.id, "Hi", model="m")
    return live.start(message, to_request([said]))


async def until(reply: Reply, phase: str) -> None:
    while reply.phase != phase:
        await reply.changed(reply.version, 5)


async def test_a_reply_is_on_disk_before_its_end_is_known(
    live: Live, store: Store, model: Model
) -> None:
    reply = await begin(live, store)
    for event in (Reading(10, 4, 10, 5.0), text("Hello "), text("you"), end()):
        model.generation.events.put_nowait(event)
    await reply.ended.wait()
    kept = await store.message(reply.id)
    assert (kept.content, kept.outcome.status) == ("Hello you", "done")
    assert (kept.figures.n_prompt, kept.figures.n_cached, kept.figures.n_generated) == (10, 4, 3)
    assert live.get(reply.id) is None


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (Refused("the prompt is too long"), "The prompt is too long"),
        (Broken("the engine died"), "The engine died"),
    ],
)
async def test_a_refusal_is_kept_with_the_message_it_met(
    live: Live, store: Store, model: Model, error: Exception, shown: str
) -> None:
    model.error = error
    reply = await begin(live, store)
    await reply.ended.wait()
    kept = await store.message(reply.id)
    assert kept.outcome == Outcome(status="error", error=shown)
    assert views.turn(kept).again == "Retry"


async def test_an_error_in_the_middle_keeps_the_text_before_it(
    live: Live, store: Store, model: Model
) -> None:
    reply = await begin(live, store)
    model.generation.events.put_nowait(text("half an"))
    model.generation.events.put_nowait(Broken("the engine died"))
    await reply.ended.wait()
    kept = await store.message(reply.id)
    assert (kept.content, kept.outcome.status) == ("half an", "error")


async def test_a_fault_nobody_thought_of_still_ends_the_reply(
    live: Live, store: Store, model: Model
) -> None:
    model.error = ZeroDivisionError()
    reply = await begin(live, store)
    await reply.ended.wait()
    assert (await store.message(reply.id)).outcome.status == "error"
    assert reply.task is not None
    with pytest.raises(ZeroDivisionError):
        await reply.task


async def test_stop_works_before_the_engine_has_answered(
    live: Live, store: Store, model: Model
) -> None:
    model.may_start.clear()
    reply = await begin(live, store)
    await live.end(reply)
    assert (await store.message(reply.id)).outcome.status == "stopped"


async def test_stop_while_the_answer_is_written_aborts_it_and_keeps_the_text(
    live: Live, store: Store, model: Model
) -> None:
    reply = await begin(live, store)
    model.generation.events.put_nowait(text("as far as"))
    await until(reply, "writing")
    await live.end(reply)
    kept = await store.message(reply.id)
    assert model.generation.was_aborted
    assert (kept.content, kept.outcome.status) == ("as far as", "stopped")


async def test_closing_keeps_what_was_written(live: Live, store: Store, model: Model) -> None:
    reply = await begin(live, store)
    model.generation.events.put_nowait(text("so far"))
    await until(reply, "writing")
    await live.close()
    kept = await store.message(reply.id)
    assert (kept.content, kept.outcome.status) == ("so far", "stopped")


async def test_a_message_sent_while_the_model_loads_waits_for_it(
    live: Live, store: Store, model: Model
) -> None:
    model.state, model.load_progress = "loading", 0.4
    reply = await begin(live, store)
    await until(reply, "loading")
    assert views.status(reply, model) == views.Status("Loading the model · 40 %", 40, 100)
    assert not model.requests
    model.loaded.set()
    model.generation.events.put_nowait(end())
    await reply.ended.wait()
    assert len(model.requests) == 1


async def test_a_reply_that_cannot_be_saved_is_still_shown_and_says_so(
    live: Live, store: Store, model: Model, tmp_path: Path
) -> None:
    reply = await begin(live, store)
    with sqlite3.connect(tmp_path / "corral.db") as other:
        other.execute("DROP TABLE message")
    other.close()
    model.generation.events.put_nowait(text("kept in the page"))
    model.generation.events.put_nowait(end())
    await reply.ended.wait()
    shown = views.turn(reply.message)
    assert "kept in the page" in shown.html
    assert "not saved" in shown.error


async def test_reasoning_and_calls_are_kept_apart_from_what_is_said(
    live: Live, store: Store, model: Model
) -> None:
    reply = await begin(live, store)
    for parts in (
        [Thought("They want ")],
        [Thought("a call.")],
        [Content("One "), CallBegin(0, "id0", "look"), CallArguments(0, '{"at":')],
        [CallArguments(0, "1}"), CallBegin(1, "id1", "stop")],
        [Thought("Enough?"), Content("moment")],
    ):
        model.generation.events.put_nowait(said(*parts))
    model.generation.events.put_nowait(end())
    await reply.ended.wait()
    kept = await store.message(reply.id)
    assert kept.content == "One moment"
    assert kept.reasoning == "They want a call.\n\nEnough?"
    assert kept.calls == (Call(name="look", arguments='{"at":1}'), Call(name="stop"))
    assert 0 < kept.figures.thought_ms < 60_000


def test_the_time_of_reasoning_ends_with_the_reasoning(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    answer = Answer()
    assert answer.thought_ms == 0
    answer.take([Thought("a")])
    now = 112.0
    assert (answer.is_thinking, answer.thought_ms) == (True, 12_000)
    assert views.thought(answer) == "Thinking…"
    answer.take([Thought("b"), Content("c")])
    now = 150.0
    assert (answer.is_thinking, answer.thought_ms) == (False, 12_000)
    assert views.thought(answer) == "Thought for 12 s"


# --- what a page is sent --------------------------------------------------------------------------


PARTIAL = re.compile(
    r'<hx-partial hx-target="#g-1-(.*?)" hx-swap="(\w+)">(.*?)</hx-partial>', re.DOTALL
)


class Screen:
    """The part of a page that shows a running reply, as the script would change it."""

    def __init__(self, snapshot: str) -> None:
        self.done, self.open, self.thoughts, self.label, self.calls = snapshot.split("\0")

    def apply(self, html: str) -> None:
        for target, swap, content in re.findall(
            r'<hx-partial hx-target="#[gr]-1-(.*?)" hx-swap="(\w+)">(.*?)</hx-partial>',
            html,
            re.DOTALL,
        ):
            match target, swap:
                case "done", "beforeend":
                    self.done += content
                case "open", "innerHTML":
                    self.open = content
                case "open code", "beforeend":
                    self.open = self.open.replace("</code>", f"{content}</code>")
                case "think", "innerHTML":
                    assert not self.thoughts, "somebody may have opened it"
                    self.thoughts, self.label = content.split("\0")
                case "text", "beforeend":
                    self.thoughts += content
                case "label", "innerHTML":
                    self.label = content
                case "calls", "innerHTML":
                    self.calls = content
                case "status" | "end", "innerHTML":
                    pass
                case other:
                    raise AssertionError(other)


def test_a_carriage_return_does_not_end_a_line_of_the_stream() -> None:
    assert streams.message("a\r\nb\rc", "x") == b"event: x\ndata: a&#13;\ndata: b&#13;c\n\n"


def site(model: Model) -> Site:
    def html(template: str, **view: Any) -> str:
        if template == "_status.html":
            return "status"
        if template == "_calls.html":
            return repr(view["calls"])
        turn = view["turn"]
        thoughts = f"{escape_code(turn.reasoning)}\0{turn.thought}"
        if template == "_reasoning.html":
            return thoughts
        if not turn.reasoning:
            thoughts = "\0"
        return f"{turn.html}\0{turn.open_html}\0{thoughts}\0{turn.calls!r}"

    return cast(Site, SimpleNamespace(html=html, service=model))


PIECES = [
    "a ",
    "b",
    "\n",
    "\n\n",
    "```py\n",
    "```\n",
    "x < 1\n",
    "- i\n",
    "| a |\n|-|\n",
    "``",
    "&",
    Thought("so & "),
    Thought("then\n"),
    CallBegin(0, "", "look"),
    CallArguments(0, "{}"),
]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30), st.data())
def test_changes_add_up_to_what_a_new_page_would_see(pieces: list[str | Part], data: Any) -> None:
    reply = Reply(
        Message(id=1, conversation_id="c", parent_id=None, role="assistant", content=""),
        ChatRequest(messages=()),
    )
    screens: list[tuple[streams.Viewer, Screen]] = []
    parts = site(cast(Any, SimpleNamespace(waiting_ahead=lambda _: None)))
    reply.take(said(CallBegin(0, "", "first")))
    for piece in pieces:
        reply.take(text(piece) if isinstance(piece, str) else said(piece))
        if data.draw(st.integers(0, 3)) == 0:
            viewer = streams.Viewer(parts, reply)
            screens.append((viewer, Screen(viewer.snapshot())))
        for viewer, screen in screens:
            if data.draw(st.booleans()):
                screen.apply(viewer.changes())
    for viewer, screen in screens:
        screen.apply(viewer.changes())
        assert screen.open == reply.open_html()
        assert screen.done == "".join(reply.answer.document.done)
        assert screen.thoughts == escape_code(reply.answer.reasoning)
        assert screen.label == (views.thought(reply.answer) if screen.thoughts else "")
        assert screen.calls == repr(views.calls(reply.answer.calls))
