"""What the templates see of pictures. Pure."""

from msgspec import Struct

from corral.backend.store import Picture
from corral.frontend.words import _, number

#: The most a picture takes of a turn, and the least either way, in CSS pixels.
BOX = (320, 220)
MIN_SIDE = 44


class Shown(Struct, frozen=True, kw_only=True):
    """A picture of a turn: ``about`` says what it is; ``width`` and ``height`` of the box it gets,
    in CSS pixels."""

    key: str
    about: str
    width: int
    height: int


class Chip(Struct, frozen=True, kw_only=True):
    """A file that waits to be sent. ``source`` is an address of a picture made small; a text has
    none, and ``can_unfold`` when it may as well be written into the box. ``warning``: why it will
    hardly be taken."""

    name: str
    source: str
    figures: str
    warning: str = ""
    can_unfold: bool = False


def shown(picture: Picture) -> Shown:
    """A picture of a turn."""
    scale = min(1.0, *(box / side for box, side in zip(BOX, _size(picture), strict=True)))
    width, height = (max(MIN_SIDE, round(side * scale)) for side in _size(picture))
    about = f"{picture.name} ({_figures(picture)})"
    return Shown(key=picture.key, about=about, width=width, height=height)


def chip(picture: Picture, source: str, n_tokens: int) -> Chip:
    """A picture that waits to be sent; ``n_tokens`` 0: not known."""
    tokens = _("{n} tok").format(n=number(n_tokens)) if n_tokens else ""
    return Chip(name=picture.name, source=source, figures=_figures(picture, tokens))


def _size(picture: Picture) -> tuple[int, int]:
    return picture.width, picture.height


def _figures(picture: Picture, *more: str) -> str:
    pixels = f"{number(picture.width)} \N{MULTIPLICATION SIGN} {number(picture.height)}"
    parts = filter(None, (size(picture.n_bytes), pixels, *more))
    # A line may end between them, not within.
    return " · ".join(part.replace(" ", "\N{NO-BREAK SPACE}") for part in parts)


def size(n_bytes: int) -> str:
    """How large a file is: ``86 B``, ``4.2 kB``, ``12 MB``."""
    value, unit = float(n_bytes), "B"
    for larger in ("kB", "MB", "GB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{number(value, 1 if value < 9.95 and unit != 'B' else 0)} {unit}"
