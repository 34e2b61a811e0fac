"""Pictures: attached in every way there is, looked at, taken back, refused, sent, and shown."""

import re
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import pytest
from e2e_kit import DESKTOP, PHONE, SMALL_PHONE, Server, Visitor, finished
from PIL import Image
from playwright.sync_api import FilePayload, Page, Route, expect
from test_looks import assert_accessible, assert_fits

from corral.backend.settings import Settings


def picture(
    name: str, colour: str = "red", size: tuple[int, int] = (90, 60), format: str = "PNG"
) -> FilePayload:
    out = BytesIO()
    Image.new("RGB", size, colour).save(out, format)
    return {"name": name, "mimeType": f"image/{format.lower()}", "buffer": out.getvalue()}


RED, BLUE = picture("red.png"), picture("blue.png", "blue", (60, 90))
TIFF = picture("scan.tiff", "green", format="TIFF")
HTML: FilePayload = {"name": "page.png", "mimeType": "image/png", "buffer": b"<html><body>no"}

# How a browser hands over files that were pasted or dropped.
BRING = """async ([kind, names, types]) => {
  const data = new DataTransfer();
  for (const name of names) {
    const canvas = Object.assign(document.createElement("canvas"), { width: 40, height: 30 });
    canvas.getContext("2d").fillRect(0, 0, 40, 30);
    const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
    data.items.add(new File([blob], name, { type: "image/png" }));
  }
  for (const type of types) data.setData(type, "words");
  const event = kind === "paste"
    ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true })
    : new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
  const target = kind === "paste" ? document.activeElement : document.querySelector("#scroll");
  return target.dispatchEvent(event);
}"""


@pytest.fixture(scope="module")
def seeing_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("seeing")
    server = Server(
        Settings(
            fake=True,
            alias="seeing",
            n_ctx=4096,
            n_slots=2,
            data_dir=folder,
            mmproj=folder / "projector.gguf",
            max_body_mb=2,
        )
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
def seeing(seeing_server: Server) -> Iterator[Server]:
    yield seeing_server
    seeing_server.control(hold=None, step_ms=0.0)
    seeing_server.until(lambda _: seeing_server.is_idle())


def choose(page: Page, *files: FilePayload) -> None:
    page.locator("#pictures").set_input_files(list(files))


def chips(page: Page) -> Any:
    """Pictures that were looked at."""
    return page.locator("#chips li", has=page.get_by_role("button"))


def send(page: Page, text: str) -> None:
    n = page.locator(".turn.user").count()
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".turn.user")).to_have_count(n + 1)


def test_pictures_are_chosen_looked_at_sent_and_shown_in_order(seeing: Server, page: Page) -> None:
    page.goto(seeing.url)
    with page.expect_file_chooser() as chooser:
        page.get_by_text("Attach", exact=True).click()
    assert chooser.value.is_multiple()
    chooser.value.set_files([RED, BLUE])
    expect(chips(page)).to_have_count(2)
    expect(chips(page).first).to_contain_text("red.png")
    expect(chips(page).first).to_contain_text(re.compile(r"\d+\sB · 90\s.\s60 · 4\stok"))
    expect(page.locator("#announce")).to_contain_text("Attached blue.png")
    choose(page, TIFF)  # more of them, without losing the others
    expect(chips(page)).to_have_count(3)
    # Browsers cannot show TIFF; the server's small one they can.
    assert chips(page).last.locator("img").evaluate("(e) => e.decode().then(() => e.naturalWidth)")
    send(page, "What is on these?")
    finished(page)
    expect(page.locator("#chips li")).to_have_count(0)
    shown = page.get_by_role("article", name="You").get_by_role("img")
    expect(shown).to_have_count(3)
    for n, name in enumerate(("red.png", "blue.png", "scan.tiff")):
        expect(shown.nth(n)).to_have_attribute("alt", re.compile(f"^{name} "))
        assert shown.nth(n).evaluate("(e) => e.decode().then(() => e.naturalWidth)")
    # The model has them: each is four tokens and a line's end of the prompt.
    _, messages = seeing.run(seeing.app.state.site.store.get(page.url.rpartition("/")[2]))
    assert messages[-1].figures.n_prompt > 3 * 5 + len("What is on these?")
    assert messages[-1].content.strip() == "What is on these?"
    page.reload()
    expect(shown).to_have_count(3)
    with page.context.expect_page() as opened:
        page.get_by_role("link", name=re.compile("red.png")).click()
    full = opened.value.locator("img")
    assert full.evaluate("(e) => e.decode().then(() => [e.naturalWidth, e.naturalHeight])") == [
        90,
        60,
    ]
    opened.value.close()


def test_a_picture_is_pasted(seeing: Server, page: Page) -> None:
    page.goto(seeing.url)
    page.get_by_label("Message", exact=True).focus()
    assert not page.evaluate(BRING, ["paste", ["pasted.png", "another.png"], []])
    expect(chips(page)).to_have_count(2)
    expect(chips(page).first).to_contain_text("40 × 30")  # noqa: RUF001
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    send(page, "Pasted")
    expect(page.get_by_role("article", name="You").get_by_role("img")).to_have_count(2)


