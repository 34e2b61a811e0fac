"""A running reply as a stream of HTML: first how it stands, then what changes. Never replays.

A page that comes back, or lost a message, gets the whole again and is right.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence

from msgspec.structs import replace

from corral.backend.errors import Refused
from corral.backend.store import Message
from corral.frontend import views
from corral.frontend.gauges import context_use
from corral.frontend.markdown import escape_code
from corral.frontend.reply import Reply
from corral.frontend.site import Site

#: Messages of one stream are at least this far apart.
PACE_S = 0.08
#: Rendering takes at most one part in this many of a core, for each stream.
RENDER_SHARE = 20
#: The place in the queue and the loading of the model change without an event.
LOOK_S = 0.25
PING_S = 10.0


def message(html: str, event: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {event}\n" if event else ""
    # A carriage return would end the line too.
    lines = html.replace("\r", "&#13;").replace("\n", "\ndata: ")
    return f"{head}data: {lines}\n\n".encode()


def partial(target: str, html: str, swap: str = "innerHTML") -> str:
    """HTML for one place of the page."""
    return f'<hx-partial hx-target="#{target}" hx-swap="{swap}">{html}</hx-partial>'


#: Of a stream of events.
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class Viewer:
    """What one page has been sent of a reply, and so what it needs next."""

    def __init__(self, site: Site, reply: Reply) -> None:
        self._site = site
        self.reply = reply
        self._n_done = 0
        self._n_code: int | None = None  # characters sent of the open code block
        self._open = ""  # the open block as it was sent
        self._version = -1
        self._status: views.Status | None = None
        self._n_thought = 0  # characters sent of the reasoning
        self._thought = ""  # what was said of it
        self._was_thinking = False  # as the button to end it was sent
        self._calls: tuple[views.Call, ...] = ()

    def snapshot(self) -> str:
        """The reply as it stands."""
        turn = views.turn(self.reply.message, self.reply, self._site.service)
        self._note()
        self._status, self._calls, self._open = turn.status, turn.calls, turn.open_html
        self._n_thought, self._thought = len(turn.reasoning), turn.thought
        self._was_thinking = turn.is_thinking
        return self._site.html("_running.html", turn=turn)

    def changes(self) -> str:
        """What changed since the last look; empty when nothing did."""
        reply, parts = self.reply, []
        if reply.version != self._version:
            parts += [*self._reasoning(), *self._end(), *self._text(), *self._tools()]
            self._note()
        status = views.status(reply, self._site.service)
        if status != self._status:
            self._status = status
            html = self._site.html("_status.html", id=reply.id, status=status)
            parts.append(partial(f"g-{reply.id}-status", html))
        return "".join(parts)

    def _text(self) -> list[str]:
        reply = self.reply
        open_html, shown = reply.open_html(), self._open
        self._open = open_html
        document, g = reply.answer.document, f"g-{reply.id}"
        finished = "".join(document.done[self._n_done :])
        code = document.open_code
        if code is not None and self._n_code is not None and not finished:
            # The same block of code, longer: send only what is new.
            added = escape_code(code[self._n_code :])
            return [partial(f"{g}-open code", added, "beforeend")] if added else []
        parts = [partial(f"{g}-done", finished, "beforeend")] if finished else []
        # While the model reasons nothing changes here.
        return parts + [partial(f"{g}-open", open_html)] * (open_html != shown)

    def _reasoning(self) -> list[str]:
        answer, id = self.reply.answer, self.reply.id
        n_sent, said = self._n_thought, self._thought
        text, self._thought = answer.reasoning, views.thought(answer)
        self._n_thought = len(text)
        if not n_sent:
            turn = views.turn(self.reply.message, self.reply, self._site.service)
            html = self._site.html("_reasoning.html", turn=turn)
            return [partial(f"g-{id}-think", html)] if text else []
        added = text[n_sent:]
        parts = [partial(f"r-{id}-text", escape_code(added), "beforeend")] if added else []
        return parts + [partial(f"r-{id}-label", self._thought)] * (self._thought != said)

    def _end(self) -> list[str]:
        is_thinking = self.reply.answer.is_thinking
        if is_thinking == self._was_thinking:
            return []
        self._was_thinking = is_thinking
        turn = views.turn(self.reply.message, self.reply, self._site.service)
        html = self._site.html("_end_thinking.html", turn=turn)
        return [partial(f"g-{self.reply.id}-end", html)]

    def _tools(self) -> list[str]:
        calls = views.calls(self.reply.answer.calls)
        if calls == self._calls:
            return []
        self._calls = calls
        html = self._site.html("_calls.html", calls=calls)
        return [partial(f"g-{self.reply.id}-calls", html)]

    def _note(self) -> None:
        document = self.reply.answer.document
        self._version = self.reply.version
        self._n_done = len(document.done)
        self._n_code = None if document.open_code is None else len(document.open_code)


class Waiting:
    """What one page has been sent of the messages that wait in a conversation; another page may
    have added or removed some."""

    def __init__(self, site: Site, conversation_id: str) -> None:
        self._site = site
        self._id = conversation_id
        self._n_seen = -1
        self._html: str | None = None  # a page that comes back may have any

    async def changes(self) -> str:
        """The list, when it is another one than before."""
        queue = self._site.store.queue
        if self._n_seen == queue.n_changes:
            return ""
        self._n_seen = queue.n_changes
        waiting = views.waiting(await queue.list(self._id))
        html = self._site.html("_queue.html", queue=waiting)
        if html == self._html:
            return ""
        self._html = html
        return partial("queue", html, "innerMorph")  # a button that has the focus keeps it


async def follow(site: Site, reply: Reply) -> AsyncIterator[bytes]:
    """The stream of a running reply, to its end."""
    viewer, waiting = Viewer(site, reply), Waiting(site, reply.message.conversation_id)
    yield message(viewer.snapshot())
    sent_s = time.monotonic()
    while not reply.ended.is_set():
        seen = reply.version
        began_s = time.monotonic()
        html = viewer.changes() + await waiting.changes()
        pause_s = max(PACE_S, RENDER_SHARE * (time.monotonic() - began_s))
        if html:
            yield message(html)
            sent_s = time.monotonic()
        elif time.monotonic() - sent_s > PING_S:
            yield b": ping\n\n"
            sent_s = time.monotonic()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reply.ended.wait(), pause_s)
        await reply.changed(seen, LOOK_S)
    try:
        yield await final(site, reply.message)
    except Refused:  # deleted by another page
        yield message("", "end")


async def final(site: Site, reply: Message) -> bytes:
    """The end: the whole turn as it will be on every later page, and the composer for the next.
    Raises Refused not_found when its conversation was deleted meanwhile."""
    _current, messages = await site.store.get(reply.conversation_id)
    siblings = next((m.siblings for m in messages if m.id == reply.id), ())
    later = _after(messages, reply.id)
    running = site.live.running_in(reply.conversation_id)
    html = await asyncio.to_thread(
        site.html,
        "ended.html",
        turn=views.turn(replace(reply, siblings=siblings), is_last=not later),
        later=[views.turn(m, site.live.get(m.id), site.service) for m in later],
        queue=views.waiting(await site.store.queue.list(reply.conversation_id)),
        composer=views.Composer(
            action=f"/c/{reply.conversation_id}/messages",
            target="#turns",
            after_id=later[-1].id if later else reply.id,
            context=context_use(messages, site.service.info),
            running_id=None if running is None else running.id,
        ),
        announcement=views.announcement(reply),
    )
    return message(html) + message("", "end")


def _after(messages: Sequence[Message], message_id: int) -> Sequence[Message]:
    """What was sent from the queue since a reply ended: all that follows it on the branch."""
    ids = [m.id for m in messages]
    return messages[ids.index(message_id) + 1 :] if message_id in ids else ()
