"""Texts that are attached: told by their bytes, quoted for the model, folded on the page."""

import io
import time
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from corral.backend.errors import Refused
from corral.frontend import texts
from corral.frontend.texts import Text, fenced, message, read, taken_apart

#: See ``conftest``.
Client: TypeAlias = Any
HTMX = {"hx-request": "true"}


def pdf(*pages: str, password: str = "") -> bytes:
    """A PDF with a line of text on each page; an empty one has only a drawing."""
    writer = PdfWriter()
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    for words in pages:
        page = writer.add_blank_page(300, 200)
        content = DecodedStreamObject()
        drawn = f"BT /F1 12 Tf 20 100 Td ({words}) Tj ET" if words else "20 20 50 50 re f"
        content.set_data(drawn.encode())
        fonts = DictionaryObject({NameObject("/F1"): font})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        page[NameObject("/Contents")] = writer._add_object(content)
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        "häuser\nzwei".encode(),
        "häuser\nzwei".encode("utf-8-sig"),
        "häuser\r\nzwei".encode("utf-16"),
        "häuser\r\nzwei".encode("utf-16-le"),
        "häuser\rzwei".encode("utf-16-be"),
    ],
)
async def test_text_is_told_by_its_bytes(data: bytes) -> None:
    assert (await read("a.bin", data)).content == "häuser\nzwei"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("häuser".encode("latin-1"), "no text in UTF-8"),
        (b"\x7fELF\2\1\1\0\0\0", "no text in UTF-8"),
        (b"PK\3\4\x14\0\0\0", "office document"),
        (b" \n ", "nothing in it"),
        (b"a" * (texts.MAX_CHARS + 1), "more than"),
        (pdf("secret", password="x"), "is encrypted"),
        (pdf("", ""), "no text, only pictures"),
        (b"%PDF-1.7 and then nothing of the kind", "cannot be read"),
    ],
)
async def test_what_is_no_text_is_refused_by_name(data: bytes, why: str) -> None:
    with pytest.raises(Refused, match=why) as refused:
        await read("the file", data)
    assert refused.value.message.startswith("the file: ")


async def test_a_pdf_is_its_pages_in_order() -> None:
    found = await read("a.pdf", pdf("first page", "", "third page"))
    assert (found.content, found.part, found.is_pdf) == ("first page\n\nthird page", "", True)


async def test_a_pdf_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "PDF_TIMEOUT_S", 0.0)
    began_s = time.monotonic()
    with pytest.raises(Refused, match="takes too long"):
        await read("slow.pdf", pdf("words"))
    assert time.monotonic() - began_s < 5


def test_long_pdfs_say_how_much_was_read() -> None:
    # In this process: what the limits are does not depend on where it runs.
    from corral.frontend import pdftext

    data = pdf(*["words"] * 3)
    limit, pdftext.MAX_PAGES = pdftext.MAX_PAGES, 2
    try:
        answer = pdftext.read(data)
    finally:
        pdftext.MAX_PAGES = limit
    assert (answer["pages"], answer["n_pages"]) == (2, 3)


def test_the_fence_is_longer_than_any_inside() -> None:
    text = Text(name="a.md", content="```py\nx\n```\n`````\n", n_bytes=1)
    assert fenced(text).splitlines()[0] == "``````file a.md"
    words, blocks = taken_apart(message("Look:", [text]))
    assert (words, blocks[0].name) == ("Look:", "a.md")
    assert blocks[0].content == "```py\nx\n```\n`````"


@given(
    st.text(alphabet="ab`\n "),
    st.lists(st.text(alphabet="ab`\nfile ", min_size=1).filter(str.strip), max_size=3),
)
def test_a_message_comes_apart_into_what_it_was_made_of(words: str, files: list[str]) -> None:
    made = [Text(name=f"f{n}", content=c, n_bytes=1) for n, c in enumerate(files)]
    _words, blocks = taken_apart(message(words, made))
    assert [(b.name, b.content) for b in blocks] == [(t.name, t.content.rstrip()) for t in made]


async def test_a_text_that_no_context_holds_is_said_to_be_too_long_before_it_is_sent(
    client: Client,
) -> None:
    words = "Too long for the model, which holds 1,024 tokens"
    for n_chars, is_too_long in ((1023, False), (1024, True), (9000, True)):
        file = {"pictures": ("long.txt", b"a" * n_chars, "text/plain")}
        answer = await client.post("/pictures", files=file)
        assert answer.status_code == 200
        assert (words in answer.text) is is_too_long, n_chars


async def test_a_text_is_looked_at_sent_to_the_model_and_folded(client: Client) -> None:
    file = {"pictures": ("notes <b>.md", b"# Title\n\n```\ncode\n```\n", "text/markdown")}
    looked = (await client.post("/pictures", files=file)).text
    assert "notes &lt;b&gt;.md" in looked and "22\xa0B" in looked and "about\xa022\xa0tok" in looked
    assert "Into the box" in looked
    answer = await client.post("/c", data={"text": "Sum up"}, files=file, follow_redirects=False)
    path = answer.headers["location"]
    reply = client.app.state.site.live.get(2)
    sent = "Sum up\n\n````file notes <b>.md\n# Title\n\n```\ncode\n```\n````"
    assert reply.request.messages[0].content == sent
    await reply.ended.wait()
    page = (await client.get(path)).text
    assert '<div class="user" dir="auto">Sum up</div>' in page
    assert "<summary><b>notes &lt;b&gt;.md</b> <span>21 B</span></summary>" in page
    assert ">Sum up · Corral</title>" in page


async def test_a_text_alone_is_a_message_and_names_the_conversation(client: Client) -> None:
    file = {"pictures": ("data.csv", b"a,b\n1,2\n")}
    answer = await client.post("/c", data={"text": ""}, files=file, follow_redirects=False)
    assert answer.status_code == 303
    (listed,) = await client.app.state.site.store.list()
    assert listed.title == "data.csv"


async def test_a_file_that_cannot_be_read_keeps_the_words(client: Client) -> None:
    file = {"pictures": ("a.zip", b"PK\3\4rest", "application/zip")}
    answer = await client.post("/c", data={"text": "Here"}, files=file)
    assert answer.status_code == 400 and "a.zip: this is a ZIP" in answer.text
    assert "Here</textarea>" in answer.text
    assert await client.app.state.site.store.list() == []


async def test_a_text_is_told_by_its_bytes_not_by_its_name(client: Client) -> None:
    file = {"pictures": ("notes.png", b"plain words", "image/png")}
    looked = await client.post("/pictures", files=file)
    assert looked.status_code == 200 and "Into the box" in looked.text
