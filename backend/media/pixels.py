"""From whatever an image file holds to plain RGB, as a person would see it on white paper."""

from typing import Final

import numpy as np
from PIL import Image

_WHITE: Final = (255, 255, 255)
#: What undoes each EXIF orientation.
_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ORIENTATION: Final = 0x0112
_BITS_PER_SAMPLE: Final = 0x0102
_PHOTOMETRIC: Final = 0x0106
#: Modes of samples that have no agreed black and white.
_NOT_SHOWN: Final = {"I": "32-bit integers", "F": "32-bit floats", "LAB": "CIE L*a*b* colours"}


class Unreadable(Exception):
    """The file is sound, but what is in it cannot be shown; the message says what it is."""


def to_rgb(image: Image.Image) -> Image.Image:
    """An image of any mode as RGB.

    Transparent places are blended onto white: what a person sees in most viewers, and what drawings
    and formulas with black strokes on nothing need to be seen at all. The colours stored under a
    transparent pixel are arbitrary. 16-bit samples keep their high byte. Colour profiles are not
    applied: projectors were trained on pixels as they come. Raises Unreadable.
    """
    if image.mode in _NOT_SHOWN:
        raise Unreadable(_NOT_SHOWN[image.mode])
    if image.mode.startswith("I;16"):
        return _from_16_bits(image)
    if image.mode == "P":
        image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    elif _has_key(image):
        image = image.convert("RGBA")
    if image.mode in ("LA", "PA", "La", "RGBa"):
        image = image.convert("RGBA")
    if image.mode == "RGBA":
        paper = Image.new("RGB", image.size, _WHITE)
        paper.paste(image, mask=image)
        return paper
    return image.convert("RGB")


def _has_key(image: Image.Image) -> bool:
    """Whether one colour of an image without alpha means transparent."""
    key = image.info.get("transparency")
    if image.mode == "RGB":
        # Of 16-bit samples the key has 16 bits too, and what was decoded has not.
        return isinstance(key, tuple) and max(key) < 256
    return image.mode in ("1", "L") and isinstance(key, int) and key < 256


def _from_16_bits(image: Image.Image) -> Image.Image:
    """Gray of up to 16 bits a sample, by the high byte (Pillow would cut at 255)."""
    samples = np.asarray(image).astype(np.uint16)
    key = image.info.get("transparency")
    tags = getattr(image, "tag_v2", {})
    n_bits = max(8, min(16, int(tags.get(_BITS_PER_SAMPLE, (16,))[0])))
    gray = (samples >> (n_bits - 8)).astype(np.uint8)
    if tags.get(_PHOTOMETRIC) == 0:  # zero is white
        gray = 255 - gray
    if isinstance(key, int):
        gray[samples == key] = 255
    return Image.fromarray(gray).convert("RGB")


def orientation(image: Image.Image) -> int:
    """The EXIF orientation of a loaded image, 1 to 8; 1 if it has none that can be read."""
    try:
        value = image.getexif().get(_ORIENTATION)
    except Exception:  # noqa: BLE001 - damaged notes about a picture do not damage the picture
        return 1
    return value if value in _UPRIGHT else 1


def upright(image: Image.Image, turned: int) -> Image.Image:
    """The image as it was meant to be held, from its EXIF orientation."""
    return image.transpose(_UPRIGHT[turned]) if turned in _UPRIGHT else image


def fitted(size: tuple[int, int], max_side: int) -> tuple[int, int]:
    """Width and height with the same ratio and no side over ``max_side``, none below 1."""
    longest = max(size)
    if longest <= max_side:
        return size
    width, height = (max(1, round(side * max_side / longest)) for side in size)
    return width, height
