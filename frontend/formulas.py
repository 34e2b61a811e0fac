"""Formulas in Markdown: ``$…$``, ``$$…$$``, ``\\(…\\)`` and ``\\[…\\]``. Pure.

``\\(`` and ``\\[`` are taken at their word. A dollar is more often money than mathematics, so what
is between two of them must look like a formula.
"""

import re
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from corral.frontend.tex import MAX_CHARS, mathml
from corral.frontend.words import _

CLOSERS = {"$$": "$$", r"\[": r"\]", r"\(": r"\)"}
# Of 320 px, the narrowest phone, this much fits without scrolling.
_NARROW_CHARS = 24

# As Pandoc: no space inside, no digit after; a word after only where it ends an ordinal or plural.
_DOLLARS = re.compile(
    r"\$(?![\s$])((?:\\.|[^\\$`])+)(?<!\s)\$(?![\d${]|(?!(?:th|st|nd|rd|s)\b)[A-Za-z])", re.DOTALL
)
_IN_BRACES = re.compile(r"\\[A-Za-z]+|\{[^{}]*\}")
_PROSE = re.compile(r"(?<![A-Za-z])[A-Za-z]{2,}[,;:]?\s+[A-Za-z]{2,}(?![A-Za-z])")
_AMOUNT_OF = re.compile(r"[\d.,]+(?:[kKmMbB]|bn)?\b[^=^_\\]*[\s/(][A-Za-z]{2,}")
# What "\[" and "\]" are put around when they are brackets that somebody has escaped.
_BRACKETED = re.compile(r"\s*(?:[\d\s,-]*|[xX]|[A-Za-z][A-Za-z' .,-]{2,})\s*")
# What may follow a formula in its line without making it a part of a sentence.
_END_OF_LINE = re.compile(r"[ \t]*[.,;:]?[ \t]*")


class Formula(NamedTuple):
    """A formula in a text. ``end``: behind its closing mark."""

    tex: str
    end: int
    is_display: bool


def find(text: str, begin: int, end: int) -> Formula | None:
    """The formula that begins at ``begin`` and ends by ``end``, if one does."""
    mark, before = text[begin : begin + 2], text[max(begin - 1, 0) : begin]
    if mark in CLOSERS:
        return None if mark[0] == before == "$" else _marked(text, begin, end, mark)
    if mark[:1] != "$" or before == "$" or (before.isascii() and before.isalnum()):
        return None
    found = _DOLLARS.match(text, begin, min(end, begin + MAX_CHARS))
    if found is None or _is_money(found[1]):
        return None
    return Formula(found[1], found.end(), is_display=False)


def _marked(text: str, begin: int, end: int, mark: str) -> Formula | None:
    if text.startswith("$$$", begin):
        return None
    close = closer(text, begin + 2, end, CLOSERS[mark])
    if close < 0 or not _is_formula(text, begin, close, mark):
        return None
    return Formula(text[begin + 2 : close].strip(), close + 2, is_display=mark != r"\(")


def _is_formula(text: str, begin: int, close: int, mark: str) -> bool:
    inside = text[begin + 2 : close]
    if mark != r"\[":
        return bool(inside.strip())
    # "\[1\]", "\[words\]" and "\[…\](address)" are Markdown that somebody has escaped.
    return not _BRACKETED.fullmatch(inside) and not text.startswith("(", close + 2)


def closer(text: str, begin: int, end: int, mark: str) -> int:
    """Where the closing ``mark`` is, -1 when there is none."""
    end = min(end, begin + MAX_CHARS)
    at = text.find(mark, begin, end)
    while at >= 0:
        # "\\]" is a new line and a bracket.
        n_slashes = len(text[begin:at]) - len(text[begin:at].rstrip("\\"))
        if n_slashes % 2 == 0:
            return at
        at = text.find(mark, at + 1, end)
    return -1


def _is_money(tex: str) -> bool:
    """Whether what is between two dollars is a sentence about prices."""
    words = _IN_BRACES.sub(" ", tex)
    return _PROSE.search(words) is not None or _AMOUNT_OF.match(tex) is not None


def _inline(state: StateInline, silent: bool) -> bool:
    if state.src[state.pos] not in "$\\":
        return False
    formula = find(state.src, state.pos, state.posMax)
    if formula is None:
        return False
    if not silent:
        token = state.push("formula", "math", 0)
        token.content = formula.tex
        token.markup = state.src[state.pos : formula.end]
        token.meta = {"is_display": formula.is_display}
    state.pos = formula.end
    return True


