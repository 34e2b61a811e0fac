"""Keys, the clipboard, and where the page is scrolled to: what the page's own script does."""

from e2e_kit import Server, Visitor, finished, say
from playwright.sync_api import Page, expect

CODE = """Look:

```python
def f(x):
    return x < 1
```

And then **more** of it, enough to wait for.
"""


def test_enter_queues_while_a_reply_runs_and_breaks_lines_with_shift(
    server: Server, page: Page
) -> None:
    page.goto(server.url)
    box = page.get_by_label("Message", exact=True)
    box.fill("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    expect(box).to_have_value("one\ntwo")
    server.control(hold="decode", after=2)
    page.keyboard.press("Enter")
    expect(page.locator(".user > .user")).to_have_text("one\ntwo")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    box.fill("the next one")
    page.keyboard.press("Enter")
    expect(page.get_by_role("article", name="Queued message 1 of 1")).to_be_visible()
    expect(box).to_have_value("")
    expect(box).to_be_focused()
    box.fill("and one I think about")
    server.control(hold=None)
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.locator(".user > .user")).to_have_text(["one\ntwo", "the next one"])
    expect(box).to_have_value("and one I think about")
    expect(box).to_be_focused()


def test_enter_that_ends_a_composition_does_not_send(server: Server, page: Page) -> None:
    page.goto(server.url)
    page.get_by_label("Message", exact=True).focus()
    devtools = page.context.new_cdp_session(page)
    devtools.send(
        "Input.imeSetComposition", {"text": "にほ", "selectionStart": 2, "selectionEnd": 2}
    )
    composing = """() => document.activeElement.dispatchEvent(new KeyboardEvent("keydown",
      { key: "Enter", isComposing: true, bubbles: true, cancelable: true }))"""
    assert page.evaluate(composing), "the key was taken from the input method"
    expect(page.get_by_label("Message", exact=True)).to_have_value("にほ")
    expect(page).to_have_url(f"{server.url}/")


def test_code_and_replies_can_be_copied(server: Server, visitor: Visitor) -> None:
    context = visitor.context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(server.url)
    say(page, CODE)
    finished(page)
    read = "() => navigator.clipboard.readText()"
    page.locator(".code .copy").click()
    expect(page.locator(".code .copy")).to_have_text("Copied")
    assert page.evaluate(read) == "def f(x):\n    return x < 1\n"
    page.locator(".assistant .copy-turn").click()
    expect(page.locator(".assistant .copy-turn")).to_have_text("Copied")
    assert page.evaluate(read) == CODE.strip("\n")


def test_the_end_is_followed_until_somebody_reads_further_up(server: Server, page: Page) -> None:
    page.goto(server.url)
    server.control(hold="decode", after=600)
    say(page, "\n\n".join(f"Paragraph {n} of a long message." for n in range(40)))
    scroller = page.locator("#scroll")
    expect(page.locator(".status")).to_contain_text("600 tok")
    assert scroller.evaluate("(e) => e.scrollTop") == 0
    expect(page.get_by_role("button", name="Jump to latest")).to_be_hidden()
    scroller.evaluate("(e) => { e.scrollTop = -500 }")
    expect(page.get_by_role("button", name="Jump to latest")).to_be_visible()
    line = page.get_by_text("Paragraph 10 of a long message.").last
    before = line.bounding_box()
    server.control(hold="decode", after=900)
    expect(page.locator(".status")).to_contain_text("900 tok")
    after = line.bounding_box()
    assert before is not None and after is not None
    assert abs(after["y"] - before["y"]) < 2
    page.get_by_role("button", name="Jump to latest").click()
    expect(page.get_by_role("button", name="Jump to latest")).to_be_hidden()
