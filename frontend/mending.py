"""Half-typed Markdown, mended so that it can be shown without flicker. Pure.

A text that is still being written often ends inside something: ``**bol``, ``[words](https://e``, a
table without its second line. Shown as it is, it jumps when the rest comes. What is mended here is
shown only until then.
"""

import re

from corral.frontend.formulas import CLOSERS, find

# A last line of only these may become a marker of something; it is shown once that is decided.
_UNDECIDED = re.compile(
    r"[ \t>]*(?:(?:[-+*]|\d+[.)])[ \t]+[>]*)*"
    r"(?:[-=#|*`~+_:!$]+|[|][-:| \t]*|\d+[.)]?|\[[ xX]?\]?|(?:`{3,}|~{3,})[^`\n]*)?[ \t]*"
)
_HEAD_OF_TABLE = re.compile(r"[ \t>]*\|[^\n]*")
# What stands before the text of a paragraph, item, heading, quote or row.
_BEGINS = re.compile(r"(?:^|\n)[ \t>]*(?:\n[ \t>]*|(?=\|)|(?:(?:[-+*]|\d+[.)]|#{1,6})[ \t]+)+)")
_MARKS = re.compile(r"\\[()\[]|\\.|`+|\*+|_+|~~|!?\[|\${1,2}", re.DOTALL)
_HALF_LINK = re.compile(r"!?\[([^\[\]]*)(?:\]?|\]\([^()\s]*(?:[ \t][^()]*)?)", re.DOTALL)
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")


def mend(text: str) -> str:
    """``text``, which is not complete, with what is open at its end closed or left out."""
    text = _decided(text)
    begin = 0
    for found in _BEGINS.finditer(text):
        begin = found.end()
    return text[:begin] + _mended(text[begin:])


def _decided(text: str) -> str:
    """Without a last line that is not what it will be."""
    line = text.rfind("\n") + 1
    if _UNDECIDED.fullmatch(text, line):
        text = text[:line]
    line = text.rstrip("\n").rfind("\n") + 1
    above = text[:line].rstrip("\n").rpartition("\n")[2]
    if _HEAD_OF_TABLE.match(text, line) and not _HEAD_OF_TABLE.match(above):
        text = text[:line]
    return text


def _mended(text: str) -> str:
    """The text of one block, from left to right: what closes is passed over."""
    at, opened = 0, list[str]()
    while found := _MARKS.search(text, at):
        mark, begin, at = found[0], found.start(), found.end()
        if mark[0] == "`":
            close = re.compile(rf"(?<!`){mark}(?!`)").search(text, at)
            if close is None:
                return text[:begin] + _code(text[at:], mark) + _closers(opened)
            at = close.end()
        elif mark[0] == "$" or mark in CLOSERS:
            formula = find(text, begin, len(text))
            if formula is None and _may_be_formula(text, begin, mark):
                # Shown as it is written, none of it read as Markdown.
                return text[:begin] + _PUNCTUATION.sub(r"\\\1", text[begin:])
            at = formula.end if formula is not None else at
        elif mark.endswith("["):
            half = _HALF_LINK.fullmatch(text, begin)
            if half is not None:
                text, at = text[:begin] + half[1], begin
        elif mark[0] in "*_~":
            _emphasis(text, found, opened)
    return _closed(text.rstrip(), opened)


def _code(inside: str, mark: str) -> str:
    """Code that has not ended, perhaps with a part of the mark that ends it."""
    inside = inside.rstrip("`")
    return mark + inside + mark if inside.strip() else ""


def _closed(words: str, opened: list[str]) -> str:
    """Text with what is open in it closed: nothing is emphasised that is not there yet."""
    while opened and words.endswith(opened[-1]):
        words = words.removesuffix(opened.pop()).rstrip()
    if opened and words.endswith(opened[-1][0]) and not words.endswith("\\" + opened[-1][0]):
        words = words.rstrip(opened[-1][0])
    if words.endswith("\\") and not words.endswith("\\\\"):
        words = words[:-1]
    return words + _closers(opened)


def _emphasis(text: str, found: re.Match[str], opened: list[str]) -> None:
    """Notes a mark that opens, or forgets one that is closed."""
    mark, before, after = found[0], text[: found.start()][-1:], text[found.end() :][:1]
    if mark in opened and before and not before.isspace():
        del opened[opened.index(mark) :]
    elif not before.isalnum() and not after.isspace() and len(mark) <= 3:
        opened.append(mark)


def _closers(opened: list[str]) -> str:
    return "".join(reversed(opened))


def _may_be_formula(text: str, begin: int, mark: str) -> bool:
    """Whether a formula may have begun that has not ended: an amount of money is none."""
    if mark in CLOSERS:
        return CLOSERS[mark] not in text[begin + 2 :]
    before, after = text[max(begin - 1, 0) : begin], text[begin + 1 : begin + 2]
    is_free = not (before.isascii() and before.isalnum())
    is_name = bool(after) and not after.isspace() and not after.isdigit()
    return is_free and is_name and "$" not in text[begin + 1 :]
