"""Cuts a rendered prompt so that text of the client never becomes a token of special meaning. Pure.

llama.cpp finds special tokens by their text, wherever it stands. A text that is cut inside such a
place, and tokenised piece by piece, has none there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from corral.backend.engine.messages import Written


class Specials:
    """The texts of a vocabulary's special tokens, compiled once.

    White space is text whatever it is called (Gemma's runs of newlines are user-defined tokens),
    and so are single characters, which cannot be cut.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        root: dict[str, Any] = {}
        for text in texts:
            if len(text) < 2 or not text.strip(" \t\n\r▁"):
                continue
            node = root
            for char in text:
                node = node.setdefault(char, {})
            node[""] = {}
        # At every place the longest text that begins there, found or not before.
        self._pattern = re.compile(f"(?=({_pattern(root)}))") if root else None

    def pieces(self, prompt: Written) -> list[str]:
        """The prompt's text, cut inside every special token's text that touches a foreign
        character and nowhere else: in one piece when there is none. Linear in the text."""
        text, foreign = prompt.text, prompt.foreign
        if self._pattern is None or not foreign:
            return [text]
        cuts, i = [0], 0
        for found in self._pattern.finditer(text):
            start, end = found.span(1)
            while i < len(foreign) and foreign[i][1] <= start:
                i += 1
            if i < len(foreign) and foreign[i][0] < end:
                # A text of the template's that begins alike is left whole.
                cut = max(foreign[i][0], start + 1)
                if cut > cuts[-1]:
                    cuts.append(cut)
        return [text[a:b] for a, b in zip(cuts, [*cuts[1:], len(text)], strict=True)]


def _pattern(node: dict[str, Any]) -> str:
    """A trie as a regular expression that prefers the longest."""
    branches = []
    for char, below in node.items():
        if char:
            # Chains without a fork need no group of their own.
            text = re.escape(char)
            while len(below) == 1 and "" not in below:
                ((char, below),) = below.items()
                text += re.escape(char)
            rest = _pattern(below) if below.keys() - {""} else ""
            optional = "?" if rest and "" in below else ""
            branches.append(f"{text}(?:{rest}){optional}" if rest else text)
    return "|".join(branches)
