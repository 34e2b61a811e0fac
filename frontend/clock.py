"""Days as the reader has them: in the time zone that the page's script names, else the server's."""

from contextvars import ContextVar
from datetime import date, datetime, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from babel.dates import format_date

from corral.frontend import words
from corral.frontend.words import _

COOKIE = "zone"

_zone: ContextVar[tzinfo | None] = ContextVar("zone", default=None)


def observe(name: str | None) -> None:
    """From now on, in what this task does, days are those of a time zone (``Europe/Berlin``)."""
    _zone.set(_known(name) if name else None)


@lru_cache(64)
def _known(name: str) -> tzinfo | None:
    """A time zone; None when there is none of this name. Names come from outside."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        return None


def local(at_s: float) -> datetime:
    """A time, in Unix seconds, as the reader's clocks show it."""
    return datetime.fromtimestamp(at_s, _zone.get()).astimezone(_zone.get())


def month(day: date) -> str:
    """A month with its year."""
    return str(format_date(day, "LLLL y", locale=words.language()))


def day(at_s: float, now_s: float) -> str:
    """The day of a time: ``Today``, ``Yesterday``, or its date."""
    then, today = local(at_s).date(), local(now_s).date()
    match (today - then).days:
        case 0:
            return _("Today")
        case 1:
            return _("Yesterday")
    return str(format_date(then, "medium", locale=words.language()))
