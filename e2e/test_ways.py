"""Several answers side by side, comparing settings, and batches, in a browser."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from e2e_kit import DESKTOP, PHONE, SMALL_PHONE, Server, Visitor, finished, say
from playwright.sync_api import Locator, Page, expect
from test_looks import assert_accessible

SIDEWAYS = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


def columns(page: Page) -> Locator:
    return page.get_by_role("article", name=re.compile(r"^Answer \d$"))


def ask(page: Page, text: str, n: int) -> None:
    """A message that is to be answered in ``n`` ways."""
    page.get_by_label("Answers to this message").select_option(str(n))
    say(page, text)
    expect(columns(page)).to_have_count(n)


def test_answers_run_side_by_side_and_one_is_kept(
    server: Server, page: Page, visitor: Visitor
) -> None:
    page.goto(server.url)
    server.control(hold="decode", after=9)
    ask(page, "Three ways of it, please", 3)
    first = page.get_by_role("article", name="Answer 1")
    expect(first.locator(".md.open")).to_contain_text("Three")
    left, right = columns(page).nth(0).bounding_box(), columns(page).nth(1).bounding_box()
    assert left and right and left["y"] == right["y"] and left["x"] < right["x"]
    # Another tab, and this one again, see all of them as they stand.
    other = page.context.new_page()
    other.goto(page.url)
    page.reload()
    for tab in (page, other):
        expect(columns(tab)).to_have_count(3)
        expect(tab.get_by_role("article", name="Answer 1").locator(".md.open")).to_contain_text("T")
    page.get_by_role("button", name="Stop Answer 2").click()
    for tab in (page, other):
        second = tab.get_by_role("article", name="Answer 2")
        expect(second.get_by_text("Stopped", exact=True)).to_be_visible()
        expect(tab.locator("article[aria-busy]")).to_have_count(2)
    server.control(hold=None)
    for tab in (page, other):
        finished(tab)
        for name in ("Answer 1", "Answer 3"):
            said = tab.get_by_role("article", name=name).locator(".md")
            expect(said).to_have_text("Three ways of it, please")
        expect(tab.get_by_role("button", name="Send")).to_be_visible()
    expect(page.locator("#announce")).to_have_text("3 answers finished")
    page.get_by_role("button", name="Keep this one: Answer 3").click()
    expect(columns(page)).to_have_count(0)
    expect(page.get_by_role("img", name="Alternative 3 of 3")).to_be_visible()
    page.get_by_label("Answers to this message").select_option("1")
    say(page, "And on with that")
    finished(page)
    expect(page.get_by_role("article", name="Assistant")).to_have_count(2)
    page.reload()
    expect(page.get_by_role("article", name="Assistant").last).to_contain_text("And on with that")


def test_more_ways_of_a_reply_and_a_message_that_closes_the_columns(
    server: Server, page: Page
) -> None:
    page.goto(server.url)
    say(page, "One way first")
    finished(page)
    page.get_by_text("n ways", exact=True).click()
    page.get_by_role("button", name="2 answers").click()
    expect(columns(page)).to_have_count(3)
    finished(page)
    server.control(hold="decode", after=4)
    ask(page, "Two of the next", 2)
    # What was side by side above is one turn now, as it is when the page is loaded.
    expect(page.locator(".beside")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.get_by_text("Stopped", exact=True)).to_have_count(2)
    finished(page)
    page.reload()
    expect(columns(page)).to_have_count(2)


def test_ways_work_without_script(server: Server, visitor: Visitor) -> None:
    page = visitor.page(java_script_enabled=False)
    page.goto(server.url)
    page.get_by_label("Message", exact=True).fill("No script, two ways")
    page.get_by_label("Answers to this message").select_option("2")
    server.control(hold="decode", after=4)
    page.get_by_role("button", name="Send").click()
    expect(columns(page)).to_have_count(2)
    page.get_by_role("button", name="Stop Answer 1").click()
    expect(page.get_by_text("Stopped", exact=True)).to_be_visible()
    server.control(hold=None)
    # The page loads itself again while one runs.
    second = page.get_by_role("article", name="Answer 2")
    expect(second).to_contain_text("No script, two ways")
    expect(page.locator("[aria-busy]")).to_have_count(0)
    page.get_by_role("button", name="Keep this one: Answer 2").click()
    expect(columns(page)).to_have_count(0)
    expect(page.get_by_role("img", name="Alternative 2 of 2")).to_be_visible()


def test_settings_are_compared_and_one_is_kept(
    server: Server, page: Page, visitor: Visitor
) -> None:
    visitor.expected.append("400")
    page.goto(server.url)
    page.get_by_role("link", name="Compare", exact=True).click()
    page.get_by_label("Prompt", exact=True).fill("Compared with each other")
    third = page.get_by_role("group", name="Answer 3")
    expect(third.get_by_label("Temperature")).to_be_hidden()
    third.get_by_label("Ask for it").check()
    third.get_by_label("Temperature").fill("7000")
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Some settings cannot be used")
    expect(third.get_by_label("Temperature")).to_have_value("7000")
    third.get_by_label("Temperature").fill("0.5")
    server.control(hold="decode", after=9)
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(columns(page)).to_have_count(3)
    expect(columns(page).nth(2)).to_contain_text("Temperature 0.5")
    expect(columns(page).nth(0).locator(".md.open")).to_contain_text("Comp")
    server.control(hold=None)
    finished(page)
    expect(columns(page).nth(1).locator(".md")).to_have_text("Compared with each other")
    page.get_by_role("button", name="Keep this one: Answer 3").click()
    expect(page).to_have_url(re.compile(r"/c/\w+#m-\d+$"))
    expect(page.get_by_role("img", name="Alternative 3 of 3")).to_be_visible()


def test_a_batch_is_worked_off_while_the_page_shows_it(server: Server, page: Page) -> None:
    page.goto(server.url)
    page.get_by_role("link", name="Batch", exact=True).click()
    page.get_by_label(re.compile("^Prompts")).fill("first prompt\nsecond prompt\n" + "long " * 2000)
    server.control(hold="decode", after=6)
    page.get_by_role("button", name="Begin", exact=True).click()
    expect(page.get_by_text("Running", exact=False).first).to_be_visible()
    row = page.get_by_role("row", name=re.compile("first prompt"))
    expect(row).to_contain_text("running")
    server.control(hold=None)
    expect(row).to_contain_text("done")
    expect(page.get_by_text("1 failed")).to_be_visible()
    expect(page.get_by_role("button", name="Retry what failed")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download as JSONL").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert [json.loads(line)["answer"] for line in lines] == ["first prompt", "second prompt", ""]
    page.get_by_role("link", name="2", exact=True).click()
    expect(page.locator(".md")).to_have_text("second prompt")
    page.get_by_role("link", name="Back to the batch").click()
    page.get_by_text("Delete this batch").click()
    page.get_by_role("button", name="Delete for good").click()
    expect(page).to_have_url(f"{server.url}/batch")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE, SMALL_PHONE], ids=lambda v: str(v["width"]))
def test_their_pages_are_accessible_and_fit(
    server: Server, visitor: Visitor, viewport: Any, scheme: Any
) -> None:
    page = visitor.page(viewport=viewport, color_scheme=scheme, has_touch=viewport["width"] < 700)
    page.goto(server.url)
    server.control(hold="decode", after=40)
    # No code: blocks of it are regions, and those of several answers have the same names.
    ask(page, f"Words that {'do_not_end_' * 9}\n\n- and [ ] things\n\nto do", 4)
    expect(page.locator(".md.open").first).to_contain_text("Words")
    assert_accessible(page)
    assert page.evaluate(SIDEWAYS) <= 0
    server.control(hold=None)
    finished(page)
    assert_accessible(page)
    assert page.evaluate(SIDEWAYS) <= 0
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_in_viewport(ratio=1)
    page.goto(f"{server.url}/compare")
    assert_accessible(page)
    assert page.evaluate(SIDEWAYS) <= 0
    page.goto(f"{server.url}/batch")
    assert_accessible(page)
    assert page.evaluate(SIDEWAYS) <= 0
    page.get_by_label(re.compile("^Prompts")).fill("a\nb\n" + "long " * 2000)
    page.get_by_role("button", name="Begin", exact=True).click()
    expect(page.get_by_text("1 failed")).to_be_visible()
    assert_accessible(page)
    assert page.evaluate(SIDEWAYS) <= 0
