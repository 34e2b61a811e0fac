"""What the templates see: frozen, everything decided and every number written out. Pure."""

import json
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from corral.backend import store
from corral.backend.store import Conversation, Message
from corral.frontend.answer import Answer
from corral.frontend.gallery import Shown, shown
from corral.frontend.gauges import Figure, Gauge, figures, line
from corral.frontend.instruments import Strip, speed
from corral.frontend.live import Model
from corral.frontend.markdown import render
from corral.frontend.rail import Rail, rail
from corral.frontend.reply import Reply
from corral.frontend.texts import Block, taken_apart
from corral.frontend.words import _, later, number

#: No time left is promised before this; the first chunks say little.
ETA_AFTER_MS = 500

EXAMPLES = (
    later("Explain how a hash map works, with a small example in Python."),
    later("Write a polite email that moves a meeting from Tuesday to Thursday."),
    later("Compare merge sort and quicksort in a table: time, memory, stability."),
)


class Status(Struct, frozen=True):
    """What a running reply is doing; ``value`` of ``top`` for a bar, ``top`` 0 without one. The
    first ``cached`` of the value came from the cache."""

    text: str
    value: int = 0
    top: int = 0
    cached: int = 0


class Call(Struct, frozen=True, kw_only=True):
    """A tool call; ``arguments`` as they are read best."""

    name: str
    arguments: str


class Turn(Struct, frozen=True, kw_only=True):
    """One turn. ``html`` for replies, ``text`` for what the user said, which is ``words`` and
    ``files``. ``thought`` says how long the ``reasoning`` took. A running reply has ``open_html``
    and ``status`` too. ``place`` of alternatives: ``2/3``, between ``previous_id`` and ``next_id``.
    ``again`` is what asking for another reply is called. ``typed``: what its form had when it was
    not kept. ``has_focus``: a keyboard's user is there next. With ``columns`` it is several replies
    to ``asked_id`` side by side; ``about`` says what one was asked for with, and ``is_leaf`` that a
    message would follow it; ``is_plain``: on another page than the chat's."""

    id: int
    role: str
    label: str
    text: str = ""
    words: str = ""
    files: tuple[Block, ...] = ()
    pictures: tuple[Shown, ...] = ()
    thought: str = ""
    reasoning: str = ""
    is_thinking: bool = False
    html: str = ""
    calls: tuple[Call, ...] = ()
    is_running: bool = False
    open_html: str = ""
    status: Status | None = None
    error: str = ""
    note: str = ""
    figures: str = ""
    statistics: tuple[Figure, ...] = ()
    again: str = ""
    can_continue: bool = False
    version: int = 1
    place: str = ""
    previous_id: int | None = None
    next_id: int | None = None
    is_edited: bool = False
    typed: str | None = None
    has_focus: bool = False
    columns: tuple["Turn", ...] = ()
    asked_id: int = 0
    about: str = ""
    is_leaf: bool = False
    is_plain: bool = False


class Composer(Struct, frozen=True, kw_only=True):
    """The form to write in. ``action``: where it goes; ``after_id``: the message that is shown
    last; ``running_id``: the reply to stop. ``place`` of the ``draft``, empty for a new chat, and
    the ``token`` under which this page writes it, see ``drafts``."""

    action: str
    target: str
    takes_pictures: bool = False
    draft: str = ""
    place: str = ""
    token: str = ""
    context: Gauge | None = None
    after_id: int | None = None
    running_id: int | None = None
    n_ways: int = 1


class Waiting(Struct, frozen=True, kw_only=True):
    """A message that waits to be sent; ``is_paused``: until somebody sends it."""

    id: int
    conversation_id: str
    words: str
    files: tuple[Block, ...]
    pictures: tuple[Shown, ...]
    is_paused: bool


class Page(Struct, frozen=True, kw_only=True):
    """The chat page. ``current`` None: a new chat. ``undo``: what brings back the last thing
    deleted. ``homeless``: what was typed into the form of a message that is not on it."""

    title: str
    model: str
    rows: Rail
    turns: tuple[Turn, ...]
    composer: Composer
    strip: Strip
    current: Conversation | None = None
    notice: str = ""
    homeless: str = ""
    undo: str = ""
    queue: tuple[Waiting, ...] = ()
    context: str = ""
    examples: tuple[str, ...] = EXAMPLES

    @property
    def is_running(self) -> bool:
        """Whether a reply is being written."""
        return self.composer.running_id is not None

    @property
    def is_reloaded(self) -> bool:
        """Whether it loads itself again where no script follows the reply: not while there is
        something to be read, or a form that would be lost."""
        return self.is_running and not self.notice and not any(t.is_edited for t in self.turns)


def homeless(turns: Sequence[Turn], typed: str | None) -> str:
    """What was typed into a form that none of the turns has."""
    return "" if any(turn.is_edited for turn in turns) else typed or ""


def rows(conversations: Sequence[Conversation], current_id: str | None) -> Rail:
    """The conversation list."""
    return rail(conversations, current_id)


def waiting(queued: Sequence[store.Queued]) -> tuple[Waiting, ...]:
    """What waits to be sent."""
    found = []
    for q in queued:
        words, files = taken_apart(q.content)
        pictures = tuple(map(shown, q.pictures))
        found.append(
            Waiting(
                id=q.id,
                conversation_id=q.conversation_id,
                words=words,
                files=files,
                pictures=pictures,
                is_paused=q.is_paused,
            )
        )
    return tuple(found)


