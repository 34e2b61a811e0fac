"""Replies side by side as a page shows them: one turn that is made of columns."""

from collections.abc import Sequence

from msgspec.structs import replace

from corral.backend.store import Message
from corral.frontend import views
from corral.frontend.site import Site
from corral.frontend.words import _


def turn(
    site: Site, replies: Sequence[Message], leaf: Message, *, is_plain: bool = False
) -> views.Turn:
    """Replies to one message as columns; a message that is sent goes on from ``leaf``."""
    columns = tuple(
        column(site, reply, n, is_leaf=reply.id == leaf.id, is_plain=is_plain)
        for n, reply in enumerate(replies, 1)
    )
    return views.Turn(
        id=leaf.id,
        role="assistant",
        label=_("Answers side by side"),
        asked_id=leaf.parent_id or 0,
        columns=columns,
        is_running=any(c.is_running for c in columns),
        is_plain=is_plain,
    )


def column(
    site: Site, reply: Message, n: int, *, is_leaf: bool, is_plain: bool = False
) -> views.Turn:
    """One of them, the ``n``-th; as it runs, or as it ended."""
    running = site.live.get(reply.id)
    view = views.turn(reply, running, site.service)
    return replace(
        view,
        label=_("Answer {n}").format(n=n),
        about=reply.label,
        asked_id=reply.parent_id or 0,
        is_leaf=is_leaf,
        is_plain=is_plain,
        again=_("Retry") if reply.outcome.status in ("error", "stopped") else "",
        place="",
    )
