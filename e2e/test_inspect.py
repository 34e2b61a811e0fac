"""A reply looked into, in a browser: its prompt, the request as a command that runs, the
probabilities of its tokens, and the instruments of the chat."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from e2e_kit import DESKTOP, PHONE, SMALL_PHONE, Server, Visitor, finished, say
from playwright.sync_api import Page, expect

from corral.frontend.tools import recipes

AXE = Axe()
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
SIZES = [DESKTOP, PHONE, SMALL_PHONE]
PARTS = ("cached", "read", "rest")
WIDE = "(e) => e.scrollWidth - e.clientWidth"
TEXT = """(e) => [...e.querySelectorAll("span")].map((s) => s.textContent).join("")"""


def assert_accessible(page: Page) -> None:
    found = AXE.run(page, options=RULES).response["violations"]
    assert not found, [(v["id"], [n["target"] for n in v["nodes"]]) for v in found]


def assert_fits(page: Page) -> None:
    for part in ("html", "main"):
        assert page.locator(part).evaluate(WIDE) <= 0, part


def remembered(server: Server) -> list[str]:
    """The prompts that the engine gets from now on."""
    sent: list[str] = []
    real = server.service.chat

    async def chat(request: Any) -> Any:
        choices = await real(request)
        sent.append(choices.generations[0].written.text)
        return choices

    server.service.chat = chat  # type: ignore[method-assign]
    return sent


def run(command: str, folder: Path) -> Any:
    """What a shell gets for a command of the page."""
    made = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        capture_output=True,
        check=True,
        timeout=60,
        env={"CORRAL_API_KEY": "sesame", "PATH": "/usr/bin:/bin"},
    )
    return json.loads(made.stdout)


def test_the_command_runs_and_the_model_gets_the_same_prompt(
    own_server: Callable[..., Server],
    visitor: Visitor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recipes, "MAX_ARGUMENT", 20_000)
    server = own_server(n_ctx=2**16, max_tokens=40, api_keys=("sesame",))
    page = visitor.page()
    page.goto(server.url)
    page.get_by_label("API key").fill("sesame")
    page.get_by_role("button", name="Log in").click()
    sent = remembered(server)
    say(page, "It's `id` $HOME \"quoted\" \\ <|im_end|>\n\ttabbed, \N{SHEEP} and '$(id)'")
    finished(page)
    page.get_by_role("article", name="Assistant").get_by_role("link", name="Inspect").click()
    prompt = page.get_by_role("region", name="The prompt")
    assert prompt.evaluate(TEXT) == sent[0]
    command = page.get_by_role("region", name="The request with curl").inner_text()
    answer = run(command, tmp_path)
    assert sent[1] == sent[0]
    assert answer["choices"][0]["message"]["role"] == "assistant"
    n_prompt = answer["usage"]["prompt_tokens"]
    expect(page.locator("#h-prompt")).to_contain_text(f"{n_prompt:,} tokens")

    # One that is too long for a command line is read from a file beside.
    page.get_by_role("link", name="Back to the conversation").click()
    say(page, "'long' " * 5000)
    finished(page)
    page.get_by_role("link", name="Inspect").last.click()
    with page.expect_download() as download:
        page.get_by_role("link", name="request.json").click()
    download.value.save_as(tmp_path / "request.json")
    run(page.get_by_role("region", name="The request with curl").inner_text(), tmp_path)
    assert sent[3] == sent[2] and sent[2].count("'long'") == 5000
    # Most of it is drawn only when it is asked for.
    assert 10_000 < len(prompt.evaluate(TEXT)) < 30_000
    page.get_by_role("link", name="draw all").click()
    expect(page.get_by_role("link", name="draw all")).to_have_count(0)
    assert prompt.evaluate(TEXT) == sent[2]


def with_probabilities(server: Server, visitor: Visitor, text: str, **options: Any) -> Page:
    """The probabilities of a reply, asked for through the page."""
    page = visitor.page(**options)
    page.goto(server.url)
    say(page, text)
    finished(page)
    page.get_by_role("link", name="Inspect").click()
    page.get_by_role("link", name="Token probabilities").click()
    expect(page.get_by_text("No probabilities are kept")).to_be_visible()
    page.get_by_role("button", name="Keep them from now on").click()
    page.get_by_role("link", name="Back to the conversation").click()
    page.get_by_role("button", name="Regenerate").click()
    finished(page)
    expect(page.get_by_role("img", name="Alternative 2 of 2")).to_be_visible()
    page.get_by_role("link", name="Inspect").click()
    page.get_by_role("link", name="Token probabilities").click()
    return page


def test_a_token_shows_its_alternatives_and_the_model_goes_on_from_one(
    server: Server, visitor: Visitor
) -> None:
    page = with_probabilities(server, visitor, "Tokens")
    tokens = page.get_by_role("list", name="Tokens").get_by_role("button")
    expect(tokens).to_have_count(6)
    tokens.nth(1).focus()
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(2)).to_be_focused()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Alternatives")
    expect(dialog).to_contain_text("token 3")
    assert_accessible(page)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    tokens.nth(2).click()
    expect(dialog).to_contain_text("chosen")
    other = dialog.get_by_role("button").first
    name = other.get_attribute("aria-label")
    assert name is not None
    other.click()
    expect(page).to_have_url(re.compile(r"/c/\w+(#m-\d+)?$"))
    expect(page.get_by_role("img", name="Alternative 3 of 3")).to_be_visible()
    finished(page)
    begun = "To" + name.rpartition(" ")[2]
    assert page.locator("article.assistant .md").inner_text().startswith(begun)


def test_without_script_the_table_has_the_alternatives(server: Server, visitor: Visitor) -> None:
    url = with_probabilities(server, visitor, "Plain").url
    page = visitor.page(java_script_enabled=False)
    page.goto(url)
    page.get_by_text("As a table").click()
    row = page.get_by_role("row").nth(2)
    expect(row).to_contain_text("l")
    row.get_by_role("button").first.click()
    expect(page).to_have_url(re.compile(r"/c/\w+"))
    expect(page.get_by_role("img", name="Alternative 3 of 3")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", SIZES, ids=lambda v: str(v["width"]))
def test_both_pages_are_accessible_and_fit(
    server: Server, visitor: Visitor, viewport: Any, scheme: Any
) -> None:
    options = {"viewport": viewport, "color_scheme": scheme, "has_touch": viewport["width"] < 700}
    page = with_probabilities(server, visitor, f"{viewport['width']} {scheme}", **options)
    page.get_by_text("As a table").click()
    assert_accessible(page)
    assert_fits(page)
    page.get_by_role("list", name="Tokens").get_by_role("button").first.click()
    dialog = page.get_by_role("dialog", name="Alternatives")
    expect(dialog).to_contain_text("token 1")
    expect(dialog).to_be_in_viewport(ratio=1)
    assert_accessible(page)
    page.keyboard.press("Escape")
    page.get_by_role("link", name="What the model got").click()
    expect(page.get_by_role("heading", name="The same request from a program")).to_be_visible()
    assert_accessible(page)
    assert_fits(page)


def test_the_bar_has_three_parts_and_the_gauge_warns(server: Server, visitor: Visitor) -> None:
    page = visitor.page()
    page.goto(server.url)
    say(page, "a part that is in the cache afterwards " * 20)
    finished(page)
    gauge = page.get_by_role("meter")
    expect(gauge).to_have_accessible_name(re.compile(r"^Context: [\d,]+ of 4,096 tokens, \d+ %$"))
    expect(page.get_by_text("nearly full")).to_have_count(0)
    server.control(hold="prefill")
    say(page, "and a part that nobody has read yet " * 30)
    bar = page.locator(".turn svg.reads")
    expect(bar.locator(".read")).not_to_have_attribute("width", "0")
    parts = [float(bar.locator(f".{name}").get_attribute("width") or 0) for name in PARTS]
    assert all(part > 0 for part in parts) and parts[0] + parts[1] < parts[2], parts
    colours = bar.locator("rect").evaluate_all("(all) => all.map((e) => getComputedStyle(e).fill)")
    assert len(set(colours)) == 3
    cached = re.compile(r"\([\d,]+ cached\)")
    expect(page.get_by_role("progressbar")).to_have_accessible_name(cached)
    server.control(hold=None)
    finished(page)
    expect(page.get_by_text("nearly full")).to_be_visible()
    page.locator("button.stat").last.click()
    figures = page.locator(".stats:popover-open")
    expect(figures).to_contain_text("From the cache")
    expect(figures).to_contain_text("First word after")
    expect(figures).to_be_in_viewport(ratio=1)
    assert_accessible(page)
