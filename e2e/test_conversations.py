"""The list of conversations, the way without script, the door, and hostile text."""

import re
from collections.abc import Callable

import pytest
from e2e_kit import Server, Visitor, finished, say
from playwright.sync_api import Page, expect

PAYLOADS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1)) ![pixel](http://e.test/p.png)",
    '```"><script>alert(1)</script>\ncode\n```',
    "<hx-partial hx-target='#title'>gone</hx-partial></template><title>gone</title>",
    "<div hx-get=/status hx-trigger=load>x</div>",
    "{{ 7*7 }} {% raw %}",
]


def test_a_conversation_is_renamed_and_deleted(server: Server, page: Page) -> None:
    page.goto(server.url)
    say(page, "To be renamed and deleted")
    finished(page)
    page.get_by_role("button", name="Rename or delete this conversation").click()
    page.get_by_role("textbox", name="Title").fill("A better name <b>")
    page.get_by_role("button", name="Rename", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("A better name <b>")
    row = page.get_by_role("navigation").get_by_role("link", name="A better name <b>")
    expect(row).to_be_visible()
    page.get_by_role("button", name="Rename or delete this conversation").click()
    page.get_by_role("button", name="Delete this conversation", exact=True).click()
    expect(page).to_have_url(re.compile(r"/\?deleted=\w+$"))
    expect(row).to_have_count(0)


def test_deleting_stops_the_reply_that_runs(server: Server, page: Page, visitor: Visitor) -> None:
    visitor.expected.append("404")  # for a draft that comes late
    page.goto(server.url)
    server.control(hold="decode", after=4)
    say(page, "Deleted in the middle of it")
    expect(page.locator(".md.open")).to_contain_text("Del")
    page.get_by_role("button", name="Rename or delete this conversation").click()
    page.get_by_role("button", name="Delete this conversation", exact=True).click()
    expect(page).to_have_url(re.compile(r"/\?deleted=\w+$"))
    server.until(lambda _: server.is_idle())


def test_an_example_fills_the_box_and_sends_nothing(server: Server, page: Page) -> None:
    page.goto(server.url)
    page.get_by_role("link", name="Explain how a hash map works").click()
    expect(page.get_by_label("Message", exact=True)).to_have_value(
        "Explain how a hash map works, with a small example in Python."
    )
    expect(page.get_by_role("article")).to_have_count(0)


def test_back_and_forward_show_the_conversations(server: Server, page: Page) -> None:
    page.goto(server.url)
    say(page, "First of two pages")
    finished(page)
    page.get_by_role("link", name="New chat", exact=True).click()
    expect(page.get_by_role("article")).to_have_count(0)
    page.go_back()
    expect(page.get_by_role("article", name="Assistant")).to_contain_text("First of two pages")


def test_what_is_gone_is_said_on_a_page(server: Server, page: Page, visitor: Visitor) -> None:
    visitor.expected.append("404")
    page.goto(f"{server.url}/c/0123456789abcdef")
    expect(page.get_by_role("alert")).to_contain_text("no such conversation")
    page.get_by_role("link", name="To the chats").click()
    expect(page).to_have_url(f"{server.url}/")


@pytest.mark.parametrize("payload", PAYLOADS)
def test_hostile_text_stays_text(server: Server, page: Page, payload: str) -> None:
    dialogs: list[str] = []
    page.on("dialog", lambda d: (dialogs.append(d.message), d.dismiss()))
    page.goto(server.url)
    say(page, payload)
    finished(page)
    expect(page.locator(".user > .user")).to_have_text(payload)
    page.reload()
    expect(page.locator(".user > .user")).to_have_text(payload)
    assert page.title() != "gone" and page.locator("#title h1").count() == 1
    expect(
        page.locator(":is(.md, .user > .user) :is(script, img, iframe, [hx-get], [onerror])")
    ).to_have_count(0)
    assert not dialogs
    for link in page.locator(".md a").all():
        assert str(link.get_attribute("href")).startswith("http://e.test/")


def test_everything_but_streaming_works_without_script(server: Server, visitor: Visitor) -> None:
    page = visitor.page(java_script_enabled=False)
    page.goto(server.url)
    server.control(hold="decode", after=10)
    page.get_by_label("Message", exact=True).fill("No script here at all")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".user > .user")).to_have_text("No script here at all")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    server.control(hold=None)
    server.until(lambda _: server.is_idle())
    # The page loads itself again while a reply runs.
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.get_by_role("article", name="Assistant")).to_contain_text("No script here at all")
    server.control(hold="decode", after=3)
    page.get_by_label("Message", exact=True).fill("To be stopped")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_text("Stopped", exact=True)).to_be_visible()
    server.control(hold=None)
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_role("article", name="Assistant").last).to_contain_text("To be stopped")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    page.get_by_role("button", name="Rename or delete this conversation").click()
    page.get_by_role("textbox", name="Title").fill("Plain forms")
    page.get_by_role("button", name="Rename", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Plain forms")
    page.get_by_role("button", name="Rename or delete this conversation").click()
    page.get_by_role("button", name="Delete this conversation", exact=True).click()
    expect(page.get_by_role("link", name="Plain forms")).to_have_count(0)


def test_a_key_opens_the_door_and_a_wrong_one_does_not(
    own_server: Callable[..., Server], page: Page, visitor: Visitor
) -> None:
    visitor.expected.append("401")
    server = own_server(api_keys=("sesame", "other"), n_ctx=2048)
    page.goto(f"{server.url}/?q=after")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known")
    page.get_by_label("API key").fill("sesame")
    page.get_by_role("button", name="Log in").click()
    say(page, "Inside at last")
    expect(page.locator("article > .md")).to_have_text("Inside at last")
    (cookie,) = (c for c in page.context.cookies() if c["name"] == "corral_key")
    assert cookie["httpOnly"] and cookie["sameSite"] == "Lax" and "sesame" not in cookie["value"]


def test_conversations_outlive_the_server(own_server: Callable[..., Server], page: Page) -> None:
    server = own_server(n_ctx=2048)
    page.goto(server.url)
    say(page, "Still there tomorrow")
    finished(page)
    path = page.url.removeprefix(server.url)
    page.goto("about:blank")
    server.stop()
    again = own_server(n_ctx=2048)
    page.goto(again.url + path)
    expect(page.get_by_role("article", name="Assistant")).to_contain_text("Still there tomorrow")
