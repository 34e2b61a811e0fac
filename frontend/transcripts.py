"""What files of conversations say, in the shapes that others write and read.

Lines of ours and of llama.cpp's web UI, its older JSON, and OpenAI's messages. Members that are not
named here are read over.
"""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from corral.backend.errors import Refused
from corral.frontend.misfits import in_words, misfit
from corral.frontend.words import _

T = TypeVar("T")

#: Milliseconds and seconds until the year 9000.
Ms = Annotated[float, Meta(ge=0, le=2.2e14)]
Seconds = Annotated[float, Meta(ge=0, le=2.2e11)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Duration = Annotated[float, Meta(ge=0, le=1e15)]
Id = str | int


class Function(Struct):
    """What is called, with arguments as the model wrote them; some write the JSON itself."""

    name: str
    arguments: str | dict[str, Any] = ""


class Called(Struct):
    """A tool call."""

    function: Function


class Extra(Struct, rename="camel"):
    """Something attached to a message of llama.cpp's web UI."""

    type: str
    name: str = ""
    content: str = ""
    base64_url: str = ""
    images: list[str] = []
    processed_as_images: bool = False


class Timings(Struct):
    """llama-server's figures of a reply."""

    cache_n: Count | None = None
    prompt_n: Count | None = None
    prompt_ms: Duration | None = None
    predicted_n: Count | None = None
    predicted_ms: Duration | None = None


class Ended(Struct):
    """How a reply of ours ended."""

    status: Literal["done", "stopped", "error"] = "done"
    error: str = ""
    is_cut: bool = False
    is_full: bool = False


class OwnFigures(Struct):
    """Counts and times of a reply of ours."""

    n_prompt: Count = 0
    n_cached: Count = 0
    n_generated: Count = 0
    prompt_ms: Duration = 0.0
    predicted_ms: Duration = 0.0
    first_ms: Duration = 0.0
    thought_ms: Duration = 0.0


class OwnMessage(Struct):
    """What only ours say of a message."""

    created_s: Seconds
    outcome: Ended
    figures: OwnFigures
    label: str = ""


class OwnSession(Struct):
    """What only ours say of a conversation."""

    format: int
    created_s: Seconds
    updated_s: Seconds
    settings: dict[str, Any] = {}


class Node(Struct, rename="camel"):
    """A message of the tree of a conversation."""

    id: Id
    role: Literal["system", "user", "assistant", "tool"]
    parent: Id | None = None
    content: str | None = None
    type: str = "text"
    timestamp: Ms = 0.0
    reasoning_content: str | None = None
    thinking: str | None = None
    tool_calls: list[Called] | str | None = None
    extra: list[Extra] | None = None
    model: str | None = None
    timings: Timings | None = None
    corral: OwnMessage | None = None


class Session(Struct, rename="camel"):
    """A conversation without its messages."""

    id: Id = ""
    name: str = ""
    last_modified: Ms = 0.0
    curr_node: Id | None = None
    pinned: bool | None = None
    corral: OwnSession | None = None


class Tree(Struct):
    """A conversation with its messages, as older versions of llama.cpp's web UI wrote it."""

    conv: Session
    messages: list[Node]


class Link(Struct):
    """Where a picture is."""

    url: str


class Piece(Struct):
    """A part of a message's content."""

    type: str
    text: str = ""
    image_url: Link | str = ""


class Said(Struct):
    """One of OpenAI's messages."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Piece] | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[Called] | None = None


class Chat(Struct):
    """OpenAI's messages, with what else may be there."""

    messages: list[Said]
    title: str = ""
    model: str = ""


class Spot(Struct, frozen=True):
    """A place in a file: ``at`` says which file and line, ``path`` which member."""

    at: str
    path: str = ""

    def of(self, member: str) -> "Spot":
        """A member of what is here: ``name`` or ``[3]``."""
        dot = "." if self.path and not member.startswith("[") else ""
        return Spot(self.at, f"{self.path}{dot}{member}")

    def refused(self, what: str) -> Refused:
        """An error that says where it is."""
        at = f"{self.at}, {self.path}" if self.path else self.at
        return Refused(f"{at}: {what}", param=self.path or None)

    def decoded(self, text: str) -> Any:
        """JSON. Raises Refused."""
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise self.refused(in_words(str(error))) from None
        except RecursionError:
            raise self.refused(_("this is nested too deeply")) from None

    def made(self, found: Any, kind: type[T]) -> T:
        """Something decoded as what it should be. Raises Refused naming the member."""
        try:
            return msgspec.convert(found, kind)
        except msgspec.ValidationError as error:
            what, member = misfit(error)
            raise (self.of(member) if member else self).refused(what) from None
