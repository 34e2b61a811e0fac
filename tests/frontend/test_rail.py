"""The list of conversations over HTTP: days, pages, pins, titles, deletion, search."""

import asyncio
import re
import time
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace

from corral.backend.store import PAGE_SIZE, Conversation
from corral.frontend import clock, words
from corral.frontend.rail import place, rail, written

#: See ``conftest``.
Client: TypeAlias = Any
HTMX = {"hx-request": "true"}
NOON = 1_790_000_000.0 - 1_790_000_000.0 % 86_400 + 43_200
DAY = 86_400.0
ONE = Conversation(id="a", title="A", leaf_id=None, created_s=0, updated_s=NOON)


async def begin(client: Client, text: str) -> str:
    """A conversation whose reply has ended; its path."""
    answer = await client.post("/c", data={"text": text}, follow_redirects=False)
    path: str = answer.headers["location"]
    for reply in client.app.state.site.live.all_in(path.removeprefix("/c/")):
        await reply.ended.wait()
    return path


def titles(html: str) -> list[str]:
    return re.findall(r'<li id="row-[^"]*"><a [^>]*>([^<]*)</a>', html)


def on(path: str) -> dict[str, str]:
    """The headers of the script of a page."""
    return HTMX | {"hx-current-url": f"http://127.0.0.1:8080{path}"}


@pytest.fixture
def _utc() -> Any:
    clock.observe("UTC")
    yield
    clock.observe(None)


@pytest.mark.usefixtures("_utc")
def test_the_list_is_grouped_by_day() -> None:
    ages = {"0": 0.0, "1": 1, "2": 2, "7": 7, "8": 8, "30": 30, "31": 31, "400": 400}
    listed = [replace(ONE, id="p", is_pinned=1, updated_s=NOON - 90 * DAY)]
    listed += [replace(ONE, id=id, updated_s=NOON - days * DAY) for id, days in ages.items()]
    groups = rail(listed, "8", now_s=NOON).groups
    assert [(g.name, "".join(f"{r.id} " for r in g.rows).strip()) for g in groups] == [
        ("Pinned", "p"),
        ("Today", "0"),
        ("Yesterday", "1"),
        ("Previous 7 days", "2 7"),
        ("Previous 30 days", "8 30"),
        ("August 2026", "31"),
        ("August 2025", "400"),
    ]
    assert [r.id for g in groups for r in g.rows if r.is_current] == ["8"]


@pytest.mark.parametrize(
    ("zone", "day"), [("Pacific/Kiritimati", "Yesterday"), ("Pacific/Pago_Pago", "Today")]
)
def test_days_are_those_of_the_reader(zone: str, day: str) -> None:
    clock.observe(zone)
    try:
        # From 9:00 to 10:30 in Greenwich a day begins in Kiritimati, and none in Pago Pago.
        shown = rail([replace(ONE, updated_s=NOON - 3 * 3600)], None, now_s=NOON - 1.5 * 3600)
        assert shown.groups[0].name == day
    finally:
        clock.observe(None)


@pytest.mark.parametrize("name", ["", "..", "../../etc/passwd", "/etc", "x" * 9999, "\0", "UTC/x"])
def test_a_zone_that_is_none_is_the_servers(name: str) -> None:
    clock.observe(name)
    assert (
        clock.local(NOON).utcoffset() == clock.datetime.fromtimestamp(NOON).astimezone().utcoffset()
    )
    clock.observe(None)


@pytest.mark.usefixtures("_utc")
def test_months_are_in_the_readers_language() -> None:
    with words.speaking("de"):
        shown = rail([replace(ONE, updated_s=NOON - 200 * DAY)], None, now_s=NOON)
    assert shown.groups[0].name == "März 2026"


@pytest.mark.usefixtures("_utc")
def test_a_next_page_of_the_same_days_has_no_second_heading() -> None:
    listed = [replace(ONE, id=f"{n}", updated_s=NOON - n) for n in range(PAGE_SIZE + 1)]
    first = rail(listed, None, now_s=NOON)
    after = place(first.more.removeprefix("after="))
    assert after is not None and after.id == f"{PAGE_SIZE - 1}"
    second = rail(listed[PAGE_SIZE:], None, after=after, now_s=NOON)
    assert [(g.name, g.is_named) for g in second.groups] == [("Today", False)]
    assert (first.groups[0].is_named, second.more, second.focus_id) == (True, "", f"{PAGE_SIZE}")


