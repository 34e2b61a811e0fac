"""The route of style, script and fonts."""

from pathlib import Path

from litestar import Response, get
from litestar.params import FromPath

from corral.backend.errors import Refused
from corral.frontend.assets import TYPES
from corral.frontend.wire import AnyRequest, site_of
from corral.frontend.words import _


@get("/static/{digest:str}/{name:path}", sync_to_thread=False)
def asset(request: AnyRequest, digest: FromPath[str], name: FromPath[str]) -> Response[bytes]:
    """One file; for good under its own address, to be asked again under an old one."""
    assets = site_of(request).assets
    content = assets.files.get(name.lstrip("/"))
    if content is None:
        raise Refused(_("There is no such file"), kind="not_found")
    tag = f'"{assets.digest}"'
    is_current = digest == assets.digest
    headers = {
        "cache-control": "public, max-age=31536000, immutable" if is_current else "no-cache",
        "etag": tag,
        "x-content-type-options": "nosniff",
    }
    media_type = TYPES[Path(name).suffix]
    if request.headers.get("if-none-match") == tag:
        return Response(b"", status_code=304, headers=headers, media_type=media_type)
    return Response(content, headers=headers, media_type=media_type)
