"""The pages speak the reader's language."""

import ast
import asyncio
from pathlib import Path

import pytest

from corral.frontend import words


@pytest.mark.parametrize(
    ("cookie", "accepted", "language"),
    [
        (None, "", "en"),
        (None, "de-AT, de;q=0.9, en;q=0.5", "de"),
        (None, "en-GB, de;q=0.3", "en"),
        (None, "de; q=0.2, en; q=0.4", "en"),
        (None, "de;q=0, *", "en"),
        (None, "xx-YY", "en"),
        (None, "de;q=much, en", "en"),
        ("de", "en", "de"),
        ("../../etc/passwd", "de", "de"),
    ],
)
def test_the_language_is_the_chosen_one_or_the_best_accepted(
    cookie: str | None, accepted: str, language: str
) -> None:
    assert words.chosen(cookie, accepted) == language


async def test_two_tasks_speak_two_languages_at_once() -> None:
    async def said(language: str) -> str:
        words.speak(language)
        await asyncio.sleep(0)
        return words.number(1234.5, 1)

    assert list(await asyncio.gather(said("de"), said("en"))) == ["1.234,5", "1,234.5"]


_CODE = sorted((Path(words.FOLDER).parent).rglob("*.py"))


@pytest.mark.parametrize("path", _CODE, ids=lambda path: path.name)
def test_no_words_hide_inside_f_strings_where_extraction_misses_them(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            called = [n.func for n in ast.walk(node) if isinstance(n, ast.Call)]
            names = {f.id if isinstance(f, ast.Name) else getattr(f, "attr", "") for f in called}
            assert not names & {"_", "ngettext", "later"}, ast.unparse(node)
