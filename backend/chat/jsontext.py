"""Where a JSON value that arrives in pieces ends. Pure; one step of work for each character."""

import re
from typing import Final

#: White space of JSON, and of all text around tags.
BLANKS: Final = " \t\n\r"
_BLANK: Final = re.compile(r"[ \t\n\r]*")
_INSIDE: Final = re.compile(r'[^"\\\x00-\x1f]+')
_WORD: Final = re.compile(r"[-+.0-9A-Za-z]+")
NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_HEX: Final = re.compile(r"[0-9A-Fa-f]+")
#: Longest word (a number, ``true``) looked at as a whole; a longer one is not JSON.
MAX_WORD: Final = 4_096
ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
#: What may come next, outside strings and words.
_VALUE, _FIRST_VALUE, _KEY, _FIRST_KEY, _COLON, _AFTER = range(6)


class JsonScanner:
    """Follows one JSON value through ``scan``. ``is_done``: its last character was read;
    ``is_broken``: a character came that cannot be part of it, and was not read. A number at the
    top ends with the first character behind it, or with ``end``."""

    def __init__(self) -> None:
        self.is_done = False
        self.is_broken = False
        self._open: list[str] = []
        self._next = _VALUE
        self._in_string = False
        self._is_key = False
        self._escape = ""  # "\\" behind a backslash, "u" and digits in \uXXXX
        self._word: list[str] = []
        self._n_word = 0

    def scan(self, text: str, start: int, end: int) -> tuple[int, str]:
        """Reads ``text[start:end]`` as far as it belongs to the value; returns where it stopped and
        what it read. That is the text itself, but for line breaks and other control characters
        inside a string, which JSON does not allow: they come out as escapes."""
        at, pieces = start, []
        while at < end and not (self.is_done or self.is_broken):
            if self._in_string:
                at, piece = self._string(text, at, end)
            elif self._word or _WORD.match(text, at, end):
                at, piece = self._letters(text, at, end)
            else:
                at, piece = self._structure(text, at, end)
            pieces.append(piece)
        return at, "".join(pieces)

    def end(self) -> str:
        """No more text: a number at the top is whole now; nothing is left to write."""
        self._end_word()
        return ""

    def _string(self, text: str, at: int, end: int) -> tuple[int, str]:
        if self._escape:
            return self._escaped(text, at, end)
        if run := _INSIDE.match(text, at, end):
            return run.end(), run[0]
        letter = text[at]
        if letter == '"':
            self._in_string = False
            if self._is_key:
                self._next = _COLON
            else:
                self._end_value()
        elif letter == "\\":
            self._escape = letter
        else:
            return at + 1, ESCAPES.get(letter) or f"\\u{ord(letter):04x}"
        return at + 1, letter

    def _escaped(self, text: str, at: int, end: int) -> tuple[int, str]:
        if self._escape == "\\":
            letter = text[at]
            if letter not in '"\\/bfnrtu':
                self.is_broken = True
                return at, ""
            self._escape = "u" if letter == "u" else ""
            return at + 1, letter
        missing = 5 - len(self._escape)
        digits = _HEX.match(text, at, min(end, at + missing))
        if digits is None:
            self.is_broken = True
            return at, ""
        self._escape = "" if len(digits[0]) == missing else self._escape + digits[0]
        return digits.end(), digits[0]

    def _letters(self, text: str, at: int, end: int) -> tuple[int, str]:
        more = _WORD.match(text, at, end)
        if more is None:
            self._end_word()
            return at, ""
        if self._next not in (_VALUE, _FIRST_VALUE) or self._n_word > MAX_WORD:
            self.is_broken = True
            return at, ""
        self._word.append(more[0])
        self._n_word += len(more[0])
        return more.end(), more[0]

    def _end_word(self) -> None:
        if not self._word:
            return
        word = "".join(self._word)
        self._word, self._n_word = [], 0
        if word in ("true", "false", "null") or NUMBER.fullmatch(word):
            self._end_value()
        else:
            self.is_broken = True

    def _structure(self, text: str, at: int, end: int) -> tuple[int, str]:
        blank = _BLANK.match(text, at, end)
        if blank and blank[0]:
            return blank.end(), blank[0]
        letter, state = text[at], self._next
        if letter == '"' and state not in (_COLON, _AFTER):
            self._in_string, self._is_key = True, state in (_KEY, _FIRST_KEY)
        elif letter in "{[" and state in (_VALUE, _FIRST_VALUE):
            self._open.append(letter)
            self._next = _FIRST_KEY if letter == "{" else _FIRST_VALUE
        elif letter == ":" and state == _COLON:
            self._next = _VALUE
        elif letter == "," and state == _AFTER:
            self._next = _KEY if self._open[-1] == "{" else _VALUE
        elif self._closes(letter):
            self._open.pop()
            self._end_value()
        else:
            self.is_broken = True
            return at, ""
        return at + 1, letter

    def _closes(self, letter: str) -> bool:
        if letter == "}":
            return self._next in (_AFTER, _FIRST_KEY) and self._open[-1:] == ["{"]
        return letter == "]" and self._next in (_AFTER, _FIRST_VALUE) and self._open[-1:] == ["["]

    def _end_value(self) -> None:
        self._next = _AFTER
        self.is_done = not self._open
