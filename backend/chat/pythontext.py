"""Python literals that arrive in pieces, read as the JSON that means the same. Pure; one step of
work for each character.

Models that write calls as Python does write strings in either quote or in three, ``True`` and
``None``, and now and then JSON's words. A backslash that begins no escape stands for itself, as it
does in Python.
"""

import json
import re
from typing import Final

from corral.backend.chat.jsontext import ESCAPES, MAX_WORD, NUMBER

_BLANK: Final = re.compile(r"[ \t\n\r]+")
_INSIDE: Final = re.compile(r'[^"\'\\\x00-\x1f]+')
_LETTERS: Final = re.compile(r"[-+.0-9A-Za-z_]+")
_HEX: Final = re.compile(r"[0-9A-Fa-f]+")
_NUMERIC: Final = re.compile(r"[-+]?\.?[0-9]")
_WORDS: Final = {"True": "true", "False": "false", "None": "null"} | {
    word: word for word in ("true", "false", "null")
}
#: Letters behind a backslash, and what they stand for in JSON.
_SIMPLE: Final = {letter: "\\" + letter for letter in 'nrtbf"\\'} | {
    "'": "'",
    "a": "\\u0007",
    "v": "\\u000b",
    "\n": "",
}
_N_DIGITS: Final = {"x": 2, "u": 4, "U": 8}
_OCTAL: Final = "01234567"
#: What may come next, outside strings and words; "or" it closes.
_VALUE, _VALUE_OR, _KEY_OR, _COLON, _AFTER = range(5)


