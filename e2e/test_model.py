"""Walks with the real model: it reads, writes, sees and is stopped, as the scripted one is."""

import base64
import re
import subprocess
import sys
from pathlib import Path

import pytest
from e2e_kit import Server, finished, say
from playwright.sync_api import Page, expect

from corral.backend.__main__ import embedded_model
from corral.backend.settings import Settings

VISION = Path(__file__).resolve().parent.parent / "tests" / "data" / "vision"

PASTE = """([data, name]) => {
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  const pasted = new DataTransfer();
  pasted.items.add(new File([bytes], name, { type: "image/png" }));
  const init = { clipboardData: pasted, bubbles: true, cancelable: true };
  document.activeElement.dispatchEvent(new ClipboardEvent("paste", init));
}"""


@pytest.mark.model
def test_the_embedded_model_answers_and_can_be_stopped(page: Page, tmp_path: Path) -> None:
    model = embedded_model()
    assert model is not None, "make setup installs the embedded model"
    settings = Settings(
        model=model, n_ctx=4096, n_threads=1, data_dir=tmp_path, temperature=0, max_tokens=24
    )
    server = Server(settings)
    server.start()
    try:
        page.goto(server.url)
        say(page, "What is the capital of France? Answer in one short sentence.")
        finished(page)
        expect(page.locator("article > .md").last).to_contain_text("Paris")
        expect(page.locator(".stat").last).to_have_text(re.compile(r"\d+ tok · [\d.,]+ tok/s"))
        say(page, "Repeat this list. " + " ".join(str(n) for n in range(900)))
        expect(page.locator(".status")).to_contain_text("Reading prompt")
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_text("Stopped", exact=True).first).to_be_visible()
        server.until(lambda _: server.is_idle())
    finally:
        page.goto("about:blank")
        server.stop()


@pytest.mark.model
def test_the_model_sees_the_colours_of_pictures_that_are_chosen_and_pasted(
    page: Page, tmp_path: Path
) -> None:
    model = embedded_model()
    assert model is not None, "make setup installs the embedded model"
    mmproj = tmp_path / "mmproj.gguf"
    make = [sys.executable, VISION / "make_mmproj.py", model, mmproj]
    subprocess.run(make, check=True, capture_output=True)
    settings = Settings(
        model=model,
        mmproj=mmproj,
        n_ctx=4096,
        n_threads=1,
        data_dir=tmp_path / "data",
        temperature=0,
        max_tokens=20,
    )
    server = Server(settings)
    server.start()
    try:
        page.goto(server.url)
        page.get_by_label("Attach pictures").set_input_files(VISION / "samples" / "blue.png")
        expect(page.locator("#chips li")).to_contain_text("25 tok")
        say(page, "What colour is the image?")
        finished(page)
        expect(page.locator("article > .md").last).to_contain_text("blue")
        page.get_by_role("link", name="New chat", exact=True).click()
        red = base64.b64encode((VISION / "samples" / "red_circle.png").read_bytes()).decode()
        page.get_by_label("Message", exact=True).focus()
        page.evaluate(PASTE, [red, "pasted.png"])
        expect(page.locator("#chips li")).to_contain_text("25 tok")
        say(page, "What colour is the image?")
        finished(page)
        expect(page.locator("article > .md").last).to_contain_text("red")
        expect(page.get_by_role("article", name="You").get_by_role("img")).to_be_visible()
    finally:
        page.goto("about:blank")
        server.stop()
