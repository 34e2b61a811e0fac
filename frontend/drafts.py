"""What is being written and not sent yet, kept on the server while it is typed.

A conversation has one draft, for all pages and devices; what was typed last counts. A new chat has
one for each browser, which the page's script names (``new-`` and a number it draws once and keeps).
"""

import secrets
from typing import Any

from litestar import Response, get, post
from litestar.params import FromPath

from corral.backend.errors import Refused
from corral.backend.store import Draft
from corral.backend.store.drafts import NEW
from corral.frontend.site import Site
from corral.frontend.wire import HEADERS, AnyRequest, form_of, nothing, site_of
from corral.frontend.words import _

#: The longest name of a place, and of a token.
MAX_CHARS = 64


def token(draft: Draft | None = None) -> str:
    """A new token for a page: its own, and after a dot the mark of the draft it was loaded with."""
    own = secrets.token_hex(8)
    return f"{own}.{draft.mark}" if draft is not None and draft.mark else own


@post("/drafts", status_code=200)
async def save(request: AnyRequest) -> Response[Any]:
    """Keeps what the page's box has now; ``place``, ``draft`` (its token) and ``text``. Raises
    Refused."""
    form = await form_of(request)
    place, own, was = _named(form)
    text = form.get("text", "")
    if not place or not own or not isinstance(text, str):
        raise Refused(_("The form lacks the place of the draft"), param="place")
    text = text.replace("\r\n", "\n")
    await site_of(request).store.drafts.save(place, own, was, text if text.strip() else "")
    return nothing()


@get("/drafts/{place:str}")
async def load(request: AnyRequest, place: FromPath[str]) -> Response[str]:
    """The draft of a browser's new chat as text, its mark as ``Draft-Mark``; empty when there is
    none."""
    draft = Draft()
    if place.startswith(NEW):
        draft = await site_of(request).store.drafts.get(place)
    headers = {**HEADERS, "draft-mark": draft.mark}
    return Response(draft.content, headers=headers, media_type="text/plain")


async def sent(site: Site, form: Any, conversation_id: str | None, text: str) -> None:
    """To be called when a page's text was sent or queued: its draft is gone."""
    place, own, was = _named(form)
    place = conversation_id or place
    if place and own:
        await site.store.drafts.spend(place, own, was, text)


def _named(form: Any) -> tuple[str, str, str]:
    """Place, own token, and the mark of the draft that was loaded; empty when not named."""
    place, tokens = (str(form.get(name, ""))[: 2 * MAX_CHARS] for name in ("place", "draft"))
    own, _dot, was = tokens.partition(".")
    return place[:MAX_CHARS], own, was
