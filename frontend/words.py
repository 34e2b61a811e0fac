"""The words of the pages in the reader's language, by gettext catalogues in ``languages/``.

What is written in the code and the templates is English. ``_`` translates at the moment it is
called, into the language of the request that is being answered (`gettext
<https://www.gnu.org/software/gettext/manual/html_node/Concepts.html>`_).
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from babel.core import negotiate_locale
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from babel.numbers import format_decimal
from babel.support import NullTranslations, Translations

FOLDER = Path(__file__).resolve().parent / "languages"
SOURCE = "en"

_language: ContextVar[str] = ContextVar("language", default=SOURCE)


@cache
def languages() -> tuple[str, ...]:
    """The languages there are, English first."""
    return (SOURCE, *sorted(path.stem for path in FOLDER.glob("*.po")))


@cache
def catalogue(language: str) -> NullTranslations:
    """The catalogue of a language; of one that is not there, English."""
    path = FOLDER / f"{language}.po"
    if language not in languages() or language == SOURCE:
        return NullTranslations()
    with path.open("rb") as file:
        messages = read_po(file, locale=language)
    binary = io.BytesIO()
    write_mo(binary, messages)
    binary.seek(0)
    return Translations(binary)


def chosen(cookie: str | None, accepted: str) -> str:
    """The language of a request: what was chosen on the page, or else the first one there is of
    ``accepted``, an ``Accept-Language`` header (RFC 9110, 12.5.4), or else English."""
    if cookie in languages():
        return str(cookie)
    wanted = []
    for item in accepted.split(","):
        name, _, weight = item.replace(" ", "").partition(";q=")
        try:
            wanted.append((-float(weight or 1), name))
        except ValueError:
            continue
    names = [name for weight, name in sorted(wanted, key=lambda w: w[0]) if weight < 0]
    return negotiate_locale(names, languages(), sep="-") or SOURCE


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """All of this in a language."""
    token = _language.set(language)
    try:
        yield
    finally:
        _language.reset(token)


def speak(language: str) -> None:
    """From now on, in what this task does, the words are in this language."""
    _language.set(language)


def language() -> str:
    """The language of the words now."""
    return _language.get()


def _(text: str) -> str:
    """A sentence in the reader's language."""
    return str(catalogue(_language.get()).gettext(text)) if text else ""


def later(text: str) -> str:
    """Marks a sentence that is translated where it is shown: ``_`` of a name."""
    return text


def ngettext(one: str, many: str, n: int) -> str:
    """A sentence for ``n`` things; put the number in with ``%`` or ``format`` afterwards."""
    return str(catalogue(_language.get()).ngettext(one, many, n))


def number(value: float, digits: int = 0) -> str:
    """A number as the reader writes it, with this many digits behind the point."""
    pattern = "#,##0" + ("." + "0" * digits if digits else "")
    return str(format_decimal(value, pattern, locale=_language.get()))
