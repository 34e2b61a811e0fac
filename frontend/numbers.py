"""Numbers as people type them into fields. Pure."""

import math
import re

from corral.frontend.words import _

#: At most this is no limit that anybody needs to be told.
_MOST = 2**31 - 1
_WHOLE = re.compile(r"[+-]?[0-9]{1,29}")


def whole(given: str, low: int, high: int) -> int:
    """A whole number. Raises ValueError, in words for its field."""
    text = given.strip()
    value = int(text) if _WHOLE.fullmatch(text) else None
    if value is None or not low <= value <= high:
        is_any = high >= _MOST and (value is None or value < low)
        words = _("A whole number from {low} on")
        if not is_any:
            words = _("A whole number, {low} to {high}")
        raise ValueError(words.format(low=low, high=high))
    return value


def real(given: str, low: float, high: float, *, is_open: bool = False) -> float:
    """A number, with a point or a comma; with ``is_open`` above ``low``. Raises ValueError, in
    words for its field."""
    try:
        value = float(given.strip().replace(",", "."))
    except ValueError:
        value = math.nan
    is_in = value > low if is_open else value >= low
    if not (is_in and value <= high):
        words = _("A number above {low}, up to {high}") if is_open else _("From {low} to {high}")
        raise ValueError(words.format(low=f"{low:g}", high=f"{high:g}"))
    return value
