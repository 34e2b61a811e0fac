"""How pages travel: the site's parts, HTML replies with their headers, and who may send forms."""

import logging
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from litestar import HttpMethod, Request, Response
from litestar.connection import ASGIConnection
from litestar.datastructures import FormMultiDict
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler

from corral.backend.errors import Broken, CorralError, Refused
from corral.frontend import clock, traces, words
from corral.frontend.reasons import sentence
from corral.frontend.site import Site
from corral.frontend.words import _

log = logging.getLogger("corral.frontend")

AnyRequest: TypeAlias = Request[Any, Any, Any]
LANGUAGE_COOKIE, THEME_COOKIE, SHORTCUTS_COOKIE = "language", "theme", "shortcuts"
THEMES = ("light", "dark")
#: Fields whose texts are given back with an error that has a page of its own.
_LONG = ("text", "system", "prefix", "source", "rows")
LOOK = (HttpMethod.GET, HttpMethod.HEAD)

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    # Not no-referrer: browsers would then send "Origin: null" with our own forms.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
    "vary": "HX-Request, Accept-Language, Cookie",
}


def site_of(request: AnyRequest) -> Site:
    """The site that ``lifespan`` opened."""
    return cast(Site, request.app.state.site)


async def speak(request: AnyRequest) -> None:
    """Before a request is answered: in the reader's language and time from here on."""
    _speak(request)


def _speak(request: AnyRequest) -> None:
    accepted = request.headers.get("accept-language", "")
    words.speak(words.chosen(request.cookies.get(LANGUAGE_COOKIE), accepted))
    clock.observe(request.cookies.get(clock.COOKIE))
    traces.want(request.cookies.get(traces.COOKIE) == "on")


def is_htmx(request: AnyRequest) -> bool:
    """Whether the page's script asks, for a fragment, or the browser, for a page."""
    return request.headers.get("hx-request") == "true"


def page(
    request: AnyRequest,
    template: str,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **view: object,
) -> Response[str]:
    """A page or fragment with the headers every HTML answer has."""
    theme = request.cookies.get(THEME_COOKIE, "")
    view["theme"] = theme if theme in THEMES else ""
    view["has_shortcuts"] = request.cookies.get(SHORTCUTS_COOKIE) != "off"
    html = site_of(request).html(template, **view)
    return Response(
        html, status_code=status, headers={**HEADERS, **(headers or {})}, media_type="text/html"
    )


def go(path: str) -> Response[bytes]:
    """Sends the browser on after a form."""
    return Response(
        b"", status_code=303, headers={**HEADERS, "location": path}, media_type="text/html"
    )


def nothing() -> Response[None]:
    """Done, and nothing to show."""
    return Response(None, status_code=204, headers=HEADERS)


def failure(request: AnyRequest, error: CorralError) -> Response[str]:
    """An error in place: a notice above the composer, or a page of its own."""
    _speak(request)  # outside our own routes nobody has yet
    template = "_notice_partial.html" if is_htmx(request) else "error.html"
    return page(
        request,
        template,
        status=error.wire.status,
        message=sentence(error.message),
        title=_("Error"),
        homeless=_typed(request),
    )


def own_form(connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler) -> None:
    """Guard: refuses forms that another site made the browser send. Raises Refused."""
    if connection.scope.get("method") in ("GET", "HEAD", "OPTIONS"):
        return
    headers = connection.headers
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    # Browsers leave out Sec-Fetch-Site over plain HTTP to another machine; Origin is there then.
    # Neither: no browser, so nobody whose cookie could be borrowed.
    if site is not None:
        is_own = site in ("same-origin", "none")
    else:
        is_own = origin is None or origin.partition("://")[2] == headers.get("host")
    if not is_own:
        raise Refused(_("This request comes from another site"), kind="forbidden")


def _typed(request: AnyRequest) -> str:
    """The texts of a form that was sent and took somebody time."""
    form = request.state.get("form") or FormMultiDict()
    long = (value for name, value in form.multi_items() if name.rpartition(".")[2] in _LONG)
    return "\n\n".join(value.strip() for value in long if isinstance(value, str) and value.strip())


async def form_of(request: AnyRequest) -> FormMultiDict:
    """The form that was sent. Raises Refused, or the framework's HTTPException (too large)."""
    try:
        form = await request.form()
        request.state.form = form  # for an answer that has to give it back
        return form
    except (UnicodeDecodeError, LookupError):
        raise Refused(_("The form's text is not UTF-8")) from None


async def text_of(request: AnyRequest, field: str = "text") -> str:
    """A field of the form; browsers send line ends as CRLF."""
    value = (await form_of(request)).get(field, "")
    return value.replace("\r\n", "\n").strip("\n") if isinstance(value, str) else ""


def framework_error(request: AnyRequest, error: HTTPException) -> CorralError:
    """An error of the framework's own, such as a form that is too large, as one of ours."""
    if error.status_code == 413:
        limit = request.app.state.settings.max_body_mb
        message = _("This is more than the {n} MiB that the server takes at once").format(n=limit)
        return Refused(message, kind="too_large")
    kind = "not_found" if error.status_code == 404 else "invalid"
    return Refused(error.detail or _("This did not work"), kind=kind)


def framework_failure(request: AnyRequest, error: HTTPException) -> Response[str]:
    """Such an error in place."""
    return failure(request, framework_error(request, error))


def unforeseen(request: AnyRequest, error: Exception) -> Response[str]:
    """A fault of ours: the log has it, the page says so."""
    log.error("%s %s failed", request.method, request.scope["path"], exc_info=error)
    return failure(request, Broken(_("Something went wrong in the server; see its log")))
