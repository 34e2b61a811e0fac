"""Writing: drafts, messages that wait, texts that are attached, and keys."""

from collections.abc import Callable
from typing import Any

import pytest
from e2e_kit import DESKTOP, PHONE, SMALL_PHONE, Server, Visitor, finished, say, write
from playwright.sync_api import FilePayload, Page, expect
from test_looks import assert_accessible, assert_fits
from test_reasoning import ASKED, TEMPLATE


def type_in(page: Page, text: str) -> None:
    """Types, and waits until the server has it."""
    with page.expect_response(lambda r: r.url.endswith("/drafts") and r.ok):
        page.get_by_label("Message", exact=True).press_sequentially(text)


def test_a_draft_of_a_new_chat_that_came_back_can_be_emptied(server: Server, page: Page) -> None:
    page.goto(server.url)
    type_in(page, "not after all")
    page.goto(server.url)
    box = page.get_by_label("Message", exact=True)
    expect(box).to_have_value("not after all")
    with page.expect_response(lambda r: r.url.endswith("/drafts") and r.ok):
        box.fill("")
    with page.expect_response(lambda r: "/drafts/new-" in r.url and r.ok):
        page.goto(server.url)
    expect(box).to_have_value("")


def test_what_is_typed_just_before_the_page_goes_is_kept(server: Server, page: Page) -> None:
    box = page.get_by_label("Message", exact=True)
    page.goto(server.url)
    say(page, "Hello")
    finished(page)
    for address in (page.url, server.url):
        page.goto(address)
        expect(box).to_have_value("")
        box.press_sequentially("these last letters")
        page.goto(server.url + "/status")
        page.goto(address)
        expect(box).to_have_value("these last letters")
        box.press_sequentially(" go on")
        expect(box).to_have_value("these last letters go on")


def test_a_page_that_goes_brings_back_no_draft_that_was_saved_or_sent(
    server: Server, visitor: Visitor
) -> None:
    page, other = visitor.page(), visitor.page()
    page.goto(server.url)
    say(page, "Hello")
    finished(page)
    chat = page.url
    page.goto(chat)
    type_in(page, "older")
    other.goto(chat)
    expect(other.get_by_label("Message", exact=True)).to_have_value("older")
    type_in(other, " and newer")
    page.goto(server.url + "/status")
    other.reload()
    expect(other.get_by_label("Message", exact=True)).to_have_value("older and newer")
    other.get_by_label("Message", exact=True).press_sequentially(", sent")
    other.keyboard.press("Enter")
    expect(other.get_by_role("article", name="You")).to_have_count(2)
    other.goto(server.url + "/status")
    page.goto(chat)
    expect(page.get_by_label("Message", exact=True)).to_have_value("")


def test_what_is_typed_is_there_in_another_browser_until_it_is_sent(
    server: Server, visitor: Visitor
) -> None:
    page, other = visitor.page(), visitor.page()
    box, there = (p.get_by_label("Message", exact=True) for p in (page, other))
    page.goto(server.url)
    type_in(page, "A new chat's first words")
    page.goto(server.url)
    expect(box).to_have_value("A new chat's first words")
    other.goto(server.url)
    expect(there).to_have_value("")
    page.keyboard.press("Enter")
    expect(page.get_by_role("article", name="You")).to_be_visible()
    finished(page)
    other.goto(page.url)
    type_in(page, "half a sent")
    other.reload()
    expect(there).to_have_value("half a sent")
    box.press_sequentially("ence")
    page.keyboard.press("Enter")
    expect(page.get_by_role("article", name="You")).to_have_count(2)
    finished(page)
    page.wait_for_timeout(600)  # what was typed last is written now, and must not come back
    other.reload()
    expect(there).to_have_value("")
    page.goto(server.url)
    expect(box).to_have_value("")