def test_text_that_brings_its_own_picture_is_pasted_as_text(seeing: Server, page: Page) -> None:
    page.goto(seeing.url)
    assert page.evaluate(BRING, ["paste", ["of a table.png"], ["text/plain", "text/html"]])
    assert page.evaluate(BRING, ["paste", [], ["text/plain"]])
    expect(page.locator("#chips li")).to_have_count(0)


def test_pictures_are_dropped_anywhere_on_the_page(seeing: Server, page: Page) -> None:
    page.goto(seeing.url)
    composer = page.locator("#composer")
    assert not page.evaluate(BRING, ["dragover", ["a.png"], []])
    expect(composer).to_have_class("composer over")
    page.evaluate(BRING, ["dragleave", ["a.png"], []])
    expect(composer).to_have_class("composer")
    page.evaluate(BRING, ["dragover", ["a.png"], []])
    assert not page.evaluate(BRING, ["drop", ["a.png", "b.png"], ["text/plain"]])
    expect(composer).to_have_class("composer")
    expect(chips(page)).to_have_count(2)
    # Text that is dragged is the browser's business.
    assert page.evaluate(BRING, ["dragover", [], ["text/plain"]])


def test_a_picture_can_be_taken_back_by_keyboard(seeing: Server, page: Page) -> None:
    page.goto(seeing.url)
    choose(page, RED, BLUE)
    expect(chips(page)).to_have_count(2)
    page.get_by_role("button", name="Remove red.png").focus()
    page.keyboard.press("Enter")
    expect(chips(page)).to_have_count(1)
    expect(page.locator("#announce")).to_have_text("Removed red.png")
    expect(page.get_by_label("Attach pictures")).to_be_focused()
    outline = "(e) => getComputedStyle(e.nextElementSibling).outlineStyle"
    assert page.locator("#pictures").evaluate(outline) == "solid"
    # No words: Enter sends it all the same.
    page.get_by_label("Message", exact=True).press("Enter")
    shown = page.get_by_role("article", name="You").get_by_role("img")
    expect(shown).to_have_count(1)
    expect(shown).to_have_attribute("alt", re.compile("blue.png"))
    expect(page.get_by_role("heading", level=1)).to_have_text("blue.png")


def test_what_cannot_be_sent_is_refused_with_the_reason_and_the_rest_stays(
    seeing: Server, page: Page, visitor: Visitor
) -> None:
    visitor.expected += ["400", "413"]
    page.goto(seeing.url)
    huge: FilePayload = {"name": "huge.png", "mimeType": "image/png", "buffer": b"\0" * 2**22}
    page.get_by_label("Message", exact=True).fill("Kept")
    choose(page, RED, HTML, huge, BLUE)
    expect(chips(page)).to_have_count(2)
    expect(page.locator("#chips li")).to_have_count(2)
    alerts = page.get_by_role("alert")
    expect(alerts).to_have_text(
        [
            re.compile(r"page\.png: this is HTML, which is not supported"),
            re.compile(r"more than the 2 MiB"),
        ]
    )
    expect(page.get_by_label("Message", exact=True)).to_have_value("Kept")
    send(page, "Two are left")
    expect(alerts).to_have_count(0)
    expect(page.get_by_role("article", name="You").get_by_role("img")).to_have_count(2)


def test_a_model_that_takes_no_pictures_says_so(server: Server, visitor: Visitor) -> None:
    page = visitor.page()
    page.goto(server.url)
    visitor.expected.append("400")
    expect(page.get_by_label("Attach texts or PDFs")).to_have_count(1)
    page.evaluate(BRING, ["paste", ["a.png"], []])
    expect(page.get_by_role("alert")).to_contain_text("takes no pictures")
    expect(page.locator("#chips li")).to_have_count(0)


def test_pictures_for_the_next_message_outlast_the_reply_that_runs(
    seeing: Server, page: Page
) -> None:
    page.goto(seeing.url)
    seeing.control(hold="decode", after=4)
    send(page, "Hold this reply for a moment")
    choose(page, RED)
    expect(chips(page)).to_have_count(1)
    seeing.control(hold=None)
    finished(page)
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(chips(page)).to_have_count(1)
    send(page, "Now")
    expect(page.get_by_role("article", name="You").last.get_by_role("img")).to_have_count(1)


def test_what_is_sent_before_it_was_looked_at_is_not_left_behind(
    seeing: Server, page: Page, visitor: Visitor
) -> None:
    visitor.expected.append("400")
    waiting: list[Route] = []
    page.route("**/pictures", lambda route: waiting.append(route))
    page.goto(seeing.url)
    choose(page, RED, BLUE)
    expect(page.locator("#chips")).to_contain_text("Reading red.png")
    send(page, "At once")
    finished(page)
    expect(page.get_by_role("article", name="You").get_by_role("img")).to_have_count(2)
    with page.expect_response("**/pictures"):
        waiting[0].continue_()
    page.unroute("**/pictures")
    # Its answer belongs to a list that is no longer there.
    choose(page, HTML)
    expect(page.get_by_role("alert")).to_have_count(1)
    expect(page.locator("#chips li")).to_have_count(0)
    expect(page.locator("#announce")).not_to_contain_text("Attached")


