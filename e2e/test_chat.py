"""Talking to the model: what a person sees from typing to the end of a reply."""

import re
import time
from collections.abc import Callable

from e2e_kit import Server, Visitor, finished, say, write
from playwright.sync_api import Page, Route, expect

CODE = """Look:

```python
def f(x):
    return x < 1
```

And then **more** of it, enough to wait for.
"""


def test_a_message_is_sent_streamed_and_kept(server: Server, page: Page) -> None:
    page.goto(server.url)
    expect(page.get_by_role("heading", name="scripted")).to_be_visible()
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    server.control(hold="decode", after=30)
    say(page, "Hello there, this is a first message for you")
    # Held half way: the first part of the echo is there, and the page says that it goes on.
    reply = page.get_by_role("article", name="Assistant")
    expect(reply).to_contain_text("Hello there, this is a first")
    expect(reply).not_to_contain_text("message for you")
    expect(reply).to_have_attribute("aria-busy", "true")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    expect(page.get_by_label("Message", exact=True)).to_have_value("")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    expect(page).to_have_url(re.compile(r"/c/[0-9a-f]{16}$"))
    expect(page).to_have_title("Hello there, this is a first message for you · Corral")
    expect(page.locator(".slot.generating")).to_have_count(1)
    server.control(hold=None)
    expect(reply).to_contain_text("message for you")
    finished(page)
    expect(page.locator("#announce")).to_have_text(re.compile(r"Reply finished, \d+ tokens"))
    expect(reply.locator(".stat")).to_contain_text("tok/s")
    expect(page.locator(".ctx")).to_have_text(re.compile(r"^\d+ / 4,096$"))
    expect(page.locator(".slot:not(.idle)")).to_have_count(0)
    row = page.get_by_role("navigation").get_by_role("link", name="Hello there")
    expect(row).to_have_attribute("aria-current", "page")
    say(page, "and a second")
    expect(page.get_by_role("article", name="Assistant")).to_have_count(2)
    finished(page)
    page.reload()
    expect(page.get_by_role("article")).to_have_count(4)
    expect(page.get_by_role("article").last).to_contain_text("and a second")


def test_the_prompt_that_is_read_has_a_bar_and_a_time(server: Server, page: Page) -> None:
    page.goto(server.url)
    server.control(hold="prefill", after=300, step_ms=150)
    say(page, "A long prompt. " * 40)
    bar = page.locator("progress")
    expect(bar).to_be_visible()
    expect(
        page.get_by_text(
            re.compile(r"Reading prompt · \d+ of \d+ tokens.* tok/s · about \d+ s left")
        )
    ).to_be_visible()
    assert bar.evaluate("(e) => e.max") > 600
    page.wait_for_function("() => document.querySelector('progress').value >= 300")
    expect(page.locator(".slot.reading")).to_have_count(1)


def test_finished_blocks_stay_the_same_nodes_while_more_is_written(
    server: Server, page: Page
) -> None:
    page.goto(server.url)
    server.control(hold="decode", after=43)
    say(page, CODE)
    expect(page.locator(".md p").first).to_have_text("Look:")
    expect(page.locator(".open pre code")).to_contain_text("return x < 1")
    page.locator(".md p").first.evaluate("(e) => { e.dataset.tag = 'mine' }")
    server.control(hold="decode", after=70)
    expect(page.locator(".open")).to_contain_text("And then")
    expect(page.locator(".md p").first).to_have_attribute("data-tag", "mine")
    expect(page.locator("pre .k").first).to_have_text("def")
    server.control(hold=None)
    finished(page)
    expect(page.locator("pre code")).to_have_text("def f(x):\n    return x < 1\n")
    expect(page.locator(".md strong")).to_have_text("more")


