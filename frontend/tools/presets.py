"""Presets as a page: what each sets; made, changed, copied, deleted, and as files.

``GET /presets`` is the API's; a browser gets this page there.
"""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from litestar import Response, get, post
from litestar.datastructures import FormMultiDict, UploadFile
from msgspec import Struct

from corral.backend import presets
from corral.backend.answer_settings import ANY_VOCABULARY
from corral.backend.errors import CorralError, Refused
from corral.backend.presets import BUILT_INS, PresetObject, PresetSettings, kept
from corral.backend.store import Preset
from corral.frontend import panel, tuning, tuning_form, typed
from corral.frontend.knobs import KNOBS, SHAPES
from corral.frontend.misfits import in_words, misfit
from corral.frontend.reasons import sentence
from corral.frontend.site import Site
from corral.frontend.tools.frame import tool_page
from corral.frontend.tuning import Own
from corral.frontend.typed import Typed
from corral.frontend.wire import AnyRequest, failure, form_of, go, site_of, speak
from corral.frontend.words import _

EXCERPT_CHARS = 120
_NAMES = PresetSettings.__struct_fields__


class Said(Struct, frozen=True):
    """One thing that a preset sets."""

    label: str
    value: str


class Item(Struct, frozen=True, kw_only=True):
    """A preset in the list."""

    name: str
    is_builtin: bool
    version: int
    said: tuple[Said, ...]


class Editing(Struct, frozen=True, kw_only=True):
    """A preset as a form. ``was``: its name before the change, empty for a new one. ``newest``: the
    version there is, when the form's is behind it."""

    name: str
    was: str
    version: int
    sections: tuple[panel.Section, ...]
    notice: str = ""
    newest: int | None = None


class View(Struct, frozen=True, kw_only=True):
    """The page: the list, or one preset as a form. ``deleted``: the one that was just deleted,
    ``gone``: all that can be brought back. ``pasted``: the text of an import that was refused."""

    items: tuple[Item, ...] = ()
    editing: Editing | None = None
    notice: str = ""
    deleted: str = ""
    gone: tuple[str, ...] = ()
    pasted: str = ""


async def presets_page(request: AnyRequest) -> Response[Any]:
    """The list; ``?new=``, ``?edit=NAME`` and ``?copy=NAME`` are forms, ``?deleted=NAME`` offers
    that one back."""
    await speak(request)
    site, asked = site_of(request), request.query_params
    try:
        for word in ("edit", "copy"):
            if name := asked.get(word):
                return await _edit(request, site, name, is_copy=word == "copy")
        if "new" in asked:
            return await _form(request, _editing(site, "", 0, _typed(PresetSettings())))
        return await _list(request, deleted=asked.get("deleted", ""))
    except CorralError as error:
        return failure(request, error)


@get("/preset")
async def again(request: AnyRequest) -> Response[Any]:
    """Where a form that was refused is loaded again: what it would have changed."""
    return go("/presets")


@post("/preset", status_code=200)
async def change(request: AnyRequest) -> Response[Any]:
    """What the page's buttons do: ``save``, ``delete``, ``restore`` and ``import``. Raises
    Refused."""
    site, form = site_of(request), await form_of(request)
    name = str(form.get("name", "")).strip()
    match form.get("do"):
        case "delete":
            return await _delete(request, site, form, name)
        case "restore":
            return await _restore(request, site, name)
        case "import":
            return await _import(request, site, form)
        case _:
            return await _save(request, site, form, name)


async def _save(request: AnyRequest, site: Site, form: FormMultiDict, name: str) -> Response[Any]:
    version, was = tuning_form.version_of(form), str(form.get("was", ""))
    given = tuning_form.read(form, _own(await _found(site, was or name)))
    given = await tuning_form.checked(site, given)
    notice, newest, status = tuning_form.words_of(given), None, 400
    if not notice:
        try:
            presets.check_name(name)
            presets.refuse_built_in(name)
            if was in ("", name) or not version:
                await site.presets.put(name, _body(given.own), version=version)
            else:
                await site.presets.rename(was, name, _body(given.own), version=version)
            return go("/presets")
        except Refused as error:
            notice = sentence(error.message)
            if error.kind == "conflict":
                status = 409
                if was and error.param == "version":
                    newest = _version(await site.presets.list(), was)
                notice = _behind(name, newest)
    view = _editing(site, name, version, given, was=was, notice=notice, newest=newest)
    return await _form(request, view, status=status)


def _behind(name: str, newest: int | None) -> str:
    """Why a form was not kept that is behind what there is now, at version ``newest``."""
    if newest is None:
        return _("There is a preset {name} already; choose another name").format(name=name)
    if not newest:
        return _(
            "This preset was deleted or given another name elsewhere meanwhile."
            " What you typed is still here."
        )
    return _("This preset was changed elsewhere meanwhile. What you typed is still here.")


async def _delete(request: AnyRequest, site: Site, form: FormMultiDict, name: str) -> Response[Any]:
    presets.refuse_built_in(name)
    try:
        await site.presets.set_aside(name, version=tuning_form.version_of(form))
    except Refused as error:
        if error.param != "version":
            raise
        notice = _("{name} was changed elsewhere meanwhile; look at it again before you delete it")
        return await _list(request, notice=notice.format(name=name), status=409)
    return go(f"/presets?deleted={quote(name)}")


