"""Messages that wait for a reply to end: sent in order by the server, paused when it went wrong."""

import io
import re
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from PIL import Image

from corral.backend.settings import Settings
from corral.backend.store import Store
from corral.frontend.streams import follow

#: See ``conftest``.
Client: TypeAlias = Any
HTMX = {"hx-request": "true"}


class Talk:
    """A conversation whose first reply is held while more is sent."""

    def __init__(self, client: Client, path: str) -> None:
        self.client, self.path, self.id = client, path, path.removeprefix("/c/")
        self.site = client.app.state.site

    @classmethod
    async def begin(cls, client: Client, text: str = "one") -> "Talk":
        await client.app.state.service.control({"hold": "decode", "after": 2})
        answer = await client.post("/c", data={"text": text}, follow_redirects=False)
        return cls(client, answer.headers["location"])

    async def say(self, text: str, **form: Any) -> Any:
        """Sends as the page would that shows all there is now."""
        html = (await self.client.get(self.path)).text
        after = re.search(r'name="after" value="(\d+)"', html)
        form = {"text": text, "after": after[1] if after else "", **form}
        return await self.client.post(f"{self.path}/messages", data=form, follow_redirects=False)

    async def release(self) -> None:
        await self.client.app.state.service.control({"hold": None})
        await self.rest()

    async def rest(self) -> None:
        """Until nothing is written here any more."""
        while (reply := self.site.live.running_in(self.id)) is not None:
            await reply.ended.wait()

    async def stop(self) -> None:
        await self.site.live.end(self.site.live.running_in(self.id))

    async def texts(self) -> list[str]:
        _, messages = await self.site.store.get(self.id)
        return [m.content for m in messages]

    async def waiting(self) -> list[tuple[str, bool]]:
        return [(q.content, q.is_paused) for q in await self.site.store.queue.list(self.id)]

    async def ids(self) -> list[int]:
        return [q.id for q in await self.site.store.queue.list(self.id)]


@pytest.fixture
async def talk(client: Client) -> Talk:
    return await Talk.begin(client)


async def test_what_is_sent_while_a_reply_runs_follows_in_order_with_no_page_open(
    talk: Talk,
) -> None:
    for text in ("two", "three"):
        assert (await talk.say(text)).status_code == 303
    assert await talk.waiting() == [("two", False), ("three", False)]
    assert "Queued message 2 of 2" in (await talk.client.get(talk.path)).text
    await talk.release()
    assert await talk.texts() == ["one", "one", "two", "two", "three", "three"]
    assert await talk.waiting() == []


async def test_a_reply_that_is_stopped_pauses_them_until_one_is_sent(talk: Talk) -> None:
    for text in ("two", "three"):
        await talk.say(text)
    await talk.stop()
    assert await talk.waiting() == [("two", True), ("three", True)]
    html = (await talk.client.get(talk.path)).text
    assert html.count("Send now") == 2
    await talk.client.app.state.service.control({"hold": None})
    first = (await talk.ids())[0]
    answer = await talk.client.post(f"/q/{first}/send", follow_redirects=False)
    assert answer.status_code == 303
    await talk.rest()
    said = await talk.texts()
    assert said[2:] == ["two", "two", "three", "three"]


async def test_a_reply_that_goes_wrong_pauses_them(talk: Talk) -> None:
    await talk.say("far too long " * 200)
    await talk.say("three")
    await talk.release()
    said = await talk.texts()
    assert (said[2][:12], said[3]) == ("far too long", "")
    assert await talk.waiting() == [("three", True)]


async def test_a_message_sent_while_others_are_paused_goes_at_once_and_they_stay(
    talk: Talk,
) -> None:
    await talk.say("two")
    await talk.stop()
    await talk.client.app.state.service.control({"hold": None})
    await talk.say("instead")
    await talk.rest()
    assert (await talk.texts())[2:] == ["instead", "instead"]
    assert await talk.waiting() == [("two", True)]


async def test_they_survive_a_restart_paused(talk: Talk, tmp_path: Path) -> None:
    await talk.say("two")
    store = Store(tmp_path)
    await store.open()
    found = await store.queue.list(talk.id)
    await store.close()
    assert [(q.content, q.is_paused) for q in found] == [("two", True)]
    await talk.stop()


async def test_edit_takes_one_back_into_the_box_below_what_is_there(talk: Talk) -> None:
    for text in ("two", "three"):
        await talk.say(text)
    two, three = await talk.ids()
    form = {"text": "begun", "draft": "mine"}
    answer = await talk.client.post(f"/q/{two}/edit", data=form, headers=HTMX)
    assert "begun\n\ntwo</textarea>" in answer.text
    assert await talk.waiting() == [("three", False)]
    # Without script the box is the draft, and the page has it.
    await talk.client.post(f"/q/{three}/edit", follow_redirects=False)
    assert "begun\n\ntwo\n\nthree</textarea>" in (await talk.client.get(talk.path)).text
    await talk.release()
    assert await talk.texts() == ["one", "one"]