def turn(
    message: Message,
    reply: Reply | None = None,
    model: Model | None = None,
    *,
    is_last: bool = False,
) -> Turn:
    """A turn; ``reply`` when it is running, ``is_last`` when nothing follows it."""
    if reply is not None and model is not None:
        return _running(reply, model)
    view = _said(message) if message.role == "user" else _replied(message)
    beside = message.siblings if message.id in message.siblings else (message.id,)
    at = beside.index(message.id)
    return replace(
        view,
        version=message.version,
        again=_again(message, is_last),
        can_continue=is_last and message.role == "assistant" and bool(message.content.strip()),
        place=f"{at + 1}/{len(beside)}" if len(beside) > 1 else "",
        previous_id=beside[at - 1] if at else None,
        next_id=beside[at + 1] if at + 1 < len(beside) else None,
    )


def _again(message: Message, is_last: bool) -> str:
    if message.role == "user":
        return _("Reply") if is_last else ""
    return _("Retry") if message.outcome.status in ("error", "stopped") else _("Regenerate")


def _said(message: Message) -> Turn:
    pictures = tuple(map(shown, message.pictures))
    words, files = taken_apart(message.content)
    return Turn(
        id=message.id,
        role="user",
        label=_("You"),
        text=message.content,
        words=words,
        files=files,
        pictures=pictures,
    )


def _replied(message: Message) -> Turn:
    return Turn(
        id=message.id,
        role="assistant",
        label=_("Assistant"),
        text=message.content,
        thought=_thought_for(message.figures.thought_ms),
        reasoning=message.reasoning,
        html=render(message.content),
        calls=calls(message.calls),
        error=message.outcome.error,
        note=_note(message),
        figures=line(message.figures),
        statistics=figures(message.figures),
    )


def _running(reply: Reply, model: Model) -> Turn:
    answer, open_html = reply.answer, reply.open_html()
    return Turn(
        id=reply.id,
        role="assistant",
        label=_("Assistant"),
        version=reply.message.version,
        thought=thought(answer),
        reasoning=answer.reasoning,
        is_thinking=answer.is_thinking,
        html="".join(answer.document.done),
        calls=calls(answer.calls),
        is_running=True,
        open_html=open_html,
        status=status(reply, model),
    )


def thought(answer: Answer) -> str:
    """The line above the reasoning of a running reply."""
    if answer.is_thinking:
        return _("Thinking…")
    return _thought_for(answer.thought_ms)


def _thought_for(ms: float) -> str:
    return _("Thought for {time}").format(time=_duration(ms / 1e3))


def calls(made: Sequence[store.Call]) -> tuple[Call, ...]:
    """Tool calls; arguments that are JSON by now are laid out."""
    return tuple(Call(name=c.name, arguments=_laid_out(c.arguments)) for c in made)


def _laid_out(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments


def _note(message: Message) -> str:
    outcome = message.outcome
    if outcome.status == "stopped":
        return _("Stopped")
    if outcome.is_full:
        return _("Cut off: the context is full")
    if outcome.is_cut:
        return _("Cut off at the limit of tokens")
    if outcome.status == "done" and not message.content.strip() and not message.calls:
        if message.reasoning:
            return _("The model ended its reply after its reasoning without a word")
        return _("The model ended its reply without a word")
    return ""


def status(reply: Reply, model: Model) -> Status:
    """What a running reply is doing now."""
    match reply.phase:
        case "loading":
            percent = round(model.load_progress * 100)
            return Status(
                _("Loading the model · {percent} %").format(percent=percent), percent, 100
            )
        case "sending":
            return Status(_("Sending to the model"))
        case "waiting":
            return Status(_waiting(reply, model))
        case "reading":
            return _reading(reply)
        case _:
            return Status(_writing(reply))


def _waiting(reply: Reply, model: Model) -> str:
    generation = reply.generation
    ahead = None if generation is None else model.waiting_ahead(generation.id)
    if ahead is None:
        # Of several the first one reads; the others share what it has read.
        return _("Waiting for its turn") if reply.request.n > 1 else _("Reading prompt")
    if not ahead:
        return _("Waiting for a slot, next in line")
    return _("Waiting for a slot, {n} ahead").format(n=ahead)


def _reading(reply: Reply) -> Status:
    r = reply.reading
    assert r is not None
    words = _("Reading prompt · {n} of {all} tokens")
    if r.cached:
        words = _("Reading prompt · {n} of {all} tokens ({cached} cached)")
    n, all_, cached = map(number, (r.processed, r.total, r.cached))
    parts = [words.format(n=n, all=all_, cached=cached)]
    computed = r.processed - r.cached
    if r.time_ms > 0 and computed > 0:
        per_s = computed / r.time_ms * 1e3
        parts.append(f"{number(per_s)} tok/s")
        if r.time_ms >= ETA_AFTER_MS and r.processed < r.total:
            left = _duration((r.total - r.processed) / per_s)
            parts.append(_("about {time} left").format(time=left))
    return Status(" · ".join(parts), r.processed, r.total, r.cached)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return _("{n} s").format(n=max(1, round(seconds)))
    return _("{n} min").format(n=round(seconds / 60))


def _writing(reply: Reply) -> str:
    t = reply.timings
    if t is None:
        return ""
    text = f"{t.n_generated:,} tok"
    # One token says nothing about speed.
    if t.n_generated > 1 and t.predicted_ms > 0:
        text += f" · {speed((t.n_generated - 1) / t.predicted_ms * 1e3)} tok/s"
    return text


def announcement(message: Message) -> str:
    """What a screen reader says when a reply has ended; errors speak for themselves."""
    match message.outcome.status:
        case "stopped":
            return _("Stopped")
        case "done":
            n = message.figures.n_generated
            return _("Reply finished, {n} tokens").format(n=number(n))
        case _:
            return ""
