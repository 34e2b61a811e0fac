"""Figures of replies and of the context, as they are shown. Pure."""

from collections.abc import Sequence

from msgspec import Struct

from corral.backend.engine.messages import ModelInfo
from corral.backend.store import Figures, Message
from corral.frontend.instruments import speed
from corral.frontend.words import _, ngettext, number

#: From which part of the context on it is nearly full.
NEAR = 0.85


class Figure(Struct, frozen=True):
    """A figure with its name."""

    name: str
    value: str


class Gauge(Struct, frozen=True, kw_only=True):
    """How much of the context is used: ``used`` of ``n_ctx`` tokens, nearly full from ``near`` on.
    ``words`` say it, ``warning`` what comes of it."""

    used: int
    n_ctx: int
    near: int
    text: str
    words: str
    warning: str


def context_use(messages: Sequence[Message], info: ModelInfo | None) -> Gauge | None:
    """How much of the context the conversation fills; None when that is not known."""
    if info is None:
        return None
    for m in reversed(messages):
        if m.role == "assistant" and m.figures.n_prompt:
            return gauge(m.figures.n_prompt + m.figures.n_generated, info.n_ctx)
    return None


def gauge(used: int, n_ctx: int) -> Gauge:
    """A gauge of the context: ``8,201 / 32,768``."""
    near = round(n_ctx * NEAR)
    words = _("Context: {used} of {all} tokens, {percent} %")
    percent = min(100, round(100 * used / n_ctx))
    warning = "" if used < near else _("full") if used >= n_ctx - 1 else _("nearly full")
    return Gauge(
        used=min(used, n_ctx),
        n_ctx=n_ctx,
        near=near,
        text=f"{number(used)} / {number(n_ctx)}",
        words=words.format(used=number(used), all=number(n_ctx), percent=percent),
        warning=warning,
    )


def line(f: Figures) -> str:
    """The figures of a finished reply in short: ``486 tok · 38.2 tok/s``."""
    if not f.n_generated:
        return ""
    parts = [f"{number(f.n_generated)} tok"]
    if f.predicted_ms > 0:
        parts.append(f"{speed(f.n_generated / f.predicted_ms * 1e3)} tok/s")
    return " · ".join(parts)


def figures(f: Figures) -> tuple[Figure, ...]:
    """All figures of a reply; none when the model never read its prompt."""
    if not f.n_prompt:
        return ()
    found = [
        Figure(_("Prompt"), _tokens(f.n_prompt)),
        Figure(_("From the cache"), _tokens(f.n_cached)),
        Figure(_("Read"), _rate(f.n_prompt - f.n_cached, f.prompt_ms)),
        Figure(_("Written"), _rate(f.n_generated, f.predicted_ms)),
    ]
    if f.first_ms > 0:
        found.append(Figure(_("First word after"), f"{number(f.first_ms / 1e3, 2)} s"))
    if f.thought_ms > 0:
        found.append(Figure(_("Of that reasoning"), f"{number(f.thought_ms / 1e3, 1)} s"))
    return tuple(found)


def _tokens(n: int) -> str:
    return ngettext("{n} token", "{n} tokens", n).format(n=number(n))


def _rate(n: int, ms: float) -> str:
    if not (n > 0 and ms > 0):
        return _tokens(n)
    words = _("{n} in {seconds} s · {speed} tok/s")
    return words.format(n=number(n), seconds=number(ms / 1e3, 2), speed=speed(n / ms * 1e3))
