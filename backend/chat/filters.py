"""Jinja's filters, for texts of which some characters are the client's; and Hugging Face's JSON."""

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from jinja2 import filters, pass_eval_context
from jinja2.nodes import EvalContext
from markupsafe import Markup

from corral.backend.chat.formatting import checked, percent
from corral.backend.chat.marked import Marked, Safe, coarse, is_foreign, spans_of, written


def _text(value: Any) -> str:
    return value if isinstance(value, str) else written(value)


def _on_text(apply: Callable[..., str]) -> Callable[..., str]:
    """A filter that is a method of texts, for values of any kind."""
    return functools.wraps(apply)(lambda value, *args, **more: apply(_text(value), *args, **more))


def _remade(apply: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that writes a new text, all of it the client's if anything it was made of is."""

    @functools.wraps(apply)
    def remake(*args: Any, **more: Any) -> Any:
        text = apply(*args, **more)
        if isinstance(text, Markup):
            mine = None if is_foreign(args) or is_foreign(more) else ()
            return Safe(text, spans=mine)
        return coarse(text, args, more)

    return remake


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, > and & for HTML, which would change the prompt.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _safe(value: Any) -> Markup:
    return value if isinstance(value, Markup) else Safe(value, spans=spans_of(written(value)))


def _title(value: Any) -> str:
    text, made = _text(value), filters.do_title(_text(value))
    return Marked(made, spans_of(text)) if len(made) == len(text) else coarse(made, text)


def _indent(s: str, width: Any = 4, first: bool = False, blank: bool = False) -> str:
    text = filters.do_indent(s, width, first, blank)
    if not isinstance(s, Marked):
        return coarse(text, s, width)
    space = width if isinstance(width, str) else " " * width
    head, *rest = (s + "\n").splitlines()
    lines = [space + line if line or blank else line for line in rest]
    return checked(text, [space if first else "", Marked("\n", ()).join([head, *lines])])


@pass_eval_context
def _join(context: EvalContext, value: Any, d: Any = "", attribute: Any = None) -> str:
    if context.autoescape:
        return str(filters.do_join(context, value, d, attribute))
    if attribute is not None:
        value = map(filters.make_attrgetter(context.environment, attribute), value)
    return Marked(written(d), spans_of(written(d))).join(map(written, value))


@pass_eval_context
def _replace(context: EvalContext, s: str, old: str, new: str, count: int | None = None) -> str:
    if context.autoescape:
        return filters.do_replace(context, s, old, new, count)
    text, most = written(s), -1 if count is None else count
    return Marked(text, spans_of(text)).replace(written(old), written(new), most)


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    if (args and kwargs) or isinstance(value, Markup):
        return filters.do_format(value, *args, **kwargs)
    return percent(_text(value), kwargs or args)


_REMADE: Final = (
    *("e", "escape", "forceescape", "pprint", "striptags", "urlencode", "urlize", "wordwrap"),
    "xmlattr",
)
FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    **{name: _remade(filters.FILTERS[name]) for name in _REMADE},
    **{
        name: _on_text(filters.FILTERS[name])
        for name in ("capitalize", "center", "lower", "string", "trim", "upper")
    },
    "format": _format,
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "safe": _safe,
    "title": _title,
    "tojson": _remade(_tojson),
}
