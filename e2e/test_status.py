"""The status page in a browser, with the engine held in the middle of a prompt."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from e2e_kit import DESKTOP, PHONE, SMALL_PHONE, Server, Visitor, finished, say
from playwright.sync_api import Page, expect

SIZES = [DESKTOP, PHONE, SMALL_PHONE]
AXE = Axe()
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
#: A point of a line that is not at the bottom.
A_RISE = re.compile(r",(?!80\.0)[\d.]+")
HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def prompt(page: Page) -> str:
    """One that nobody sent before, or the cache would have it and nothing could be held."""
    return f"{id(page)}: nobody else may read this. " * 20


def assert_accessible(page: Page) -> None:
    found = AXE.run(page, options=RULES).response["violations"]
    assert not found, [(v["id"], [n["target"] for n in v["nodes"]]) for v in found]


def assert_fits(page: Page) -> None:
    """Nothing needs sideways scrolling."""
    wide = "(e) => e.scrollWidth - e.clientWidth"
    for part in ("html", "main", ".slots-table"):
        assert page.locator(part).evaluate(wide) <= 0, part


def open_held(server: Server, page: Page, path: str = "/status") -> None:
    """The status page while slot 0 has read two fifths of a prompt."""
    server.control(hold="prefill")
    page.goto(server.url)
    say(page, prompt(page))
    expect(page.locator(".turn progress")).to_be_visible()
    page.goto(server.url + path)


def test_the_header_leads_to_a_page_that_moves_though_the_engine_is_held(
    server: Server, page: Page
) -> None:
    server.control(hold="prefill")
    page.goto(server.url)
    say(page, prompt(page))
    page.get_by_title("Status of the server").click()
    expect(page).to_have_url(f"{server.url}/status")
    expect(page.get_by_role("heading", level=1)).to_have_text("Status")
    row = page.get_by_role("row").filter(has_text="reading")
    expect(row).to_contain_text(" cached")
    expect(page.locator("#load")).to_have_text("1 of 2 busy, nobody waits")
    assert "nobody else" not in page.get_by_role("main").inner_text()
    # The same page sees the answer begin and end.
    server.control(hold="decode", after=40)
    expect(page.get_by_role("row").filter(has_text="generating")).to_contain_text("tok/s")
    server.control(hold=None)
    expect(page.locator("#load")).to_have_text("0 of 2 busy, nobody waits")
    expect(page.locator(".plot.generated polyline")).to_have_attribute("points", A_RISE)


def test_the_queue_is_on_it(server: Server, visitor: Visitor) -> None:
    server.control(hold="decode", after=4)
    pages = [visitor.page() for _ in range(3)]
    for page in pages:
        page.goto(server.url)
        say(page, "One of three at two slots")
    pages[0].goto(f"{server.url}/status")
    expect(pages[0].locator("#load")).to_have_text("1 of 2 busy, 2 of at most 64 waiting")


def test_a_hidden_page_asks_for_nothing_until_it_is_seen_again(server: Server, page: Page) -> None:
    open_held(server, page)
    with page.expect_request("**/status/now"):
        pass
    page.evaluate(HIDE, True)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    # What was under way when it was hidden is not counted: a few rounds must pass in silence.
    page.evaluate("() => new Promise((done) => setTimeout(done, 1600))")
    assert not asked
    with page.expect_request("**/status/now"), page.expect_request("**/strip"):
        page.evaluate(HIDE, False)


def test_it_is_not_taken_from_under_the_reader(server: Server, visitor: Visitor) -> None:
    page = visitor.page(viewport=SMALL_PHONE)
    open_held(server, page)
    main = page.get_by_role("main")
    main.evaluate("(e) => e.scrollTop = 300")
    page.evaluate("() => window.first = document.querySelector('.slots-table')")
    for _ in range(2):
        with page.expect_response("**/status/now"):
            pass
    server.control(hold=None)
    expect(page.locator("#load")).to_have_text("0 of 2 busy, nobody waits")
    assert main.evaluate("(e) => e.scrollTop") == 300
    assert page.evaluate("() => window.first.isConnected"), "changed in place, not exchanged"


def test_it_can_be_held_still(server: Server, page: Page) -> None:
    open_held(server, page)
    page.get_by_role("link", name="Hold still").click()
    server.control(hold=None)
    server.until(lambda _: server.is_idle())
    expect(page.locator(".strip .speed")).to_have_text("idle")
    expect(page.locator("#load")).to_have_text("1 of 2 busy, nobody waits")
    page.get_by_role("link", name="Follow").click()
    expect(page.locator("#load")).to_have_text("0 of 2 busy, nobody waits")


def test_without_script_it_loads_itself_again(server: Server, visitor: Visitor) -> None:
    writer = visitor.page()
    server.control(hold="prefill")
    writer.goto(server.url)
    say(writer, prompt(writer))
    page = visitor.page(java_script_enabled=False)
    page.goto(f"{server.url}/status")
    expect(page.locator("#load")).to_have_text("1 of 2 busy, nobody waits")
    server.control(hold=None)
    expect(page.locator("#load")).to_have_text("0 of 2 busy, nobody waits")
    finished(writer)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", SIZES, ids=lambda v: str(v["width"]))
def test_it_is_accessible_and_fits(
    server: Server, visitor: Visitor, viewport: Any, scheme: Any
) -> None:
    page = visitor.page(viewport=viewport, color_scheme=scheme)
    page.goto(f"{server.url}/status?still=1")
    assert_accessible(page)
    assert_fits(page)
    open_held(server, page, "/status?still=1")
    expect(page.get_by_role("row").filter(has_text="reading")).to_be_visible()
    assert_accessible(page)
    assert_fits(page)


def test_it_works_below_a_path(own_server: Callable[..., Server], visitor: Visitor) -> None:
    server = own_server(api_prefix="/llm", n_ctx=2048)
    page = visitor.page()
    page.goto(f"{server.url}/llm/")
    page.get_by_role("navigation").get_by_role("link", name="Status").click()
    with page.expect_response("**/llm/status/now") as answer:
        pass
    assert answer.value.status == 200
