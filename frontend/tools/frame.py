"""What is around every tool's page: the list at the left and the header's instruments."""

from litestar import Response
from msgspec import Struct

from corral.frontend import views
from corral.frontend.instruments import Strip
from corral.frontend.pages import strip_of
from corral.frontend.rail import Rail
from corral.frontend.wire import AnyRequest, page, site_of


class Frame(Struct, frozen=True, kw_only=True):
    """Around a tool's page. ``tool``: which one this is, for the list."""

    tool: str
    model: str
    rows: Rail
    strip: Strip


async def tool_page(
    request: AnyRequest, tool: str, title: str, view: Struct, *, status: int = 200
) -> Response[str]:
    """The page of a tool, ``templates/tools/{tool}.html``, which sees ``view`` and the frame."""
    site = site_of(request)
    frame = Frame(
        tool=tool,
        model=site.service.model_name,
        rows=views.rows(await site.store.list(), None),
        strip=strip_of(site),
    )
    return page(request, f"tools/{tool}.html", status=status, frame=frame, title=title, view=view)
