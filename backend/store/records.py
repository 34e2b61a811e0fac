"""What the store keeps, as its callers see it."""

from typing import Literal, TypeAlias

from msgspec import Struct

Role: TypeAlias = Literal["user", "assistant"]
Status: TypeAlias = Literal["generating", "done", "stopped", "error"]


class Conversation(Struct, frozen=True, kw_only=True):
    """A conversation. ``leaf_id``: last message of the branch shown. Times are Unix seconds.

    ``version`` grows with every change of the title; ``deleted_s`` when it was deleted,
    from when on it can be brought back for a while. ``columns_id``: the message whose replies are
    shown side by side until one is kept.
    """

    id: str
    title: str
    leaf_id: int | None
    created_s: float
    updated_s: float
    version: int = 1
    is_pinned: int = 0
    deleted_s: float | None = None
    columns_id: int | None = None


class Picture(Struct, frozen=True, kw_only=True):
    """A picture of a message: ``key`` is the SHA-256 of its file in hex, ``name`` what the file was
    called. ``width`` and ``height`` in pixels, as the model gets it."""

    key: str
    name: str
    media_type: str
    n_bytes: int
    width: int
    height: int


class Upload(Struct, frozen=True, kw_only=True):
    """A picture to keep: ``data`` is its file as it came, ``small`` a WebP for lists."""

    picture: Picture
    data: bytes
    small: bytes


class Call(Struct, frozen=True, kw_only=True):
    """A tool call in a reply. ``arguments`` as the model wrote them: JSON if it wrote JSON."""

    name: str
    arguments: str = ""


class Figures(Struct, frozen=True, kw_only=True):
    """Counts and times of a reply. ``n_prompt`` includes the ``n_cached`` tokens not computed;
    ``first_ms`` is the time from sending to the first text, ``thought_ms`` that of reasoning."""

    n_prompt: int = 0
    n_cached: int = 0
    n_generated: int = 0
    prompt_ms: float = 0.0
    predicted_ms: float = 0.0
    first_ms: float = 0.0
    thought_ms: float = 0.0


class Outcome(Struct, frozen=True, kw_only=True):
    """How a reply stands. ``error`` is the sentence shown when ``status`` is ``error``; ``is_cut``
    when a limit ended it, ``is_full`` when that limit was the context."""

    status: Status = "generating"
    error: str = ""
    is_cut: bool = False
    is_full: bool = False


class Message(Struct, frozen=True, kw_only=True):
    """One turn. ``parent_id`` makes a conversation a tree: replies to the same message are
    alternatives. ``pictures`` are those of what the user said; ``reasoning``, ``calls``, ``model``,
    ``outcome`` and ``figures`` only mean something for replies. ``version`` counts edits.
    ``siblings``: ids of the alternatives, its own among them, when it was read with its
    conversation. ``label``: what it was asked for with, where several were compared;
    ``settings`` is the same as JSON."""

    id: int
    conversation_id: str
    parent_id: int | None
    role: Role
    content: str
    pictures: tuple[Picture, ...] = ()
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    model: str = ""
    outcome: Outcome = Outcome(status="done")
    figures: Figures = Figures()
    created_s: float = 0.0
    version: int = 1
    siblings: tuple[int, ...] = ()
    label: str = ""
    settings: bytes = b""
