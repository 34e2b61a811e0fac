"""Conversations as files: taken out, one or all, and brought in."""

import asyncio
import io
import logging
import time
import zipfile
from collections.abc import AsyncIterator, Sequence
from urllib.parse import quote

from litestar import Response, get, post
from litestar.datastructures import UploadFile
from litestar.exceptions import HTTPException
from litestar.params import FromPath
from litestar.response import Stream
from msgspec import Struct

from corral.backend.errors import CorralError, Refused
from corral.backend.media.magic import known
from corral.backend.media.pictures import PictureLimits, verify
from corral.backend.media.thumbnails import thumbnail
from corral.backend.store import Conversation, Message, Picture, Place, Upload
from corral.frontend import clock, exporting
from corral.frontend.bundling import Bundler
from corral.frontend.importing import Reader
from corral.frontend.reasons import sentence
from corral.frontend.site import Site
from corral.frontend.tools.frame import tool_page
from corral.frontend.transcripts import Spot
from corral.frontend.uploads import SMALL_SIDE, plain_name
from corral.frontend.wire import HEADERS, AnyRequest, form_of, framework_error, site_of
from corral.frontend.words import _, ngettext, number

log = logging.getLogger("corral.frontend")

_JSONL, _MARKDOWN, _ZIP = "application/jsonl", "text/markdown", "application/zip"


class Transfer(Struct, frozen=True, kw_only=True):
    """The page: what was brought in last, and what of it was left out; or ``error``."""

    limit: str
    done: str = ""
    left_out: str = ""
    brought: Sequence[Conversation] = ()
    error: str = ""


@get("/c/{conversation_id:str}/export.jsonl")
async def one_jsonl(request: AnyRequest, conversation_id: FromPath[str]) -> Response[bytes]:
    """A conversation with all its branches and pictures. Raises Refused not_found."""
    site = site_of(request)
    title = (await site.store.get(conversation_id))[0].title
    content = await _jsonl(site, conversation_id)
    return _file(content, _JSONL, f"{exporting.slug(title)}.jsonl")


@get("/c/{conversation_id:str}/export.md")
async def one_markdown(request: AnyRequest, conversation_id: FromPath[str]) -> Response[bytes]:
    """The branch of a conversation that is shown. Raises Refused not_found."""
    conversation, messages = await site_of(request).store.get(conversation_id)
    content = exporting.markdown(conversation, messages).encode()
    return _file(content, _MARKDOWN, f"{exporting.slug(conversation.title)}.md")


@get("/export.jsonl")
async def all_jsonl(request: AnyRequest) -> Stream:
    """All conversations."""
    return _stream(_all_jsonl(site_of(request)), _JSONL, "jsonl")


@get("/export.zip")
async def all_markdown(request: AnyRequest) -> Stream:
    """The shown branches of all conversations, a Markdown file each."""
    return _stream(_all_markdown(site_of(request)), _ZIP, "zip")


@get("/transfer")
async def transfer(request: AnyRequest) -> Response[str]:
    """The page to take out and bring in."""
    return await _page(request, Transfer(limit=_limit(request)))


@post("/import", status_code=200)
async def bring(request: AnyRequest) -> Response[str]:
    """Brings in all conversations of some files, or none, and says why."""
    site = site_of(request)
    try:
        bundler = await _read(request)
        brought = await site.store.bundles.bring(bundler.bundles)
    except (CorralError, HTTPException) as error:
        known = framework_error(request, error) if isinstance(error, HTTPException) else error
        view = Transfer(limit=_limit(request), error=sentence(known.message))
        return await _page(request, view, status=known.wire.status)
    n = sum(len(bundle.messages) for bundle in bundler.bundles)
    chats = ngettext("{n} conversation", "{n} conversations", len(brought))
    said = ngettext("{n} message", "{n} messages", n)
    counted = [chats.format(n=number(len(brought))), said.format(n=number(n))]
    left = [f"{what} ({number(count)})" for what, count in bundler.left_out.items() if count]
    view = Transfer(
        limit=_limit(request),
        done=_("Brought in: {what}").format(what=", ".join(counted)),
        left_out=_("Left out: {what}").format(what=", ".join(left)) if left else "",
        brought=brought,
    )
    return await _page(request, view)


def _limit(request: AnyRequest) -> str:
    return number(request.app.state.settings.max_body_mb)


