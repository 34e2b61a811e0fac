"""TeX formulas as MathML, which browsers set themselves. Pure.

The converter's output is read as a tree and written anew: it leaves text unescaped, takes commands
that it does not know for names, and builds pieces that browsers do not show. What cannot be shown
right is refused, so that the reader gets the source instead.
"""

import functools
import html
import re
import unicodedata
from xml.etree.ElementTree import Element

from latex2mathml.converter import Converter
from markdown_it.common.utils import escapeHtml

#: Longer formulas are shown as code: converting must not depend on who wrote the reply.
MAX_CHARS = 5_000
_MAX_DEPTH = 80

#: The MathML that may stand in a page: no links, no colours (they do not know the page's), no
#: styles. A formula's source is in ``data-tex``.
ATTRIBUTES = {
    "math": {"display", "data-tex"},
    "menclose": {"notation"},
    "mfrac": {"linethickness"},
    "mi": {"mathvariant"},
    "mn": {"mathvariant"},
    "mo": {"stretchy", "fence", "form", "lspace", "rspace", "minsize", "maxsize", "accent"},
    "mover": {"accent"},
    "mpadded": {"width", "height", "depth", "lspace", "voffset"},
    "mspace": {"width", "height", "depth"},
    "mstyle": {"displaystyle", "scriptlevel"},
    "mtable": {"displaystyle"},
    "mtd": {"columnalign"},
    "mtext": {"mathvariant"},
}
_LENGTHS = {"width", "height", "depth", "lspace", "rspace", "voffset", "minsize", "maxsize"}
_LENGTH = re.compile(r"[+-]?(?:\d{1,2}|\d{0,2}\.\d{1,4})(?:em|ex|pt|px)?")
#: Elements with a fixed number of children; browsers show others as an error.
_N_CHILDREN = {
    **dict.fromkeys(("mfrac", "mroot", "msub", "msup", "munder", "mover"), 2),
    **dict.fromkeys(("msubsup", "munderover"), 3),
}
TAGS = {
    *ATTRIBUTES,
    *_N_CHILDREN,
    *("mphantom", "mrow", "msqrt", "mtr"),
}

# Macros could grow without bounds, and would be forgotten at the end of the formula anyway.
_REFUSED = re.compile(r"\\(?:(?:re|provide)?newcommand|[egx]?def|let|newenvironment|Declare)|[\0`]")
_LIKE_ALIGN = r"(?:align(?:ed|at|edat)?|eqnarray|split|flalign)\*?"
_LIKE_GATHER = r"(?:gather(?:ed)?|multline)\*?"
_SPELLINGS = [
    (re.compile(r"\\(?:label\{[^{}]*\}|nonumber\b|notag\b|displaystyle\s*$)"), ""),
    (re.compile(r"\\tag\*?\{([^{}]*)\}"), r"\\qquad\\text{(\1)}"),
    (re.compile(rf"\\begin\{{{_LIKE_ALIGN}\}}(?:\{{\d+\}})?"), r"{\\begin{align*}"),
    (re.compile(rf"\\end\{{{_LIKE_ALIGN}\}}"), r"\\end{align*}}"),
    (re.compile(rf"\\begin\{{{_LIKE_GATHER}\}}"), r"{\\begin{array}{c}"),
    (re.compile(rf"\\end\{{{_LIKE_GATHER}\}}"), r"\\end{array}}"),
    (re.compile(r"\\(begin|end)\{[dr]cases\}"), r"\\\1{cases}"),
    # Without braces a power would be that of the closing bracket's matrix.
    (re.compile(r"\\begin\{([pbBvV]matrix\*?)\}"), r"{\\begin{\1}"),
    (re.compile(r"\\end\{([pbBvV]matrix\*?)\}"), r"\\end{\1}}"),
]
_NAMED = re.compile(r"\\(?:operatorname\*?|mathop)\{((?:[A-Za-z ]|\\[,;: ])+)\}")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)


