"""The pages to try things on: tokens, templates, grammars, notebooks."""

import re
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from e2e_kit import DESKTOP, PHONE, SMALL_PHONE, Server, Visitor
from playwright.sync_api import Page, expect

LOOKS = [(DESKTOP, "light"), (PHONE, "dark"), (SMALL_PHONE, "light")]
PAGES = ["tokens", "template", "grammar", "notebook"]
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
    if tool == "template":
        page.get_by_text("Tools and variables").click()
        page.get_by_text("The template", exact=True).click()
        page.get_by_label("Text of message 2").fill("a_very_long_word_" * 20)
        expect(page.locator(".written")).to_contain_text("a_very_long_word_")
    if tool == "grammar":
        page.get_by_label("Source").fill('{"properties": {"a_very_long_name_of_a": {"not": {}}}}')
        expect(page.locator(".fault")).to_be_visible()
        page.get_by_role("button", name="Try it").click()
        expect(page.locator("#answer .error")).to_be_visible()
    if tool == "notebook":
        page.get_by_role("button", name="New notebook").click()
        page.get_by_text("Settings", exact=True).click()
        page.get_by_text("Title, and deleting").click()
        page.get_by_label("Most tokens").fill("5")
        write(page, "a_very_long_word_" * 20)
        expect(page.get_by_role("button", name="Undo")).to_be_enabled()


def write(page: Page, text: str) -> None:
    """Has the model go on with a text."""
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_role("button", name="Generate").click()


@pytest.mark.parametrize(("viewport", "scheme"), LOOKS, ids=["desktop", "phone", "small"])
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


# --- chat template --------------------------------------------------------------------------------


def test_a_conversation_is_edited_beside_its_prompt(server: Server, page: Page) -> None:
    page.goto(f"{server.url}/template")
    prompt = page.get_by_role("region", name="The prompt")
    page.get_by_role("button", name="Remove message 1").click()
    expect(prompt).not_to_contain_text("system")
    page.get_by_role("button", name="Add a message").click()
    page.get_by_label("Text of message 4").fill("Madrid <|im_end|>")
    expect(prompt.locator("mark").last).to_have_text("Madrid <|im_end|>")
    expect(page.get_by_label("Role of message 4")).to_have_value("assistant")
    page.get_by_label("Begin the answer").uncheck()
    page.get_by_label("Role of message 4").select_option("user")
    expect(prompt).to_contain_text("user↵\nMadrid")


def test_a_changed_template_is_tried_and_put_back(server: Server, page: Page) -> None:
    page.goto(f"{server.url}/template")
    prompt = page.get_by_role("region", name="The prompt")
    page.get_by_text("The template", exact=True).click()
    page.get_by_label("Jinja").fill("{% for m in messages %}{{ m.rol }}")
    expect(page.get_by_role("alert")).to_contain_text("syntax error in line 1")
    upper = "{% for m in messages %}{{ m.role | upper }}: {{ m.content }};{% endfor %}"
    page.get_by_label("Jinja").fill(upper)
    expect(prompt).to_contain_text("USER: And of Spain?;")
    page.get_by_role("button", name="Back to the model's").click()
    expect(prompt.locator("b").first).to_have_text("<|im_start|>")
    assert "SYSTEM" not in server.service.chat_template


def test_a_template_without_script(server: Server, visitor: Visitor) -> None:
    page = visitor.page(java_script_enabled=False)
    page.goto(f"{server.url}/template")
    page.get_by_role("button", name="Add a message").click()
    page.get_by_label("Text of message 5").fill("Good.")
    page.get_by_role("button", name="Show the prompt").click()
    expect(page.locator(".written mark").last).to_have_text("Good.")


# --- grammars -------------------------------------------------------------------------------------


def test_a_grammar_is_checked_as_one_types_and_tried(server: Server, page: Page) -> None:
    page.goto(f"{server.url}/grammar")
    verdict = page.locator("#verdict")
    expect(verdict).to_contain_text("Answers can be held to this")
    page.get_by_label("What answers must match").select_option("GBNF grammar")
    expect(verdict).to_contain_text("Line 1")
    source = page.get_by_label("Source")
    source.fill('root ::= [a-y]{40}\nx ::= "b')
    expect(verdict).to_contain_text("Line 2")
    source.fill("root ::= [a-y]{40}")
    expect(verdict).to_contain_text("Answers can be held to this")
    server.control(hold="decode", after=6)
    page.get_by_role("button", name="Try it").click()
    expect(page.locator("#run-text")).to_have_text(re.compile("^[a-y]{5,6}$"))
    # The source can be changed meanwhile.
    source.fill('root ::= "a')
    expect(verdict).to_contain_text("Line 1")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#answer")).to_contain_text("Stopped")
    server.until(lambda _: server.is_idle())
    page.get_by_role("button", name="Try it").click()
    expect(page.locator("#answer").get_by_role("alert")).to_contain_text("line 1")
    server.control(hold=None)
    source.fill("root ::= [a-y]{40}")
    page.get_by_role("button", name="Try it").click()
    expect(page.locator("#answer .doc")).to_have_text(re.compile("^[a-y]{40}$"))
    expect(page.locator("#answer")).to_contain_text("Done · 40 tokens")


