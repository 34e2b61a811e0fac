"""For those who run the server: health, slots, metrics, the API's document. Nothing here waits for
the engine: all is read from its last snapshot."""

from typing import Any, cast

from litestar import HttpMethod, Response, route
from msgspec import Struct

from corral.backend.api import native_render
from corral.backend.api.metrics import Meters
from corral.backend.api.native_schema import Slot
from corral.backend.api.openapi import Operation, Parameter, document
from corral.backend.api.serving import service_of
from corral.backend.api.wire import AnyRequest, reply
from corral.backend.errors import Broken, CorralError, Refused, from_engine
from corral.backend.service import Service

_TAG = "Operations"
_LOOK = (HttpMethod.GET, HttpMethod.HEAD)
_METRICS_TYPE = "text/plain; version=0.0.4"  # the framework adds the charset


class Health(Struct, frozen=True):
    """``GET /health``."""

    status: str = "ok"


def unready(service: Service) -> CorralError | None:
    """Why the server cannot take requests now; None when it can."""
    match service.state:
        case "ready":
            return None
        case "loading":
            percent = int(service.load_progress * 100)
            return Broken(
                "Loading model",
                kind="loading",
                extra={"progress_percent": percent},
                retry_after_s=2,
            )
        case "restarting":
            return from_engine("engine_died", "The engine stopped and is being restarted")
        case "failed":
            return Broken("The model could not be loaded", kind="engine_died")
        case _:
            return from_engine("draining", "The server is shutting down")


@route(
    ["/health", "/v1/health"],
    http_method=_LOOK,
    status_code=200,
    operation=Operation(
        summary="Whether requests are taken", tag=_TAG, reply=Health, errors=(503,)
    ),
)
async def health(request: AnyRequest) -> Response[bytes]:
    """200 when requests are taken, 503 with the reason when not. Needs no key."""
    if reason := unready(service_of(request)):
        raise reason
    return reply(Health())


@route(
    "/slots",
    http_method=_LOOK,
    status_code=200,
    operation=Operation(
        summary="What each slot is doing",
        tag=_TAG,
        reply=list[Slot],
        parameters=(
            Parameter(
                name="fail_on_no_slot", where="query", help="1: answer 503 when none is idle"
            ),
        ),
        errors=(400, 401, 501, 503),
    ),
)
async def slots(request: AnyRequest) -> Response[Any]:
    """One row a slot, as of the engine's last report."""
    service = service_of(request)
    if not service.settings.slots_endpoint:
        message = "/slots is switched off: the server was started with --no-slots"
        raise Refused(message, kind="not_supported")
    snapshot, info = service.snapshot, service.info
    if snapshot is None or info is None:
        raise unready(service) or from_engine("loading", "Loading model")
    wants_idle = request.query_params.get("fail_on_no_slot", "") not in ("", "0", "false")
    if wants_idle and all(slot.state != "idle" for slot in snapshot.slots):
        raise from_engine("queue_full", "no slot is idle")
    return reply(native_render.slots(snapshot, info.n_ctx))


@route(
    "/metrics",
    http_method=_LOOK,
    status_code=200,
    operation=Operation(summary="Prometheus metrics", tag=_TAG),
)
async def metrics(request: AnyRequest) -> Response[bytes]:
    """Counters, gauges and histograms as Prometheus reads them."""
    meters = cast(Meters, request.app.state.meters)
    return Response(meters.text(), media_type=_METRICS_TYPE)


@route(
    ["/schema", "/schema/openapi.json"],
    http_method=_LOOK,
    status_code=200,
    operation=Operation(summary="This document", tag=_TAG, reply=dict[str, Any]),
)
async def schema(request: AnyRequest) -> Response[bytes]:
    """The OpenAPI document."""
    return reply(document(request.app.routes))


handlers = [health, slots, metrics, schema]
