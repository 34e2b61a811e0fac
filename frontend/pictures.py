"""Routes of pictures: what one would be as part of a message, and those that are in the store."""

import base64

from litestar import Response, post, route
from litestar.exceptions import HTTPException
from litestar.params import FromPath

from corral.backend.errors import CorralError, Refused
from corral.frontend import texts, uploads
from corral.frontend.gallery import chip
from corral.frontend.reasons import sentence
from corral.frontend.wire import HEADERS, LOOK, AnyRequest, form_of, framework_error, page, site_of
from corral.frontend.words import _

#: For files that came from outside. The style is that of the browser's own viewer.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
#: Formats that browsers show; others are saved.
_SHOWN = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp")


@post("/pictures", status_code=200)
async def attach(request: AnyRequest) -> Response[str]:
    """What the page shows of pictures that were chosen, or why they cannot be sent. Keeps nothing:
    they come again with the message."""
    site = site_of(request)
    try:
        seen, read = await uploads.looked_at(site, await form_of(request))
        if not seen and not read:
            raise Refused(_("There is no file here"))
    except (CorralError, HTTPException) as error:
        known = framework_error(request, error) if isinstance(error, HTTPException) else error
        text = sentence(known.message)
        return page(request, "_notice.html", status=known.wire.status, message=text)
    n_ctx = site.service.info.n_ctx if site.service.info else 0
    chips = [
        chip(s.upload.picture, _inline(s.upload.small), await uploads.n_tokens(site, s))
        for s in seen
    ] + [texts.chip(text, await texts.n_tokens(site, text), n_ctx) for text in read]
    return page(request, "_chips.html", chips=chips)


def _inline(small: bytes) -> str:
    return f"data:image/webp;base64,{base64.b64encode(small).decode()}"


@route("/p/{key:str}", http_method=LOOK, status_code=200)
async def picture(request: AnyRequest, key: FromPath[str]) -> Response[bytes]:
    """A picture as it came. Raises Refused not_found."""
    media_type, data = await site_of(request).store.picture(key)
    place = "inline" if media_type in _SHOWN else "attachment"
    ending = media_type.removeprefix("image/")
    return _file(data, media_type, {"content-disposition": f'{place}; filename="{key}.{ending}"'})


@route("/p/{key:str}/small", http_method=LOOK, status_code=200)
async def small(request: AnyRequest, key: FromPath[str]) -> Response[bytes]:
    """The same made small. Raises Refused not_found."""
    return _file(await site_of(request).store.thumbnail(key), "image/webp", {})


def _file(data: bytes, media_type: str, more: dict[str, str]) -> Response[bytes]:
    # Another content has another address.
    headers = {
        **HEADERS,
        "content-security-policy": _POLICY,
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "private, max-age=31536000, immutable",
        **more,
    }
    del headers["vary"]
    return Response(data, media_type=media_type, headers=headers)