@pytest.mark.parametrize("text", ["", "x", "1-", "2-1.0-a", "1-nan", "0-x-y", "--", "1--"])
def test_a_place_that_is_none_is_the_beginning(text: str) -> None:
    assert place(text) is None or text.startswith("1-nan")
    assert place(written(ONE)) is not None


async def test_the_list_comes_in_pages_each_conversation_once(client: Client) -> None:
    store = client.app.state.site.store
    for n in range(2 * PAGE_SIZE + 3):
        await store.create(f"Number {n}")
    at, seen = "/", list[str]()
    while at:
        html = (await client.get(at, headers=HTMX if at != "/" else {})).text
        seen += titles(html)
        more = re.search(r'hx-get="(/rows\?after=[^"]*)"', html)
        at = more[1].replace("&amp;", "&") if more else ""
    assert seen == [f"Number {n}" for n in reversed(range(2 * PAGE_SIZE + 3))]


async def test_without_script_more_is_a_page(client: Client) -> None:
    for n in range(PAGE_SIZE + 1):
        await client.app.state.site.store.create(f"Number {n}")
    html = (await client.get("/")).text
    more = re.search(r'class="more-rows" href="([^"]*)"', html)
    assert more
    main = (await client.get(more[1])).text.partition("<main")[2]
    assert "Number 0<" in main and "Number 1<" not in main


async def test_a_pinned_conversation_comes_first(client: Client) -> None:
    path = await begin(client, "old")
    await begin(client, "new")
    answer = await client.post(f"{path}/pin", data={"pinned": "1"}, headers=on("/"))
    assert titles(answer.text) == ["old", "new"] and "Pinned" in answer.text
    await client.post(f"{path}/pin", data={"pinned": "0"}, follow_redirects=False)
    assert titles((await client.get("/")).text) == ["new", "old"]


async def test_a_title_that_was_changed_elsewhere_is_not_overwritten(client: Client) -> None:
    path = await begin(client, "one")
    form = {"title": "two", "version": "1"}
    done = await client.post(f"{path}/rename", data=form, headers=on(path))
    assert 'title="two">two</h1>' in done.text and titles(done.text) == ["two"]
    late = await client.post(f"{path}/rename", data=form | {"title": "three"}, headers=on(path))
    assert late.status_code == 409 and "renamed elsewhere" in late.text
    assert titles((await client.get("/")).text) == ["two"]


async def test_renaming_another_conversation_leaves_the_pages_title(client: Client) -> None:
    path, other = await begin(client, "one"), await begin(client, "two")
    done = await client.post(f"{path}/rename", data={"title": "<b>"}, headers=on(other))
    assert "<h1" not in done.text and titles(done.text) == ["two", "&lt;b&gt;"]


async def test_a_deleted_conversation_comes_back(client: Client) -> None:
    path = await begin(client, "one")
    gone = await client.post(f"{path}/delete", follow_redirects=False)
    assert gone.headers["location"] == f"/?deleted={path.removeprefix('/c/')}"
    assert (await client.get(path)).status_code == 404
    assert (await client.get("/m/1")).status_code == 404
    page = (await client.get(gone.headers["location"])).text
    assert titles(page) == [] and f'action="{path}/restore"' in page
    back = await client.post(f"{path}/restore", follow_redirects=False)
    assert back.headers["location"] == path and titles((await client.get(path)).text) == ["one"]
    # An old address offers to bring back nothing that is there.
    assert f'action="{path}/restore"' not in (await client.get(gone.headers["location"])).text


async def test_what_was_deleted_is_listed_and_deleted_for_good(client: Client) -> None:
    path = await begin(client, "one <i> two")
    await client.post(f"{path}/forget", follow_redirects=False)
    assert (await client.get(path)).status_code == 200
    assert "There is none" in (await client.get("/deleted")).text
    await client.post(f"{path}/delete", follow_redirects=False)
    page = (await client.get("/deleted")).text
    assert "one &lt;i&gt; two" in page and f'action="{path}/restore"' in page and "Today" in page
    await client.post(f"{path}/forget", follow_redirects=False)
    assert "There is none" in (await client.get("/deleted")).text
    assert (await client.post(f"{path}/restore")).status_code == 404