async def _restore(request: AnyRequest, site: Site, name: str) -> Response[Any]:
    try:
        await site.presets.bring_back(name)
    except Refused as error:
        if error.param != "version":
            raise
        words = _("There is a preset {name} by now; give that another name to bring this one back")
        return await _list(request, notice=words.format(name=name), status=409)
    return go("/presets#own")


async def _import(request: AnyRequest, site: Site, form: FormMultiDict) -> Response[Any]:
    """Keeps the presets of a file or a text; none takes the place of another."""
    file, text = form.get("file"), str(form.get("json", ""))
    if isinstance(file, UploadFile) and file.filename:
        data = await file.read()
        text = data.decode("utf-8", "replace")
        await form.close()
    try:
        objects = _objects(text)
        for each in objects:
            presets.check_name(each.name or "")
            each.settings().params(ANY_VOCABULARY)
    except Refused as error:
        return await _list(request, notice=sentence(error.message), pasted=text, status=400)
    taken = {*BUILT_INS, *(preset.name for preset in await site.presets.list())}
    for each in objects:
        name = _free(each.name or "", taken)
        taken.add(name)
        await site.presets.put(name, tuning.encode(each.settings()), version=0)
    return go("/presets#own")


def _objects(text: str) -> list[PresetObject]:
    """The presets in a text: one, several in a list, or the API's list. Raises Refused."""
    if not text.strip():
        raise Refused(_("Choose a file, or paste the text of one"))
    try:
        data = msgspec.json.decode(text)
        if isinstance(data, dict) and isinstance(data.get("data"), list):
            data = data["data"]
        return msgspec.convert(data if isinstance(data, list) else [data], list[PresetObject])
    except msgspec.ValidationError as error:
        reason, path = misfit(error)
        words = _("This is no preset: {reason}").format(reason=f"{path}: {reason}".lstrip(": "))
    except (msgspec.DecodeError, RecursionError) as error:
        words = _("This is not JSON: {reason}").format(reason=in_words(str(error)))
    raise Refused(words)


def _free(name: str, taken: set[str]) -> str:
    """The name, or else the first one like it that is free."""
    free, n = name, 1
    while free in taken:
        n += 1
        free = f"{name[: presets.MAX_NAME - 5]} {n}"
    return free


async def _edit(request: AnyRequest, site: Site, name: str, *, is_copy: bool) -> Response[Any]:
    if not is_copy:
        presets.refuse_built_in(name)
    found = None if name in BUILT_INS else await site.presets.get(name)
    settings = BUILT_INS[name] if found is None else kept(found.body)
    if found is not None and not is_copy:
        return await _form(request, _editing(site, name, found.version, _typed(settings), was=name))
    taken = {*BUILT_INS, *(preset.name for preset in await site.presets.list())}
    view = _editing(site, _free(name, taken), 0, _typed(settings))
    return await _form(request, view)


async def _form(request: AnyRequest, view: Editing, *, status: int = 200) -> Response[Any]:
    title = _("Preset {name}").format(name=view.was) if view.was else _("New preset")
    return await tool_page(request, "presets", title, View(editing=view), status=status)


async def _list(
    request: AnyRequest,
    *,
    notice: str = "",
    deleted: str = "",
    pasted: str = "",
    status: int = 200,
) -> Response[Any]:
    found = await site_of(request).presets.list()
    items = [item(name, settings) for name, settings in BUILT_INS.items()]
    items += [item(each.name, kept(each.body), each.version) for each in found]
    gone = tuple(await site_of(request).presets.gone())
    view = View(items=tuple(items), notice=notice, deleted=deleted, gone=gone, pasted=pasted)
    return await tool_page(request, "presets", _("Presets"), view, status=status)


def item(name: str, settings: PresetSettings, version: int = 0) -> Item:
    """A line of the list. ``version`` 0: it comes with the server. Pure."""
    said = []
    for knob in KNOBS.values():
        if knob.kind == "form":
            shape, source = typed.shape(settings)
            value = " ".join((_(SHAPES[shape]), source)) if shape else ""
        else:
            value = typed.text(knob.kind, typed.value_of(settings, knob.name))
        if value:
            words = " ".join(value.split())
            cut = f"{words[:EXCERPT_CHARS]}…" if len(words) > EXCERPT_CHARS else words
            said.append(Said(_(knob.label), cut))
    return Item(name=name, is_builtin=not version, version=version, said=tuple(said))


def _editing(
    site: Site,
    name: str,
    version: int,
    given: Typed,
    *,
    was: str = "",
    notice: str = "",
    newest: int | None = None,
) -> Editing:
    return Editing(
        name=name,
        version=version,
        was=was,
        sections=panel.sections(given, site.service, is_chat=False),
        notice=notice,
        newest=newest,
    )


async def _found(site: Site, name: str) -> PresetSettings:
    """What is kept under a name, or nothing: what a form shows unchanged stays as it was said."""
    kept_ones = {preset.name: preset.body for preset in await site.presets.list()}
    return kept(kept_ones.get(name, b"{}"))


def _own(settings: PresetSettings) -> Own:
    return Own(**{name: getattr(settings, name) for name in _NAMES})


def _typed(settings: PresetSettings) -> Typed:
    own = _own(settings)
    return Typed(own=own, texts=typed.texts(own))


def _body(own: Own) -> bytes:
    return tuning.encode(PresetSettings(**{name: getattr(own, name) for name in _NAMES}))


def _version(found: Sequence[Preset], name: str) -> int:
    return next((preset.version for preset in found if preset.name == name), 0)
