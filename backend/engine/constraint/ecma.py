"""ECMAScript's regular expressions, which ``pattern`` holds, for Rust's ``regex`` crate.

Where the two mean different things by the same letters, the ECMAScript meaning is written out; what
only one of them knows is left for llguidance to refuse.
"""

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


def to_rust(pattern: str) -> str:
    """The same expression for Rust. Raises ``ValueError`` for what has no counterpart."""
    out: list[str] = []
    in_class = False
    for piece in _PIECE.findall(pattern):
        if piece[0] == "\\" and len(piece) > 1:
            out.append(_escape(piece, in_class))
        elif in_class:
            in_class = piece != "]"
            # Rust has nested classes and set operators; ECMAScript takes these letters as they are.
            out.append("\\" + piece if piece in ("[", "&", "~") else _in_class(piece))
        elif piece[0] == "[":
            in_class = not piece.endswith("]")
            out.append({"[]": r"[^\s\S]", "[^]": r"[\s\S]"}.get(piece, piece))
        elif piece.startswith("(?"):
            if piece not in ("(?:", "(?<", "(?=", "(?!", "(?<=", "(?<!"):
                raise ValueError(f"{piece} is not ECMAScript")
            out.append(piece)
        else:
            out.append(_DOT if piece == "." else piece)
    return "".join(out)


def _in_class(piece: str) -> str:
    """A piece such as ``[^`` inside a class, where it is only letters."""
    return piece.replace("[", r"\[").replace("^", r"\^") if piece.startswith("[") else piece


def _escape(piece: str, in_class: bool) -> str:
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
