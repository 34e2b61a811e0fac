"""Grammars to begin with: what each is for, and a question that suits it."""

from msgspec import Struct

from corral.backend.engine.messages import ConstraintKind
from corral.frontend.words import _


class Example(Struct, frozen=True, kw_only=True):
    """A grammar of a kind, under the name that a link has."""

    id: str
    title: str
    kind: ConstraintKind
    source: str
    prompt: str


_PERSON = """{
  "type": "object",
  "properties": {
    "name": {"type": "string"},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "born": {"type": "string", "format": "date"},
    "languages": {"type": "array", "items": {"type": "string"}, "maxItems": 5}
  },
  "required": ["name", "age"],
  "additionalProperties": false
}"""
_LABELS = """{
  "type": "object",
  "properties": {
    "mood": {"enum": ["positive", "neutral", "negative"]},
    "reason": {"type": "string", "maxLength": 200}
  },
  "required": ["mood", "reason"],
  "additionalProperties": false
}"""
_LIST = """root ::= item+
item ::= "- " [^\\r\\n]+ "\\n"
"""
_SUM = """root ::= sum " = " number
sum ::= number (" " [-+*/] " " number)+
number ::= "-"? [0-9]{1,6}
"""
_COMMAND = """start: verb " " thing (" and " thing)*
verb: "open" | "close" | "lock"
thing: "the " /[a-z]{1,20}/
"""


def examples() -> tuple[Example, ...]:
    """All of them, in the reader's language."""
    return (
        Example(
            id="person",
            title=_("A person, as JSON"),
            kind="json_schema",
            source=_PERSON,
            prompt=_("Describe Ada Lovelace as JSON."),
        ),
        Example(
            id="mood",
            title=_("A choice with a reason, as JSON"),
            kind="json_schema",
            source=_LABELS,
            prompt=_("How does the writer feel? “The train was late, but I met an old friend.”"),
        ),
        Example(
            id="list",
            title=_("A list"),
            kind="gbnf",
            source=_LIST,
            prompt=_("Name three fruits."),
        ),
        Example(
            id="sum",
            title=_("A calculation"),
            kind="gbnf",
            source=_SUM,
            prompt=_("How much are 12 apples and 30 pears together?"),
        ),
        Example(
            id="command",
            title=_("A command"),
            kind="lark",
            source=_COMMAND,
            prompt=_("It is cold in here and the door is open."),
        ),
        Example(
            id="date",
            title=_("A date"),
            kind="regex",
            source=r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
            prompt=_("When did people first land on the Moon?"),
        ),
        Example(
            id="yes",
            title=_("Yes or no"),
            kind="regex",
            source="yes|no",
            prompt=_("Is water wet?"),
        ),
    )
