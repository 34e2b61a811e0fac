"""Titles and other short names, however they come about."""

import json

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient

from corral.frontend import titles
from corral.frontend.uploads import plain_name

Client = AsyncTestClient[Litestar]

FAMILY = "👨\u200d👩\u200d👧"
PERSIAN = "می\u200cخواهم"  # noqa: RUF001
HIDDEN = "gpj\u202e.exe\u2066\t\u200bno\r\nthing\x1b[0m\ufeff"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Hello", "Hello"),
        ("\n\n  # A heading\nmore", "A heading"),
        ("word " * 30, "word word word word word word word word word word word…"),
        ("x" * 100, "x" * 59 + "…"),
        ("x" * 60, "x" * 60),
        ("```", "New chat"),
        ("\u200b\u202e\n\u3164\nseen", "seen"),
        ("tab\there\x07", "tab here"),
        (FAMILY, FAMILY),
        (" " * 5_000 + "late", "late"),
    ],
)
def test_a_title_is_the_first_line_that_says_something_cut_at_a_word(text: str, title: str) -> None:
    assert titles.made(text) == title


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a\u202eb\u2066c\u200fd\u00ade\u2060f", "abcdef"),
        (" a\n\tb\u2028c\x00d ", "a b c d"),
        (FAMILY, FAMILY),
        ("❤️\u200d🔥", "❤️\u200d🔥"),
        (PERSIAN, PERSIAN),
        ("pass\u200cword\u200d", "password"),
    ],
)
def test_what_cannot_be_seen_is_no_part_of_a_name(text: str, name: str) -> None:
    assert titles.plain(text) == name


def test_a_name_that_is_too_long_says_that_it_goes_on() -> None:
    assert titles.short("x" * 201) == "x" * 199 + "…"
    assert titles.short("x" * 200) == "x" * 200


async def test_a_title_that_is_typed_has_nothing_hidden(client: Client) -> None:
    for path in ("/c", "/notebook"):
        made = await client.post(path, data={"text": "Hello"})
        where = made.headers["location"]
        await client.post(f"{where}/rename", data={"title": HIDDEN})
        assert ">gpj.exe no thing [0m</h1>" in (await client.get(where)).text


async def test_a_title_that_is_brought_along_has_nothing_hidden(client: Client) -> None:
    chat = {"title": HIDDEN, "messages": [{"role": "user", "content": "Hello"}]}
    files = {"files": ("chat.json", json.dumps(chat).encode())}
    await client.post("/import", files=files)
    assert "gpj.exe no thing [0m</a>" in (await client.get("/search")).text


async def test_a_batch_is_named_after_its_file_with_nothing_hidden(client: Client) -> None:
    files = {"file": ("a\u202e" + "n" * 100 + ".txt", b"One prompt")}
    made = await client.post("/batch", data={"format": "lines"}, files=files)
    page = await client.get(made.headers["location"])
    assert f">a{'n' * 58}…</h1>" in page.text


def test_the_name_of_a_file_has_nothing_hidden() -> None:
    assert plain_name(f"photos/{FAMILY}\u202egpj.exe") == f"{FAMILY}gpj.exe"


@pytest.mark.parametrize("name", ["a\u202eb", "a\u200bb", "a\nb"])
async def test_a_preset_takes_no_name_with_something_hidden(client: Client, name: str) -> None:
    assert (await client.post("/preset", data={"name": name, "version": "0"})).status_code == 400
