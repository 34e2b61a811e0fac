"""Settings of a chat beside it, and the page of presets, in a browser."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_kit import DESKTOP, PHONE, SMALL_PHONE, Server, Visitor, finished, say
from playwright.sync_api import Page, expect
from test_looks import assert_accessible, assert_fits

from corral.backend.chat.types import ChatRequest, Params


@pytest.fixture
def asked(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[ChatRequest]:
    """What the model is asked."""
    seen: list[ChatRequest] = []
    chat = server.service.chat

    async def note(request: ChatRequest) -> Any:
        seen.append(request)
        return await chat(request)

    monkeypatch.setattr(server.service, "chat", note)
    return seen


@pytest.fixture
def server_without_presets(server: Server) -> Iterator[Server]:
    """The shared server, and afterwards without the presets that a test made."""
    yield server

    async def forget() -> None:
        kept = server.app.state.presets
        for preset in await kept.list():
            await kept.delete(preset.name)

    server.run(forget())


def field(page: Page, name: str) -> Any:
    return page.locator(f"#s-{name}")


def origin(page: Page, name: str) -> Any:
    return page.locator(f"#from-{name}")


def test_settings_go_with_the_first_message_and_are_kept_as_they_are_changed(
    server: Server, page: Page, asked: list[ChatRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    page.goto(server.url)
    page.locator("#tuned").click()
    field(page, "preset").select_option("precise")
    expect(field(page, "temperature")).to_have_attribute("placeholder", "0.3")
    expect(origin(page, "temperature")).to_contain_text("preset precise")
    field(page, "top_k").fill("3")
    field(page, "top_k").press("Enter")  # sends nothing
    expect(origin(page, "top_k")).to_contain_text("this chat")
    expect(page.locator("#tuned")).to_contain_text("precise")
    say(page, "Hello")
    finished(page)
    expect(page.locator("#tuned")).to_contain_text("1 field is set here")
    assert asked[-1].params == Params(temperature=0.3, top_k=3, top_p=0.9, min_p=0.05)

    # Now each change is kept by itself, in whatever haste and however slow the server is.
    store = server.app.state.site.store
    tune = store.tune

    async def slowly(*args: Any) -> Any:
        await asyncio.sleep(0.15)
        return await tune(*args)

    monkeypatch.setattr(store, "tune", slowly)
    expect(page.locator("#settings")).to_be_visible()
    field(page, "min_p").fill("0.2")
    field(page, "min_p").press("Tab")
    field(page, "seed").fill("7")
    field(page, "seed").press("Tab")
    field(page, "max_tokens").fill("5")
    field(page, "max_tokens").press("Tab")
    for name in ("min_p", "seed", "max_tokens"):
        expect(origin(page, name)).to_contain_text("this chat")
    page.get_by_role("button", name="Reset Top-k").click()
    field(page, "seed").fill("8")
    field(page, "seed").press("Tab")
    expect(field(page, "top_k")).to_have_value("")
    expect(field(page, "top_k")).to_have_attribute("placeholder", "40")
    expect(origin(page, "top_k")).to_contain_text("preset precise")
    expect(page.locator("#tune-head [name=version]")).to_have_value("6")
    field(page, "seed").fill("9")
    say(page, "Again")  # at once
    finished(page)
    assert asked[-1].params == Params(
        temperature=0.3, top_k=40, top_p=0.9, min_p=0.2, seed=9, max_tokens=5
    )
    page.reload()
    expect(page.locator("#settings")).to_be_visible()  # it stays open
    expect(field(page, "seed")).to_have_value("9")
    page.get_by_role("button", name="Regenerate").last.click()
    expect(page.locator(".place").last).to_contain_text("2/2")
    finished(page)
    assert asked[-1].params.seed == 9
    field(page, "seed").press("Escape")
    expect(page.locator("#settings")).not_to_be_visible()
    expect(page.locator("#tuned")).to_be_focused()


def test_a_bad_value_is_said_at_its_field_and_keeps_what_is_typed(
    server: Server, visitor: Visitor
) -> None:
    visitor.expected += ["400"]
    page = visitor.page()
    page.goto(server.url)
    page.locator("#tuned").click()
    field(page, "top_p").fill("7")
    field(page, "system").fill("Be kind.")
    expect(origin(page, "top_p")).to_contain_text("From 0 to 1")
    page.get_by_label("Message", exact=True).fill("Hello")
    page.keyboard.press("Enter")
    expect(page.locator("#notice")).to_contain_text("Top-p: From 0 to 1")
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.get_by_label("Message", exact=True)).to_have_value("Hello")
    expect(field(page, "top_p")).to_have_value("7")
    expect(field(page, "system")).to_have_value("Be kind.")
    field(page, "top_p").fill("0.5")
    page.get_by_label("Message", exact=True).press("Enter")
    expect(page.locator(".turn.user")).to_have_count(1)
    finished(page)


def test_two_pages_do_not_overwrite_each_other(server: Server, visitor: Visitor) -> None:
    visitor.expected += ["409"]
    one = visitor.page()
    one.goto(server.url)
    say(one, "Hello")
    finished(one)
    two = visitor.page(viewport=SMALL_PHONE)
    two.goto(one.url)
    for page in (one, two):
        page.locator("#tuned").click()
    field(one, "seed").fill("1")
    field(one, "seed").blur()
    expect(origin(one, "seed")).to_contain_text("this chat")
    field(two, "seed").fill("2")
    field(two, "seed").blur()
    expect(two.locator("#tune-head .error")).to_contain_text("changed elsewhere meanwhile")
    expect(two.locator("#tune-head .error")).to_be_in_viewport(ratio=1)
    expect(field(two, "seed")).to_be_in_viewport()
    expect(field(two, "seed")).to_have_value("2")
    two.get_by_role("button", name="Save mine over them").click()
    expect(two.locator("#tune-head .error")).to_have_count(0)
    one.reload()
    expect(field(one, "seed")).to_have_value("2")


def test_a_preset_is_made_changed_copied_deleted_brought_back_and_travels_as_a_file(
    server_without_presets: Server, visitor: Visitor, tmp_path: Path
) -> None:
    visitor.expected += ["400"]
    page = visitor.page()
    page.goto(f"{server_without_presets.url}/presets")
    page.get_by_role("link", name="Copy code").click()
    expect(page.get_by_label("Name", exact=True)).to_have_value("code 2")
    page.get_by_label("Name", exact=True).fill("mine/")
    field(page, "temperature").fill("0.6")
    field(page, "form").select_option("regex")
    page.get_by_label("Schema, grammar or expression").fill("[a-z]+")
    page.get_by_role("button", name="Save").last.click()
    expect(page.get_by_role("alert")).to_contain_text("printable characters without /")
    expect(field(page, "temperature")).to_have_value("0.6")
    page.get_by_label("Name", exact=True).fill("mine")
    page.get_by_role("button", name="Save").last.click()
    mine = page.locator(".preset-list li", has=page.get_by_role("heading", name="mine"))
    expect(mine).to_contain_text("A regular expression [a-z]+")
    with page.expect_download() as downloading:
        mine.get_by_role("link", name="Export").click()
    path = tmp_path / downloading.value.suggested_filename
    downloading.value.save_as(path)
    assert path.name == "mine.json"
    assert json.loads(path.read_text())["regex"] == "[a-z]+"
    mine.get_by_role("button", name="Delete").click()
    expect(mine).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(mine).to_have_count(1)
    page.get_by_label("A file that was exported").set_input_files(path)
    page.get_by_role("button", name="Import").click()
    again = page.locator(".preset-list li", has=page.get_by_role("heading", name="mine 2"))
    expect(again).to_contain_text("[a-z]+")
    again.get_by_role("link", name="Chat with").click()
    expect(page.locator("#tuned")).to_have_text("mine 2")


def test_without_script_settings_work_by_forms(
    server: Server, visitor: Visitor, asked: list[ChatRequest]
) -> None:
    visitor.expected += ["400"]
    page = visitor.page(java_script_enabled=False)
    page.goto(f"{server.url}/?preset=concise")
    page.locator("#tuned").click()
    field(page, "seed").fill("5")
    page.get_by_role("button", name="Close").click()
    page.get_by_label("Message", exact=True).fill("Hello")
    page.locator(".send:not(.save)").click()
    expect(page.locator(".turn.user")).to_have_count(1)
    finished(page)
    assert asked[-1].params == Params(temperature=0.5, seed=5)
    page.goto(f"{page.url}/settings")
    field(page, "seed").fill("x")
    page.get_by_role("button", name="Save", exact=True).last.click()
    expect(origin(page, "seed")).to_contain_text("A whole number")
    expect(field(page, "seed")).to_have_value("x")
    field(page, "seed").fill("6")
    page.get_by_role("button", name="Save", exact=True).last.click()
    expect(page).to_have_url(re.compile(r"/c/\w+$"))
    expect(field(page, "seed")).to_have_value("6")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE, SMALL_PHONE], ids=["desktop", "phone", "small"])
def test_they_are_accessible_and_fit(
    own_server: Callable[..., Server], visitor: Visitor, size: Any, scheme: Any
) -> None:
    visitor.expected += ["400"]
    server = own_server(n_ctx=2048)
    page = visitor.page(viewport=size, color_scheme=scheme)
    page.goto(f"{server.url}/?preset=code")
    assert_fits(page)
    page.locator("#tuned").click()
    field(page, "seed").fill("x")
    field(page, "seed").blur()
    expect(origin(page, "seed")).to_contain_text("A whole number")
    assert_accessible(page)
    assert page.locator("#settings").evaluate("(e) => e.scrollWidth - e.clientWidth") <= 0
    wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for at in ("/presets", "/presets?copy=json"):
        page.goto(server.url + at)
        assert_accessible(page)
        assert page.evaluate(wide) <= 0
