"""How many answers a form asks for, and how many the reader asked for last."""

from typing import Any

from litestar import Response
from litestar.datastructures import FormMultiDict

from corral.backend.errors import Refused
from corral.backend.store import MAX_COLUMNS
from corral.frontend.wire import AnyRequest
from corral.frontend.words import _

COOKIE = "ways"
_YEAR_S = 365 * 24 * 3600


def wanted(form: FormMultiDict) -> int:
    """How many answers are asked for; 1 when nothing is said. Raises Refused."""
    n = _number(form.get("n", "1"))
    if n is None:
        words = _("n: from 1 to {n} answers can be asked for at once").format(n=MAX_COLUMNS)
        raise Refused(words, param="n")
    return n


def last(request: AnyRequest) -> int:
    """How many the reader asked for last: with a form that was refused, or before."""
    form = request.state.get("form") or {}
    return _number(form.get("n")) or _number(request.cookies.get(COOKIE, "1")) or 1


def remember(request: AnyRequest, response: Response[Any], n: int) -> Response[Any]:
    """The response, which notes in the reader's browser how many were asked for."""
    path = request.app.state.settings.api_prefix or "/"
    response.set_cookie(COOKIE, str(n), path=path, max_age=_YEAR_S, httponly=True, samesite="lax")
    return response


def _number(text: object) -> int | None:
    is_one = isinstance(text, str) and len(text) == 1 and text in "12345678"
    return int(str(text)) if is_one else None
