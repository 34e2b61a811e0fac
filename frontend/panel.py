"""What the fields of settings show: what was typed, what counts, and where that comes from."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from corral.backend import defaults
from corral.backend.errors import Refused
from corral.backend.presets import BUILT_INS, PresetSettings
from corral.backend.service import Service
from corral.frontend import tuning, typed
from corral.frontend.knobs import GROUPS, MAY_BE_NONE, OF_CHATS, SHAPES, Knob
from corral.frontend.reasons import sentence
from corral.frontend.site import Site
from corral.frontend.tuning import Own
from corral.frontend.typed import Typed
from corral.frontend.words import _, ngettext


class Option(Struct, frozen=True):
    """One of several to choose from."""

    value: str
    name: str
    is_chosen: bool = False


class Field(Struct, frozen=True, kw_only=True):
    """One field. ``inherited`` is what counts while nothing is typed; ``origin`` is where what
    counts now comes from: ``chat``, ``preset``, ``model`` or ``server``, in words ``origin_words``.
    ``source`` is the text beside a shape. ``wants``: what is still to be typed."""

    name: str
    label: str
    kind: str
    hint: str
    text: str
    inherited: str
    origin: str
    origin_words: str
    error: str = ""
    wants: str = ""
    is_none: bool = False
    may_be_none: bool = False
    source: str = ""
    options: tuple[Option, ...] = ()


class Section(Struct, frozen=True, kw_only=True):
    """Fields under a heading, perhaps folded away."""

    title: str
    fields: tuple[Field, ...]
    is_rare: bool
    is_open: bool


class Chip(Struct, frozen=True, kw_only=True):
    """What the composer shows of the settings. ``n_own``: fields that this chat sets itself."""

    name: str
    n_own: int
    title: str


class Panel(Struct, frozen=True, kw_only=True):
    """The settings of a chat. ``id`` is empty for one that has not begun: its fields go along with
    the first message. ``newest``: the version there is, when the page's is behind it. ``of``: that
    of its preset, 0 when it has none that can be changed."""

    id: str
    version: int
    sections: tuple[Section, ...]
    preset: str
    presets: tuple[Option, ...]
    preset_error: str
    chip: Chip
    notice: str = ""
    newest: int | None = None
    of: int = 0


async def of_chat(
    site: Site,
    conversation_id: str | None,
    given: Typed | None = None,
    *,
    version: int | None = None,
    notice: str = "",
    newest: int | None = None,
) -> Panel:
    """The panel of a chat. ``given`` and ``version``: of a form that was not kept. Raises Refused
    not_found."""
    tuned = None if conversation_id is None else await site.store.tuning(conversation_id)
    own = Own() if tuned is None else tuning.read(tuned.body)
    kept_as = Typed(own=own, texts=typed.texts(own), nones=typed.nones(own))
    if given is None or version is None:
        version = 0 if tuned is None else tuned.version
        given = given or kept_as
    name, preset, lost = given.texts.get("preset", ""), None, given.errors.get("preset", "")
    try:
        preset = await tuning.preset_of(site, name) if name else None
    except Refused as error:
        lost = sentence(error.message)
    kept = await site.presets.list()
    return Panel(
        id=conversation_id or "",
        version=version,
        sections=sections(given, site.service, preset, name, kept=kept_as if tuned else None),
        preset=name,
        presets=_presets([each.name for each in kept], name, is_lost=bool(lost)),
        preset_error=lost,
        chip=chip(given.own, name),
        notice=notice,
        newest=newest,
        of=next((each.version for each in kept if each.name == name), 0),
    )


def chip(own: Own, preset: str) -> Chip:
    """What the composer shows of settings."""
    n_own = len([each for each in set_fields(own) if each != "preset"])
    words = _("Settings of this chat")
    if n_own:
        changed = ngettext("{n} field is set here", "{n} fields are set here", n_own)
        words = f"{words}: {changed.format(n=n_own)}"
    return Chip(name=preset or _("Settings"), n_own=n_own, title=words)


def set_fields(own: PresetSettings) -> tuple[str, ...]:
    """The members that say something."""
    return tuple(n for n in own.__struct_fields__ if getattr(own, n) is not None)


def _presets(kept: Sequence[str], chosen: str, *, is_lost: bool) -> tuple[Option, ...]:
    options = [Option("", _("No preset"), not chosen)]
    options += [Option(name, name, name == chosen) for name in (*BUILT_INS, *kept)]
    if is_lost:
        options.append(Option(chosen, _("{name} (deleted)").format(name=chosen), True))
    return tuple(options)


def sections(
    given: Typed,
    service: Service,
    preset: PresetSettings | None = None,
    preset_name: str = "",
    *,
    is_chat: bool = True,
    kept: Typed | None = None,
) -> tuple[Section, ...]:
    """The fields with what they show. Without ``is_chat`` they are those of a preset. ``kept``:
    what the chat has on the server, when there is one."""
    can = service.capabilities
    hidden = set() if is_chat else set(OF_CHATS)
    if can is None or not can.thinking_switch:
        hidden.add("enable_thinking")
    if not service.can_think:
        hidden.add("thinking_budget")
    made = []
    for group in GROUPS:
        fields = tuple(
            _field(knob, given, service, preset, preset_name, is_chat=is_chat, kept=kept)
            for knob in group.knobs
            if knob.name not in hidden or given.texts.get(knob.name)
        )
        is_open = any(f.error or f.text for f in fields)
        title = _(group.title)
        if fields:
            made.append(Section(title=title, fields=fields, is_rare=group.is_rare, is_open=is_open))
    return tuple(made)


def _field(
    knob: Knob,
    given: Typed,
    service: Service,
    preset: PresetSettings | None,
    preset_name: str,
    *,
    is_chat: bool,
    kept: Typed | None,
) -> Field:
    name = knob.name
    inherited, origin = _inherited(knob, service, preset)
    text, is_none = given.texts.get(name, ""), name in given.nones
    if text or is_none:
        origin = "chat" if is_chat else "preset"
    is_same = kept is None or (text, is_none) == (kept.texts.get(name, ""), name in kept.nones)
    words = _origin_words(origin, preset_name if is_chat else "") if is_same else _("not kept yet")
    return Field(
        name=name,
        label=_(knob.label),
        kind=knob.kind,
        hint=_(knob.hint),
        text=text,
        inherited=inherited,
        origin=origin,
        origin_words=words,
        error=given.errors.get(name, ""),
        wants=given.wants.get(name, ""),
        is_none=is_none,
        may_be_none=name in MAY_BE_NONE and _says(preset, name),
        source=given.texts.get("source", "") if knob.kind == "form" else "",
        options=_options(knob, text, inherited),
    )


def _options(knob: Knob, chosen: str, inherited: str) -> tuple[Option, ...]:
    """What a field offers that is no text: the first leaves it unsaid."""
    if knob.kind == "switch":
        named = {"on": _("On"), "off": _("Off")}
    elif knob.kind == "form":
        named = {value: _(words) for value, words in SHAPES.items()}
    else:
        return ()
    first = Option("", f"({inherited})", not chosen)
    return (first, *(Option(value, words, value == chosen) for value, words in named.items()))


def _says(preset: PresetSettings | None, name: str) -> bool:
    if preset is None:
        return False
    value = typed.value_of(preset, name)
    return bool(value) if name in MAY_BE_NONE else value is not None


def _inherited(knob: Knob, service: Service, preset: PresetSettings | None) -> tuple[str, str]:
    """What counts while the field is empty, and where it comes from."""
    settings, name = service.settings, knob.name
    if knob.kind == "form":
        shape = "" if preset is None else typed.shape(preset)[0]
        flag = defaults.constraint(settings)
        kind = "json_schema" if flag is not None and flag.kind == "json_schema" else "grammar"
        words = _(SHAPES[shape or (kind if flag is not None else "text")])
        return words, "preset" if shape else "server"
    if preset is not None and _says(preset, name):
        return _shown(knob, typed.value_of(preset, name)), "preset"
    if name in ("system", "prefix"):
        return _("none"), "server"
    if name == "enable_thinking":
        is_auto = settings.reasoning == "auto"
        words = _("as the model does") if is_auto else _shown(knob, settings.reasoning == "on")
        return words, "model" if is_auto else "server"
    if name == "thinking_budget":
        return str(settings.reasoning_budget), "server"
    recommended: Mapping[str, float] = {} if service.info is None else service.info.sampling
    value, origin = defaults.default(name, settings, recommended)
    return _shown(knob, value), origin


def _shown(knob: Knob, value: Any) -> str:
    """A value in words: a number as it would be typed."""
    if knob.kind == "switch":
        return _("On") if value else _("Off")
    if value is None:
        return "-1" if knob.name == "seed" else _("none")
    return typed.text(knob.kind, value) if value or value == 0 else _("none")


def _origin_words(origin: str, preset: str) -> str:
    if origin == "chat":
        return _("this chat")
    if origin == "preset":
        return _("preset {name}").format(name=preset) if preset else _("this preset")
    return _("model") if origin == "model" else _("server default")
