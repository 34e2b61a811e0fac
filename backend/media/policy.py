"""What may be loaded from where. Pure."""

from msgspec import Struct

from corral.backend.media.hosts import Allowed


class MediaPolicy(Struct, frozen=True, kw_only=True):
    """Where pictures and sounds may come from; only ``data:`` URLs unless more is said.

    ``allow``: where ``http:`` and ``https:`` URLs may lead; ``private``: also to names in private
    networks and on this machine. ``path``: the folder of ``file:`` URLs, empty: none are read.
    ``max_bytes`` of one picture or sound, as it is stored. ``connect_s``: seconds for a connection
    to one address; ``total_s``: for a whole fetch with its redirects, ``max_redirects`` at most.
    """

    allow: tuple[Allowed, ...] = ()
    private: bool = False
    path: str = ""
    max_bytes: int = 20 * 2**20
    connect_s: float = 5.0
    total_s: float = 20.0
    max_redirects: int = 3
