"""The settings of a chat: shown beside it or on a page of their own, and changed."""

from typing import Any

from litestar import Response, get, post
from litestar.datastructures import FormMultiDict
from litestar.params import FromPath

from corral.backend import presets
from corral.backend.errors import Refused
from corral.frontend import panel, tuning
from corral.frontend.reasons import sentence
from corral.frontend.site import Site
from corral.frontend.tools.frame import tool_page
from corral.frontend.tuning import Own
from corral.frontend.tuning_form import checked, read, version_of, words_of
from corral.frontend.wire import AnyRequest, form_of, go, is_htmx, page, site_of
from corral.frontend.words import _


@get("/c/{conversation_id:str}/settings")
async def settings_page(request: AnyRequest, conversation_id: FromPath[str]) -> Response[str]:
    """The settings of a chat as a page. Raises Refused not_found."""
    view = await panel.of_chat(site_of(request), conversation_id)
    return await tool_page(request, "settings", _("Settings of this chat"), view)


@post("/settings", status_code=200)
async def look(request: AnyRequest) -> Response[Any]:
    """What the settings of a chat that has not begun come to; keeps nothing."""
    site, form = site_of(request), await form_of(request)
    given = await checked(site, read(form, is_begun=True))
    view = await panel.of_chat(site, None, given, version=0)
    return await _shown(request, form, view, words_of(given), status=400 if given.errors else 200)


@post("/c/{conversation_id:str}/settings", status_code=200)
async def tune(request: AnyRequest, conversation_id: FromPath[str]) -> Response[Any]:
    """Keeps settings, made from those of the form's ``version``. Raises Refused not_found."""
    site, form = site_of(request), await form_of(request)
    tuned = await site.store.tuning(conversation_id)
    # The page's script sends the form at each change; its buttons mean all of it.
    is_begun = is_htmx(request) and not form.get("do") and not form.get("over")
    given = await checked(site, read(form, tuning.read(tuned.body), is_begun=is_begun))
    version, notice, newest = version_of(form), words_of(given), None
    if not notice:
        try:
            kept = await site.store.tune(conversation_id, version, tuning.encode(given.own))
            version = kept.version
            if form.get("do"):
                own = await _as_preset(site, form, given.own)
                await site.store.tune(conversation_id, version, tuning.encode(own))
        except Refused as error:
            newest = (await site.store.tuning(conversation_id)).version
            newest = newest if error.param == "version" else None
            notice = sentence(error.message.partition(": ")[2] or error.message)
    if not notice and given.wants:
        view = await panel.of_chat(site, conversation_id, given, version=version)
        return await _shown(request, form, view, given.wants["form"])
    if not notice:
        view = await panel.of_chat(site, conversation_id)
        return await _shown(request, form, view, _("Saved"))
    if given.errors and version != tuned.version:  # it is behind, whatever else it is
        newest, notice = tuned.version, _("These settings were changed elsewhere meanwhile")
    view = await panel.of_chat(
        site,
        conversation_id,
        given,
        version=version,
        notice="" if given.errors and newest is None else notice,
        newest=newest,
    )
    return await _shown(request, form, view, notice, status=400 if newest is None else 409)


async def _as_preset(site: Site, form: FormMultiDict, own: Own) -> Own:
    """Keeps what a chat comes to as a preset, a new one or the one that it has, and returns
    settings that name it. Raises Refused."""
    is_new, name, version = form.get("do") == "keep", own.preset or "", str(form.get("of", ""))
    words = _("The preset {name} was changed elsewhere meanwhile; keep these under another name")
    if is_new:
        name, version = str(form.get("keep_as", "")).strip(), "0"
        words = _("There is a preset {name} already; choose another name")
    presets.check_name(name)
    presets.refuse_built_in(name)
    merged = (await tuning.in_force(site, own)).merged()
    try:
        number = int(version) if version.isdecimal() else 0
        await site.presets.put(name, tuning.encode(merged), version=number)
    except Refused:
        raise Refused(words.format(name=name), kind="conflict", param="keep_as") from None
    return Own(
        preset=name, enable_thinking=own.enable_thinking, thinking_budget=own.thinking_budget
    )


async def _shown(
    request: AnyRequest,
    form: FormMultiDict,
    view: panel.Panel,
    announcement: str,
    *,
    status: int = 200,
) -> Response[Any]:
    """The fields with what came of a form."""
    if not is_htmx(request):
        if status == 200 or not view.id:
            return go(f"/c/{view.id}" if view.id else "/")
        title = _("Settings of this chat")
        return await tool_page(request, "settings", title, view, status=status)
    return page(
        request,
        "tuned.html",
        status=status,
        panel=view,
        is_fresh=view.preset != form.get("was", "") or (bool(form.get("do")) and status == 200),
        is_kept=status == 200,
        reset=form.get("reset", ""),
        announcement=announcement,
    )
