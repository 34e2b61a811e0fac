"""All branches of a conversation, as a list that is indented where they part."""

from collections.abc import Sequence

from litestar import Response, get
from litestar.params import FromPath
from msgspec import Struct

from corral.backend.store import Message
from corral.frontend.tools.frame import tool_page
from corral.frontend.wire import AnyRequest, site_of
from corral.frontend.words import _

EXCERPT_CHARS = 160
#: Lines are not indented further than this.
MAX_DEPTH = 8


class Node(Struct, frozen=True, kw_only=True):
    """A message in the list. ``depth`` counts where branches part above it; ``place`` among its
    alternatives: ``2/3``."""

    id: int
    depth: int
    who: str
    excerpt: str
    place: str
    is_shown: bool


class Tree(Struct, frozen=True, kw_only=True):
    """The page: of which conversation, and its messages."""

    id: str
    nodes: tuple[Node, ...]


@get("/c/{conversation_id:str}/tree")
async def tree(request: AnyRequest, conversation_id: FromPath[str]) -> Response[str]:
    """The page. Raises Refused not_found."""
    store = site_of(request).store
    conversation, shown = await store.get(conversation_id)
    found = nodes(await store.tree(conversation_id), {m.id for m in shown})
    view = Tree(id=conversation.id, nodes=found)
    return await tool_page(
        request, "tree", _("Branches of {title}").format(title=conversation.title), view
    )


def nodes(messages: Sequence[Message], shown: set[int]) -> tuple[Node, ...]:
    """The list of messages, each after the one it answers. Pure."""
    depths: dict[int | None, int] = {None: 0}
    found = []
    for m in messages:
        parts = len(m.siblings) > 1
        depths[m.id] = depth = depths[m.parent_id] + parts
        found.append(
            Node(
                id=m.id,
                depth=min(depth, MAX_DEPTH),
                who=_("You") if m.role == "user" else _("Assistant"),
                excerpt=_excerpt(m),
                place=f"{m.siblings.index(m.id) + 1}/{len(m.siblings)}" if parts else "",
                is_shown=m.id in shown,
            )
        )
    return tuple(found)


def _excerpt(message: Message) -> str:
    words = " ".join(message.content[: EXCERPT_CHARS * 4].split())
    if not words:
        return ", ".join(p.name for p in message.pictures) or message.outcome.error or _("(empty)")
    return words if len(words) <= EXCERPT_CHARS else f"{words[:EXCERPT_CHARS]}…"
