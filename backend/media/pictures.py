"""Uploaded bytes to verified pixels: the engine sees nothing that was not decoded here.

Runs in a worker thread. While it is decoded a picture takes 8 bytes of memory a pixel, 20 as WebP.
"""

import hashlib
from collections.abc import Callable
from io import BytesIO
from typing import Final, Literal, cast

from msgspec import Struct
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from corral.backend.errors import Refused
from corral.backend.media import magic
from corral.backend.media.headers import jpeg_scans, png_ends, webp_size
from corral.backend.media.pixels import Unreadable, fitted, orientation, to_rgb, upright

Format = Literal["png", "jpeg", "webp", "gif", "bmp", "tiff"]

#: One decoder for what the first bytes say; Pillow's own search would try more than these.
_DECODERS: Final[dict[str, Callable[[BytesIO], ImageFile]]] = {
    "png": PngImageFile,
    "jpeg": JpegImageFile,
    "webp": WebPImageFile,
    "gif": GifImageFile,
    "bmp": BmpImageFile,
    "tiff": TiffImageFile,
}
#: An ordinary progressive JPEG has ten or so.
_MAX_SCANS: Final = 100
#: Strips or tiles; a loop in Python goes over them.
_MAX_TILES: Final = 100_000
#: The longer side by the shorter. Qwen2-VL's preprocessing draws the line at the same place; what
#: is thinner vanishes when a projector scales it.
_MAX_RATIO: Final = 200


class PictureLimits(Struct, frozen=True, kw_only=True):
    """What a picture may be. ``max_bytes`` of the file. ``max_pixels`` as the file declares, before
    anything is decoded (64 million: those of a phone's 50-megapixel camera pass). A picture with a
    side over ``max_side`` is scaled down to it; below, no pixel is changed."""

    max_bytes: int = 20 * 2**20
    max_pixels: int = 64_000_000
    max_side: int = 4096


class Picture(Struct, frozen=True, kw_only=True):
    """A picture as a projector takes it. ``rgb``: ``width * height`` pixels of 3 bytes, row by row
    from the top. ``key``: the SHA-256 of the file as it came, in hex."""

    width: int
    height: int
    rgb: bytes
    key: str
    format: Format


def verify(data: bytes, *, param: str, limits: PictureLimits | None = None) -> Picture:
    """Decodes a picture: of several its first, turned as EXIF says, on white. CPU-bound.

    Raises Refused, naming ``param``, for what is no such picture, is damaged or cut off, or is over
    the limits; the last from its header, before it is decoded.
    """
    limits = limits or PictureLimits()
    found = magic.known(data)
    if found not in magic.PICTURES:
        raise Refused(_unsupported(found), param=param)
    name = magic.PICTURES[found]
    if len(data) > limits.max_bytes:
        message = f"this {name} has {len(data)} bytes; at most {limits.max_bytes} are allowed"
        raise Refused(message, param=param)
    try:
        image = _decoded(found, data, limits)
        rgb = image.tobytes()
    except _Excess as error:
        raise Refused(f"this {name} {error}", param=param) from None
    except Unreadable as error:
        raise Refused(f"this {name} holds {error}, which is not supported", param=param) from None
    except Image.DecompressionBombError:  # a frame is larger than its file's header says
        raise Refused(f"this {name} has a frame of too many pixels", param=param) from None
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        raise Refused(f"this {name} is damaged or cut off", param=param) from error
    return Picture(
        width=image.width,
        height=image.height,
        rgb=rgb,
        key=hashlib.sha256(data).hexdigest(),
        format=cast(Format, found),
    )


class _Excess(Exception):
    """A picture is over a limit; the message goes on from "this PNG"."""


def _unsupported(found: str) -> str:
    others = "send PNG, JPEG, WebP, GIF, BMP or TIFF"
    if found in magic.SOUNDS:
        return f"this is {magic.SOUNDS[found]}, a sound and no picture; {others}"
    if found == "empty":
        return f"the picture is empty; {others}"
    return f"this is {found}, which is not supported; {others}"


def _decoded(found: str, data: bytes, limits: PictureLimits) -> Image.Image:
    if found == "webp":
        _check_size(webp_size(data), limits)
    if found == "jpeg" and (n_scans := jpeg_scans(data)) > _MAX_SCANS:
        raise _Excess(f"has {n_scans} scans; at most {_MAX_SCANS} are decoded")
    with _DECODERS[found](BytesIO(data)) as image:
        _check_size(image.size, limits)
        if len(image.tile) > _MAX_TILES:
            raise _Excess(f"is cut in {len(image.tile)} pieces; at most {_MAX_TILES} are decoded")
        size = fitted(image.size, limits.max_side)
        if size != image.size:
            # Only JPEG can: it is decoded at a half, a quarter or an eighth, if that is enough.
            image.draft(None, size)
        image.load()
        if found == "png" and not png_ends(data):
            raise EOFError("no IEND")
        turned = orientation(image)
        plain = to_rgb(image)
    size = fitted(plain.size, limits.max_side)
    if size != plain.size:
        plain = plain.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
    return upright(plain, turned)


def _check_size(size: tuple[int, int], limits: PictureLimits) -> None:
    width, height = size
    said = f"is {width} x {height} pixels in size"
    if width < 1 or height < 1:
        raise _Excess(said)
    if width * height > limits.max_pixels:
        raise _Excess(f"{said}; at most {limits.max_pixels} in all are allowed")
    if max(size) > _MAX_RATIO * min(size):
        raise _Excess(f"{said}; no side may be over {_MAX_RATIO} times the other")
