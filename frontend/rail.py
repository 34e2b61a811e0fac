"""The list of conversations as the templates see it: by day, in pages, and what a search finds.
Pure."""

import time
from collections.abc import Sequence
from itertools import groupby
from urllib.parse import urlencode

from msgspec import Struct

from corral.backend.store import PAGE_SIZE, Conversation, Found, Hit, Part, Place
from corral.backend.store.search import excerpt, words
from corral.frontend import clock
from corral.frontend.words import _


class Row(Struct, frozen=True, kw_only=True):
    """A line of the list."""

    id: str
    title: str
    is_current: bool = False
    is_pinned: bool = False
    version: int = 1


class Group(Struct, frozen=True, kw_only=True):
    """The lines of some days; ``is_named`` unless the page before ended with the same days."""

    name: str
    rows: tuple[Row, ...]
    is_named: bool = True


class Rail(Struct, frozen=True, kw_only=True):
    """A page of the list. ``more`` is the query for the next one, empty at the end; ``focus_id``:
    the line that a keyboard's user is on next."""

    groups: tuple[Group, ...]
    more: str = ""
    focus_id: str = ""


class Line(Struct, frozen=True, kw_only=True):
    """A message that was found."""

    message_id: int
    who: str
    day: str
    excerpt: tuple[Part, ...]
    is_shown: bool


class Match(Struct, frozen=True, kw_only=True):
    """A conversation in which something was found."""

    id: str
    title: tuple[Part, ...]
    day: str
    lines: tuple[Line, ...] = ()


class Results(Struct, frozen=True, kw_only=True):
    """What a search found; ``more`` is the query for the rest, empty at the end."""

    query: str
    matches: tuple[Match, ...]
    more: str = ""


def rail(
    listed: Sequence[Conversation],
    current_id: str | None,
    *,
    after: Place | None = None,
    focus_id: str = "",
    now_s: float | None = None,
) -> Rail:
    """A page of the list, from one conversation more than it shows; ``after`` is where the page
    before ended."""
    now_s = time.time() if now_s is None else now_s
    page = listed[:PAGE_SIZE]
    before = "" if after is None else _days(bool(after.is_pinned), after.updated_s, now_s)
    groups = groupby(page, lambda c: _days(bool(c.is_pinned), c.updated_s, now_s))
    return Rail(
        groups=tuple(
            Group(
                name=name,
                rows=tuple(row(c, current_id) for c in some),
                is_named=name != before,
            )
            for name, some in groups
        ),
        more=urlencode({"after": written(page[-1])}) if len(listed) > PAGE_SIZE else "",
        focus_id=page[0].id if after is not None and page else focus_id,
    )


def row(c: Conversation, current_id: str | None) -> Row:
    """A line of the list."""
    return Row(
        id=c.id,
        title=c.title,
        is_current=c.id == current_id,
        is_pinned=bool(c.is_pinned),
        version=c.version,
    )


def _days(is_pinned: bool, at_s: float, now_s: float) -> str:
    """What a group is called."""
    then, today = clock.local(at_s).date(), clock.local(now_s).date()
    age = (today - then).days
    if is_pinned:
        return _("Pinned")
    if age <= 0:
        return _("Today")
    if age == 1:
        return _("Yesterday")
    if age <= 7:
        return _("Previous 7 days")
    return _("Previous 30 days") if age <= 30 else clock.month(then)


def written(c: Conversation) -> str:
    """The place of a conversation in the list, for an address."""
    return f"{c.is_pinned}~{c.updated_s!r}~{c.id}"


def place(text: str) -> Place | None:
    """The place that ``written`` wrote; None for anything else."""
    pinned, _sign, rest = text.partition("~")
    updated, _sign, id = rest.partition("~")
    try:
        return Place(int(pinned), float(updated), id) if pinned in ("0", "1") else None
    except ValueError:
        return None


def results(query: str, found: Found, now_s: float | None = None) -> Results:
    """What a search found: conversations by their titles, then those of the messages."""
    now_s = time.time() if now_s is None else now_s
    wanted = words(query)
    lines: dict[str, list[Line]] = {c.id: [] for c in found.titles}
    conversations = {c.id: c for c in found.titles}
    for hit in found.hits:
        c = conversations.setdefault(hit.conversation.id, hit.conversation)
        lines.setdefault(c.id, []).append(_line(hit, now_s))
    return Results(
        query=query,
        matches=tuple(
            Match(
                id=c.id,
                title=excerpt(c.title, wanted),
                day=clock.day(c.updated_s, now_s),
                lines=tuple(lines[c.id]),
            )
            for c in conversations.values()
        ),
        more="" if found.before_id is None else urlencode({"q": query, "before": found.before_id}),
    )


def _line(hit: Hit, now_s: float) -> Line:
    return Line(
        message_id=hit.message_id,
        who=_("You") if hit.role == "user" else _("Assistant"),
        day=clock.day(hit.created_s, now_s),
        excerpt=hit.excerpt,
        is_shown=hit.is_shown,
    )