class _Unshowable(Exception):
    """The formula, or the converter's reading of it, is not one that browsers show right."""


@functools.lru_cache(maxsize=2048)
def mathml(tex: str, *, display: bool) -> str | None:
    """A formula as a ``<math>`` element, None when it cannot be shown right."""
    if len(tex) > MAX_CHARS or _REFUSED.search(tex) or not _is_balanced(tex):
        return None
    try:
        root = _tree(_spelled(tex), display=display)
        if root.find(".//mspace[@linebreak]") is not None:
            # Browsers do not break lines in formulas: a table of lines does.
            root = _tree(rf"\begin{{array}}{{l}}{_spelled(tex)}\end{{array}}", display=display)
        inner = "".join(_written(child, 0) for child in root)
    except Exception:  # noqa: BLE001 # the converter raises whatever its parts happen to
        return None
    shape = ' display="block"' if display else ""
    return f'<math{shape} data-tex="{escapeHtml(tex)}">{inner}</math>'


def _is_balanced(tex: str) -> bool:
    depth = 0
    for found in _BRACES.finditer(tex):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if not 0 <= depth <= _MAX_DEPTH:
            return False
    return depth == 0


def _spelled(tex: str) -> str:
    """The formula in the spellings that the converter knows."""
    for pattern, instead in _SPELLINGS:
        tex = pattern.sub(instead, tex)
    return _NAMED.sub(
        lambda found: rf"\operatorname{{{re.sub(r'[^A-Za-z]+', ' ', found[1])}}}", tex
    )


def _tree(tex: str, *, display: bool) -> Element:
    return Converter(display="block" if display else "inline").convert_to_element(tex)


def _written(element: Element, depth: int) -> str:
    tag, children = element.tag, list(element)
    if tag not in TAGS or depth > _MAX_DEPTH:
        raise _Unshowable
    if len(children) != _N_CHILDREN.get(tag, len(children)):
        raise _Unshowable
    text = html.unescape(element.text or "")
    if tag in ("mi", "mn", "mo"):
        if children:
            raise _Unshowable
        text = _symbol(text)
        if tag == "mi" and element.text != text and text.isascii() and text.isalpha():
            # The converter writes the number of a letter where TeX asked for an upright one.
            element.set("mathvariant", "normal")
        if tag == "mi" and _is_operator(text):
            tag = "mo"
            if unicodedata.category(text) in ("Ps", "Pe"):
                element = Element("mo", {"stretchy": "false"})
        if len(text) > 1 and text.isalpha() and text.isascii():
            # "sin x" has a space, "sin" is no name like "s".
            tag, element = "mo", Element("mo", {"lspace": "0.167em", "rspace": "0.1em"})
    inner = "".join(_written(child, depth + 1) for child in children)
    return f"<{tag}{_attributes(tag, element)}>{escapeHtml(text)}{inner}</{tag}>"


def _symbol(text: str) -> str:
    if text in (r"\{", r"\}", r"\|"):
        return "‖" if text == r"\|" else text[1]
    # A command that the converter does not know, or a "&" outside of a table.
    if text.startswith("\\") or text == "&":
        raise _Unshowable
    return text


def _is_operator(text: str) -> bool:
    """Whether a sign that is said to be a name wants the space of an operator."""
    if len(text) != 1:
        return False
    is_arrow = "\u2190" <= text <= "\u21ff" or "\u27f0" <= text <= "\u27ff"
    return is_arrow or (unicodedata.category(text) in ("Sm", "Ps", "Pe") and text not in "∞∂∇∀∃∅")


def _attributes(tag: str, element: Element) -> str:
    kept = ATTRIBUTES.get(tag, set())
    return "".join(
        f' {name}="{escapeHtml(value)}"'
        for name, value in element.attrib.items()
        if name in kept and (name not in _LENGTHS or _LENGTH.fullmatch(value))
    )
