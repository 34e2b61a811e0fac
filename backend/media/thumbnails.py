"""Verified pictures made small, to be looked at in lists. Pure."""

from io import BytesIO

from PIL import Image

from corral.backend.media.pictures import Picture
from corral.backend.media.pixels import fitted

_QUALITY = 80


def thumbnail(picture: Picture, *, max_side: int) -> bytes:
    """The picture as the model sees it, as a WebP with no side over ``max_side``. CPU-bound."""
    image = Image.frombytes("RGB", (picture.width, picture.height), picture.rgb)
    size = fitted(image.size, max_side)
    if size != image.size:
        image = image.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
    out = BytesIO()
    image.save(out, "WEBP", quality=_QUALITY)
    return out.getvalue()