def test_messages_wait_for_the_reply_and_are_sent_with_the_page_closed(
    server: Server, visitor: Visitor
) -> None:
    context = visitor.context()
    page = context.new_page()
    page.goto(server.url)
    server.control(hold="decode", after=4)
    say(page, "The first of three")
    waiting = page.locator(".queued")
    for n, text in enumerate(("The second", "The third", "Not this one", "And not this"), start=1):
        write(page, text)
        expect(waiting).to_have_count(n)
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    page.get_by_label("Message", exact=True).fill("begun")
    waiting.nth(2).get_by_role("button", name="Edit", exact=True).click()
    expect(page.get_by_label("Message", exact=True)).to_have_value("begun\n\nNot this one")
    waiting.nth(2).get_by_role("button", name="Remove").click()
    expect(waiting).to_have_count(2)
    where = page.url
    page.goto("about:blank")
    server.control(hold=None)
    queue = server.app.state.site.store.queue
    while server.run(queue.list(where.rpartition("/")[2])):
        pass
    server.until(lambda _: server.is_idle())
    page.goto(where)
    finished(page)
    expect(page.locator(".user > .user")).to_have_text(
        ["The first of three", "The second", "The third"]
    )
    expect(page.locator("article > .md")).to_have_text(
        ["The first of three", "The second", "The third"]
    )
    expect(page.get_by_label("Message", exact=True)).to_have_value("begun\n\nNot this one")


def test_what_waits_is_the_same_on_all_pages(server: Server, visitor: Visitor) -> None:
    page, other = visitor.page(), visitor.page()
    page.goto(server.url)
    server.control(hold="decode", after=4)
    say(page, "The first")
    other.goto(page.url)
    write(page, "The second")
    expect(other.locator(".queued")).to_have_count(1)
    write(page, "The third")
    expect(other.locator(".queued")).to_have_count(2)
    kept = other.locator(".queued").first.get_by_role("button", name="Remove")
    kept.focus()
    page.locator(".queued").last.get_by_role("button", name="Remove").click()
    expect(other.locator(".queued")).to_have_count(1)
    expect(kept).to_be_focused()
    kept.click()
    expect(page.locator(".queued")).to_have_count(0)
    server.control(hold=None)
    finished(page)
    finished(other)


def test_a_page_that_is_open_shows_each_message_as_it_is_sent(server: Server, page: Page) -> None:
    page.goto(server.url)
    server.control(hold="decode", after=4)
    say(page, "One of two")
    write(page, "Two of two")
    expect(page.locator(".queued")).to_have_count(1)
    page.get_by_label("Message", exact=True).fill("unsent")
    server.control(hold=None)
    expect(page.locator("article > .md")).to_have_text(["One of two", "Two of two"])
    finished(page)
    expect(page.locator(".queued")).to_have_count(0)
    expect(page.get_by_label("Message", exact=True)).to_have_value("unsent")
    write(page, "and on")
    expect(page.locator(".turn.user")).to_have_count(3)
    finished(page)


def test_what_waits_is_paused_by_stop_and_sent_when_told(server: Server, page: Page) -> None:
    page.goto(server.url)
    server.control(hold="decode", after=4)
    say(page, "To be halted")
    write(page, "To be sent")
    expect(page.locator(".queued")).to_have_count(1)
    page.keyboard.press("Escape")
    send_now = page.get_by_role("button", name="Send now")
    expect(send_now).to_be_visible()
    server.control(hold=None)
    page.get_by_label("Message", exact=True).fill("still here")
    send_now.click()
    expect(page.locator("article > .md").last).to_have_text("To be sent")
    finished(page)
    expect(page.locator(".queued")).to_have_count(0)
    expect(page.get_by_label("Message", exact=True)).to_have_value("still here")


def test_without_script_the_form_has_both_buttons(server: Server, visitor: Visitor) -> None:
    page = visitor.page(java_script_enabled=False)
    page.goto(server.url)
    server.control(hold="decode", after=4)
    page.get_by_label("Message", exact=True).fill("Without script")
    page.get_by_role("button", name="Send", exact=True).click()
    page.get_by_label("Message", exact=True).fill("Next")
    page.get_by_role("button", name="Queue", exact=True).click()
    expect(page.locator(".queued > .user")).to_have_text("Next")
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Edit", exact=True).last.click()
    expect(page.get_by_label("Message", exact=True)).to_have_value("Next")
    expect(page.locator(".queued")).to_have_count(0)