def test_stop_ends_the_generation_and_keeps_what_was_written(server: Server, page: Page) -> None:
    page.goto(server.url)
    server.control(hold="decode", after=20)
    say(page, "Please write on and on and on without an end in sight")
    expect(page.get_by_role("article", name="Assistant")).to_contain_text("Please write on")
    server.until(lambda _: not server.is_idle())
    page.get_by_role("button", name="Stop", exact=True).click()
    finished(page)
    reply = page.get_by_role("article", name="Assistant")
    expect(reply).to_contain_text("Please write on")
    expect(reply).to_contain_text("Stopped")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    server.until(lambda _: server.is_idle())
    page.reload()
    expect(reply).to_contain_text("Please write on")


def test_escape_stops(server: Server, page: Page) -> None:
    page.goto(server.url)
    server.control(hold="prefill")
    say(page, "Something to stop " * 20)
    expect(page.locator("progress")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_text("Stopped", exact=True).first).to_be_visible()
    server.until(lambda _: server.is_idle())


def test_a_page_loaded_again_in_the_middle_goes_on_without_doubling(
    server: Server, page: Page
) -> None:
    page.goto(server.url)
    server.control(hold="decode", after=30)
    text = "One two three four five six seven eight nine ten eleven twelve"
    say(page, text)
    reply = page.get_by_role("article", name="Assistant")
    expect(reply).to_contain_text("five six")
    page.reload()
    expect(reply).to_contain_text("five six")
    expect(reply).to_have_attribute("aria-busy", "true")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    server.control(hold=None)
    finished(page)
    expect(page.locator("article > .md")).to_have_text(text)


def test_a_page_whose_scripts_come_late_follows_the_reply_all_the_same(
    server: Server, visitor: Visitor
) -> None:
    context = visitor.context()
    first = context.new_page()
    first.goto(server.url)
    server.control(hold="decode", after=20)
    say(first, "The answer to this is looked at over a slow line")
    expect(first.locator(".md.open")).to_contain_text("The answer")

    def late(route: Route) -> None:
        time.sleep(0.5)
        route.continue_()

    second = visitor.context().new_page()
    second.route("**/hx-sse.min.js", late)
    second.goto(first.url)
    server.control(hold=None)
    finished(second)


def test_a_reply_goes_on_when_nobody_looks_and_two_pages_can_watch_it(
    server: Server, visitor: Visitor
) -> None:
    context = visitor.context()
    first = context.new_page()
    first.goto(server.url)
    server.control(hold="decode", after=20)
    text = "Two of us are looking at the very same answer as it grows"
    say(first, text)
    expect(first.locator(".md.open")).to_contain_text("Two of us")
    second = context.new_page()
    second.goto(first.url)
    expect(second.locator(".md.open")).to_contain_text("Two of us")
    first.goto(server.url)
    server.control(hold=None)
    finished(second)
    expect(second.locator("article > .md")).to_have_text(text)
    first.goto(second.url)
    expect(first.locator("article > .md")).to_have_text(text)


