"""Turns that are changed, over HTTP: as forms, and as fragments for the page's script."""

import re
from typing import Any, TypeAlias

import pytest

#: See ``conftest``.
Client: TypeAlias = Any
HTMX = {"hx-request": "true"}


async def act(client: Client, path: str, **form: Any) -> Any:
    """A plain form; where it leads."""
    answer = await client.post(path, data=form, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    await idle(client)
    return answer.headers["location"]


async def idle(client: Client) -> None:
    live = client.app.state.site.live
    for reply in list(live._replies.values()):
        await reply.ended.wait()


async def shown(client: Client, path: str) -> list[str]:
    _, messages = await client.app.state.site.store.get(path.split("/")[2].split("#")[0])
    return [m.content for m in messages]


async def talk(client: Client, *texts: str) -> str:
    path: str = await act(client, "/c", text=texts[0])
    for text in texts[1:]:
        await act(client, f"{path}/messages", text=text)
    return path


async def test_an_edit_keeps_what_follows_and_one_that_is_behind_is_refused(client: Client) -> None:
    path = await talk(client, "one", "two")
    form = (await client.get("/m/1/edit")).text
    assert '<textarea id="e-1"' in form and "one</textarea>" in form
    version = re.search(r'name="version" value="(\d+)"', form)
    assert version
    where = await act(client, "/m/1/edit", text="eins", version=version[1])
    assert where == f"{path}#m-1"
    assert await shown(client, path) == ["eins", "one", "two", "two"]
    late = await client.post("/m/1/edit", data={"text": "uno", "version": version[1]}, headers=HTMX)
    assert late.status_code == 409 and "changed elsewhere" in late.text
    assert (await shown(client, path))[0] == "eins"


async def test_an_edit_sent_as_a_branch_is_answered_and_both_are_in_reach(client: Client) -> None:
    path = await talk(client, "one", "two")
    await act(client, "/m/3/branch", text="three")
    assert await shown(client, path) == ["one", "one", "three", "three"]
    page = (await client.get(path)).text
    assert "Alternative 2 of 2" in page
    await act(client, "/m/3/choose")
    assert await shown(client, path) == ["one", "one", "two", "two"]
    assert "Alternative 1 of 2" in (await client.get(path)).text


async def test_another_reply_in_the_middle_leaves_the_rest_on_its_branch(client: Client) -> None:
    path = await talk(client, "one", "two")
    await act(client, "/m/2/retry")
    assert await shown(client, path) == ["one", "one"]
    await act(client, "/m/2/choose")
    assert await shown(client, path) == ["one", "one", "two", "two"]


async def test_what_the_model_gets_for_a_branch_is_that_branch(client: Client) -> None:
    await talk(client, "one", "two")
    sent: list[Any] = []
    live, start = client.app.state.site.live, client.app.state.site.live.start_all
    live.start_all = lambda messages, request: (sent.append(request), start(messages, request))[1]
    await act(client, "/m/3/branch", text="three")
    await act(client, "/m/2/retry")
    told = [[(m.role, m.content) for m in r.messages] for r in sent]
    assert told[0] == [("user", "one"), ("assistant", "one"), ("user", "three")]
    assert told[1] == [("user", "one")]


async def test_a_reply_goes_on_in_place(client: Client) -> None:
    path = await talk(client, "one two three four five six")
    await act(client, "/m/2/edit", text="one two", version=1)
    sent: list[Any] = []
    live, start = client.app.state.site.live, client.app.state.site.live.start_all
    live.start_all = lambda messages, request: (sent.append(request), start(messages, request))[1]
    await act(client, "/m/2/continue")
    after = await shown(client, path)
    assert sent[0].continue_final and sent[0].messages[-1].content == "one two"
    assert after[1].startswith("one two") and len(after[1]) > len("one two")
    assert len(after) == 2


ACTS = ("continue", "retry", "ways", "delete", "edit", "branch")


async def late(client: Client, path: str, act: str, words: str, *, is_plain: bool) -> None:
    """An act of a page that was loaded at version 1 of everything: it is refused and nothing has
    changed, and the page that comes has the conversation as it is and what was typed."""
    form = {"version": "1", "n": "2"}
    if act in ("edit", "branch"):
        form["text"] = "typed <here>"
    store, id = client.app.state.site.store, path.split("/")[2].split("#")[0]
    before = await store.get(id), await store.tree(id)
    answer = await client.post(f"/m/2/{act}", data=form, headers={} if is_plain else HTMX)
    assert answer.status_code == 409, answer.text
    assert words in answer.text
    assert ('id="composer"' if is_plain else 'hx-target="#turns"') in answer.text
    assert (await store.get(id), await store.tree(id)) == before
    if "text" in form:
        assert "typed &lt;here&gt;</textarea>" in answer.text


@pytest.mark.parametrize("is_plain", [True, False])
async def test_the_last_reply_goes_on_only_while_it_is_the_last(
    client: Client, is_plain: bool
) -> None:
    path = await talk(client, "one", "two")
    await late(client, path, "continue", "has gone on elsewhere", is_plain=is_plain)


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("act_of", ACTS)
async def test_acts_on_an_alternative_that_is_not_shown_any_more_are_refused(
    client: Client, act_of: str, is_plain: bool
) -> None:
    path = await talk(client, "one")
    await act(client, "/m/2/retry")
    await late(client, path, act_of, "Another alternative is shown", is_plain=is_plain)


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("act_of", ACTS)
async def test_acts_on_a_message_that_was_changed_are_refused(
    client: Client, act_of: str, is_plain: bool
) -> None:
    path = await talk(client, "one")
    await act(client, "/m/2/edit", text="another", version="1")
    await late(client, path, act_of, "was changed elsewhere", is_plain=is_plain)


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("act_of", [*ACTS, "fork", "choose", "keep", "columns", "alternative"])
async def test_acts_on_a_message_that_was_deleted_are_refused(
    client: Client, act_of: str, is_plain: bool
) -> None:
    path = await talk(client, "one")
    await act(client, "/m/2/delete")
    await late(client, path, act_of, "was deleted elsewhere", is_plain=is_plain)


async def test_a_reply_that_went_on_is_another_version(client: Client) -> None:
    path = await talk(client, "one two three four five six")
    await act(client, "/m/2/edit", text="one two", version="1")
    await act(client, "/m/2/continue", version="2")
    stale = await client.post("/m/2/delete", data={"version": "2"}, headers=HTMX)
    assert stale.status_code == 409 and "was changed elsewhere" in stale.text
    assert len(await shown(client, path)) == 2
    form = (await client.get(path)).text
    assert 'name="version" value="3"' in form


async def test_a_fork_is_another_conversation(client: Client) -> None:
    path = await talk(client, "one", "two")
    other = await act(client, "/m/2/fork")
    assert other != path and await shown(client, other) == ["one", "one"]
    assert await shown(client, path) == ["one", "one", "two", "two"]


async def test_a_deletion_is_undone(client: Client) -> None:
    path = await talk(client, "one", "two")
    where = await act(client, "/m/3/delete")
    assert await shown(client, path) == ["one", "one"]
    page = (await client.get(where)).text
    assert 'action="/m/3/restore"' in page
    await act(client, "/m/3/restore")
    assert await shown(client, path) == ["one", "one", "two", "two"]
    again = await client.post("/m/3/delete", headers=HTMX)
    assert 'hx-post="/m/3/restore"' in again.text and "m-3" not in again.text


async def test_a_page_that_is_behind_cannot_send(client: Client) -> None:
    path = await talk(client, "one")
    assert 'name="after" value="2"' in (await client.get(path)).text
    await act(client, f"{path}/messages", text="two", after="2")
    late = await client.post(f"{path}/messages", data={"text": "x", "after": "2"}, headers=HTMX)
    assert late.status_code == 409 and "gone on elsewhere" in late.text
    assert len(await shown(client, path)) == 4


@pytest.mark.parametrize("what", ["branch", "retry", "continue", "choose", "delete"])
async def test_nothing_moves_under_a_reply_that_is_written(client: Client, what: str) -> None:
    path = await talk(client, "one")
    await client.app.state.service.control({"hold": "decode", "after": 1})
    await client.post(f"{path}/messages", data={"text": "two"}, follow_redirects=False)
    answer = await client.post(f"/m/2/{what}", data={"text": "x"}, headers=HTMX)
    assert answer.status_code == 409 and "still being written" in answer.text
    await client.app.state.service.control({"hold": None})
    await idle(client)
    assert await shown(client, path) == ["one", "one", "two", "two"]


async def test_the_tree_shows_every_branch(client: Client) -> None:
    path = await talk(client, "one", "two")
    await act(client, "/m/3/branch", text="<three>")
    page = (await client.get(f"{path}/tree")).text
    assert page.count('<li class="d') == 6
    assert "&lt;three&gt;" in page and 'action="/m/3/choose"' in page


@pytest.mark.parametrize(
    "path", [f"/m/{id}/{what}" for id in (99, 10**26) for what in ("edit", "branch", "choose")]
)
async def test_a_message_that_is_not_there_is_said(client: Client, path: str) -> None:
    answer = await client.post(path, data={"text": "x", "version": "1"})
    assert answer.status_code == 404 and "no such message" in answer.text


@pytest.mark.parametrize("version", ["", "x", "-1", "9" * 40, "\N{SUPERSCRIPT TWO}"])
async def test_an_edit_without_a_version_is_refused(client: Client, version: str) -> None:
    await talk(client, "one")
    answer = await client.post("/m/1/edit", data={"text": "x", "version": version}, headers=HTMX)
    assert answer.status_code == 400 and "version" in answer.text


async def test_what_was_typed_is_given_back_where_the_conversation_is_gone(client: Client) -> None:
    path = await talk(client, "one")
    await act(client, f"{path}/delete")
    typed = {"text": "hours of <work>", "version": "1", "after": "2"}
    for where in (f"{path}/messages", "/m/1/edit", "/m/1/branch"):
        answer = await client.post(where, data=typed)
        assert answer.status_code == 404
        assert "hours of &lt;work&gt;</textarea>" in answer.text, where
    settings = {"version": "0", "s.system": "be <kind>"}
    answer = await client.post(f"{path}/settings", data=settings)
    assert answer.status_code == 404 and "be &lt;kind&gt;</textarea>" in answer.text
    answer = await client.post("/notebook/gone/save", data={"text": "a <novel>", "version": "1"})
    assert answer.status_code == 404 and "a &lt;novel&gt;</textarea>" in answer.text
    assert "<textarea" not in (await client.get(path)).text


async def test_a_refused_message_still_asks_for_as_many_answers(client: Client) -> None:
    path = await talk(client, "one")
    late = await client.post(f"{path}/messages", data={"text": "x", "after": "1", "n": "3"})
    assert late.status_code == 409 and '<option value="3" selected>' in late.text
