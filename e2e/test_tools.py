"""The pages to try things on: tokens, templates, grammars, notebooks."""

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from e2e_kit import DESKTOP, PHONE, SMALL_PHONE, Server, Visitor
from playwright.sync_api import Page, expect

SIZES = [DESKTOP, PHONE, SMALL_PHONE]
PAGES = ["tokens"]
AXE = Axe()
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


def assert_accessible(page: Page) -> None:
    found = AXE.run(page, options=RULES).response["violations"]
    assert not found, [(v["id"], [n["target"] for n in v["nodes"]]) for v in found]


def assert_fits(page: Page) -> None:
    """Nothing needs sideways scrolling."""
    for part in ("html", "main"):
        assert page.locator(part).evaluate("(e) => e.scrollWidth - e.clientWidth") <= 0, part


def fill(page: Page, tool: str) -> None:
    """A page with something on it."""
    if tool == "tokens":
        page.get_by_label("Text", exact=True).fill("a_very_long_word " * 20 + "é\n<|im_end|>")
        expect(page.locator(".counts")).to_contain_text("tokens ·")
        page.get_by_text("As a table").click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", SIZES, ids=lambda v: str(v["width"]))
@pytest.mark.parametrize("tool", PAGES)
def test_pages_are_accessible_and_fit(
    server: Server, visitor: Visitor, tool: str, viewport: Any, scheme: Any
) -> None:
    page = visitor.page(viewport=viewport, color_scheme=scheme)
    page.goto(f"{server.url}/{tool}")
    assert_accessible(page)
    assert_fits(page)
    fill(page, tool)
    assert_accessible(page)
    assert_fits(page)


# --- tokens ---------------------------------------------------------------------------------------


def test_tokens_come_as_one_types_and_the_table_stays_open(server: Server, page: Page) -> None:
    page.goto(server.url)
    page.get_by_role("navigation").get_by_role("link", name="Tokens").click()
    text = page.get_by_label("Text", exact=True)
    text.press_sequentially("né<|im_end|>")
    chips = page.locator(".toks li")
    expect(chips).to_have_text(["n110", "C3195", "A9169", "<|im_end|>257"])
    page.get_by_text("As a table").click()
    page.get_by_label("Read control tokens in the text").uncheck()
    expect(chips).to_have_count(13)
    expect(page.locator("#token-table tbody tr")).to_have_count(13)
    expect(page.locator("#token-table table")).to_be_visible()
    expect(text).to_be_editable()
    page.get_by_label("Numbers of tokens").press_sequentially("104 105")
    expect(page.locator("#back pre")).to_have_text("hi")
    page.get_by_label("Numbers of tokens").press_sequentially(" 9999")
    expect(page.get_by_role("alert")).to_contain_text("9999")


def test_tokens_without_script(server: Server, visitor: Visitor) -> None:
    page = visitor.page(java_script_enabled=False)
    page.goto(f"{server.url}/tokens")
    page.get_by_label("Text", exact=True).fill("hi")
    page.get_by_role("button", name="Show tokens").click()
    expect(page.locator(".toks li")).to_have_text(["h104", "i105"])
    page.get_by_label("Numbers of tokens").fill("104, 105")
    page.get_by_role("button", name="Show text").click()
    expect(page.locator("#back pre")).to_have_text("hi")