def test_a_hidden_page_catches_up_when_it_is_looked_at_again(server: Server, page: Page) -> None:
    page.goto(server.url)
    server.control(hold="decode", after=20)
    text = "While the page is hidden this answer grows to its very end"
    say(page, text)
    expect(page.locator(".md.open")).to_contain_text("While the page")
    hide = """(hidden) => {
      Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    server.control(hold=None)
    server.until(lambda _: server.is_idle())
    page.evaluate(hide, False)
    finished(page)
    expect(page.locator("article > .md")).to_have_text(text)


def test_those_who_wait_are_told_their_place(server: Server, visitor: Visitor) -> None:
    server.control(hold="decode", after=4)
    # The fake holds as a whole: while the first one is held nobody else gets a slot.
    pages = [visitor.page() for _ in range(3)]
    for number, page in enumerate(pages):
        page.goto(server.url)
        say(page, f"Question number {number} of a few")
        expect(page.locator("[aria-busy]")).to_have_count(1)
        if number == 0:
            expect(page.locator(".md.open")).to_have_text("Ques")
    expect(pages[1].locator(".status")).to_have_text("Waiting for a slot, next in line")
    expect(pages[2].locator(".status")).to_have_text("Waiting for a slot, 1 ahead")
    expect(pages[2].locator(".slots")).to_have_attribute("aria-label", re.compile("2 waiting"))
    server.control(hold=None)
    for number, page in enumerate(pages):
        expect(page.locator("article > .md")).to_have_text(f"Question number {number} of a few")


def test_a_message_too_long_stays_with_its_error_beside_it(server: Server, page: Page) -> None:
    page.goto(server.url)
    say(page, "far too long " * 400)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("4,096")
    expect(page.get_by_role("article", name="You")).to_contain_text("far too long")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    page.reload()
    expect(alert).to_contain_text("4,096")
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_role("article", name="Assistant")).to_have_count(1)
    expect(alert).to_contain_text("4,096")
    expect(page.get_by_role("button", name="Retry")).to_be_visible()


def test_a_full_queue_is_said_in_place_and_retry_works(
    own_server: Callable[..., Server], visitor: Visitor
) -> None:
    server = own_server(n_slots=1, max_queue=0, n_ctx=2048)
    server.control(hold="decode", after=4)
    first, second = visitor.page(), visitor.page()
    first.goto(server.url)
    say(first, "I have the only slot there is")
    expect(first.locator(".md.open")).to_contain_text("I ha")
    second.goto(server.url)
    say(second, "And I come too late")
    expect(second.get_by_role("alert")).to_contain_text("queue")
    expect(second.locator(".user > .user")).to_have_text("And I come too late")
    server.control(hold=None)
    finished(first)
    second.get_by_role("button", name="Retry").click()
    expect(second.locator("article > .md")).to_have_text("And I come too late")
    expect(second.get_by_role("alert")).to_have_count(0)


def test_an_engine_that_dies_is_said_in_place_with_what_was_written(
    own_server: Callable[..., Server], page: Page
) -> None:
    server = own_server(n_slots=1, n_ctx=2048)
    page.goto(server.url)
    server.control(hold="decode", after=20)
    say(page, "The engine will not survive this sentence at all")
    expect(page.locator(".md.open")).to_contain_text("The engine")
    server.control(crash="exit", hold=None)
    expect(page.get_by_role("alert")).to_contain_text("The engine")
    expect(page.get_by_role("article", name="Assistant").locator(".md")).to_contain_text(
        "The engine"
    )
    page.get_by_role("button", name="Retry").click()
    expect(page.locator("article > .md")).to_have_text(
        "The engine will not survive this sentence at all"
    )


def test_while_a_reply_runs_another_page_cannot_talk_into_it_and_loses_no_text(
    server: Server, visitor: Visitor
) -> None:
    context = visitor.context()
    first, second = context.new_page(), context.new_page()
    visitor.expected.append("409")
    first.goto(server.url)
    say(first, "Begin")
    finished(first)
    second.goto(first.url)
    server.control(hold="decode", after=2)
    say(first, "Now it runs")
    expect(first.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    write(second, "Me too")
    expect(second.get_by_role("alert")).to_contain_text("still being written")
    expect(second.get_by_label("Message", exact=True)).to_have_value("Me too")
    expect(second.locator(".user > .user")).to_have_text(["Begin", "Now it runs"])


def test_a_server_that_is_gone_is_said_and_the_page_goes_on_when_it_is_back(
    server: Server, visitor: Visitor
) -> None:
    visitor.expected += ["ERR_INTERNET_DISCONNECTED", "Failed to fetch", "network error"]
    context = visitor.context()
    page = context.new_page()
    page.goto(server.url)
    say(page, "First")
    finished(page)
    context.set_offline(True)
    write(page, "Nobody hears this")
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
    expect(page.get_by_label("Message", exact=True)).to_have_value("Nobody hears this")
    context.set_offline(False)
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_role("button", name="Send").click()
    expect(page.locator("article > .md").last).to_have_text("Nobody hears this")