async def _page(request: AnyRequest, view: Transfer, status: int = 200) -> Response[str]:
    title = _("Export and import")
    return await tool_page(request, "transfer", title, view, status=status)


async def _read(request: AnyRequest) -> Bundler:
    """The files of the form. Raises Refused, or the framework's HTTPException."""
    form = await form_of(request)
    files = [f for f in form.getall("files", []) if isinstance(f, UploadFile) and f.filename]
    if not files:
        raise Refused(_("Choose a file first"), param="files")
    named = [(plain_name(f.filename), await f.read()) for f in files]
    await form.close()
    settings = request.app.state.settings
    limits = PictureLimits(
        max_bytes=settings.media_max_mib << 20,
        max_pixels=settings.image_max_megapixels * 1_000_000,
    )
    bundler = Bundler(lambda name, data, spot: _seen(name, data, spot, limits), now_s=time.time())
    reader = Reader(bundler, max_bytes=settings.max_body_mb << 20)

    def read() -> Bundler:
        for name, data in named:
            reader.read(name, data)
        return bundler

    return await asyncio.to_thread(read)


def _seen(name: str, data: bytes, spot: Spot, limits: PictureLimits) -> Upload:
    """A picture, looked at as one that is attached. Raises Refused."""
    try:
        found = verify(data, param=spot.path, limits=limits)
    except Refused as error:
        raise spot.refused(error.message) from None
    picture = Picture(
        key=found.key,
        name=plain_name(name),
        media_type=f"image/{known(data)}",
        n_bytes=len(data),
        width=found.width,
        height=found.height,
    )
    small = thumbnail(found.rgb, (found.width, found.height), max_side=SMALL_SIDE)
    return Upload(picture=picture, data=data, small=small)


async def _all(site: Site) -> AsyncIterator[Conversation]:
    """All conversations in the order of the list, each once."""
    after: Place | None = None
    while listed := await site.store.list(after):
        for c in listed:
            yield c
        last = listed[-1]
        after = Place(last.is_pinned, last.updated_s, last.id)


async def _all_jsonl(site: Site) -> AsyncIterator[bytes]:
    async for c in _all(site):
        try:
            yield await _jsonl(site, c.id)
        except Refused:  # deleted meanwhile
            continue


async def _jsonl(site: Site, conversation_id: str) -> bytes:
    bundle = await site.store.bundles.take(conversation_id)
    files = await _pictures(site, bundle.messages)
    return await asyncio.to_thread(exporting.jsonl, bundle, files)


async def _pictures(site: Site, messages: Sequence[Message]) -> dict[str, bytes]:
    """The files of pictures by key, of those that are there."""
    files: dict[str, bytes] = {}
    for key in {picture.key for m in messages for picture in m.pictures}:
        try:
            files[key] = (await site.store.picture(key))[1]
        except Refused as error:
            log.warning("a picture is not exported: %s", error.message)
    return files


async def _all_markdown(site: Site) -> AsyncIterator[bytes]:
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        async for c in _all(site):
            try:
                _conversation, messages = await site.store.get(c.id)
            except Refused:  # deleted meanwhile
                continue
            day = clock.local(c.updated_s).date().isoformat()
            name = f"{day}-{exporting.slug(c.title)}-{c.id[:6]}.md"
            text = exporting.markdown(c, messages)
            await asyncio.to_thread(archive.writestr, name, text)
            yield sink.taken()
    yield sink.taken()


class _Sink(io.RawIOBase):
    """What is written to it can be taken once."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Notes it."""
        self._parts.append(bytes(data))
        return len(data)

    def taken(self) -> bytes:
        """What came since the last time."""
        parts, self._parts = self._parts, []
        return b"".join(parts)


def _stream(content: AsyncIterator[bytes], media_type: str, ending: str) -> Stream:
    day = clock.local(time.time()).date().isoformat()
    headers = HEADERS | _saved(f"corral-{day}.{ending}")
    return Stream(content, media_type=media_type, headers=headers)


def _file(content: bytes, media_type: str, name: str) -> Response[bytes]:
    return Response(content, media_type=media_type, headers=HEADERS | _saved(name))


def _saved(name: str) -> dict[str, str]:
    """The header that has a browser save a file (RFC 6266)."""
    plain = name.encode("ascii", "ignore").decode()
    return {
        "content-disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name)}"
    }
