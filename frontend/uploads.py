"""Files that come with a form: looked at before anything else happens with them."""

import asyncio
from collections.abc import Sequence

from litestar.datastructures import FormMultiDict, UploadFile
from msgspec import Struct

from corral.backend.chat.types import Media, Source, Written
from corral.backend.errors import CorralError
from corral.backend.media.magic import PICTURES, known
from corral.backend.media.thumbnails import thumbnail
from corral.backend.store import Picture, Upload
from corral.frontend import texts, titles
from corral.frontend.site import Site
from corral.frontend.texts import Text
from corral.frontend.words import _

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


async def looked_at(site: Site, form: FormMultiDict) -> tuple[tuple[Seen, ...], list[Text]]:
    """The pictures of a form, and its texts, both in order. Raises Refused or Broken, with the name
    of the file that the model cannot be shown."""
    files = [f for f in form.getall(FIELD, []) if isinstance(f, UploadFile) and f.filename]
    pictures: list[tuple[str, bytes]] = []
    others: list[tuple[str, bytes]] = []
    for file in files:
        name, data = plain_name(file.filename), await file.read()
        # What a file is called or said to be only counts when its bytes do not tell.
        kind, said = known(data), file.content_type or ""
        is_picture = kind in PICTURES or (said.startswith("image/") and kind != "text")
        (pictures if is_picture else others).append((name, data))
    if files:
        await form.close()
    seen = await _pictures(site, pictures)
    return seen, [await texts.read(name, data) for name, data in others]


async def _pictures(site: Site, files: Sequence[tuple[str, bytes]]) -> tuple[Seen, ...]:
    if not files:
        return ()
    names, datas = [name for name, _data in files], [data for _name, data in files]
    sources = [
        Source(kind="image", data=data, param=name) for name, data in zip(names, datas, strict=True)
    ]
    media = await site.service.load_media(sources)
    return tuple(
        [
            await asyncio.to_thread(_seen, name, data, m)
            for name, data, m in zip(names, datas, media, strict=True)
        ]
    )


def _seen(name: str, data: bytes, media: Media) -> Seen:
    picture = Picture(
        key=media.key,
        name=name,
        media_type=f"image/{known(data)}",
        n_bytes=len(data),
        width=media.width,
        height=media.height,
    )
    small = thumbnail(media.data, (media.width, media.height), max_side=SMALL_SIDE)
    return Seen(upload=Upload(picture=picture, data=data, small=small), media=media)


def plain_name(name: str) -> str:
    """A file's name as it may be shown: without its folder, short, on one line."""
    plain = titles.plain(name.replace("\\", "/")).strip("/ ")
    return plain.rpartition("/")[2][-_MAX_NAME_CHARS:] or _("file")


async def n_tokens(site: Site, seen: Seen) -> int:
    """How many tokens of the prompt a picture takes; 0 when the model does not tell."""
    try:
        tokens = await site.service.prompt_tokens(Written("", (), (0,)), (seen.media,))
    except CorralError:
        return 0
    return sum(token < 0 for token in tokens)  # the others are around it
