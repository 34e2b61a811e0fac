"""The list of keyboard shortcuts, and the switch that turns them off in this browser.

Those that are a single character can be turned off, as WCAG 2.2 asks in `2.1.4
<https://www.w3.org/WAI/WCAG22/Understanding/character-key-shortcuts.html>`_. Enter, Shift+Enter and
Esc are no shortcuts: they always work. What the keys do is in ``static/app.js``.
"""

from litestar import Response, post, route
from litestar.datastructures import Cookie
from msgspec import Struct

from corral.frontend.tools.frame import tool_page
from corral.frontend.wire import LOOK, SHORTCUTS_COOKIE, AnyRequest, form_of, go
from corral.frontend.words import _

_MAX_AGE_S = 365 * 24 * 3600


class Shortcuts(Struct, frozen=True):
    """The page; ``are_on`` in this browser."""

    are_on: bool


@route("/shortcuts", http_method=LOOK, status_code=200)
async def shortcuts_page(request: AnyRequest) -> Response[str]:
    """The page."""
    view = Shortcuts(request.cookies.get(SHORTCUTS_COOKIE) != "off")
    return await tool_page(request, "shortcuts", _("Keyboard"), view)


@post("/shortcuts", status_code=200)
async def switch(request: AnyRequest) -> Response[bytes]:
    """Turns them ``off``, or on again."""
    is_off = (await form_of(request)).get("shortcuts") == "off"
    response = go("/shortcuts")
    response.set_cookie(
        Cookie(
            key=SHORTCUTS_COOKIE,
            value="off" if is_off else "",
            max_age=_MAX_AGE_S if is_off else 0,
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
        )
    )
    return response
