"""Presets by name: those that come with the server, and those that people keep on it."""

from typing import Any, cast

from litestar import HttpMethod, Response, delete, put, route
from litestar.params import FromPath

from corral.backend.answer_settings import ANY_VOCABULARY
from corral.backend.api.openapi import WITH_BODY, Operation, Parameter
from corral.backend.api.presets_schema import (
    PresetDeleted,
    PresetList,
)
from corral.backend.api.wire import AnyRequest, encode, read, reply
from corral.backend.errors import Refused
from corral.backend.presets import (
    BUILT_INS,
    PresetObject,
    PresetSettings,
    check_name,
    kept,
    preset_decoder,
    refuse_built_in,
    shown,
)
from corral.backend.store import Preset, Presets

_LOOK = (HttpMethod.GET, HttpMethod.HEAD)
_TAG = "Presets"
_NAME = Parameter(name="name", where="path")


def presets_of(request: AnyRequest) -> Presets:
    """The application's kept presets."""
    return cast(Presets, request.app.state.presets)


async def settings_of(request: AnyRequest, name: str) -> PresetSettings:
    """What a preset says. Raises ``Refused`` not_found."""
    if name in BUILT_INS:
        return BUILT_INS[name]
    return kept((await presets_of(request).get(name)).body)


def _kept_shown(preset: Preset) -> PresetObject:
    return shown(preset.name, kept(preset.body), preset)


@route(
    "/presets",
    http_method=_LOOK,
    status_code=200,
    operation=Operation(summary="All presets", tag=_TAG, reply=PresetList, errors=(401, 500)),
)
async def presets(request: AnyRequest) -> Response[Any]:
    """What a request may name as its ``preset``. Browsers get the web UI's page."""
    page = request.app.state.get("presets_page")
    if page is not None and "text/html" in request.headers.get("accept", ""):
        return cast(Response[Any], await page(request))
    ours = [shown(name, settings) for name, settings in BUILT_INS.items()]
    theirs = [_kept_shown(preset) for preset in await presets_of(request).list()]
    return reply(PresetList(data=[*ours, *theirs]))


@route(
    "/presets/{name:str}",
    http_method=_LOOK,
    status_code=200,
    operation=Operation(
        summary="One preset",
        tag=_TAG,
        reply=PresetObject,
        parameters=(_NAME,),
        errors=(401, 404, 500),
    ),
)
async def preset(request: AnyRequest, name: FromPath[str]) -> Response[bytes]:
    """What it says, and its version."""
    if name in BUILT_INS:
        return reply(shown(name, BUILT_INS[name]))
    return reply(_kept_shown(await presets_of(request).get(name)))


@put(
    "/presets/{name:str}",
    status_code=200,
    operation=Operation(
        summary="Make or change a preset",
        tag=_TAG,
        body=PresetObject,
        reply=PresetObject,
        parameters=(_NAME,),
        errors=(*WITH_BODY, 403, 404, 409),
    ),
)
async def put_preset(request: AnyRequest, name: FromPath[str]) -> Response[bytes]:
    """Keeps the whole of it; what is not said any more is gone. All is checked but what only the
    model can: grammars and token ids."""
    refuse_built_in(name)
    check_name(name)
    body = await read(request, preset_decoder)
    settings = body.settings()
    settings.params(ANY_VOCABULARY)
    made = await presets_of(request).put(name, encode(settings), version=body.version)
    return reply(_kept_shown(made))


@delete(
    "/presets/{name:str}",
    status_code=200,
    operation=Operation(
        summary="Forget a preset",
        tag=_TAG,
        reply=PresetDeleted,
        parameters=(
            _NAME,
            Parameter(name="version", where="query", help="only if it is still this one"),
        ),
        errors=(400, 401, 403, 404, 409, 500),
    ),
)
async def delete_preset(request: AnyRequest, name: FromPath[str]) -> Response[bytes]:
    """Removes a preset for good; requests that name it are refused from then on."""
    refuse_built_in(name)
    version = request.query_params.get("version")
    if version is not None and not (version.isascii() and version.isdigit() and len(version) < 16):
        raise Refused("version: expected a number", param="version")
    await presets_of(request).delete(name, version=None if version is None else int(version))
    return reply(PresetDeleted(name=name))


handlers = [presets, preset, put_preset, delete_preset]
