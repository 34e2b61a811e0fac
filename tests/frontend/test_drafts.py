"""Drafts: what is typed is kept, what was sent never comes back, and pages do not fight."""

import re
from typing import Any, TypeAlias

import pytest

#: See ``conftest``.
Client: TypeAlias = Any


async def begin(client: Client, text: str = "Hello", **form: str) -> str:
    answer = await client.post("/c", data={"text": text, **form}, follow_redirects=False)
    assert answer.status_code == 303
    path: str = answer.headers["location"]
    await idle(client)
    return path


async def idle(client: Client) -> None:
    for reply in list(client.app.state.site.live._replies.values()):
        await reply.ended.wait()


class Tab:
    """A page of a conversation that was loaded now."""

    def __init__(self, client: Client, path: str, html: str) -> None:
        self.client, self.path = client, path
        self.text = re.search(r'id="prompt"[^>]*>\n(.*?)</textarea>', html, re.S)[1]  # type: ignore[index]
        fields = {name: _value(html, name) for name in ("place", "draft", "after")}
        self.fields = {name: value for name, value in fields.items() if value is not None}

    @classmethod
    async def open(cls, client: Client, path: str) -> "Tab":
        return cls(client, path, (await client.get(path)).text)

    async def types(self, text: str, **form: str) -> int:
        self.text = text
        form = {"text": text, **self.fields, **form}
        status: int = (await self.client.post("/drafts", data=form)).status_code
        return status

    async def sends(self, text: str | None = None) -> int:
        self.text = self.text if text is None else text
        where = f"{self.path}/messages" if self.path != "/" else "/c"
        form = {"text": self.text, **self.fields}
        answer = await self.client.post(where, data=form, follow_redirects=False)
        await idle(self.client)
        status: int = answer.status_code
        return status


def _value(html: str, name: str) -> str | None:
    found = re.search(rf'name="{name}"[^>]* value="([^"]*)"', html)
    return found[1] if found else None


async def test_what_is_typed_is_there_on_every_page_loaded_later(client: Client) -> None:
    path = await begin(client)
    tab = await Tab.open(client, path)
    assert await tab.types("two\r\nlines <&>") == 204
    assert (await Tab.open(client, path)).text == "two\nlines &lt;&amp;&gt;"
    other = await begin(client, "Another")
    assert (await Tab.open(client, other)).text == ""
    assert await tab.types("") == 204
    assert (await Tab.open(client, path)).text == ""


async def test_what_was_sent_does_not_come_back_with_a_write_that_was_late(client: Client) -> None:
    path = await begin(client)
    tab = await Tab.open(client, path)
    await tab.types("Now")
    assert await tab.sends() == 303
    await tab.types("No")
    await tab.types("Now")
    assert (await Tab.open(client, path)).text == ""


async def test_of_two_pages_the_one_typed_in_last_counts(client: Client) -> None:
    path = await begin(client)
    first, second = await Tab.open(client, path), await Tab.open(client, path)
    await first.types("from the first")
    await second.types("from the second")
    assert (await Tab.open(client, path)).text == "from the second"
    await first.types("the first again")
    assert (await Tab.open(client, path)).text == "the first again"


async def test_sending_leaves_what_another_page_is_writing(client: Client) -> None:
    path = await begin(client)
    first, second = await Tab.open(client, path), await Tab.open(client, path)
    await first.types("sent at once")
    await second.types("still thinking about")
    assert await first.sends() == 303
    await first.types("")
    assert (await Tab.open(client, path)).text == "still thinking about"
    # A page that is behind is refused, and its text is still there when it is loaded again.
    await second.types("still thinking about it")
    assert await second.sends() == 409
    assert (await Tab.open(client, path)).text == "still thinking about it"


async def test_a_draft_that_was_loaded_and_sent_with_more_is_gone(client: Client) -> None:
    path = await begin(client)
    await (await Tab.open(client, path)).types("begun")
    tab = await Tab.open(client, path)
    assert await tab.sends("begun and ended") == 303
    assert (await Tab.open(client, path)).text == ""


async def test_what_was_typed_elsewhere_after_a_page_was_loaded_outlives_what_that_does(
    client: Client,
) -> None:
    path = await begin(client)
    first = await Tab.open(client, path)
    await first.types("begun")
    second, third = await Tab.open(client, path), await Tab.open(client, path)
    await first.types("begun and gone on with")
    await second.types("")
    assert (await Tab.open(client, path)).text == "begun and gone on with"
    assert await third.sends("begun and sent") == 303
    assert (await Tab.open(client, path)).text == "begun and gone on with"


async def test_a_draft_that_was_loaded_can_be_emptied_and_sent(client: Client) -> None:
    path = await begin(client)
    await (await Tab.open(client, path)).types("one")
    await (await Tab.open(client, path)).types("")
    assert (await Tab.open(client, path)).text == ""
    await (await Tab.open(client, path)).types("two")
    assert await (await Tab.open(client, path)).sends() == 303
    assert (await Tab.open(client, path)).text == ""


async def test_a_new_chat_has_a_draft_for_each_browser(client: Client) -> None:
    tab = await Tab.open(client, "/")
    assert tab.fields["place"] == ""
    assert await tab.types("Dear model", place="new-1-2") == 204
    assert (await client.get("/drafts/new-1-2")).text == "Dear model"
    assert (await client.get("/drafts/new-3-4")).text == ""
    tab.fields["place"] = "new-1-2"
    assert await tab.sends() == 303
    await tab.types("Dear mode")
    assert (await client.get("/drafts/new-1-2")).text == ""


@pytest.mark.parametrize("place", ["", "none", "new"])
async def test_a_draft_of_nowhere_is_refused(client: Client, place: str) -> None:
    form = {"place": place, "draft": "t", "text": "x"}
    assert (await client.post("/drafts", data=form)).status_code in (400, 404)
    assert (await client.get(f"/drafts/{place or 'x'}")).text == ""


async def test_a_draft_goes_with_its_conversation(client: Client) -> None:
    path = await begin(client)
    await (await Tab.open(client, path)).types("unsent")
    store = client.app.state.site.store
    await store.delete(path.removeprefix("/c/"))
    await store.forget(path.removeprefix("/c/"))
    assert (await store.drafts.get(path.removeprefix("/c/"))).content == ""
