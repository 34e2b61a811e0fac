"""Calls that are JSON objects, ``{"name": "f", "arguments": {…}}``: how they are read and what
they must match."""

import json
from collections.abc import Callable

from corral.backend.chat.parser import Machine
from corral.backend.chat.reading import Step


class JsonMachine(Machine):
    """A machine with steps for such calls. ``NAME`` and ``ARGUMENTS``: the members that hold them;
    models confuse them with another's, so all are taken."""

    NAME: tuple[str, ...] = ("name", "tool_name", "function")
    ARGUMENTS: tuple[str, ...] = ("arguments", "parameters")

    def call_object(self, accepts: Callable[[str], bool] = bool) -> Step[bool]:
        """Reads a call; False: it is none, or breaks off. Members may come in any order, others are
        skipped. A call begins with its arguments, once its name is known; without any they are
        ``{}``. ``accepts`` says whether a name can be one."""
        call = _Call()
        is_closed = yield from self._members(call, accepts)
        if is_closed and call.name and not call.is_complete:
            self._whole(call, call.name, "{}")
        return call.is_complete

    def call_list(self, *, is_open: bool = False) -> Step[bool]:
        """Reads ``[call, call, …]``, or calls without brackets, as far as they are some; whether
        there was one. ``is_open``: the first bracket was read."""
        is_list = is_open or bool((yield from self.next_is("[")))
        found = False
        while True:
            yield from self.blanks()
            if not (yield from self.call_item()):
                return found
            found = True
            self.hold("")
            yield from self.blanks()
            if not (yield from self.next_is(",")) and (is_list or (yield from self.peek()) != "{"):
                break
        self.drop()
        if is_list:
            yield from self.next_is("]")
        return found

    def call_item(self) -> Step[bool]:
        """Reads one call of a list."""
        return (yield from self.call_object())

    def string(self) -> Step[str | None]:
        """Reads a JSON string; None: none comes next."""
        read: list[str] = []
        if (yield from self.peek()) != '"' or not (yield from self.json(read.append)):
            return None
        return _decoded("".join(read))

    def arguments(self, name: str, id: str = "") -> Step[bool]:
        """A call of ``name`` begins, and its arguments come next; whether they are whole."""
        self.begin(name, id)
        is_whole = yield from self.json(self.argue)
        if is_whole:
            self.complete()
        return is_whole

    def _members(self, call: "_Call", accepts: Callable[[str], bool]) -> Step[bool]:
        """Reads the object; whether it was closed."""
        if not (yield from self.next_is("{")):
            return False
        while True:
            yield from self.blanks()
            if (yield from self.peek()) == "}":
                break
            if not (yield from self._member(call, accepts)):
                return False
            yield from self.blanks()
            if not (yield from self.next_is(",")):
                break
        return bool((yield from self.next_is("}")))

    def _member(self, call: "_Call", accepts: Callable[[str], bool]) -> Step[bool]:
        key = yield from self.string()
        yield from self.blanks()
        if key is None or not (yield from self.next_is(":")):
            return False
        yield from self.blanks()
        if key == "function" and not call.is_nested and (yield from self.peek()) == "{":
            call.is_nested = True
            return (yield from self._members(call, accepts))
        if key in self.NAME and call.name is None:
            call.name = yield from self.string()
            if not call.name or not accepts(call.name):
                return False
            if call.early is not None:
                self._whole(call, call.name, call.early)
            return True
        if key in self.ARGUMENTS and call.early is None and not call.is_complete:
            return (yield from self._arguments(call))
        return (yield from self.json(_nowhere))

    def _arguments(self, call: "_Call") -> Step[bool]:
        if call.name and (yield from self.peek()) == "{":
            call.is_complete = yield from self.arguments(call.name)
            return call.is_complete
        read: list[str] = []
        if not (yield from self.json(read.append)):
            return False
        text = _as_object("".join(read))
        if call.name:
            self._whole(call, call.name, text)
        else:
            call.early = text
        return True

    def _whole(self, call: "_Call", name: str, arguments: str) -> None:
        self.begin(name)
        self.argue(arguments)
        self.complete()
        call.is_complete = True


class _Call:
    """What is known of a call. ``early``: its arguments, which came before its name. ``is_nested``:
    it stood in a member ``function``, as calls do in OpenAI's API."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.early: str | None = None
        self.is_nested = False
        self.is_complete = False


def _nowhere(_: str) -> None: ...


def _decoded(text: str) -> str:
    """The value of a JSON string, without halves of characters, which no answer could hold."""
    value: str = json.loads(text)
    return value.encode("utf-8", "replace").decode()


def _as_object(text: str) -> str:
    """Arguments that are no object: some models write them as a string of JSON, or null."""
    if text == "null":
        return "{}"
    if text.startswith('"'):
        try:
            if isinstance(json.loads(inner := _decoded(text)), dict):
                return inner
        except (ValueError, RecursionError):
            pass
    return text
