"""Where chat templates run: Jinja's immutable sandbox with Hugging Face's additions, in which text
of the client stays marked (see ``marked``).

Templates come from strangers, so the usual runaways are bounded: output, ranges, repetition.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2 import TemplateError, Undefined, nodes
from jinja2.compiler import CodeGenerator, Frame, optimizeconst
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from markupsafe import Markup

from corral.backend.chat.filters import FILTERS
from corral.backend.chat.formatting import Formatter, percent
from corral.backend.chat.marked import Marked, coarse, foreign, joined, written

#: Longest prompt text a template may write, in characters: twice the largest body accepted.
MAX_CHARS: Final = 64 * 2**20
#: Most numbers all ``range()`` calls of one rendering may yield together.
MAX_RANGE: Final = 1_000_000

#: Methods of a text whose results hold their arguments: on a plain one they must see marks too.
_TAKES_TEXT: Final = frozenset(("join", "replace", "center", "ljust", "rjust", "translate"))


class _GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}`` marks training text; here it is only a scope."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it as an instance variable

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Code(CodeGenerator):
    """Compiles ``a ~ b`` so that marks are kept."""

    @optimizeconst
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super().visit_Concat(node, frame)
            return
        self.write("environment.together((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Undefined(Undefined):
    """Speaks of a marked text as of a str."""

    def __init__(self, hint: str | None = None, obj: Any = None, *args: Any, **more: Any) -> None:
        super().__init__(hint, str.__str__(obj) if type(obj) is Marked else obj, *args, **more)


class Sandbox(ImmutableSandboxedEnvironment):
    """See the module. ``may_queue``: a template may append to lists and pop from them, all of which
    are its own; some do, though Hugging Face's sandbox does not let them."""

    intercepted_binops = frozenset({"*", "**", "%"})
    code_generator_class = _Code
    concat = staticmethod(joined)

    def __init__(self, *, may_queue: bool = False) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, loopcontrols],
            undefined=_Undefined,
            finalize=written,
        )
        self.filters |= FILTERS
        self.globals |= GLOBALS
        self._may_queue = may_queue

    @staticmethod
    def together(values: Iterable[Any]) -> str:
        """``a ~ b ~ c``"""
        return joined(map(written, values))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators that are bounded, since one could take all memory, and ``%``."""
        if operator == "%" and isinstance(left, str) and not isinstance(left, Markup):
            return percent(left, right)
        if operator == "**" and (abs(left) > 2**32 or abs(right) > 64):
            raise SecurityError("power too large")
        for text, times in ((left, right), (right, left)):
            if operator == "*" and hasattr(text, "__len__") and len(text) * times > MAX_CHARS:
                raise SecurityError("repetition too long")
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """What a template may reach."""
        if self._may_queue and attr in ("append", "pop") and type(obj) is list:
            return True
        return super().is_safe_attribute(obj, attr, value)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """``obj.attribute``, and what methods give keeps its marks."""
        if type(obj) is str and attribute in _TAKES_TEXT:
            obj = Marked(obj, ())
        elif isinstance(obj, bytes) and attribute in ("decode", "hex"):
            return _foreign_result(getattr(obj, attribute))
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """``obj[argument]``, likewise."""
        if isinstance(obj, str | bytes) and isinstance(argument, str):
            return self.getattr(obj, argument)
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format`` and ``str.format_map``, in the sandbox and with marks."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None or isinstance(value.__self__, Markup):
            return wrapped
        form, formatter = value.__self__, Formatter(self)
        if value.__name__ == "format_map":
            return lambda mapping: formatter.vformat(form, (), mapping)
        return lambda *args, **kwargs: formatter.vformat(form, args, kwargs)


def _foreign_result(call: Callable[..., str]) -> Callable[..., str]:
    return lambda *args, **kwargs: foreign(call(*args, **kwargs))


# --- globals --------------------------------------------------------------------------------------


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return coarse(datetime.now().strftime(format), format)


class _Namespace(Namespace):
    """Jinja's, without names that begin with an underscore, as Hugging Face has it."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        for name in dict(*args[1:], **kwargs):
            _check_name(name)
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold the name {name!r}")


GLOBALS: Final[Mapping[str, Any]] = {
    "namespace": _Namespace,
    "raise_exception": _raise_exception,
    "strftime_now": _strftime_now,
}


def bounded_range() -> Callable[..., range]:
    """A ``range`` for one rendering, with a budget for all its calls together."""
    left = MAX_RANGE

    def bounded(*args: int) -> range:
        nonlocal left
        numbers = range(*args)
        left -= len(numbers)
        if left < 0:
            raise SecurityError(f"loops over more than {MAX_RANGE} numbers")
        return numbers

    return bounded
