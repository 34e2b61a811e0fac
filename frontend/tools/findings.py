"""What is said of a reply that is looked into: how its prompt goes on from the turn before, its
figures, and its settings with who set them. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from corral.backend.chat.types import Effective, Params
from corral.backend.settings import Settings
from corral.backend.store import Message
from corral.frontend.traces import Said, Sent
from corral.frontend.words import _, ngettext, number

# Settings that are always shown; the others only where they are not what they usually are.
_MAIN = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed", "max_tokens")


class Setting(Struct, frozen=True, kw_only=True):
    """A setting in force, and who set it."""

    name: str
    value: str
    source: str


def compared_words(n: int, n_prompt: int, n_answer: int, here: str, there: str) -> str:
    """How a prompt goes on from the turn before, which had ``n_prompt`` tokens and an answer of
    ``n_answer``; ``n`` of these are at its beginning. ``here`` and ``there``: what comes then."""
    first = ngettext(
        "The first {n} token is that of the turn before",
        "The first {n} tokens are those of the turn before",
        n,
    ).format(n=number(n))
    if n >= n_prompt + n_answer:
        return _("{first}: its prompt and all of its answer. Then comes what is new.").format(
            first=first
        )
    if n >= n_prompt:
        answered = _("{first}: its prompt and {k} of the {n} tokens of its answer.")
        said = answered.format(first=first, k=number(n - n_prompt), n=number(n_answer))
        return f"{said} " + _("Then here is “{here}”, there was “{there}”.").format(
            here=here, there=there
        )
    if not n:
        return _("Nothing at the beginning is as in the turn before.")
    differs = _("{first}; then it differs: here is “{here}”, there was “{there}”.")
    return differs.format(first=first, here=here, there=there)


def cached_words(n_cached: int, n_tokens: int) -> str:
    """What of a prompt had not to be read."""
    if not n_cached:
        return _("Nothing was in the cache: all of it was read.")
    words = _("{n} of {all} tokens came from the cache (shaded), {rest} were read.")
    return words.format(n=number(n_cached), all=number(n_tokens), rest=number(n_tokens - n_cached))


def lost_words(n: int) -> str:
    """That the cache held less than it might have."""
    return ngettext(
        "{n} token of the turn before was read again: it was not in the cache any more.",
        "{n} tokens of the turn before were read again: they were not in the cache any more.",
        n,
    ).format(n=number(n))


def doubt(message: Message, *, is_kept: bool, n_tokens: int | None) -> str:
    """Why what is shown may not be what the model got; nothing when it is."""
    n_prompt = message.figures.n_prompt
    if n_tokens is None and is_kept:
        words = _("{model} got this; another model is loaded now, so its tokens cannot be shown.")
        return words.format(model=message.model)
    if is_kept:
        if n_tokens == n_prompt or not n_prompt:
            return ""
        words = _("The model that is loaded now makes other tokens of it; then it had {n}.")
        return words.format(n=number(n_prompt))
    said = _(
        "What the model got then is not kept: this is made of the conversation and its settings "
        "as they are now."
    )
    if not n_prompt:
        return said + " " + _("The model never read it.")
    if n_tokens != n_prompt:
        was = ngettext(
            "Then the prompt had {n} token.", "Then the prompt had {n} tokens.", n_prompt
        )
        return f"{said} {was.format(n=number(n_prompt))}"
    return said + " " + _("It has as many tokens as then.")


class Asked(Struct, frozen=True, kw_only=True):
    """Who may have asked for a setting, as they are now: the chat, and the preset that it names."""

    own: Params = Params()
    preset: Params = Params()
    preset_name: str = ""


def settings(
    sent: Sent,
    said: Said | None,
    flags: Settings,
    recommended: Mapping[str, float],
    asked: Asked | None = None,
) -> tuple[Setting, ...]:
    """The settings in force that are worth a line. ``recommended``: by the model's file."""
    usual, found = _values(Effective()), []
    for name, value in _values(sent.effective).items():
        if name in _MAIN or value != usual[name]:
            if getattr(sent.request.params, name) is not None:
                source = _asker(name, getattr(sent.request.params, name), asked or Asked())
            else:
                source = _source(name, value, flags, recommended)
            found.append(Setting(name=name, value=_written(name, value, said), source=source))
    order = {name: place for place, name in enumerate(_MAIN)}
    return tuple(sorted(found, key=lambda s: (order.get(s.name, len(order)), s.name)))


def _asker(name: str, value: Any, asked: Asked) -> str:
    """Who asked for a setting; they may have changed their mind since."""
    if getattr(asked.own, name) == value:
        return _("this chat")
    if getattr(asked.preset, name) == value:
        return _("the preset {name}").format(name=asked.preset_name)
    return _("this chat or its preset, then")


def _source(name: str, value: Any, flags: Settings, recommended: Mapping[str, float]) -> str:
    """Who set a setting that was not asked for."""
    if name in flags.given and getattr(flags, name, None) == value:
        return _("the server")
    if name in recommended and type(value)(recommended[name]) == value:
        return _("the file of the model")
    return _("default") if value == _values(Effective())[name] else _("the server")


def _values(effective: Effective) -> dict[str, Any]:
    values = msgspec.structs.asdict(effective)
    values.pop("sampling")
    sampling = msgspec.structs.asdict(effective.sampling)
    sampling.pop("n_probs")
    return sampling | values


def _written(name: str, value: Any, said: Said | None) -> str:
    if name == "seed" and value is None:
        return _("random") if said is None else _("random: {seed}").format(seed=said.seed)
    if name == "max_tokens" and value == -1:
        return _("no limit")
    if isinstance(value, bool):
        return _("on") if value else _("off")
    if isinstance(value, Struct):
        return str(getattr(value, "source", ""))[:2000]
    if isinstance(value, tuple):
        return ", ".join(repr(v) if isinstance(v, str) else str(v) for v in value) or _("none")
    return str(value)