async def test_the_script_of_another_page_hears_of_a_deletion_in_place(client: Client) -> None:
    path, other = await begin(client, "one"), await begin(client, "two")
    answer = await client.post(f"{path}/delete", headers=on(other))
    assert titles(answer.text) == ["two"] and f'hx-post="{path}/restore"' in answer.text
    back = await client.post(f"{path}/restore", headers=on(other))
    assert titles(back.text) == ["two", "one"]
    own = await client.post(f"{other}/delete", headers=on(other))
    assert own.headers["hx-redirect"] == f"/?deleted={other.removeprefix('/c/')}"


async def test_deleting_stops_the_reply_first_and_keeps_its_text(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = client.app.state.site
    await client.app.state.service.control({"hold": "decode", "after": 4})
    answer = await client.post("/c", data={"text": "Hold me here"}, follow_redirects=False)
    path = answer.headers["location"]
    reply = site.live.get(2)
    while reply.timings is None or reply.timings.n_generated < 4:
        await reply.changed(reply.version, 5)
    delete, were_stopping = site.store.delete, list[bool]()

    async def deleting(id: str) -> None:
        were_stopping.append(reply.is_stopping)
        await delete(id)

    monkeypatch.setattr(site.store, "delete", deleting)
    await client.post(f"{path}/delete", follow_redirects=False)
    assert were_stopping == [True] and reply.ended.is_set() and not site.live.is_any
    await client.post(f"{path}/restore", follow_redirects=False)
    kept = await site.store.message(2)
    assert kept.outcome.status == "stopped" and kept.content.startswith("Hold")


async def test_nothing_is_sent_to_a_conversation_while_it_is_deleted(client: Client) -> None:
    path = await begin(client, "one")
    sends = [client.post(f"{path}/messages", data={"text": "two"}) for _ in range(3)]
    gone, *sent = await asyncio.gather(client.post(f"{path}/delete"), *sends)
    assert gone.status_code == 303
    assert not client.app.state.site.live.all_in(path.removeprefix("/c/"))
    assert {answer.status_code for answer in sent} <= {303, 404, 409}


async def test_search_finds_titles_and_words_and_marks_them(client: Client) -> None:
    path = await begin(client, "Tell me of the <b>zebra</b>")
    await begin(client, "Nothing here")
    html = (await client.get("/search?q=ZEBRA", headers=HTMX)).text
    assert "&lt;b&gt;<mark>zebra</mark>&lt;/b&gt;" in html and "<b>zebra" not in html
    assert f'href="{path}#m-1"' in html and "Nothing here" not in html
    assert "1 conversation found" in html and "Today" in html
    page = (await client.get("/search?q=ZEBRA")).text
    assert "<mark>zebra</mark>" in page and 'value="ZEBRA"' in page


async def test_a_search_without_words_empties_what_was_found(client: Client) -> None:
    html = (await client.get("/search?q=%20", headers=HTMX)).text
    assert 'class="hits"' not in html
    assert "Nothing found" in (await client.get("/search?q=nowhere", headers=HTMX)).text


async def test_a_hit_on_a_hidden_branch_opens_that_branch(client: Client) -> None:
    path = await begin(client, "first zebra")
    await client.post("/m/1/branch", data={"text": "second one"}, follow_redirects=False)
    await client.app.state.site.live.get(4).ended.wait()
    html = (await client.get("/search?q=zebra", headers=HTMX)).text
    assert 'action="/m/1/choose"' in html
    went = await client.post("/m/1/choose", follow_redirects=False)
    assert went.headers["location"] == f"{path}#m-1"
    assert "first zebra" in (await client.get(path)).text


async def test_what_is_searched_is_text(client: Client) -> None:
    await begin(client, "plain")
    for q in ('"', "'", "a OR b", "*", "%", "NEAR(a b)", "\0", "(((", "content:x", '"" ""'):
        answer = await client.get("/search", params={"q": q}, headers=HTMX)
        assert answer.status_code == 200
    hostile = (await client.get("/search", params={"q": "<script>x</script>"})).text
    assert "<script>x" not in hostile


async def test_a_line_becomes_forms(client: Client) -> None:
    path = await begin(client, 'A "title" <i> x')
    html = (await client.get(f"{path}/manage", headers=HTMX)).text
    assert 'value="A &#34;title&#34; &lt;i&gt; x"' in html and "<!doctype" not in html
    assert "<!doctype" in (await client.get(f"{path}/manage")).text
    assert (await client.get("/c/none/manage")).status_code == 404


def test_the_moment_is_now() -> None:
    assert rail([replace(ONE, updated_s=time.time())], None).groups[0].name == "Today"
