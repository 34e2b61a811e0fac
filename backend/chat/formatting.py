"""``%`` and ``format`` of texts, with the marks of what was put into them."""

import re
from typing import Any, Final

from jinja2.sandbox import SandboxedFormatter

from corral.backend.chat.marked import coarse, foreign, is_foreign, joined, written

#: One conversion of a ``%`` format. A ``*`` takes its number from the arguments.
_CONVERSION: Final = re.compile(
    r"%(?:\((?P<key>[^)]*)\))?(?P<how>[#0\- +]*(?:\*|\d+)?(?:\.(?:\*|\d*))?[hlL]?(?P<kind>.))", re.S
)


def percent(form: str, values: Any) -> str:
    """``form % values``"""
    text: str = str.__mod__(form, values)
    if not (is_foreign(form) or is_foreign(values)) or not isinstance(text, str):
        return text
    return checked(text, None if is_foreign(form) else _percent(form, values))


def _percent(form: str, values: Any) -> list[str] | None:
    pieces, at = [], 0
    left = iter(values if isinstance(values, tuple) else (values,))
    for found in _CONVERSION.finditer(form):
        pieces.append(form[at : found.start()])
        at = found.end()
        if found["kind"] == "%":
            pieces.append("%")
        elif "*" in found["how"]:
            return None
        else:
            value = next(left) if found["key"] is None else values[found["key"]]
            how = found["how"]
            pieces.append(
                written(value) if how == "s" else coarse(str.__mod__(f"%{how}", (value,)), value)
            )
    return [*pieces, form[at:]]


def checked(text: str, pieces: list[str] | None) -> str:
    """A text with the marks of the pieces it was made of, if these are known."""
    if pieces is None or "".join(pieces) != text:
        made: str = foreign(text)
        return made
    return joined(pieces)


class Formatter(SandboxedFormatter):
    """``str.format``, with marks."""

    def vformat(self, form: str, args: Any, kwargs: Any) -> str:
        """See ``string.Formatter``."""
        text = super().vformat(form, args, kwargs)
        if not (is_foreign(form) or is_foreign(args) or is_foreign(kwargs)):
            return text
        return checked(text, None if is_foreign(form) else self._pieces(form, args, kwargs))

    def _pieces(self, form: str, args: Any, kwargs: Any) -> list[str] | None:
        pieces, n_unnamed = list[str](), 0
        for literal, name, how, conversion in self.parse(form):
            pieces.append(literal)
            if name is None:
                continue
            if how and "{" in how:
                return None
            if not name:
                name, n_unnamed = str(n_unnamed), n_unnamed + 1
            value, _ = self.get_field(name, args, kwargs)
            if isinstance(value, str) and not how and not conversion:
                pieces.append(written(value))
            else:
                value, whose = self.convert_field(value, conversion), value
                pieces.append(coarse(self.format_field(value, how or ""), whose))
        return pieces
