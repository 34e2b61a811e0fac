"""What a dialect is, and the ids of calls."""

import json
import secrets
import string
from collections.abc import Callable
from typing import ClassVar, Final, Protocol

from msgspec import Struct

from corral.backend.chat.dialects.lark import Lark, Wish
from corral.backend.chat.parser import Machine, Parser, Setup
from corral.backend.chat.types import Tool
from corral.backend.engine.messages import Constraint

_ALPHANUMERIC: Final = string.ascii_letters + string.digits
_ABOUT: Final = """You can call functions. Their signatures, as JSON Schema:
<tools>
{signatures}
</tools>"""


class Dialect(Protocol):
    """How one family of models writes calls and reasoning. ``marks``: all tags it may ask the
    engine to report. ``think``: the tags around reasoning; ``then``: what always stands between
    that and the answer."""

    @property
    def name(self) -> str:
        """For logs and ``/props``."""
        ...

    @property
    def marks(self) -> tuple[str, ...]:
        """See the class."""
        ...

    @property
    def think(self) -> tuple[str, str] | None:
        """See the class."""
        ...

    @property
    def then(self) -> str:
        """See the class."""
        ...

    def fits(self, template: str, controls: frozenset[str]) -> bool:
        """Whether a model with this chat template and these special tokens speaks it."""
        ...

    def parser(self, wish: Wish, controls: frozenset[str]) -> Parser:
        """Reads one answer."""
        ...

    def grammar(self, wish: Wish, controls: frozenset[str]) -> Constraint | None:
        """What one answer must match; None: nothing in particular."""
        ...

    def preamble(self, tools: tuple[Tool, ...]) -> str:
        """What the system message says of the tools where the template does not."""
        ...


def random_id(index: int, name: str) -> str:
    """An id as OpenAI's look: ``call_`` and 24 random letters and digits."""
    return "call_" + random_letters(24)


def random_letters(n: int) -> str:
    """Letters and digits that nobody can guess."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(n))


class Family(Struct, frozen=True, kw_only=True):
    """A dialect, but for what is particular to it. ``triggers``: the tags that begin calls;
    ``tags``: the other ones in them. ``wrappers``: pairs of tags around content, which are dropped.
    ``then``: see ``Dialect``. ``new_id`` makes ids of calls, see ``Setup``. ``is_parallel``: an
    answer may hold several.

    A dialect is a subclass that gives those, ``machine`` (how its calls are read), ``fits`` and
    ``write`` (its grammar), and stands in the list in ``dialects``. ``hermes`` is the example.
    """

    machine: ClassVar[type[Machine]]

    name: str
    triggers: tuple[str, ...]
    tags: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()
    think: tuple[str, str] | None = None
    then: str = ""
    new_id: Callable[[int, str], str] = random_id
    is_parallel: bool = True

    @property
    def marks(self) -> tuple[str, ...]:
        """All tags it may ask the engine to report."""
        return (*self.triggers, *self.tags, *self.wrappers, *(self.think or ()))

    def fits(self, template: str, controls: frozenset[str]) -> bool:
        """See ``Dialect``."""
        raise NotImplementedError

    def write(self, lark: Lark) -> Constraint:
        """The grammar of an answer in which there may be calls, as ``lark.wish`` wishes."""
        raise NotImplementedError

    def parser(self, wish: Wish, controls: frozenset[str]) -> Parser:
        """See ``Dialect``. Without tools, calls are text."""
        return self.machine(self.setup(wish, controls))

    def setup(self, wish: Wish, controls: frozenset[str]) -> Setup:
        """What a machine is told."""
        return Setup(
            triggers=self.triggers if wish.calls else (),
            tags=self.tags,
            wrappers=self.wrappers,
            think=self.think,
            thinks=wish.thinks,
            controls=controls,
            names=frozenset(tool.name for tool in wish.tools) if wish.calls else frozenset(),
            tools=wish.tools if wish.calls else (),
            new_id=self.new_id,
        )

    def grammar(self, wish: Wish, controls: frozenset[str]) -> Constraint | None:
        """See ``Dialect``."""
        return self.write(Lark(wish, self.think)) if wish.calls else None

    def preamble(self, tools: tuple[Tool, ...]) -> str:
        """See ``Dialect``. How to call them is what the model was trained on."""
        return _ABOUT.format(signatures=signatures(tools))


def signatures(tools: tuple[Tool, ...]) -> str:
    """Tools as JSON, one a line."""
    return "\n".join(json.dumps(tool.source, ensure_ascii=False) for tool in tools)