NOTES: FilePayload = {
    "name": "notes.md",
    "mimeType": "text/markdown",
    "buffer": b"# Notes\n\n```\ncode <b>\n```\n" + b"a_line_that_is_long " * 20,
}
ZIP: FilePayload = {"name": "a.zip", "mimeType": "application/zip", "buffer": b"PK\3\4rest"}
PASTE = """(text) => {
  const data = new DataTransfer();
  data.setData("text/plain", text);
  const how = { clipboardData: data, bubbles: true, cancelable: true };
  return document.activeElement.dispatchEvent(new ClipboardEvent("paste", how));
}"""


def test_texts_are_chosen_refused_sent_and_folded(server: Server, visitor: Visitor) -> None:
    visitor.expected.append("400")
    page = visitor.page()
    page.goto(server.url)
    page.locator("#pictures").set_input_files([NOTES, ZIP])
    line = page.locator("#chips li", has=page.get_by_role("button"))
    expect(line).to_have_count(1)
    expect(line).to_contain_text("about")
    expect(page.get_by_role("alert")).to_contain_text("a.zip: this is a ZIP archive")
    write(page, "Sum up")
    expect(page.locator(".user > .user")).to_have_text("Sum up")
    finished(page)
    expect(page.locator("#chips li")).to_have_count(0)
    text = page.get_by_role("group", name="notes.md").locator("visible=true")
    expect(text).to_have_count(0)
    page.locator(".turn.user summary", has_text="notes.md").click()
    expect(text).to_contain_text("code <b>")
    page.get_by_role("article", name="You").get_by_role("link", name="Edit").click()
    box = page.get_by_label("Your message")
    box.fill("Short now")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator(".user > .user")).to_have_text("Short now")
    expect(page.locator(".file")).to_have_count(0)


def test_a_long_paste_is_a_file_and_can_be_text_again(server: Server, page: Page) -> None:
    page.goto(server.url)
    box = page.get_by_label("Message", exact=True)
    box.fill("before ")
    long = "pasted words " * 200
    assert not page.evaluate(PASTE, long), "the paste went into the box too"
    line = page.locator("#chips li", has=page.get_by_role("button"))
    expect(line).to_contain_text("Pasted text.txt")
    expect(box).to_have_value("before ")
    assert page.evaluate(PASTE, "a short paste"), "a short paste is the browser's"
    page.get_by_role("button", name="Into the box").click()
    expect(box).to_have_value(f"before {long}")
    expect(box).to_be_focused()
    expect(page.locator("#chips li")).to_have_count(0)


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE, SMALL_PHONE], ids=lambda v: str(v["width"]))
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_waits_and_what_is_attached_fits_and_is_accessible(
    server: Server, visitor: Visitor, viewport: Any, scheme: Any
) -> None:
    is_phone = viewport["width"] < 700
    page = visitor.page(viewport=viewport, color_scheme=scheme, has_touch=is_phone)
    page.goto(server.url)
    page.locator("#pictures").set_input_files([NOTES])
    expect(page.locator("#chips button")).to_have_count(2)
    server.control(hold="decode", after=4)
    say(page, "Sum up")
    page.locator(".turn.user summary", has_text="notes.md").click()
    page.locator("#pictures").set_input_files([NOTES])
    expect(page.locator("#chips button")).to_have_count(2)
    write(page, "And this one")
    expect(page.locator(".queued")).to_have_count(1)
    page.locator("#pictures").set_input_files([NOTES])
    expect(page.locator("#chips button")).to_have_count(2)
    assert_fits(page)
    assert_accessible(page)
    expect(page.locator("#stop")).to_be_in_viewport(ratio=1)
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Send now")).to_be_visible()
    assert_accessible(page)