def test_a_grammar_without_script(server: Server, visitor: Visitor) -> None:
    page = visitor.page(java_script_enabled=False)
    page.goto(f"{server.url}/grammar")
    page.get_by_label("Example").select_option("A date")
    page.get_by_role("button", name="Show").click()
    page.get_by_label("Source").fill("[a-y]{4}(")
    page.get_by_role("button", name="Check").click()
    expect(page.locator("#verdict")).to_contain_text("column 9")
    page.get_by_label("Source").fill("[a-y]{4}")
    page.get_by_role("button", name="Try it").click()
    expect(page.locator("#answer .doc")).to_have_text(re.compile("^[a-y]{4}$"))


# --- notebooks ------------------------------------------------------------------------------------


def text_of(page: Page) -> str:
    return page.get_by_label("Text", exact=True).input_value()


def new_notebook(server: Server, page: Page) -> None:
    page.goto(f"{server.url}/notebook")
    page.get_by_role("button", name="New notebook").click()


def test_a_text_is_written_stopped_and_undone(server: Server, page: Page) -> None:
    new_notebook(server, page)
    server.control(hold="decode", after=6)
    page.get_by_label("Text", exact=True).fill("Tell me {predict} now")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#run-text")).to_have_text(re.compile("^.{5,6}$"))
    expect(page.locator(".doc")).to_contain_text(" now")
    # Another page that comes meanwhile sees it, and this one may be loaded again.
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator("#run-text")).to_have_text(re.compile("^.{5,6}$"))
    page.reload()
    expect(page.locator("#run-text")).to_have_text(re.compile("^.{5,6}$"))
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Undo")).to_be_enabled()
    expect(page.locator("#announce")).to_contain_text("Stopped")
    text = text_of(page)
    assert re.fullmatch("Tell me .{5,6} now", text)
    expect(other.get_by_label("Text", exact=True)).to_have_value(text)
    server.control(hold=None)
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_label("Text", exact=True)).to_have_value("Tell me {predict} now")
    page.get_by_role("button", name="Redo").click()
    expect(page.get_by_label("Text", exact=True)).to_have_value(text)


def test_what_is_typed_survives_and_nobody_writes_over_it(server: Server, visitor: Visitor) -> None:
    visitor.expected.append("409")
    page = visitor.page()
    new_notebook(server, page)
    text = page.get_by_label("Text", exact=True)
    url = page.url
    with page.expect_response("**/save"):
        text.press_sequentially("One")
    # What was typed last is sent when the page goes.
    text.press_sequentially(" two")
    with page.expect_request("**/save"):
        page.goto(f"{server.url}/status")
    kept = server.app.state.site.store.notebooks
    for _ in range(100):
        if server.run(kept.get(url.rpartition("/")[2])).text == "One two":
            break
        page.wait_for_timeout(50)
    page.goto(url)
    expect(text).to_have_value("One two")
    other = page.context.new_page()
    other.goto(page.url)
    text.fill("Mine")
    expect(page.locator("#saved")).to_have_text("saved")
    other.get_by_label("Text", exact=True).fill("Theirs")
    expect(other.get_by_role("alert")).to_contain_text("It was changed on another page")
    expect(other.get_by_label("Text", exact=True)).to_have_value("Theirs")
    with page.expect_response("**/save"):
        text.fill("Mine, still")
    page.reload()
    expect(text).to_have_value("Mine, still")


def test_a_notebook_without_script(server: Server, visitor: Visitor) -> None:
    page = visitor.page(java_script_enabled=False)
    new_notebook(server, page)
    server.control(hold="decode", after=4)
    page.get_by_label("Text", exact=True).fill("Hello there")
    page.get_by_role("button", name="Generate").click()
    expect(page.locator(".doc ins")).to_have_text(re.compile("^.{3,4}$"))
    server.control(hold=None)
    expect(page.get_by_role("button", name="Undo")).to_be_enabled()
    assert text_of(page).startswith("Hello there") and len(text_of(page)) > 14
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_label("Text", exact=True)).to_have_value("Hello there")