def _block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    r"""A formula in lines of its own: from a line that begins with ``$$`` or ``\[`` to the one
    that ends it. Its first line alone decides that it is one, so that reading on never changes
    what was before; without an end it is a paragraph up to the next empty line."""
    mark = _opens(state, start)
    if not mark:
        return False
    if silent:
        return not (mark == "$$" and _is_inside(state, start))
    begin = state.bMarks[start] + state.tShift[start] + 2
    line, close = start, -1
    while line < end and close < 0:
        if line > start and (state.isEmpty(line) or state.sCount[line] < state.blkIndent):
            break
        at = begin if line == start else state.bMarks[line] + state.tShift[line]
        close = closer(state.src, at, state.eMarks[line], CLOSERS[mark])
        line += 1
    is_whole = close >= 0 and _END_OF_LINE.fullmatch(state.src, close + 2, state.eMarks[line - 1])
    if not is_whole:
        _paragraph(state, start, _paragraph_end(state, line, end) if close >= 0 else line)
        return True
    text = state.getLines(start, line, state.blkIndent, False).strip()
    inside, _closer, rest = text[2:].rpartition(CLOSERS[mark])
    state.line = line
    token = state.push("formula_block", "math", 0)
    token.block = True
    token.content = inside.strip()
    token.info = rest.strip()
    token.markup = text
    token.map = [start, line]
    return True


def _opens(state: StateBlock, line: int) -> str:
    """The mark that begins a block in this line, if one does."""
    if state.is_code_block(line):
        return ""
    begin, end = state.bMarks[line] + state.tShift[line], state.eMarks[line]
    mark = state.src[begin : begin + 2]
    if mark not in ("$$", r"\[") or state.src.startswith("$$$", begin):
        return ""
    close = closer(state.src, begin + 2, end, CLOSERS[mark])
    if close >= 0 and not _is_formula(state.src, begin, close, mark):
        return ""
    return mark if close < 0 or _END_OF_LINE.fullmatch(state.src, close + 2, end) else ""


def _is_inside(state: StateBlock, line: int) -> bool:
    """Whether a ``$$`` that ends a line of a paragraph is still open above this one."""
    n_marks = 0
    # ``state.line`` is where the block begins that asks whether it ends here.
    for above in range(line - 1, max(line - 40, state.line - 1), -1):
        if state.isEmpty(above):
            break
        n_marks += state.src.count("$$", state.bMarks[above], state.eMarks[above])
    return n_marks % 2 == 1


def _paragraph_end(state: StateBlock, line: int, end: int) -> int:
    """The line before which a paragraph that has come to ``line`` ends."""
    rules = state.md.block.ruler.getRules("paragraph")
    parent, state.parentType = state.parentType, "paragraph"
    while line < end and not state.isEmpty(line) and state.sCount[line] >= state.blkIndent:
        if state.sCount[line] - state.blkIndent <= 3 and any(
            rule(state, line, end, True) for rule in rules
        ):
            break
        line += 1
    state.parentType = parent
    return line


def _paragraph(state: StateBlock, start: int, line: int) -> None:
    text = state.getLines(start, line, state.blkIndent, False).strip()
    state.line = line
    token = state.push("paragraph_open", "p", 1)
    token.map = [start, line]
    token = state.push("inline", "", 0)
    token.content, token.map, token.children = text, [start, line], []
    state.push("paragraph_close", "p", -1)


def inline_html(token: Token) -> str:
    """A formula in a text; empty when it cannot be shown."""
    is_display = bool(token.meta["is_display"])
    math = mathml(token.content, display=is_display)
    if math is None or not (is_display or len(token.content) > _NARROW_CHARS):
        return math or ""
    name = "formula" if is_display else "term"
    return f'<span class="{name}"{_scrolls(token.content)}>{math}</span>'


def block_html(token: Token) -> str:
    """A formula in lines of its own; empty when it cannot be shown."""
    math = mathml(token.content, display=True)
    if math is None:
        return ""
    # A full stop belongs to the formula's line.
    stop = f"<mtext>{token.info}</mtext></math>" if token.info else "</math>"
    math = math.removesuffix("</math>") + stop
    return f'<div class="formula"{_scrolls(token.content)}>{math}</div>\n'


def _scrolls(tex: str) -> str:
    """Attributes of what may be wider than the page, so that keys can scroll it."""
    label = _("Formula")
    return f' tabindex="0" role="group" aria-label="{label}"' if len(tex) > _NARROW_CHARS else ""


def add_rules(md: MarkdownIt) -> None:
    """Teaches a parser formulas: tokens ``formula`` and ``formula_block``, source in ``markup``."""
    md.inline.ruler.before("escape", "formula", _inline)
    stops = ["paragraph", "reference", "blockquote", "list"]
    md.block.ruler.before("fence", "formula", _block, {"alt": stops})
