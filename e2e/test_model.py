"""One walk with the real model: it reads, writes and is stopped, as the scripted one is."""

import re
from pathlib import Path

import pytest
from e2e_kit import Server, finished, say
from playwright.sync_api import Page, expect

from corral.backend.__main__ import embedded_model
from corral.backend.settings import Settings


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