def test_a_server_that_is_gone_takes_no_picture_and_is_said(
    seeing: Server, visitor: Visitor
) -> None:
    visitor.expected += ["ERR_INTERNET_DISCONNECTED", "Failed to fetch"]
    context = visitor.context()
    page = context.new_page()
    page.goto(seeing.url)
    context.set_offline(True)
    choose(page, RED)
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
    expect(page.locator("#chips li")).to_have_count(0)
    context.set_offline(False)
    choose(page, RED)
    expect(chips(page)).to_have_count(1)


def test_names_of_files_stay_text(seeing: Server, page: Page) -> None:
    page.goto(seeing.url)
    name = '<img src=x onerror=alert(1)>".png'
    choose(page, picture(name))
    expect(chips(page)).to_contain_text(name)
    send(page, "x")
    expect(page.get_by_role("article", name="You").get_by_role("img")).to_have_attribute(
        "alt", re.compile(re.escape(name))
    )


def test_pictures_go_with_their_conversation(seeing: Server, page: Page, visitor: Visitor) -> None:
    visitor.expected.append("404")
    page.goto(seeing.url)
    choose(page, picture("only here.png", "purple", (31, 17)))
    expect(chips(page)).to_have_count(1)
    send(page, "To be deleted")
    finished(page)
    address = page.get_by_role("link", name=re.compile("only here")).get_attribute("href")
    page.get_by_role("button", name="Rename or delete this conversation").click()
    page.get_by_role("button", name="Delete this conversation", exact=True).click()
    expect(page).to_have_url(re.compile(r"/\?deleted="))
    store = seeing.app.state.site.store
    seeing.run(store.forget(page.url.partition("=")[2]))
    page.goto(f"{seeing.url}{address}")
    expect(page.get_by_role("alert")).to_contain_text("no such picture")


def test_without_script_pictures_go_with_the_form(seeing: Server, visitor: Visitor) -> None:
    visitor.expected.append("400")
    page = visitor.page(java_script_enabled=False, viewport=PHONE, has_touch=True)
    page.goto(seeing.url)
    field = page.get_by_label("Attach pictures")
    expect(field).to_be_in_viewport(ratio=1)
    box = field.bounding_box()
    assert box is not None and box["width"] > 100, "the browser's own control is to be seen"
    field.set_input_files([RED, BLUE])
    page.get_by_label("Message", exact=True).fill("No script, two pictures")
    page.get_by_role("button", name="Send").click()
    you = page.get_by_role("article", name="You")
    expect(you.get_by_role("img")).to_have_count(2)
    expect(page.get_by_role("article", name="Assistant")).to_contain_text("No script, two")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    page.get_by_label("Attach pictures").set_input_files([HTML])
    page.get_by_label("Message", exact=True).fill("Not lost")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("page.png: this is HTML")
    expect(page.get_by_label("Message", exact=True)).to_have_value("Not lost")
    expect(you).to_have_count(1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE, SMALL_PHONE], ids=lambda v: str(v["width"]))
def test_every_size_has_room_for_pictures(
    seeing: Server, visitor: Visitor, viewport: Any, scheme: Any
) -> None:
    visitor.expected.append("400")
    is_phone = viewport["width"] < 700
    page = visitor.page(viewport=viewport, color_scheme=scheme, has_touch=is_phone)
    page.goto(seeing.url)
    expect(page.get_by_text("Camera")).to_be_visible(visible=is_phone)
    camera = page.locator("#camera")
    expect(camera).to_have_attribute("capture", "environment")
    long = picture("a very long name of a picture that no phone is wide enough for.png")
    choose(page, RED, long, TIFF, HTML)
    expect(chips(page)).to_have_count(3)
    expect(page.get_by_role("alert")).to_be_visible()
    if is_phone:
        camera.set_input_files([BLUE])
        expect(chips(page)).to_have_count(4)
    assert_fits(page)
    assert_accessible(page)
    for button in page.locator(".unpick, .attach:visible").all():
        box = button.bounding_box()
        assert box is not None and box["height"] >= (44 if is_phone else 24)
    send(page, "All of them")
    finished(page)
    expect(page.get_by_role("article", name="You").get_by_role("img")).to_have_count(
        4 if is_phone else 3
    )
    assert_fits(page)
    assert_accessible(page)


def test_pictures_work_behind_a_path_prefix(
    own_server: Callable[..., Server], page: Page, tmp_path: Any
) -> None:
    server = own_server(n_ctx=2048, mmproj=tmp_path / "p.gguf", api_prefix="/chat")
    page.goto(f"{server.url}/chat/")
    choose(page, RED)
    expect(chips(page)).to_have_count(1)
    send(page, "Behind a prefix")
    finished(page)
    image = page.get_by_role("article", name="You").get_by_role("img")
    assert image.evaluate("(e) => e.decode().then(() => e.naturalWidth)") == 90
