"""Markdown that is still being written: finished blocks as HTML once, the open one when asked.

A block is finished when another has begun after it, judged on complete lines only: a line may yet
turn the one before it into something else (a heading, a table). Pure; owned by one reply.
"""

import re
from typing import Any, NamedTuple

from markdown_it.token import Token

from corral.frontend.markdown import MD, clean, code_frame, escape_code, normalise
from corral.frontend.mending import mend


class _Fence(NamedTuple):
    """A code block at the top level that has not ended. ``begin``: where its code does."""

    begin: int
    closes: re.Pattern[str]
    maybe: re.Pattern[str]
    language: str


class Document:
    """A growing text. ``done`` is the HTML of its finished blocks: it only gets longer."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.n_parsed_chars = 0
        self._arrived: list[str] = []
        self._rest = ""  # what is not in ``done`` yet
        self._looked_at = 0  # of ``_rest``: complete lines that changed nothing
        self._references: dict[str, Any] = {}
        self._fence: _Fence | None = None

    def feed(self, text: str) -> None:
        """More text. Costs nothing until somebody looks."""
        self._arrived.append(text)

    def advance(self) -> None:
        """Moves blocks that are finished now to ``done``."""
        text = "".join(self._arrived)
        # Half of a line end is no line end yet.
        held = text[-1:] if text.endswith("\r") else ""
        self._arrived = [held] if held else []
        self._rest += normalise(text.removesuffix("\r") if held else text)
        while self._step():
            pass

    def finish(self) -> None:
        """The text is complete: the rest is done too."""
        self._arrived.append("\n" if self._arrived[-1:] == ["\r"] else "")
        self.advance()
        self._commit(len(self._rest), *self._parse(self._rest))
        self._fence = None

    @property
    def open_code(self) -> str | None:
        """The text of the code block being written, None when something else is. Within one block
        it only gets longer."""
        if self._fence is None:
            return None
        code = self._rest[self._fence.begin :]
        line = code.rfind("\n") + 1
        return code[:line] if self._fence.maybe.fullmatch(code, line) else code

    def open_html(self) -> str:
        """The block being written as HTML, code without colours."""
        code = self.open_code
        if code is not None and self._fence is not None:
            head, tail = code_frame(self._fence.language)
            return clean(head + escape_code(code) + tail)
        text = mend(self._rest)
        tokens, env = self._parse(text)
        if text != self._rest and _ends_in_code(tokens):
            # In code nothing is half-typed but the line that may end it.
            tokens, env = self._parse(self._rest)
        return clean(MD.renderer.render(tokens, MD.options, {**env, "plain": True}))

    def _parse(self, text: str) -> tuple[list[Token], dict[str, Any]]:
        self.n_parsed_chars += len(text)
        env: dict[str, Any] = {"references": dict(self._references)}
        return MD.parse(text, env), env

    def _step(self) -> bool:
        """Commits what can be; whether something was, so that it is worth another look."""
        end = self._rest.rfind("\n") + 1
        if end <= self._looked_at:
            return False
        if self._fence is not None:
            return self._close_fence(self._fence, end)
        lines = self._rest[:end]
        tokens, env = self._parse(lines)
        starts = [i for i, t in enumerate(tokens) if t.level == 0 and t.map and t.nesting >= 0]
        self._looked_at = end
        if not starts:
            return False
        last = tokens[starts[-1]]
        assert last.map is not None
        begin = _offset(lines, last.map[0])
        self._commit(begin, tokens[: starts[-1]], env)
        if last.type == "fence" and lines.startswith(last.markup, begin):
            self._looked_at = self._rest.find("\n") + 1
            self._fence = _fence(last, begin=self._looked_at)
            return True
        return False

    def _close_fence(self, fence: _Fence, end: int) -> bool:
        found = fence.closes.search(self._rest, self._looked_at, end)
        if found is None:
            self._looked_at = end
            return False
        after = found.end() + 1
        self._fence = None
        self._commit(after, *self._parse(self._rest[:after]))
        return True

    def _commit(self, end: int, tokens: list[Token], env: dict[str, Any]) -> None:
        """Everything up to ``end`` is finished; ``tokens`` are its blocks."""
        if tokens:
            self.done.append(clean(MD.renderer.render(tokens, MD.options, env)))
        n_lines = self._rest.count("\n", 0, end)
        # A definition after ``end`` may not be complete: it will be read again.
        for name, reference in env["references"].items():
            if name not in self._references and reference["map"][1] <= n_lines:
                self._references[name] = reference
        self._rest = self._rest[end:]
        self._looked_at = max(0, self._looked_at - end)


def _ends_in_code(tokens: list[Token]) -> bool:
    """Whether the last thing that is said is a block of code."""
    said = next((t.type for t in reversed(tokens) if t.nesting == 0), "")
    return said in ("fence", "code_block")


def _offset(text: str, line: int) -> int:
    """Where a line begins."""
    at = 0
    for _ in range(line):
        at = text.index("\n", at) + 1
    return at


def _fence(token: Token, begin: int) -> _Fence:
    mark, n = re.escape(token.markup[0]), len(token.markup)
    words = token.info.split()
    return _Fence(
        begin=begin,
        closes=re.compile(rf"^ {{0,3}}{mark}{{{n},}}[ \t]*$", re.MULTILINE),
        maybe=re.compile(rf" {{0,3}}{mark}*[ \t]*"),
        language=words[0] if words else "",
    )
