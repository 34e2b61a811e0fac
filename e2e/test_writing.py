"""Writing: drafts, messages that wait, texts that are attached, and keys."""

from e2e_kit import Server, Visitor, finished
from playwright.sync_api import Page, expect


def type_in(page: Page, text: str) -> None:
    """Types, and waits until the server has it."""
    with page.expect_response(lambda r: r.url.endswith("/drafts") and r.ok):
        page.get_by_label("Message", exact=True).press_sequentially(text)


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
