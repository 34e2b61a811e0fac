"""Everything the pages share, made when the application starts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import jinja2
from litestar import Litestar

from corral.backend.service import Service
from corral.backend.settings import Settings, default_data_dir
from corral.backend.store import Presets, Store
from corral.frontend import words
from corral.frontend.assets import Assets
from corral.frontend.live import Live
from corral.frontend.tools.batch_run import Batching
from corral.frontend.tools.history import History
from corral.frontend.tools.runs import Runs

_PACKAGE = Path(__file__).resolve().parent.parent


class Site:
    """The parts of the web UI: store, presets, running replies, speeds of late, templates,
    files."""

    def __init__(
        self, settings: Settings, service: Service, assets: Assets, presets: Presets
    ) -> None:
        self.service = service
        self.presets = presets
        self.assets = assets
        self.store = Store(settings.data_dir or default_data_dir())
        self.live = Live(service, self.store)
        self.history = History()
        self.runs = Runs(service)
        self.batching = Batching(service, self.store)
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_PACKAGE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.i18n"],
        )
        self._templates.globals |= {"_": words._, "gettext": words._, "ngettext": words.ngettext}
        self._templates.globals["language"] = words.language
        self._templates.globals["number"] = words.number
        self._templates.globals["running_in"] = self.live.running_in
        self._templates.globals["root"] = settings.api_prefix
        self._templates.globals["static"] = settings.api_prefix + assets.base

    def html(self, template: str, **view: object) -> str:
        """A template with what it sees."""
        return self._templates.get_template(template).render(view)


@asynccontextmanager
async def lifespan(app: Litestar) -> AsyncIterator[None]:
    """Opens the site with the application, as ``app.state.site``, and closes it before the
    service. Raises Broken when conversations cannot be kept."""
    state = app.state
    site = Site(state.settings, state.service, Assets(_PACKAGE / "static"), state.presets)
    await site.store.open()
    app.state.site = site
    watching = asyncio.create_task(site.history.watch(lambda: site.service.snapshot))
    try:
        yield
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await site.batching.close()
        await site.runs.close()
        await site.live.close()
        await site.store.close()
