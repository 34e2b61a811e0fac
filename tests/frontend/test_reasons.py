"""What the server says in English, in the reader's language."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from corral.frontend import words
from corral.frontend.reasons import KNOWN, sentence

BACKEND = Path(__file__).resolve().parents[2] / "backend"
GERMAN = {"accept-language": "de", "accept": "text/html"}


def said() -> set[str]:
    """The texts in the server's code, with ``{}`` for each value."""
    texts = set()
    for path in BACKEND.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [v.value if isinstance(v, ast.Constant) else "{}" for v in node.values]
                texts.add("".join(map(str, parts)))
    return texts


#: Said in two parts, the second of which is the same for several.
PARTED = re.compile(r"^(?P<first>.*); (?P<second>send PNG.*|load the page again.*)$")


@pytest.mark.parametrize("template", KNOWN)
def test_each_reason_is_one_that_the_server_gives(template: str) -> None:
    texts = said()
    plain = re.sub(r"\{\w+\}", "{}", template)
    parted = PARTED.match(plain)
    wanted = parted.groups() if parted and plain not in texts else (plain,)
    for text in wanted:
        assert any(text in each for each in texts), text


@pytest.mark.parametrize(
    ("message", "english", "german"),
    [
        (
            "messages: the prompt has 5000 tokens; the context holds 4096, answer included",
            "The prompt has 5,000 tokens; the context holds 4,096, answer included",
            "Der Prompt hat 5.000 Tokens; der Kontext fasst 4.096, die Antwort mitgezählt",
        ),
        (
            "There is no preset 'a' to bring back",
            "There is no preset 'a' to bring back",
            "Es gibt keine Vorlage 'a', die sich zurückholen ließe",
        ),
        (
            "a.png: this PNG is damaged or cut off",
            "a.png: this PNG is damaged or cut off",
            "a.png: Diese Datei (PNG) ist beschädigt oder abgeschnitten",
        ),
        ("nobody knows this: at all", "Nobody knows this: at all", "Nobody knows this: at all"),
        ("top_p: from 0 to 1", "top_p: from 0 to 1", "top_p: from 0 to 1"),
        ("", "", ""),
    ],
)
def test_a_reason_is_said_in_the_readers_language(message: str, english: str, german: str) -> None:
    assert sentence(message) == english
    with words.speaking("de"):
        assert sentence(message) == german


async def test_german_pages_say_in_german_what_the_server_refuses(client: Any) -> None:
    for path, expected in (
        ("/c/nothing", "Es gibt kein solches Gespräch; vielleicht wurde es gelöscht"),
        ("/m/99", "Es gibt keine solche Nachricht; vielleicht wurde sie gelöscht"),
        ("/notebook/nothing", "Es gibt keinen solchen Notizblock; vielleicht wurde er gelöscht"),
        ("/nowhere", "Diese Seite gibt es nicht"),
        ("/c", "Hier gibt es nichts zu sehen"),
    ):
        answer = await client.get(path, headers=GERMAN)
        assert answer.status_code in (404, 405)
        assert expected in answer.text, path
    long = await client.post("/c", data={"text": "too long " * 900}, headers=GERMAN)
    for reply in client.app.state.site.live.all:
        await reply.ended.wait()
    page = (await client.get(long.headers["location"])).text
    assert "Der Prompt hat 8.1" in page and "der Kontext fasst 1.024" in page
