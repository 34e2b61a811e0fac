"""The list of conversations: found while typing, changed in place, deleted and brought back."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e_kit import DESKTOP, PHONE, Server, Visitor, finished, say
from playwright.sync_api import Page, expect
from test_looks import assert_accessible

from corral.backend.store import PAGE_SIZE


def begun(page: Page, server: Server, text: str) -> str:
    page.goto(server.url)
    say(page, text)
    finished(page)
    return page.url


def test_what_is_typed_is_found_and_leaving_the_box_empty_shows_the_list(
    server: Server, page: Page
) -> None:
    first = begun(page, server, "Where do zebras sleep? <mark>no</mark>")
    begun(page, server, "Another thing altogether")
    rail = page.get_by_role("navigation")
    box = rail.get_by_role("searchbox")
    box.fill("ZEBRAS")
    hit = rail.locator(".hit").first
    expect(hit).to_contain_text("Where do zebras sleep? <mark>no</mark>")
    expect(hit.locator("mark")).to_have_text(["zebras"])
    expect(rail.locator("#rows")).to_be_hidden()
    expect(page.locator("#announce")).to_have_text("1 conversation found")
    # The list is brought up to date beside what was found.
    say(page, "and more")
    finished(page)
    expect(hit).to_be_visible()
    box.fill("")
    expect(rail.locator("#rows")).to_be_visible()
    expect(rail.get_by_role("link", name="Another thing altogether")).to_be_visible()
    box.fill("zebras")
    hit.click()
    expect(page).to_have_url(re.compile(re.escape(first) + r"#m-\d+$"))


def test_a_hit_on_another_branch_shows_that_branch(server: Server, page: Page) -> None:
    begun(page, server, "A walrus on the first branch")
    page.get_by_role("article", name="You").get_by_role("link", name="Edit").click()
    page.get_by_label("Your message").fill("Something else on the second branch")
    page.get_by_role("button", name="Send as a branch").click()
    expect(page.get_by_role("article", name="You")).to_contain_text("second branch")
    finished(page)
    page.get_by_role("searchbox").fill("walrus on the")
    page.get_by_role("button", name="other branch").first.click()
    expect(page.get_by_role("article", name="You")).to_contain_text("A walrus on the first branch")


def test_a_line_is_renamed_pinned_and_deleted_in_its_place(server: Server, page: Page) -> None:
    begun(page, server, "To be changed from the list")
    here = begun(page, server, "The page that stays")
    rail = page.get_by_role("navigation")
    page.get_by_label("Message", exact=True).fill("half a message")
    rail.get_by_role("button", name="Change To be changed from the list").click()
    title = rail.get_by_label("Title", exact=True)
    expect(title).to_be_focused()
    title.fill("Changed & <b>")
    page.keyboard.press("Enter")
    row = rail.get_by_role("link", name="Changed & <b>")
    expect(row).to_be_focused()
    expect(page.get_by_role("heading", level=1)).to_have_text("The page that stays")
    rail.get_by_role("button", name="Change Changed").click()
    rail.get_by_role("button", name="Pin", exact=True).click()
    expect(rail.get_by_role("list", name="Pinned").get_by_role("link")).to_have_text(
        ["Changed & <b>"]
    )
    rail.get_by_role("button", name="Change Changed").click()
    rail.get_by_role("link", name="Cancel").click()
    expect(row).to_be_focused()
    rail.get_by_role("button", name="Change Changed").click()
    rail.get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(row).to_be_visible()
    expect(page).to_have_url(here)
    expect(page.get_by_label("Message", exact=True)).to_have_value("half a message")
    rail.get_by_role("button", name="Change The page that stays").click()
    rail.get_by_role("button", name="Delete").click()
    expect(page).to_have_url(re.compile(r"/\?deleted=\w+$"))
    page.get_by_role("button", name="Undo").click()
    expect(page).to_have_url(here)
    expect(page.get_by_role("article", name="You")).to_contain_text("The page that stays")


def test_a_tab_that_is_behind_cannot_rename(server: Server, visitor: Visitor) -> None:
    visitor.expected.append("409")
    context = visitor.context()
    one, two = context.new_page(), context.new_page()
    two.goto(begun(one, server, "Named once"))
    for tab, title in ((one, "Named twice"), (two, "Named behind")):
        tab.get_by_role("button", name="Rename or delete this conversation").click()
        tab.locator("#new-title").fill(title)
        tab.locator("#menu").get_by_role("button", name="Rename").click()
    expect(two.get_by_role("alert")).to_contain_text("renamed elsewhere")
    expect(one.get_by_role("heading", level=1)).to_have_text("Named twice")
    one.reload()
    expect(one.get_by_role("heading", level=1)).to_have_text("Named twice")


def test_more_of_the_list_comes_in_its_place(own_server: Callable[..., Server], page: Page) -> None:
    server = own_server(n_ctx=2048)
    store = server.app.state.site.store
    for n in range(2 * PAGE_SIZE + 1):
        server.run(store.create(f"Number {n:03}"))
    page.goto(server.url)
    rows = page.locator("#rows li > a")
    expect(rows).to_have_count(PAGE_SIZE)
    for n_rows in (2 * PAGE_SIZE, 2 * PAGE_SIZE + 1):
        page.get_by_role("link", name="Show more").click()
        expect(rows).to_have_count(n_rows)
    # The keyboard goes on with the first of what came.
    expect(rows.last).to_be_focused()
    assert rows.all_inner_texts() == [f"Number {n:03}" for n in reversed(range(n_rows))]
    expect(page.locator("#rows .day")).to_have_text(["Today"])
    expect(page.get_by_role("link", name="Show more")).to_have_count(0)


def test_all_of_it_works_without_script(server: Server, visitor: Visitor, page: Page) -> None:
    begun(page, server, "Plain search for an okapi")
    plain = visitor.page(java_script_enabled=False)
    plain.goto(server.url)
    plain.get_by_role("searchbox").fill("okapi")
    plain.keyboard.press("Enter")
    expect(plain.get_by_role("heading", level=1)).to_have_text("Search: okapi")
    expect(plain.locator("main mark").first).to_have_text("okapi")
    plain.locator("main .match > a").first.click()
    expect(plain.get_by_role("article", name="You")).to_contain_text("okapi")
    plain.get_by_role("button", name="Change Plain search").click()
    plain.locator("main").get_by_label("Title").fill("Plainly renamed")
    plain.locator("main").get_by_role("button", name="Rename").click()
    expect(plain.get_by_role("heading", level=1)).to_have_text("Plainly renamed")
    plain.get_by_role("button", name="Change Plainly renamed").click()
    plain.locator("main").get_by_role("button", name="Pin", exact=True).click()
    expect(plain.get_by_role("list", name="Pinned")).to_contain_text("Plainly renamed")
    plain.get_by_role("button", name="Change Plainly renamed").click()
    plain.locator("main").get_by_role("button", name="Delete").click()
    plain.get_by_role("button", name="Undo").click()
    expect(plain.get_by_role("heading", level=1)).to_have_text("Plainly renamed")
    plain.get_by_role("link", name="All conversations").click()
    expect(plain.locator("main").get_by_role("link", name="Plainly renamed").first).to_be_visible()


def test_conversations_go_out_as_files_and_come_in_again(
    server: Server, page: Page, tmp_path: Path
) -> None:
    begun(page, server, "Packed and unpacked")
    page.get_by_role("button", name="Rename or delete this conversation").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Export as JSONL").click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert file.name == "packed-and-unpacked.jsonl"
    page.get_by_role("link", name="Export and import").click()
    page.get_by_label("Files").set_input_files([file, file])
    page.get_by_role("button", name="Bring in").click()
    expect(page.get_by_text("Brought in: 2 conversations, 4 messages")).to_be_visible()
    page.locator(".brought").get_by_role("link").first.click()
    expect(page.get_by_role("article", name="Assistant")).to_contain_text("Packed and unpacked")


def test_a_file_that_is_none_is_said(server: Server, page: Page, visitor: Visitor) -> None:
    visitor.expected.append("400")
    page.goto(f"{server.url}/transfer")
    bad = {"name": "x.jsonl", "mimeType": "application/jsonl", "buffer": b'{"type": "message"}'}
    page.get_by_label("Files").set_input_files([bad])  # type: ignore[list-item]
    page.get_by_role("button", name="Bring in").click()
    expect(page.get_by_role("alert")).to_have_text(
        "x.jsonl, line 1, type: a message before any conversation"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_list_is_accessible_in_every_state(
    server: Server, visitor: Visitor, size: Any, scheme: Any
) -> None:
    page = visitor.page(viewport=size, color_scheme=scheme, has_touch=size is PHONE)
    begun(page, server, f"Looked at in {scheme} on {size['width']}")
    if size is PHONE:
        page.get_by_role("button", name="Chats").click()
    rail = page.get_by_role("navigation")
    expect(rail.get_by_role("list", name="Today")).to_be_visible()
    assert_accessible(page)
    rail.get_by_role("button", name="Change").first.click()
    expect(rail.get_by_label("Title", exact=True)).to_be_visible()
    assert_accessible(page)
    rail.get_by_role("searchbox").fill("looked at")
    expect(rail.locator(".hit").first).to_be_visible()
    assert_accessible(page)
    page.goto(server.url + "/search")
    page.locator("main .change").first.click()
    page.locator("main").get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("button", name="Undo")).to_be_visible()
    pages = ("/search", "/search?q=looked", "/search?q=nowhere+at+all", "/deleted", "/transfer")
    for path in pages:
        page.goto(server.url + path)
        assert_accessible(page)
        wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(wide) <= 0
