"""Writes the grammar of a whole answer: free text, reasoning and calls, for a ``calls`` constraint.

What a tag is (a control token or some text) only the engine knows, so tags, and text up to a tag,
are given to it by name; see ``engine.constraint.calls``.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from corral.backend.chat.parser import Thinks
from corral.backend.chat.types import Tool, ToolChoice
from corral.backend.engine.messages import Constraint

#: Any text at all.
ANY: Final = "/(?s:.*)/"
#: Schema of arguments of which only the form is checked.
_OBJECT: Final[dict[str, Any]] = {"type": "object"}


class Form(Struct, frozen=True):
    """A JSON Schema, and what the client calls its place."""

    schema: dict[str, Any]
    place: str


class Wish(Struct, frozen=True, kw_only=True):
    """What is asked of an answer. ``thinks`` "may": it may reason first, "open": the prompt ends
    inside reasoning, "no": its tags are text. ``form``: what an answer without calls must match."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = "auto"
    parallel: bool = True
    thinks: Thinks = "may"
    form: Form | None = None

    @property
    def calls(self) -> bool:
        """Whether there is anything to call."""
        return bool(self.tools) and self.choice != "none"


class Lark:
    """Collects the rules of one grammar. Every method returns the name of a rule to use in others;
    names in capitals are terminals, which text can be cut into only as a whole."""

    def __init__(self, wish: Wish, think: tuple[str, str] | None) -> None:
        self.wish = wish
        self._think = think if wish.thinks != "no" else None
        self._rules: list[str] = []
        self._tags: list[str] = []
        self._untils: list[dict[str, Any]] = []
        self._schemas: list[dict[str, Any]] = []

    def rule(self, name: str, body: str) -> str:
        """A rule of one's own."""
        self._rules.append(f"{name}: {body}")
        return name

    def text(self, text: str) -> str:
        """A literal text."""
        return json.dumps(text, ensure_ascii=False)

    def blanks(self) -> str:
        """A little white space, or none."""
        return "/[ \\n]{1,4}/?"

    def tag(self, tag: str) -> str:
        """A tag: the token when it is one, else its letters."""
        if tag not in self._tags:
            self._tags.append(tag)
        return f"tag_{self._tags.index(tag)}"

    def until(self, tag: str, before: str = ANY, *, is_trigger: bool = True) -> str:
        """As much of the terminal ``before`` as stands before the first such tag, and the tag. A
        trigger counts when it is spelled in letters too."""
        self._untils.append({"before": before, "tag": self.tag(tag), "spelled": is_trigger})
        return f"until_{len(self._untils) - 1}"

    def value(
        self, schema: Mapping[str, Any], place: str, tag: str, *, is_padded: bool, no_json: bool
    ) -> str:
        """A text without quotes that matches the schema of a string, and the tag behind it;
        ``is_padded``: and a line break before that. ``no_json``: it is no JSON of another type."""
        text = {"schema": schema, "place": place, "is_padded": is_padded, "no_json": no_json}
        self._untils.append({"before": text, "tag": self.tag(tag), "spelled": True})
        return f"until_{len(self._untils) - 1}"

    def schema(self, schema: Mapping[str, Any], place: str) -> str:
        """A JSON value; ``place`` is what the client calls the schema."""
        self._schemas.append({"schema": dict(schema), "place": place})
        return f"@schema_{len(self._schemas) - 1}"

    def arguments(self, tool: Tool) -> str:
        """The arguments of a tool. With ``"strict": false`` only that they are an object."""
        schema = _OBJECT if tool.strict is False else {**_OBJECT, **tool.parameters}
        return self.schema(schema, tool.at)

    def one_of(self, name: str, bodies: Iterable[str]) -> str:
        """A rule that is one of several."""
        return self.rule(name, " | ".join(bodies))

    def answer(self, trigger: str, calls: str) -> Constraint:
        """The whole: with "required" reasoning and then calls; with "auto" any text, in which a
        trigger begins calls. ``calls`` is all behind the first trigger."""
        if self.wish.choice == "required":
            return self.build(f"{self.blanks()} {self.tag(trigger)} {calls}")
        free = self.free()
        return self.build(f"{self.content(free)} | {self.until(trigger, free)} {calls}")

    def content(self, free: str) -> str:
        """An answer without calls: ``free`` text, unless it must have a form."""
        form = self.wish.form
        return free if form is None else self.schema(form.schema, form.place)

    def free(self, *beginnings: str) -> str:
        """Any text that does not begin with reasoning, nor as one of some regular expressions. In
        an answer that must have a form nothing but white space stands before a call."""
        if self.wish.form is not None:
            return self.rule("FREE", "/[ \\n]{0,4}/")
        opening = [letters(self._think[0])] if self._think and self.wish.thinks == "may" else []
        no = "".join(f" & ~/(?:{start})(?s:.*)/" for start in (*opening, *beginnings))
        return self.rule("FREE", ANY + no)

    def build(self, body: str) -> Constraint:
        """The constraint: reasoning as wished for, then ``body``."""
        self.rule("start", self._reasoning() + "body")
        self.rule("body", body)
        source = {
            "lark": "\n".join(self._rules),
            "tags": self._tags,
            "untils": self._untils,
            "schemas": self._schemas,
        }
        return Constraint("calls", json.dumps(source, ensure_ascii=False))

    def _reasoning(self) -> str:
        if self._think is None:
            return ""
        thought = self.until(self._think[1], is_trigger=False)
        if self.wish.thinks == "may":
            return f"({self.tag(self._think[0])} {thought})? "
        unfinished = "" if self.wish.choice == "required" else f"{ANY} | "
        return f"{unfinished}{thought} "


def letters(text: str) -> str:
    """A text as a regular expression of Rust's, between slashes."""
    return "".join(f"\\x{{{ord(letter):X}}}" for letter in text)
