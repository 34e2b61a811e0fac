"""The door for browsers when API keys are set: a key becomes a cookie."""

import hmac
from collections.abc import Callable
from typing import cast

from litestar import Response, post, route
from litestar.datastructures import Cookie

from corral.backend.settings import Settings
from corral.frontend.wire import LOOK, AnyRequest, go, page
from corral.frontend.words import _

COOKIE = "corral_key"
_MAX_AGE_S = 30 * 24 * 3600


@route("/login", http_method=LOOK, status_code=200, sync_to_thread=False)
def login_page(request: AnyRequest) -> Response[str] | Response[bytes]:
    """Asks for a key, when there are any."""
    if not cast(Settings, request.app.state.settings).keys:
        return go("/")
    return page(
        request,
        "login.html",
        title=_("Log in"),
        next=_inside(request.query_params.get("next")),
        error="",
    )


@post("/login", status_code=200)
async def login(request: AnyRequest) -> Response[str] | Response[bytes]:
    """Lets a browser in that knows a key, and sends it where it wanted to go."""
    form = await request.form()
    key, target = str(form.get("key", "")).strip(), _inside(form.get("next"))
    settings = cast(Settings, request.app.state.settings)
    # All of them, always: the time must tell nothing.
    known = [hmac.compare_digest(key.encode(), k.encode()) for k in settings.keys]
    if not any(known):
        error = _("This key is not known here.")
        return page(request, "login.html", status=401, title=_("Log in"), next=target, error=error)
    session_value = cast(Callable[[str], str], request.app.state.session_value)
    response = go(target)
    response.set_cookie(
        Cookie(
            key=COOKIE,
            value=session_value(key),
            max_age=_MAX_AGE_S,
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
        )
    )
    return response


def _inside(target: object) -> str:
    """A path of this server, or the front page."""
    is_path = isinstance(target, str) and target.startswith("/")
    # "//host" and "/\host" lead out.
    return str(target) if is_path and str(target)[1:2] not in ("/", "\\") else "/"
