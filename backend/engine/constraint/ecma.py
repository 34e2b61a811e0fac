"""ECMAScript's regular expressions, which ``pattern`` holds, for Rust's ``regex`` crate.

Where the two mean different things by the same letters, the ECMAScript meaning is written out; what
only one of them knows is left for llguidance to refuse.
"""

import itertools
import re
from typing import Final

_SPACE: Final = r"\s\x{FEFF}"
_DOT: Final = r"[^\n\r\x{2028}\x{2029}]"
#: Pieces of an expression: escapes, brackets, a dot, groups, anything else.
_PIECE: Final = re.compile(
    r"\\c[A-Za-z] | \\u[Dd][89ABab][0-9A-Fa-f]{2}\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}"
    r"| \\(?s:.) | \[\^?\]? | \] | \(\?(?:<[=!]|.)? | (?s:.)",
    re.VERBOSE,
)
#: Letters that mean something else, or nothing, to Rust when a backslash is before them.
_ONLY_RUST: Final = frozenset("aAzhHRGCQEUZ<>")
#: Letters of escapes that stand for many characters, which cannot end a range.
_MANY: Final = ("d", "D", "w", "W", "s", "S", "p", "P")


def to_rust(pattern: str) -> str:
    """The same expression for Rust. Raises ``ValueError`` for what has no counterpart."""
    out: list[str] = []
    pieces = iter(_PIECE.findall(pattern))
    for piece in pieces:
        if piece[0] == "\\" and len(piece) > 1:
            out.append(_escape(piece, in_class=False))
        elif piece in ("[]", "[^]"):
            out.append(r"[^\s\S]" if piece == "[]" else r"[\s\S]")
        elif piece in ("[", "[^"):
            inside = list(itertools.takewhile(lambda p: p != "]", pieces))
            out.append(f"{piece}{_class(inside)}]")
        elif piece.startswith("(?"):
            if piece not in ("(?:", "(?<", "(?=", "(?!", "(?<=", "(?<!"):
                raise ValueError(f"{piece} is not ECMAScript")
            out.append(piece)
        else:
            out.append(_DOT if piece == "." else piece)
    return "".join(out)


def _class(pieces: list[str]) -> str:
    """The inside of a class. Rust has nested classes and set operators in it; ECMAScript takes
    their letters as they are, and a hyphen as one where no range can be meant."""
    letters = [p for piece in pieces for p in ([piece] if piece[0] == "\\" else piece)]
    out, i = [], 0
    while i < len(letters):
        out.append(_escape(letters[i], in_class=True))
        if i + 2 < len(letters) and letters[i + 1] == "-":
            many = letters[i][1:2] in _MANY or letters[i + 2][1:2] in _MANY
            out += [r"\-" if many else "-", _escape(letters[i + 2], in_class=True)]
            i += 2
        i += 1
    return "".join(out)


def _escape(piece: str, *, in_class: bool) -> str:
    if len(piece) == 1:
        return "\\" + piece if piece in r"[]&~-^" else piece
    letter = piece[1]
    if letter == "s":
        return _SPACE if in_class else f"[{_SPACE}]"
    if letter == "S" and not in_class:
        return f"[^{_SPACE}]"
    if letter == "c":
        return f"\\x{ord(piece[2]) % 32:02x}" if len(piece) > 2 else piece
    if letter == "0":
        return r"\x00"
    if letter == "u" and len(piece) > 2:
        high, low = int(piece[2:6], 16), int(piece[8:12], 16)
        return f"\\x{{{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):X}}}"
    if letter == "b" and in_class:
        return r"\x08"
    if letter in _ONLY_RUST:
        raise ValueError(f"{piece} is not ECMAScript")
    return "/" if letter == "/" else piece
