"""From token bytes to text that may be shown: whole code points only, nothing of a stop string.

Pure. Cost per token is proportional to its own length, never to the output so far.
"""

import codecs
from collections.abc import Sequence


class StopMatcher:
    """Finds the first of several stop strings to be completed in a text given in pieces.

    Every stop string is followed by its own Knuth-Morris-Pratt automaton, so the outcome is the
    same for any split of the text: the stop string that *ends* first wins, the longest when several
    end together. Text that may still become part of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [s for s in stops if s]
        self._fallback = [_failure(s) for s in self._stops]
        self._matched = [0] * len(self._stops)
        self._held = ""
        self.stop: str | None = None

    def feed(self, text: str) -> str:
        """The text that ``text`` makes safe to show. After a match: what came before the stop
        string, with ``stop`` set; further calls give nothing."""
        if self.stop is not None:
            return ""
        if not self._stops:
            return text
        whole = self._held + text
        base = len(self._held)
        for offset, char in enumerate(text):
            found = self._advance(char)
            if found is not None:
                self.stop, self._held = found, ""
                return whole[: base + offset + 1 - len(found)]
        keep = max(self._matched)
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]

    def flush(self) -> str:
        """What was held back, when no more text comes that could belong to it."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def _advance(self, char: str) -> str | None:
        found: str | None = None
        for i, stop in enumerate(self._stops):
            n, fallback = self._matched[i], self._fallback[i]
            while n and stop[n] != char:
                n = fallback[n - 1]
            n += stop[n] == char
            if n == len(stop):
                if found is None or len(stop) > len(found):
                    found = stop
                n = fallback[n - 1]
            self._matched[i] = n
        return found


def _failure(word: str) -> list[int]:
    """KMP failure function: for each prefix of ``word``, its longest proper border."""
    table, n = [0] * len(word), 0
    for i in range(1, len(word)):
        while n and word[i] != word[n]:
            n = table[n - 1]
        n += word[i] == word[n]
        table[i] = n
    return table


class Detokenizer:
    """The text of one answer. Bytes that are not UTF-8 become U+FFFD and never break it."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._matcher = StopMatcher(stops)

    @property
    def stop(self) -> str | None:
        """The stop string that was met, if any."""
        return self._matcher.stop

    @property
    def is_whole(self) -> bool:
        """No code point is waiting for the rest of its bytes."""
        return not self._decoder.getstate()[0]

    def feed(self, piece: bytes) -> str:
        """Text that may be shown now that ``piece`` is known."""
        text = self._decoder.decode(piece)
        return self._matcher.feed(text) if text else ""

    def flush(self) -> str:
        """The rest, at the end or before a tag: held text, U+FFFD for a code point cut short."""
        tail = self._decoder.decode(b"", final=True)
        shown = self._matcher.feed(tail) if tail else ""
        return shown + (self._matcher.flush() if self.stop is None else "")