async def test_one_that_was_sent_or_removed_meanwhile_is_not_acted_on_again(talk: Talk) -> None:
    await talk.say("two")
    (id,) = await talk.ids()
    assert (await talk.client.post(f"/q/{id}/remove", headers=HTMX)).status_code == 200
    for action in ("send", "edit", "remove"):
        late = await talk.client.post(f"/q/{id}/{action}", headers=HTMX)
        assert late.status_code == 409 and "not waiting any more" in late.text
    await talk.release()
    assert await talk.texts() == ["one", "one"]


async def test_a_page_that_does_not_show_the_reply_cannot_queue(talk: Talk) -> None:
    answer = await talk.say("two", after="1")
    assert answer.status_code == 409 and "still being written" in answer.text
    assert "two</textarea>" in answer.text
    assert await talk.waiting() == []
    await talk.release()


async def test_no_more_than_twenty_wait(talk: Talk) -> None:
    for n in range(20):
        assert (await talk.say(f"number {n}")).status_code == 303
    answer = await talk.say("one too many")
    assert answer.status_code == 409 and "one too many</textarea>" in answer.text
    assert len(await talk.waiting()) == 20
    await talk.stop()


async def test_a_page_that_follows_gets_what_was_sent_next(talk: Talk) -> None:
    await talk.say("two")
    await talk.release()
    events = (await talk.client.get("/g/2/events")).text
    assert 'id="m-3"' in events and 'id="m-4"' in events
    assert 'name="after" value="4"' in events


async def test_several_answers_pause_them_because_one_must_be_chosen_first(talk: Talk) -> None:
    await talk.say("two")
    await talk.release()
    await talk.client.app.state.service.control({"hold": "decode", "after": 2})
    await talk.say("three", n="2")
    await talk.say("four")
    await talk.release()
    assert await talk.waiting() == [("four", True)]
    events = (await talk.client.get("/w/5/events?of=6,7")).text
    assert "Send now" in events and "four" in events


async def test_pictures_wait_with_their_message_and_survive_a_restart(
    client_of: Any, tmp_path: Path
) -> None:
    settings = Settings(
        fake=True, data_dir=tmp_path, n_ctx=1024, mmproj=tmp_path / "projector.gguf"
    )
    out = io.BytesIO()
    Image.new("RGB", (30, 20), "red").save(out, "PNG")
    async for client in client_of(settings):
        talk = await Talk.begin(client)
        html = (await client.get(talk.path)).text
        after = re.search(r'name="after" value="(\d+)"', html)
        assert after
        form = {"text": "look", "after": after[1]}
        files = {"pictures": ("red.png", out.getvalue(), "image/png")}
        answer = await client.post(
            f"{talk.path}/messages", data=form, files=files, follow_redirects=False
        )
        assert answer.status_code == 303
        page = (await client.get(talk.path)).text
        queued = page[page.index('id="q-1"') :]
        assert "red.png" in queued and "/q/1/edit" not in queued
        other = Store(tmp_path)  # sweeps as a start does
        await other.open()
        await other.close()
        await talk.stop()
        await client.app.state.service.control({"hold": None})
        await client.post("/q/1/send", follow_redirects=False)
        reply = talk.site.live.running_in(talk.id)
        assert [s.param for s in reply.request.sources] == ["red.png"]
        await talk.rest()
        _, messages = await talk.site.store.get(talk.id)
        assert [p.name for p in messages[2].pictures] == ["red.png"]


@pytest.mark.parametrize("act", ["send", "edit", "remove"])
@pytest.mark.parametrize("headers", [{}, HTMX])
async def test_acts_on_one_that_waits_no_more_show_what_does(
    client: Client, act: str, headers: dict[str, str]
) -> None:
    talk = await Talk.begin(client)
    for text in ("gone", "still there"):
        await talk.say(text)
    first, _second = await talk.ids()
    html = (await client.get(talk.path)).text
    assert html.count(f'name="of" value="{talk.id}"') == 4
    await client.post(f"/q/{first}/remove")
    late = await client.post(f"/q/{first}/{act}", data={"of": talk.id}, headers=headers)
    assert late.status_code == 409
    assert "not waiting any more" in late.text and "still there" in late.text
    assert ('id="composer"' if not headers else 'hx-target="#queue"') in late.text
    assert await talk.waiting() == [("still there", False)]
    for of in ("", "nothing"):
        lost = await client.post(
            f"/q/{first}/{act}", data={"of": of} if of else {}, headers=headers
        )
        assert lost.status_code == (404 if of else 409)
    await talk.release()


async def test_a_page_that_looks_on_is_sent_what_waits_when_it_changes(client: Client) -> None:
    talk = await Talk.begin(client)
    stream = follow(talk.site, talk.site.live.running_in(talk.id))

    async def next_list() -> list[str]:
        async for event in stream:
            _head, found, rest = event.decode().partition('hx-target="#queue"')
            if found:
                return re.findall(r'<div class="user" dir="auto">(.*?)</div>', rest)
        raise AssertionError

    assert await next_list() == []
    await talk.say("two")
    assert await next_list() == ["two"]
    await talk.say("three")
    assert await next_list() == ["two", "three"]
    await client.post(f"/q/{(await talk.ids())[0]}/remove")
    assert await next_list() == ["three"]
    await talk.release()
    await stream.aclose()
