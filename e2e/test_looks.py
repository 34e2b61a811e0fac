"""Every size and colour: the composer in reach, nothing to scroll sideways, axe content."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from e2e_kit import DESKTOP, PHONE, SMALL_PHONE, Server, Visitor, finished, say
from playwright.sync_api import Page, expect

RICH = """A reply with everything, and_one_very_long_word_that_does_not_want_to_be_broken_anywhere.

```python
def merge(left, right):  # a line of code that is a good deal longer than any phone is wide
    return sorted(left + right)
```

| sort | time | memory | stable | comment |
|---|---:|---:|:-:|---|
| merge | n log n | n | yes | a_wide_cell_that_makes_the_table_scroll |

> Quoted, with `code` and a [link](https://example.test).

So $f(x) = a_0 + a_1 x + a_2 x^2 + a_3 x^3 + a_4 x^4 + a_5 x^5 + a_6 x^6$, and

$$
x = \\frac{-b \\pm \\sqrt{b^2 - 4ac}}{2a} = a_0 + a_1 + a_2 + a_3 + a_4 + a_5 + a_6 + a_7.
$$

- [ ] to do
- [x] done

```python
print("a second block in the same language")
```

| a second | table |
|---|---|
| 1 | 2 |
"""
SIZES = {"desktop": DESKTOP, "phone": PHONE}
AXE = Axe()
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


def assert_accessible(page: Page) -> None:
    found = AXE.run(page, options=RULES).response["violations"]
    assert not found, [(v["id"], [n["target"] for n in v["nodes"]]) for v in found]


def assert_fits(page: Page) -> None:
    """The composer is in reach and nothing needs sideways scrolling."""
    expect(page.get_by_label("Message", exact=True)).to_be_in_viewport(ratio=1)
    expect(page.locator("#crow .send")).to_be_in_viewport(ratio=1)
    wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) <= 0
    assert page.locator("#scroll").evaluate("(e) => e.scrollWidth - e.clientWidth") <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_state_is_accessible(
    server: Server, visitor: Visitor, size: str, scheme: Any
) -> None:
    page = visitor.page(viewport=SIZES[size], color_scheme=scheme)
    page.goto(server.url)
    assert_accessible(page)
    server.control(hold="prefill")
    say(page, f"{size} {scheme}\n\n{RICH}")
    expect(page.locator("progress")).to_be_visible()
    assert_accessible(page)
    server.control(hold="decode", after=160)
    expect(page.locator(".open pre")).to_be_visible()
    assert_accessible(page)
    server.control(hold=None)
    finished(page)
    assert_accessible(page)
    say(page, "far too long " * 400)
    expect(page.get_by_role("alert")).to_be_visible()
    assert_accessible(page)
    page.get_by_role("button", name="Rename or delete this conversation").click()
    expect(page.get_by_text("Delete this conversation")).to_be_visible()
    assert_accessible(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_login_and_error_pages_are_accessible(
    own_server: Callable[..., Server], visitor: Visitor, scheme: Any
) -> None:
    visitor.expected += ["401", "404"]
    server = own_server(api_keys=("k",), n_ctx=2048)
    page = visitor.page(color_scheme=scheme, viewport=PHONE)
    page.goto(server.url)
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    assert_accessible(page)
    page.get_by_label("API key").fill("k")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_label("Message", exact=True)).to_be_visible()
    page.goto(f"{server.url}/c/none")
    expect(page.get_by_role("alert")).to_be_visible()
    assert_accessible(page)


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE, SMALL_PHONE], ids=lambda v: str(v["width"]))
def test_the_composer_stays_in_reach_and_nothing_scrolls_sideways(
    server: Server, visitor: Visitor, viewport: Any
) -> None:
    page = visitor.page(viewport=viewport, has_touch=viewport["width"] < 700)
    page.goto(server.url)
    assert_fits(page)
    server.control(hold="prefill")
    say(page, f"{viewport['width']} wide\n\n{RICH}")
    expect(page.locator("progress")).to_be_visible()
    assert_fits(page)
    server.control(hold=None)
    finished(page)
    assert_fits(page)
    page.get_by_label("Message", exact=True).fill("\n".join(str(n) for n in range(60)))
    assert_fits(page)
    page.get_by_role("button", name="Rename or delete this conversation").click()
    expect(page.get_by_role("button", name="Rename", exact=True)).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize("size", [DESKTOP, PHONE, SMALL_PHONE])
def test_a_long_title_leaves_the_model_and_itself_readable(
    server: Server, visitor: Visitor, size: Any
) -> None:
    page = visitor.page(viewport=size, has_touch=size != DESKTOP)
    page.goto(server.url)
    say(page, "Hello")
    page.get_by_role("button", name="Rename or delete this conversation").click()
    page.get_by_label("Title", exact=True).fill("a very long title " * 11)
    page.get_by_role("button", name="Rename", exact=True).click()
    title, model = page.locator("#title h1"), page.locator("header .chip.model")
    expect(title).to_have_attribute("title", ("a very long title " * 11).strip())
    assert_fits(page)
    assert title.evaluate("e => e.clientWidth") >= 80
    if size == DESKTOP:
        assert model.evaluate("e => e.scrollWidth <= e.clientWidth")


def test_on_a_phone_the_list_is_a_drawer(server: Server, visitor: Visitor) -> None:
    page = visitor.page(viewport=PHONE, has_touch=True)
    page.goto(server.url)
    say(page, "Found in the drawer")
    finished(page)
    row = page.get_by_role("link", name="Found in the drawer")
    expect(row).to_be_hidden()
    page.get_by_role("button", name="Chats").click()
    expect(row).to_be_in_viewport()
    assert_accessible(page)
    page.keyboard.press("Escape")
    expect(row).to_be_hidden()
    page.get_by_role("button", name="Chats").click()
    page.get_by_role("link", name="New chat", exact=True).click()
    expect(page).to_have_url(re.compile(r"/$"))


def test_short_conversations_begin_at_the_top(server: Server, page: Page) -> None:
    page.goto(server.url)
    say(page, "Short")
    finished(page)
    box = page.get_by_role("article", name="You").bounding_box()
    assert box is not None and box["y"] < 120
