"""Ends of an answer that depend on its lines: indentation and time. Pure, linear in the text."""


class Lines:
    """Follows the lines of one answer (llama-server's ``n_indent`` and ``t_max_predict_ms``).

    ``n_indent`` > 0: a line after the first that is indented by fewer blanks ends the answer before
    its first other character. ``max_ms`` > 0: the first new line after that long ends it.
    """

    def __init__(self, n_indent: int = 0, max_ms: int = -1) -> None:
        self._n_indent = n_indent
        self._max_ms = max_ms
        self._n_blanks = -1  # blanks at the beginning of this line; -1 once it has begun
        self.has_ended = False

    @property
    def is_needed(self) -> bool:
        """Whether any rule is on."""
        return self._n_indent > 0 or self._max_ms > 0

    def feed(self, text: str, ms: float) -> str:
        """What of ``text`` belongs to the answer, ``ms`` after its first token."""
        is_late = 0 < self._max_ms < ms
        for i, char in enumerate(text):
            if char == "\n":
                if is_late:
                    self.has_ended = True
                    return text[: i + 1]
                self._n_blanks = 0
            elif self._n_blanks >= 0 and char in " \t":
                self._n_blanks += 1
            elif self._n_blanks >= 0:
                if self._n_blanks < self._n_indent:
                    self.has_ended = True
                    return text[:i]
                self._n_blanks = -1
        return text
