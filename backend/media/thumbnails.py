"""Decoded pictures made small, to be looked at in lists. Pure."""

from io import BytesIO

from PIL import Image

from corral.backend.media.pixels import fitted

_QUALITY = 80


def thumbnail(rgb: bytes, size: tuple[int, int], *, max_side: int) -> bytes:
    """A picture of ``size`` pixels, 3 bytes each, as a WebP with no side over ``max_side``.
    CPU-bound."""
    image = Image.frombytes("RGB", size, rgb)
    small = fitted(size, max_side)
    if small != size:
        image = image.resize(small, Image.Resampling.LANCZOS, reducing_gap=3.0)
    out = BytesIO()
    image.save(out, "WEBP", quality=_QUALITY)
    return out.getvalue()
