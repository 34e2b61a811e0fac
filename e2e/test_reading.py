"""Reading: formulas are set by the browser, and copied as what they were written as."""

from e2e_kit import Server, finished, say
from playwright.sync_api import Page, expect

ANSWER = r"""It costs $5 and not $10, but $x^2$:

$$
x = \begin{pmatrix} a \\ b \end{pmatrix}
$$

- [x] done
"""
# The browser's own event, since a test has no clipboard to read.
COPIED = """() => {
  getSelection().selectAllChildren(document.querySelector(".turn.assistant .md"));
  const event = new ClipboardEvent("copy",
    { clipboardData: new DataTransfer(), bubbles: true, cancelable: true });
  document.querySelector(".turn.assistant .md").dispatchEvent(event);
  return event.clipboardData.getData("text/plain");
}"""


def test_formulas_are_set_and_copied_as_tex(server: Server, page: Page) -> None:
    page.goto(server.url)
    say(page, ANSWER)
    finished(page)
    reply = page.locator(".turn.assistant .md").last
    expect(reply.locator("math")).to_have_count(2)
    expect(reply.get_by_role("img", name="Done")).to_be_visible()
    bracket = reply.locator("mtable").bounding_box()
    assert bracket is not None and bracket["height"] > 30
    copied = page.evaluate(COPIED)
    assert "costs $5 and not $10, but $x^2$" in copied
    assert r"$$x = \begin{pmatrix} a \\ b \end{pmatrix}$$" in copied


def test_a_half_typed_formula_is_text(server: Server, page: Page) -> None:
    page.goto(server.url)
    server.control(hold="decode", after=24)
    say(page, r"So \(a_1 * b * c + \frac{1}{2} and much more that never closes")
    expect(page.locator(".open")).to_contain_text(r"So \(a_1 * b")
    expect(page.locator(".open").locator("math, em")).to_have_count(0)
    server.control(hold=None)
    finished(page)