class PythonScanner:
    """Follows one literal through ``scan``; see ``JsonScanner``, whose twin it is."""

    def __init__(self) -> None:
        self.is_done = False
        self.is_broken = False
        self._open: list[str] = []
        self._next = _VALUE
        self._has_comma = False  # read, and not written: it may be the last
        self._quote = ""  # what ends the string that is open
        self._is_opening = False  # it was empty so far, and may be one in three quotes
        self._n_quotes = 0  # quotes that may belong to the end
        self._escape = ""
        self._word: list[str] = []
        self._n_word = 0

    def scan(self, text: str, start: int, end: int) -> tuple[int, str]:
        """Reads ``text[start:end]`` as far as it belongs to the value; returns where it stopped and
        the JSON it makes certain."""
        at, pieces = start, list[str]()
        while at < end and not (self.is_done or self.is_broken):
            if self._quote:
                at, piece = self._string(text, at, end)
            elif self._word or _LETTERS.match(text, at, end):
                at, piece = self._letters(text, at, end)
            else:
                at, piece = self._structure(text, at, end)
            pieces.append(piece)
        return at, "".join(pieces)

    def end(self) -> str:
        """No more text: a word at the top is whole now; returns the rest of the JSON."""
        if self._quote and self._is_opening and self._n_quotes:
            return self._close()
        return self._end_word() if self._word else ""

    # --- strings ------------------------------------------------------------------------------

    def _string(self, text: str, at: int, end: int) -> tuple[int, str]:
        if self._escape:
            return self._escaped(text, at, end)
        letter, quote = text[at], self._quote[0]
        if letter == quote:
            return at + 1, self._quoted()
        if self._is_opening:
            self._is_opening = False
            if self._n_quotes:
                return at, self._close()  # two quotes, and no third: an empty one
        if self._n_quotes:
            return at, _json(quote * self._take_quotes())
        if run := _INSIDE.match(text, at, end):
            return run.end(), run[0]
        if letter == "\\":
            self._escape = letter
            return at + 1, ""
        return at + 1, ESCAPES.get(letter) or _json(letter)

    def _quoted(self) -> str:
        """The string's own quote was read."""
        self._n_quotes += 1
        if self._is_opening:
            if self._n_quotes == 2:
                self._quote, self._is_opening = self._quote * 3, False
                self._n_quotes = 0
            return ""
        return self._close() if self._n_quotes == len(self._quote) else ""

    def _take_quotes(self) -> int:
        n, self._n_quotes = self._n_quotes, 0
        return n

    def _close(self) -> str:
        self._quote, self._n_quotes, self._is_opening = "", 0, False
        self._end_value()
        return '"'

    def _escaped(self, text: str, at: int, end: int) -> tuple[int, str]:
        letter, kind = text[at], self._escape[1:2]
        if not kind:
            if letter in _SIMPLE:
                self._escape = ""
                return at + 1, _SIMPLE[letter]
            if letter in _N_DIGITS or letter in _OCTAL:
                self._escape += letter
                return at + 1, ""
            return at, self._not_escaped()
        if kind in _OCTAL:
            if letter in _OCTAL and len(self._escape) < 4:
                self._escape += letter
                return at + 1, ""
            return at, self._character(int(self._escape[1:], 8))
        missing = 2 + _N_DIGITS[kind] - len(self._escape)
        digits = _HEX.match(text, at, min(end, at + missing))
        if digits is None:
            return at, self._not_escaped()
        self._escape += digits[0]
        if len(digits[0]) < missing:
            return digits.end(), ""
        return digits.end(), self._character(int(self._escape[2:], 16))

    def _not_escaped(self) -> str:
        text, self._escape = self._escape, ""
        return _json(text)

    def _character(self, code: int) -> str:
        if code > 0x10FFFF:
            return self._not_escaped()
        self._escape = ""
        # Halves of a character stay as they are: two of them make one in JSON.
        return f"\\u{code:04x}" if 0xD800 <= code < 0xE000 else _json(chr(code))

    # --- words and the rest -------------------------------------------------------------------

    def _letters(self, text: str, at: int, end: int) -> tuple[int, str]:
        more = _LETTERS.match(text, at, end)
        if more is None:
            return at, self._end_word()
        if self._next not in (_VALUE, _VALUE_OR, _KEY_OR) or self._n_word > MAX_WORD:
            self.is_broken = True
            return at, ""
        self._word.append(more[0])
        self._n_word += len(more[0])
        return more.end(), ""

    def _end_word(self) -> str:
        word = "".join(self._word)
        self._word, self._n_word = [], 0
        value = _WORDS.get(word) or _number(word)
        if value is None:
            self.is_broken = True
            return ""
        text = self._comma() + (f'"{value}"' if self._next == _KEY_OR else value)
        self._end_value()
        return text

    def _structure(self, text: str, at: int, end: int) -> tuple[int, str]:
        if blank := _BLANK.match(text, at, end):
            return blank.end(), ""
        letter, state = text[at], self._next
        if letter in "\"'" and state not in (_COLON, _AFTER):
            self._quote, self._is_opening = letter, True
            return at + 1, self._comma() + '"'
        if letter in "{[" and state in (_VALUE, _VALUE_OR):
            self._open.append(letter)
            self._next = _KEY_OR if letter == "{" else _VALUE_OR
            return at + 1, self._comma() + letter
        if letter == ":" and state == _COLON:
            self._next = _VALUE
            return at + 1, ": "
        if letter == "," and state == _AFTER:
            self._has_comma = True
            self._next = _KEY_OR if self._open[-1] == "{" else _VALUE_OR
            return at + 1, ""
        if letter in "}]" and self._closes(letter):
            self._open.pop()
            self._next = _AFTER
            self.is_done = not self._open
            return at + 1, letter
        self.is_broken = True
        return at, ""

    def _closes(self, letter: str) -> bool:
        is_open = self._open[-1:] == ["{" if letter == "}" else "["]
        return is_open and self._next in (_AFTER, _KEY_OR, _VALUE_OR)

    def _comma(self) -> str:
        has_comma, self._has_comma = self._has_comma, False
        return ", " if has_comma else ""

    def _end_value(self) -> None:
        self._next = _COLON if self._next == _KEY_OR else _AFTER
        self.is_done = not self._open


def _json(text: str) -> str:
    """A text as the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _number(word: str) -> str | None:
    """A number of Python's as one of JSON's; None: it is none."""
    if NUMBER.fullmatch(word):
        return word
    if not _NUMERIC.match(word):
        return None
    for read in (lambda: int(word, 0), lambda: int(word), lambda: float(word)):
        try:
            return json.dumps(read(), allow_nan=False)
        except ValueError:
            continue
    return None
