"""The composition root: service and settings in, an ASGI application out. Nothing imports this."""

from collections.abc import Sequence

from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.types import ControllerRouterHandler, Message, Scope

import corral.frontend
from corral.backend.api import (
    anthropic,
    control,
    embeddings,
    memory,
    native,
    openai,
    ops,
    presets,
    responses,
)
from corral.backend.api.failures import exception_handlers
from corral.backend.api.guards import Gate, name_request, session_value
from corral.backend.api.ignored import name_ignored
from corral.backend.api.metrics import Meters
from corral.backend.api.patience import Patience
from corral.backend.api.prefix import Prefix
from corral.backend.service import Service
from corral.backend.settings import Settings, default_data_dir
from corral.backend.store import Presets, Responses

# Probes would make the text of two scrapes differ while nothing happens.
_NOT_COUNTED = ("/health", "/v1/health", "/metrics", "/slots")


def create_app(
    settings: Settings,
    service: Service,
    *,
    frontend_handlers: Sequence[ControllerRouterHandler] | None = None,
) -> Litestar:
    """The whole server. ``frontend_handlers`` None mounts the web UI; anything else stands in for
    it, without what the UI keeps open.

    Starting the application starts the service, stopping it closes the service.
    """
    folder = settings.data_dir or default_data_dir()
    kept, kept_presets = Responses(folder), Presets(folder)
    meters = Meters(lambda: service.snapshot)
    has_ui = frontend_handlers is None and settings.ui
    pages = corral.frontend.handlers if has_ui else frontend_handlers or ()

    async def count(message: Message, scope: Scope) -> None:
        path = scope.get("path_template", "unknown")
        if message["type"] == "http.response.start" and path not in _NOT_COUNTED:
            meters.count(path, message["status"])

    state = {
        "service": service,
        "settings": settings,
        "meters": meters,
        "responses": kept,
        "presets": kept_presets,
        "running_responses": {},
        "session_value": session_value,
        "error_page": corral.frontend.error_page if has_ui else None,
        "presets_page": corral.frontend.presets_page if has_ui else None,
    }
    app = Litestar(
        route_handlers=[
            Router(
                "/v1",
                route_handlers=[
                    *openai.handlers,
                    *control.handlers,
                    *embeddings.handlers,
                    *responses.handlers,
                ],
            ),
            Router(
                "/",
                route_handlers=[
                    *openai.handlers_without_prefix,
                    *control.handlers,
                    *responses.handlers,
                ],
                include_in_schema=False,
            ),
            Router("/v1", route_handlers=anthropic.handlers),
            Router(
                "/",
                route_handlers=[
                    *native.handlers,
                    *embeddings.native_handlers,
                    *memory.handlers,
                    *presets.handlers,
                    *ops.handlers,
                ],
            ),
            *pages,
        ],
        state=State(state),
        exception_handlers=exception_handlers,
        before_send=[name_request, name_ignored, count],
        lifespan=[corral.frontend.lifespan] if has_ui else [],
        on_startup=[kept.open, kept_presets.open, service.start],
        on_shutdown=[service.close, kept_presets.close, kept.close],
        request_max_body_size=settings.max_body_mb * 2**20,
        openapi_config=None,  # ours is at /schema, see api.openapi
        logging_config=None,
    )
    # Middleware of the framework only sees requests whose route exists.
    app.asgi_handler = Gate(
        app.asgi_handler,
        keys=settings.keys,
        hosts=settings.hosts,
        has_login=has_ui or bool(frontend_handlers),
    )
    app.asgi_handler = Patience(app.asgi_handler, settings.timeout_s)
    if settings.api_prefix:
        app.asgi_handler = Prefix(app.asgi_handler, settings.api_prefix)
    return app