def test_the_shortcuts_do_what_their_list_says(server: Server, visitor: Visitor) -> None:
    context = visitor.context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(server.url)
    for text in ("First of my words", "Second of my words"):
        say(page, text)
        finished(page)
    box = page.get_by_label("Message", exact=True)
    turns = page.locator(".turn")
    for n in (3, 2):
        page.keyboard.press("Alt+ArrowUp")
        expect(turns.nth(n)).to_be_focused()
    page.keyboard.press("c")
    expect(turns.nth(2).locator(".copy-turn")).to_have_text("Copied")
    assert page.evaluate("() => navigator.clipboard.readText()") == "Second of my words"
    for _ in range(2):
        page.keyboard.press("Alt+ArrowDown")
    expect(box).to_be_focused()
    page.keyboard.type("c/")
    expect(box).to_have_value("c/")
    page.keyboard.press("ArrowUp")
    expect(page.get_by_label("Your message")).to_have_count(0)
    box.fill("")
    page.keyboard.press("ArrowUp")
    expect(page.get_by_label("Your message")).to_have_value("Second of my words")
    expect(page.get_by_label("Your message")).to_be_focused()
    page.locator("#scroll").focus()
    page.keyboard.press("/")
    expect(page.get_by_label("Search the conversations")).to_be_focused()
    page.keyboard.press("Control+/")
    listed = page.locator("#shortcuts")
    expect(listed).to_be_visible()
    assert_accessible(page)
    page.keyboard.press("Escape")
    expect(listed).to_be_hidden()
    page.keyboard.press("Control+Shift+O")
    expect(page).to_have_url(f"{server.url}/")


def test_shortcuts_can_be_turned_off_without_script(server: Server, visitor: Visitor) -> None:
    context = visitor.context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{server.url}/shortcuts")
    page.get_by_role("button", name="Turn the shortcuts off").click()
    expect(page.get_by_role("status").filter(has_text="are off")).to_be_visible()
    cookies: Any = context.cookies()
    with_script = visitor.context()
    with_script.add_cookies(cookies)
    page = with_script.new_page()
    page.goto(server.url)
    page.locator("#scroll").focus()
    page.keyboard.press("/")
    page.keyboard.press("Control+/")
    expect(page.locator("#scroll")).to_be_focused()
    expect(page.locator("#shortcuts")).to_have_count(0)
    page.get_by_label("Message", exact=True).fill("Enter works")
    page.keyboard.press("Enter")
    expect(page.locator(".turn.user")).to_have_count(1)
    finished(page)


@pytest.mark.parametrize("viewport", [DESKTOP, SMALL_PHONE], ids=lambda v: str(v["width"]))
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_list_of_keys_is_accessible(
    server: Server, visitor: Visitor, viewport: Any, scheme: Any
) -> None:
    page = visitor.page(viewport=viewport, color_scheme=scheme)
    page.goto(f"{server.url}/shortcuts")
    assert_accessible(page)
    wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) <= 0


def test_reasoning_can_be_ended_while_it_lasts(
    own_server: Callable[..., Server], page: Page
) -> None:
    server = own_server(n_ctx=2048, chat_template=TEMPLATE)
    page.goto(server.url)
    server.control(hold="decode", after=30)
    say(page, ASKED)
    button = page.get_by_role("button", name="End thinking now")
    expect(button).to_be_visible()
    assert_accessible(page)
    with page.expect_response(lambda r: r.url.endswith("/end-thinking") and r.status == 204):
        button.click()
    server.control(hold=None)
    finished(page)
    # The scripted model goes on with what it was told to think; now it is said.
    expect(page.locator("article > .md")).to_contain_text("Is that all?")
    expect(page.locator(".thought")).not_to_contain_text("Is that all?")
    expect(button).to_have_count(0)


def test_a_reply_is_stopped_from_another_conversation_and_from_the_status_page(
    server: Server, visitor: Visitor
) -> None:
    page, other = visitor.page(), visitor.page()
    page.goto(server.url)
    server.control(hold="decode", after=4)
    say(page, "Written in one place")
    other.goto(server.url)
    button = other.get_by_role("button", name="Stop the reply in Written in one place")
    button.click()
    expect(button).to_have_count(0)
    finished(page)
    expect(page.get_by_role("article", name="Assistant")).to_contain_text("Stopped")
    server.control(hold=None)
    server.until(lambda _: server.is_idle())
    server.control(hold="decode", after=4)
    say(page, "And once more")
    other.goto(f"{server.url}/status")
    assert_accessible(other)
    other.locator(".replies").get_by_role("button").click()
    expect(other.locator(".replies")).to_have_count(0)
    finished(page)
