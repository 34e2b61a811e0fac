"""Several answers at once: one request, each answer for itself, one kept and the others there."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from corral.backend.__main__ import embedded_model
from corral.backend.chat.types import ChatRequest, Content, Event, Finished, Text, Timings
from corral.backend.choices import Choices
from corral.backend.errors import Broken, CorralError, Refused
from corral.backend.settings import Settings
from corral.backend.store import Message, Store
from corral.frontend.asking import to_request
from corral.frontend.live import Live
from corral.frontend.reply import Reply

#: See ``conftest``.
Client: TypeAlias = Any
HTMX = {"hx-request": "true"}


def text(words: str) -> Text:
    return Text(words, [1], Timings(10, 4, 1, 5.0, 1.0), parts=(Content(words),))


def end(finish: Any = "eos") -> Finished:
    return Finished(finish, "", False, 0, 0, Timings(10, 4, 3, 5.0, 2.0))


class Answer:
    """A generation that the test speaks for."""

    def __init__(self, all_events: "asyncio.Queue[Any]", index: int) -> None:
        self.id = self.index = index
        self.was_aborted = False
        self._events = all_events

    def say(self, event: Event | CorralError) -> None:
        self._events.put_nowait((self.index, event))

    def abort(self) -> None:
        if not self.was_aborted:
            self.was_aborted = True
            self.say(end("cancelled"))

    async def __aiter__(self) -> AsyncIterator[Event]:
        yield end()
        raise AssertionError("one of several is not followed by itself")


class Several:
    """Choices that the test speaks for."""

    def __init__(self, n: int) -> None:
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.generations = [Answer(self.events, i) for i in range(n)]

    async def each(self) -> AsyncIterator[tuple[int, Event | CorralError]]:
        while True:
            yield await self.events.get()


class Model:
    state = "ready"
    load_progress = 1.0

    def __init__(self) -> None:
        self.requests: list[ChatRequest] = []
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.error: Exception | None = None

    async def chat(self, request: ChatRequest) -> Several:
        self.requests.append(request)
        await self.may_start.wait()
        if self.error is not None:
            raise self.error
        self.choices = Several(request.n)
        return self.choices

    async def until_loaded(self) -> None: ...

    def waiting_ahead(self, generation_id: int) -> int | None:
        return None


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
async def live(store: Store, model: Model) -> AsyncIterator[Live]:
    live = Live(model, store)
    yield live
    await live.close()


async def begin(live: Live, store: Store) -> tuple[Reply, ...]:
    """Three that run."""
    conversation = await store.create("t")
    said, first = await store.add_turn(conversation.id, "Hi", model="m")
    others = await store.add_replies(said.id, 2, model="m")
    return live.start_all([first, *others], to_request([said]))


async def kept(store: Store, reply: Reply) -> Message:
    await asyncio.wait_for(reply.ended.wait(), 5)
    return await store.message(reply.id)


async def until(reply: Reply, phase: str) -> None:
    while reply.phase != phase:
        await reply.changed(reply.version, 5)


async def test_they_are_one_request_and_each_gets_its_own_words(
    live: Live, store: Store, model: Model
) -> None:
    replies = await begin(live, store)
    await until(replies[2], "waiting")
    for answer in model.choices.generations:
        answer.say(text(f"answer {answer.index}"))
        answer.say(end())
    assert [(await kept(store, r)).content for r in replies] == ["answer 0", "answer 1", "answer 2"]
    assert [r.n for r in model.requests] == [3]


async def test_one_that_fails_leaves_the_others(live: Live, store: Store, model: Model) -> None:
    replies = await begin(live, store)
    await until(replies[2], "waiting")
    first, second, third = model.choices.generations
    second.say(text("half"))
    second.say(Broken("it is no number"))
    first.say(text("whole"))
    first.say(end())
    failed, done = await kept(store, replies[1]), await kept(store, replies[0])
    assert (failed.content, failed.outcome.error) == ("half", "It is no number")
    assert (done.content, done.outcome.status) == ("whole", "done")
    assert replies[2].phase == "waiting" and not third.was_aborted


async def test_one_that_is_stopped_leaves_the_others(
    live: Live, store: Store, model: Model
) -> None:
    replies = await begin(live, store)
    await until(replies[2], "waiting")
    replies[1].stop()
    assert (await kept(store, replies[1])).outcome.status == "stopped"
    assert [a.was_aborted for a in model.choices.generations] == [False, True, False]
    model.choices.generations[2].say(end())
    assert (await kept(store, replies[2])).outcome.status == "done"


async def test_one_that_is_stopped_before_the_engine_has_any_leaves_the_others(
    live: Live, store: Store, model: Model
) -> None:
    model.may_start.clear()
    replies = await begin(live, store)
    await asyncio.wait_for(until(replies[0], "sending"), 5)
    replies[0].stop()
    assert (await kept(store, replies[0])).outcome.status == "stopped"
    model.may_start.set()
    await until(replies[1], "waiting")
    assert model.choices.generations[0].was_aborted
    model.choices.generations[1].say(end())
    assert (await kept(store, replies[1])).outcome.status == "done"


async def test_when_all_are_stopped_before_the_engine_has_any_nothing_is_asked(
    live: Live, store: Store, model: Model
) -> None:
    model.may_start.clear()
    replies = await begin(live, store)
    await asyncio.sleep(0)
    for reply in replies:
        reply.stop()
    statuses = [(await kept(store, r)).outcome.status for r in replies]
    assert statuses == ["stopped"] * 3
    model.may_start.set()
    await asyncio.sleep(0)
    assert not hasattr(model, "choices")


async def test_a_request_that_is_refused_says_so_in_each(
    live: Live, store: Store, model: Model
) -> None:
    model.error = Refused("the prompt is too long")
    replies = await begin(live, store)
    errors = {(await kept(store, r)).outcome.error for r in replies}
    assert errors == {"The prompt is too long"}


class Fails:
    """A generation that ends at once, with an error or well."""

    was_aborted = False

    def __init__(self, error: CorralError | None = None) -> None:
        self.error = error

    async def start(self) -> None: ...

    def abort(self) -> None: ...

    async def __aiter__(self) -> AsyncIterator[Event]:
        yield text("so far")
        if self.error is not None:
            raise self.error
        yield end()


async def test_the_error_of_one_answer_is_its_own_to_those_who_follow_each() -> None:
    error = Broken("no number")
    answers: Any = [Fails(), Fails(error), Fails()]
    whole = Choices(answers, n_at_once=1)
    await whole.start()
    got = [(index, item) async for index, item in whole.each()]
    assert [index for index, _ in got] == [0, 0, 1, 1, 2, 2]
    assert got[3][1] is error
    again = Choices(answers, n_at_once=1)
    await again.start()
    with pytest.raises(Broken, match="no number"):
        [item async for item in again]


# --- over HTTP ------------------------------------------------------------------------------------


async def act(client: Client, path: str, **form: Any) -> str:
    """A plain form; where it leads."""
    answer = await client.post(path, data=form, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


async def idle(client: Client) -> None:
    for reply in list(client.app.state.site.live._replies.values()):
        await reply.ended.wait()


async def shown(client: Client, path: str) -> list[Message]:
    id = path.split("/")[2].split("#")[0]
    _, messages = await client.app.state.site.store.get(id)
    return list(messages)


def columns(html: str) -> list[str]:
    return re.findall(r'<article class="column[^>]* id="m-(\d+)"', html)


async def test_a_message_is_answered_in_as_many_ways_as_were_asked_for(client: Client) -> None:
    path = await act(client, "/c", text="one", n="3")
    await idle(client)
    page = (await client.get(path)).text
    assert columns(page) == ["2", "3", "4"]
    assert "3 answers side by side" in page and page.count(">one</p>") == 3
    assert [m.id for m in await shown(client, path)] == [1, 2]
    # The next message's form remembers how many they were.
    assert '<option value="3" selected>' in page


async def test_one_is_kept_and_the_others_are_in_reach(client: Client) -> None:
    path = await act(client, "/c", text="one", n="3")
    await idle(client)
    assert await act(client, "/m/3/keep") == f"{path}#m-3"
    page = (await client.get(path)).text
    assert not columns(page) and "Alternative 2 of 3" in page
    await act(client, f"{path}/messages", text="two", after="3", n="1")
    await idle(client)
    assert [m.id for m in await shown(client, path)] == [1, 3, 5, 6]
    await act(client, "/m/3/columns")
    assert columns((await client.get(path)).text) == ["2", "3", "4"]
    await act(client, "/m/3/keep")
    assert [m.id for m in await shown(client, path)] == [1, 3, 5, 6]


async def test_a_message_sent_beside_columns_follows_the_first_and_closes_them(
    client: Client,
) -> None:
    path = await act(client, "/c", text="one", n="2")
    await idle(client)
    sent = await client.post(
        f"{path}/messages", data={"text": "two", "after": "2", "n": "1"}, headers=HTMX
    )
    assert sent.status_code == 200
    closed = re.search(r'hx-target="\.beside:has\(#m-2\).*?</hx-partial>', sent.text, re.DOTALL)
    assert closed and 'class="turn assistant" id="m-2"' in closed[0]
    await idle(client)
    assert not columns((await client.get(path)).text)
    assert [m.id for m in await shown(client, path)] == [1, 2, 4, 5]


async def test_more_ways_are_added_to_a_reply_that_is_there(client: Client) -> None:
    path = await act(client, "/c", text="one")
    await idle(client)
    await act(client, "/m/2/ways", n="2")
    await idle(client)
    assert columns((await client.get(path)).text) == ["2", "3", "4"]
    assert [m.content for m in await shown(client, path)] == ["one", "one"]


@pytest.mark.parametrize("n", ["0", "9", "-1", "two", "", "1" * 30])
async def test_other_numbers_of_ways_are_refused_and_nothing_is_said(
    client: Client, n: str
) -> None:
    answer = await client.post("/c", data={"text": "one", "n": n}, headers=HTMX)
    assert answer.status_code == 400 and "from 1 to 8" in answer.text
    assert await client.app.state.site.store.list() == []


async def test_one_is_stopped_alone_and_all_by_the_composer(client: Client) -> None:
    service = client.app.state.site.service
    await service.control({"hold": "decode", "after": 2})
    path = await act(client, "/c", text="a long one", n="3")
    live = client.app.state.site.live
    await until(live.get(2), "writing")
    await client.post("/g/3/stop", data={"only": "1"}, headers=HTMX)
    await asyncio.wait_for(live.get(3).ended.wait(), 5)
    assert [r.id for r in live.all_in(path.split("/")[2])] == [2, 4]
    await act(client, "/g/2/stop", text="", after="2")
    assert live.all_in(path.split("/")[2]) == ()
    page = (await client.get(path)).text
    assert page.count("Stopped") == 3 and len(columns(page)) == 3


async def test_one_kept_early_is_written_to_its_end_and_ends_the_others(client: Client) -> None:
    site = client.app.state.site
    await site.service.control({"hold": "decode", "after": 2})
    path = await act(client, "/c", text="a long one", n="2")
    await until(site.live.get(2), "writing")
    await act(client, "/m/3/keep")
    assert (await site.store.message(2)).outcome.status == "stopped"
    page = (await client.get(path)).text
    assert not columns(page) and "/g/3/events" in page
    await site.service.control({"hold": None})
    await idle(client)
    assert [m.content for m in await shown(client, path)] == ["a long one"] * 2


async def test_a_page_that_looks_gets_every_column_as_it_stands_and_as_it_ends(
    client: Client,
) -> None:
    site = client.app.state.site
    await site.service.control({"hold": "decode", "after": 2})
    path = await act(client, "/c", text="a long one", n="3")
    await until(site.live.get(2), "writing")
    page = (await client.get(path)).text
    where = re.search(r'hx-sse:connect="(/w/1/events\?of=2,3,4)"', page)
    assert where and page.count("hx-sse:connect") == 1
    await client.post("/g/3/stop", data={"only": "1"}, headers=HTMX)
    await asyncio.wait_for(site.live.get(3).ended.wait(), 5)
    looking = asyncio.create_task(client.get(where[1]))
    await asyncio.sleep(0)
    await site.service.control({"hold": None})
    events = (await asyncio.wait_for(looking, 10)).text
    begin, ended = events.index('hx-target="#g-2"'), events.rindex('hx-target="#m-2"')
    assert begin < ended
    assert events.count('hx-target="#m-3" hx-swap="outerHTML"') == 1
    assert 'hx-target="#g-3"' not in events
    assert events.rstrip().endswith("event: end\ndata:")
    last = events[events.rindex('hx-target="#crow"') :]
    assert ">Send</button>" in last and "3 answers finished" in last


async def test_deleting_the_conversation_stops_all_of_them(client: Client) -> None:
    site = client.app.state.site
    await site.service.control({"hold": "decode", "after": 2})
    path = await act(client, "/c", text="a long one", n="3")
    await until(site.live.get(2), "writing")
    await act(client, f"{path}/delete")
    assert not site.live.is_any


async def test_an_engine_that_dies_leaves_what_was_written_in_each(client: Client) -> None:
    site = client.app.state.site
    await site.service.control({"hold": "decode", "after": 3})
    path = await act(client, "/c", text="a long one", n="2")
    await until(site.live.get(2), "writing")
    await site.service.control({"hold": None, "crash": "exit"})
    await asyncio.wait_for(idle(client), 10)
    page = (await client.get(path)).text
    assert len(columns(page)) == 2 and page.count('class="error"') == 2
    assert page.count(">Retry</button>") == 2
    assert (await site.store.message(2)).content.startswith("a")


@pytest.mark.model
async def test_the_real_model_reads_the_prompt_once_for_four_answers(
    tmp_path: Path, client_of: Any
) -> None:
    model = embedded_model()
    assert model is not None, "make setup installs the embedded model"
    settings = Settings(
        model=model, n_ctx=4096, n_threads=1, data_dir=tmp_path, max_tokens=12, temperature=1.2
    )
    async for client in client_of(settings):
        text = "Tell me a story about " + ", ".join(f"number {n}" for n in range(60))
        path = await act(client, "/c", text=text, n="4")
        await asyncio.wait_for(idle(client), 120)
        replies = await client.app.state.site.store.columns(path.split("/")[2])
        figures = [reply.figures for reply in replies]
        assert [reply.outcome.status for reply in replies] == ["done"] * 4
        assert len({reply.content for reply in replies}) > 1
        n_prompt = figures[0].n_prompt
        assert {f.n_prompt for f in figures} == {n_prompt} and n_prompt > 200
        # One reads it, the others compute no more than its last token.
        assert sorted(f.n_cached for f in figures)[1:] == [n_prompt - 1] * 3
