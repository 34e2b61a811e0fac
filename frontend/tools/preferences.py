"""What a browser prefers: its language and its colours. Kept in cookies, so each has its own."""

from babel import Locale
from litestar import Response, post, route
from litestar.datastructures import Cookie
from msgspec import Struct

from corral.frontend import words
from corral.frontend.tools.frame import tool_page
from corral.frontend.wire import (
    LANGUAGE_COOKIE,
    LOOK,
    THEME_COOKIE,
    THEMES,
    AnyRequest,
    form_of,
    go,
)
from corral.frontend.words import _, later

_MAX_AGE_S = 365 * 24 * 3600
_THEME_NAMES = {"": later("As the system"), "light": later("Light"), "dark": later("Dark")}


class Option(Struct, frozen=True):
    """One of several to choose from; ``lang`` of its name, when it is not the page's."""

    value: str
    name: str
    is_chosen: bool
    lang: str = ""


class Preferences(Struct, frozen=True):
    """The page; the first of ``languages`` and ``themes`` follows the browser."""

    languages: tuple[Option, ...]
    themes: tuple[Option, ...]


@route("/preferences", http_method=LOOK, status_code=200)
async def preferences_page(request: AnyRequest) -> Response[str]:
    """The page."""
    chosen, theme = (request.cookies.get(key, "") for key in (LANGUAGE_COOKIE, THEME_COOKIE))
    known = words.languages()
    view = Preferences(
        languages=(
            Option("", _("As the browser"), chosen not in known),
            *(Option(code, _own_name(code), chosen == code, code) for code in known),
        ),
        themes=tuple(
            Option(value, _(name), theme == value) for value, name in _THEME_NAMES.items()
        ),
    )
    return await tool_page(request, "preferences", _("Preferences"), view)


def _own_name(language: str) -> str:
    """A language as its speakers call it."""
    name = Locale.parse(language).display_name or language
    return name[:1].upper() + name[1:]


@post("/preferences", status_code=200)
async def prefer(request: AnyRequest) -> Response[bytes]:
    """Keeps what was chosen; what is unknown follows the browser."""
    form = await form_of(request)
    response = go("/preferences")
    for key, known in ((LANGUAGE_COOKIE, words.languages()), (THEME_COOKIE, THEMES)):
        value = form.get(key)
        is_known = isinstance(value, str) and value in known
        response.set_cookie(
            Cookie(
                key=key,
                value=str(value) if is_known else "",
                max_age=_MAX_AGE_S if is_known else 0,
                httponly=True,
                samesite="lax",
                secure=request.url.scheme == "https",
            )
        )
    return response
