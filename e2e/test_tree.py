"""The tree of a conversation in the browser: edits, branches, forks, deletions, pages behind."""

import re
from typing import Any

import pytest
from e2e_kit import DESKTOP, PHONE, Server, Visitor, finished, say
from playwright.sync_api import Locator, Page, expect
from test_looks import assert_accessible, assert_fits


def talk(page: Page, server: Server, *texts: str) -> None:
    """A conversation in which the model says everything again."""
    page.goto(server.url)
    for text in texts:
        say(page, text)
        finished(page)


def turn(page: Page, n: int) -> Locator:
    return page.locator("#turns > .turn").nth(n)


def texts(page: Page) -> list[str]:
    """What the turns say."""
    return [
        t.locator(".user, .md").first.inner_text() for t in page.locator("#turns > .turn").all()
    ]


def act(page: Page, n: int, name: str) -> None:
    turn(page, n).get_by_role("button", name=name, exact=True).click()


def edit(page: Page, n: int, text: str, *, by: str) -> None:
    turn(page, n).get_by_role("link", name="Edit").click()
    box = turn(page, n).get_by_role("textbox")
    expect(box).to_be_focused()
    box.fill(text)
    act(page, n, by)


def test_a_message_is_edited_in_place_and_what_follows_stays(server: Server, page: Page) -> None:
    talk(page, server, "first", "second")
    edit(page, 0, "first, put better", by="Save")
    expect(turn(page, 0).locator(".user")).to_have_text("first, put better")
    assert texts(page) == ["first, put better", "first", "second", "second"]
    edit(page, 3, "a reply that was **put right**", by="Save")
    expect(turn(page, 3).locator("strong")).to_have_text("put right")
    page.reload()
    assert texts(page)[3] == "a reply that was put right"


def test_on_a_phone_the_box_of_an_edit_is_below_the_header(
    server: Server, visitor: Visitor
) -> None:
    page = visitor.page(viewport=PHONE, has_touch=True)
    talk(page, server, "first", "second", "third")
    turn(page, 0).get_by_role("link", name="Edit").click()
    box = turn(page, 0).get_by_role("textbox")
    expect(box).to_be_focused()
    header, edge = page.locator("header").bounding_box(), box.bounding_box()
    assert header is not None and edge is not None
    assert edge["y"] >= header["y"] + header["height"] + 4  # the ring of the focus too


def test_branches_are_stepped_through_and_nothing_is_lost(server: Server, page: Page) -> None:
    talk(page, server, "first", "second")
    edit(page, 2, "another second", by="Send as a branch")
    expect(turn(page, 2).locator(".user")).to_have_text("another second")
    finished(page)
    assert texts(page) == ["first", "first", "another second", "another second"]
    expect(turn(page, 2).locator(".place")).to_contain_text("2/2")
    turn(page, 2).get_by_role("button", name="Previous alternative").click()
    expect(turn(page, 3).locator(".md")).to_have_text("second")
    act(page, 3, "Regenerate")
    expect(turn(page, 3).locator(".place")).to_contain_text("2/2")
    finished(page)
    page.get_by_role("button", name="Rename or delete this conversation").click()
    page.get_by_role("link", name="Show all branches").click()
    expect(page.locator(".tree li")).to_have_count(7)
    page.get_by_role("button", name="Show: another second").last.click()
    expect(turn(page, 2).locator(".user")).to_have_text("another second")


def test_a_fork_goes_its_own_way(server: Server, page: Page) -> None:
    talk(page, server, "shared", "not shared")
    first = page.url
    act(page, 1, "Fork")
    page.wait_for_url(lambda url: url.startswith(f"{server.url}/c/") and url != first)
    assert texts(page) == ["shared", "shared"]
    say(page, "only here")
    finished(page)
    page.goto(first)
    assert texts(page) == ["shared", "shared", "not shared", "not shared"]


def test_what_was_deleted_comes_back(server: Server, page: Page) -> None:
    talk(page, server, "stays", "goes")
    act(page, 2, "Delete")
    expect(page.locator("#turns > .turn")).to_have_count(2)
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#turns > .turn")).to_have_count(4)
    assert texts(page) == ["stays", "stays", "goes", "goes"]


def test_the_last_reply_goes_on_where_it_ended(server: Server, page: Page) -> None:
    talk(page, server, "one two three")
    edit(page, 1, "It begins", by="Save")
    expect(turn(page, 1).locator(".md")).to_have_text("It begins")
    act(page, 1, "Continue")
    expect(turn(page, 1).locator("> .md")).to_have_text(re.compile("^It begins.+"))
    assert len(texts(page)) == 2


def test_a_page_that_is_behind_overwrites_nothing_and_keeps_the_text(
    server: Server, visitor: Visitor
) -> None:
    page, other = visitor.page(), visitor.page()
    visitor.expected.append("409")
    talk(page, server, "of both")
    other.goto(page.url)
    turn(other, 0).get_by_role("link", name="Edit").click()
    turn(other, 0).get_by_role("textbox").fill("typed on the page that is behind")
    edit(page, 0, "from the first page", by="Save")
    expect(turn(page, 0).locator(".user")).to_have_text("from the first page")
    act(other, 0, "Save")
    expect(other.locator("#notice")).to_contain_text("changed elsewhere")
    expect(turn(other, 0).get_by_role("textbox")).to_have_value("typed on the page that is behind")
    other.reload()
    assert texts(other)[0] == "from the first page"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_turns_being_edited_and_the_list_of_branches_are_accessible(
    server: Server, visitor: Visitor, size: Any, scheme: Any
) -> None:
    page = visitor.page(viewport=size, color_scheme=scheme)
    talk(page, server, f"look {scheme} {size['width']}")
    edit(page, 0, "look again", by="Send as a branch")
    expect(turn(page, 0).locator(".user")).to_have_text("look again")
    finished(page)
    turn(page, 1).get_by_role("link", name="Edit").click()
    expect(turn(page, 1).get_by_role("textbox")).to_be_visible()
    assert_fits(page)
    assert_accessible(page)
    page.goto(f"{page.url}/tree")
    assert_accessible(page)


def test_the_tree_is_changed_without_script(server: Server, visitor: Visitor) -> None:
    page = visitor.page(java_script_enabled=False)
    page.goto(server.url)
    page.get_by_label("Message", exact=True).fill("plain")
    page.get_by_role("button", name="Send", exact=True).click()
    said = page.locator(".turn.assistant > .md")  # not while it is being written
    expect(said).to_have_text("plain")
    turn(page, 0).get_by_role("link", name="Edit").click()
    turn(page, 0).get_by_role("textbox").fill("plainer")
    act(page, 0, "Send as a branch")
    expect(said).to_have_text("plainer")
    turn(page, 0).get_by_role("button", name="Previous alternative").click()
    expect(said).to_have_text("plain")
    act(page, 1, "Delete")
    expect(page.locator("#turns > .turn")).to_have_count(1)
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#turns > .turn")).to_have_count(2)
