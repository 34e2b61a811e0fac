"""The pages speak the reader's language."""

import ast
import asyncio
import re
import tomllib
from pathlib import Path

import pytest
from babel.messages.extract import DEFAULT_KEYWORDS, extract_from_dir
from babel.messages.pofile import read_po

from corral.frontend import words

ROOT = Path(words.FOLDER).parent.parent


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


def _mappings() -> tuple[list[tuple[str, str]], dict[str, dict[str, str]]]:
    mappings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["babel"]["mappings"]
    methods = [(m["pattern"], m["method"]) for m in mappings]
    return methods, {
        m["pattern"]: {k: v for k, v in m.items() if k not in ("pattern", "method")}
        for m in mappings
    }


def _said() -> set[str | tuple[str, str]]:
    """All words of the code and the templates."""
    methods, options = _mappings()
    keywords = {**DEFAULT_KEYWORDS, "later": None}
    said = set[str | tuple[str, str]]()
    for folder in ("frontend", "templates"):
        patterns = [(p.removeprefix(f"{folder}/"), m) for p, m in methods if p.startswith(folder)]
        known = {p.removeprefix(f"{folder}/"): o for p, o in options.items()}
        for _, _, message, _, _ in extract_from_dir(ROOT / folder, patterns, known, keywords):
            said.add(message if isinstance(message, str) else (message[0], message[1]))
    return said


_PLACES = re.compile(r"\{\w*\}|%\(\w+\)\w|%%")


@pytest.mark.parametrize("language", words.languages()[1:])
def test_every_word_has_its_translation_with_the_same_places(language: str) -> None:
    with (words.FOLDER / f"{language}.po").open("rb") as file:
        catalogue = read_po(file, locale=language)
    translated = {m.id: m.string for m in catalogue if m.id and not m.fuzzy}
    said = _said()
    assert len(said) > 500
    assert not said ^ set(translated), "make words, and translate what is new"
    for one, other in translated.items():
        pairs = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
        for ours, theirs in pairs:
            assert theirs, ours
            assert set(_PLACES.findall(theirs)) <= set(_PLACES.findall(ours)), (ours, theirs)
            if isinstance(one, str):
                assert sorted(_PLACES.findall(ours)) == sorted(_PLACES.findall(theirs)), theirs
