"""The prompts of a batch from what was pasted or sent as a file. Pure."""

import csv
import io
import json
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from corral.backend.errors import Refused
from corral.frontend.words import _, number

Format: TypeAlias = Literal["auto", "lines", "jsonl", "csv"]
FORMATS: tuple[Format, ...] = ("auto", "lines", "jsonl", "csv")
MAX_ROWS = 5000
_MAX_NAME = 200
_ROLES = ("system", "user", "assistant")
#: The column of a table that holds the prompts, unless another is named.
COLUMN = "prompt"


class Prompt(NamedTuple):
    """A row: its ``name`` and the conversation to answer, as JSON."""

    name: str
    messages: bytes


def prompts(text: str, format: Format, *, file_name: str = "", column: str = "") -> list[Prompt]:
    """The rows of a text. Raises Refused that says in which line something is wrong."""
    text = text.removeprefix("\ufeff")
    if format == "auto":
        format = _guessed(text, file_name, column.strip())
    match format:
        case "jsonl":
            found = _jsonl(text)
        case "csv":
            found = _csv(text, column.strip())
        case _:
            lines = enumerate(text.splitlines(), 1)
            found = [_said(str(n), line.strip()) for n, line in lines if line.strip()]
    if not found:
        raise Refused(_("There is no prompt in this."), param="rows")
    if len(found) > MAX_ROWS:
        words = _("These are {n} prompts; a batch takes {most} at most.")
        raise Refused(words.format(n=number(len(found)), most=number(MAX_ROWS)), param="rows")
    _check_names(found)
    return found


def _guessed(text: str, file_name: str, column: str) -> Format:
    kind = file_name.lower().rpartition(".")[2]
    head = text.lstrip().partition("\n")[0]
    cells = [cell.strip(' "\r') for cell in re.split(r"[,;\t]", head)]
    if kind in ("jsonl", "ndjson"):
        return "jsonl"
    if kind in ("csv", "tsv") or (len(cells) > 1 and (column or COLUMN) in cells):
        return "csv"
    return "jsonl" if text.lstrip().startswith("{") else "lines"


def _check_names(found: Sequence[Prompt]) -> None:
    seen: set[str] = set()
    for prompt in found:
        if prompt.name in seen:
            words = _("The id {name} is there twice.").format(name=f"“{prompt.name[:80]}”")
            raise Refused(words, param="rows")
        seen.add(prompt.name)


def _said(name: str, text: str) -> Prompt:
    return Prompt(name, _json([{"role": "user", "content": text}]))


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


# --- JSON, one object a line ----------------------------------------------------------------------


def _jsonl(text: str) -> list[Prompt]:
    found = []
    # Only these end a line; a JSON text may hold others.
    for n, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if line.strip():
            found.append(_object(n, line))
    return found


def _object(n: int, line: str) -> Prompt:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        raise _wrong(n, _("this is not JSON")) from None
    if not isinstance(given, dict):
        raise _wrong(n, _("this is not a JSON object"))
    name = given.get("id", n)
    if isinstance(name, bool) or not isinstance(name, str | int) or len(str(name)) > _MAX_NAME:
        raise _wrong(n, _("id is a short text or a whole number"))
    prompt, messages = given.get("prompt"), given.get("messages")
    if (prompt is None) == (messages is None):
        raise _wrong(n, _("it has either a prompt or messages"))
    if prompt is None:
        return Prompt(str(name), _json(_messages(n, messages)))
    if not isinstance(prompt, str) or not prompt.strip():
        raise _wrong(n, _("prompt is a text"))
    return _said(str(name), prompt)


def _messages(n: int, given: Any) -> list[dict[str, str]]:
    if not isinstance(given, list) or not given:
        raise _wrong(n, _("messages is a list of them"))
    for message in given:
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise _wrong(n, _("a message has a role: system, user or assistant"))
        if not isinstance(message.get("content"), str):
            raise _wrong(n, _("a message has a text as its content"))
    if given[-1]["role"] != "user":
        raise _wrong(n, _("the last message is the user's"))
    return [{"role": m["role"], "content": m["content"]} for m in given]


def _wrong(n: int, why: str) -> Refused:
    return Refused(_("Line {n}: {why}.").format(n=n, why=why), param="rows")


# --- tables ---------------------------------------------------------------------------------------


def _csv(text: str, column: str) -> list[Prompt]:
    head = text.lstrip().partition("\n")[0]
    delimiter = max(",;\t", key=head.count)
    csv.field_size_limit(2**31 - 1)
    reader = csv.DictReader(io.StringIO(text.lstrip(), newline=""), delimiter=delimiter)
    try:
        names = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = names
        chosen = _column(names, column)
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise _wrong(reader.line_num, str(error)) from None
    found: list[Prompt] = []
    for n, row in rows:
        if row.get(chosen) is None:
            raise _wrong(n, _("it ends before the column of the prompts"))
        if not (prompt := row[chosen].strip()):
            continue
        name = (row.get("id") or "").strip() if chosen != "id" else ""
        if len(name) > _MAX_NAME:
            raise _wrong(n, _("id is a short text or a whole number"))
        found.append(_said(name or str(len(found) + 1), prompt))
    return found


def _column(names: Sequence[str], wanted: str) -> str:
    """Which column holds the prompts."""
    if not wanted and len(names) == 1:
        return names[0]
    chosen = wanted or COLUMN
    if chosen not in names:
        words = _("There is no column {name}; there are: {names}.")
        said = ", ".join(names)[:300]
        raise Refused(words.format(name=f"“{chosen[:80]}”", names=said), param="column")
    return chosen
