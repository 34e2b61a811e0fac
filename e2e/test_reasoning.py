"""Reasoning: folded away, growing while it is written, and never mixed up with what is said."""

from collections.abc import Iterator

import pytest
from e2e_kit import DESKTOP, PHONE, Server, Visitor, finished, say
from msgspec.structs import replace
from playwright.sync_api import Page, expect
from test_looks import assert_accessible, assert_fits

from corral.backend.settings import Settings
from corral.backend.store import Call, Outcome

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The scripted model says what it is told, tags and all.
THOUGHT = "They greet me, so I <b>greet</b> them.\n\n  Is that all?"
ASKED = f"<think>{THOUGHT}</think>Hello, **you**."


@pytest.fixture(scope="module")
def thinking_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("thinking")
    settings = Settings(
        fake=True, alias="thinking", n_ctx=4096, data_dir=folder, chat_template=TEMPLATE
    )
    server = Server(settings)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def thinking(thinking_server: Server) -> Iterator[Server]:
    yield thinking_server
    thinking_server.control(hold=None, step_ms=0.0)
    thinking_server.until(lambda _: thinking_server.is_idle())


def test_reasoning_grows_in_a_fold_of_its_own_and_stays_open_when_opened(
    thinking: Server, page: Page
) -> None:
    page.goto(thinking.url)
    thinking.control(hold="decode", after=30)
    say(page, ASKED)
    fold = page.locator("details.reasoning")
    expect(fold.locator("summary")).to_have_text("Thinking…")
    expect(fold.locator(".thought")).to_be_hidden()
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(fold.locator(".thought")).to_contain_text("They greet me")
    fold.locator(".thought").evaluate("(e) => { e.dataset.tag = 'mine' }")
    thinking.control(hold="decode", after=len(f"<think>{THOUGHT}</think>Hel"))
    expect(fold.locator("summary")).to_have_text("Thought for 1 s")
    expect(page.locator(".md.open")).to_have_text("Hel")
    # More of it was added, and nothing drawn anew under the reader's eyes.
    expect(fold.locator(".thought")).to_have_attribute("data-tag", "mine")
    expect(fold.locator(".thought")).to_have_js_property("textContent", THOUGHT)
    thinking.control(hold=None)
    finished(page)
    expect(fold.locator(".thought")).to_be_visible()
    expect(fold.locator(".thought")).to_have_js_property("textContent", THOUGHT)
    expect(page.locator("article > .md")).to_have_text("Hello, you.")
    expect(page.locator(".assistant .copy-turn + template")).to_have_js_property(
        "innerHTML", "Hello, **you**."
    )
    page.reload()
    expect(fold.locator(".thought")).to_be_hidden()
    fold.locator("summary").click()
    expect(fold.locator(".thought")).to_have_js_property("textContent", THOUGHT)
    fold.locator("summary").click()
    expect(fold.locator(".thought")).to_be_hidden()


def test_a_page_that_comes_back_in_the_middle_of_reasoning_goes_on(
    thinking: Server, page: Page
) -> None:
    page.goto(thinking.url)
    thinking.control(hold="decode", after=30)
    say(page, ASKED)
    expect(page.locator("details.reasoning")).to_have_count(1)
    page.reload()
    expect(page.locator("summary", has_text="Thinking…")).to_be_visible()
    thinking.control(hold=None)
    finished(page)
    expect(page.locator(".thought")).to_have_count(1)
    expect(page.locator(".thought")).to_have_js_property("textContent", THOUGHT)


def test_tags_of_a_model_that_does_not_reason_are_text(server: Server, page: Page) -> None:
    page.goto(server.url)
    say(page, "<think>no thought</think> but text")
    finished(page)
    expect(page.locator("article > .md")).to_have_text("<think>no thought</think> but text")
    expect(page.locator("details.reasoning")).to_have_count(0)


def test_reasoning_goes_back_to_a_template_that_reads_it(thinking: Server, page: Page) -> None:
    page.goto(thinking.url)
    say(page, ASKED)
    finished(page)
    thinking.control(hold="decode", after=2)
    say(page, "And again")
    reply = next(iter(thinking.app.state.site.live._replies.values()))
    sent = [(m.content, m.fields) for m in reply.request.messages]
    assert sent[1] == ("Hello, **you**.", {"reasoning_content": THOUGHT})


def test_stopped_within_its_reasoning_a_reply_keeps_it(thinking: Server, page: Page) -> None:
    page.goto(thinking.url)
    thinking.control(hold="decode", after=30)
    say(page, ASKED)
    expect(page.locator("details.reasoning")).to_have_count(1)
    page.get_by_role("button", name="Stop").click()
    finished(page)
    expect(page.locator("details.reasoning .thought")).to_contain_text("They greet")
    expect(page.get_by_text("Stopped", exact=True).first).to_be_visible()
    expect(page.locator(".assistant .copy-turn")).to_have_count(0)


def test_reasoning_opens_without_script(thinking: Server, visitor: Visitor) -> None:
    page = visitor.page(java_script_enabled=False)
    page.goto(thinking.url)
    page.get_by_label("Message", exact=True).fill(ASKED)
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.locator(".thought")).to_be_hidden()
    page.locator("summary", has_text="Thought for 1 s").click()
    expect(page.locator(".thought")).to_be_visible()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=lambda v: str(v["width"]))
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_reasoning_is_accessible_and_fits(
    thinking: Server, visitor: Visitor, size: dict[str, int], scheme: str
) -> None:
    page = visitor.page(viewport=size, color_scheme=scheme)
    page.goto(thinking.url)
    thinking.control(hold="decode", after=300)
    say(page, f"<think>{'a_word_without_an_end' * 20}</think>Done")
    page.locator(".reasoning summary").click()
    expect(page.locator(".thought")).to_contain_text("a_word_without_an_end" * 9)
    assert_accessible(page)
    assert_fits(page)
    thinking.control(hold=None)
    finished(page)
    expect(page.locator(".thought")).to_be_visible()
    assert_accessible(page)
    assert_fits(page)


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=lambda v: str(v["width"]))
def test_a_call_is_shown_with_its_name_and_arguments(
    thinking: Server, visitor: Visitor, size: dict[str, int]
) -> None:
    # The page offers the model no tools yet: what one would make is put into the store.
    async def seed() -> str:
        store = thinking.app.state.site.store
        conversation = await store.create("Weather")
        _, reply = await store.add_turn(conversation.id, "In Paris?", model="m")
        whole = Call(name="weather", arguments='{"city":"Paris <b>","days":[1,2]}')
        half = Call(name="a_function_with_a_name_that_fits_on_no_phone", arguments='{"ci')
        done = Outcome(status="done")
        await store.update_reply(replace(reply, calls=(whole, half), outcome=done))
        return str(conversation.id)

    context = visitor.context(viewport=size, permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{thinking.url}/c/{thinking.run(seed())}")
    laid_out = '{\n  "city": "Paris <b>",\n  "days": [\n    1,\n    2\n  ]\n}'
    call = page.get_by_role("group", name="Call of weather")
    expect(call.locator("code")).to_have_js_property("textContent", laid_out)
    call.get_by_role("button", name="Copy").click()
    expect(call.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("() => navigator.clipboard.readText()") == laid_out
    expect(page.get_by_role("group", name="Call of a_function").locator("code")).to_have_text(
        '{"ci'
    )
    expect(page.get_by_text("without a word")).to_have_count(0)
    assert_accessible(page)
    assert_fits(page)
