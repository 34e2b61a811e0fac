"""What a chat template can say, found out by rendering conversations whose words are looked for."""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from msgspec import UNSET, Struct

from corral.backend.chat.telling import TOOL_VARIABLES
from corral.backend.chat.template import ChatTemplate
from corral.backend.chat.types import Message
from corral.backend.errors import Refused

_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe_about",
        "parameters": {
            "type": "object",
            "properties": {"probe_key": {"type": "string", "description": "probe_what"}},
            "required": ["probe_key"],
        },
    },
}
_BARE_TOOL: Final = {"type": "function", "function": {"name": "bare_tool"}}
_BARE_PARAMETER: Final = {
    "type": "function",
    "function": {
        "name": "bare_tool",
        "description": "probe_about",
        "parameters": {"type": "object", "properties": {"bare_key": {"type": "string"}}},
    },
}
_TEXT: Final = '{"probe_key": "probe_value"}'
_USER: Final = Message(role="user", content="probe_user")
_ANSWER: Final = Message(role="assistant", content="probe_answer")
_DATES: Final = {"date_string": "02 Dec 2026", "datetime": "Dec 02 2026"}


#: A message's content when it says nothing: not there, an empty text, or null.
Wordless: TypeAlias = Literal["absent", "empty", "null"]
WORDLESS: Final[dict[Wordless, Any]] = {"absent": UNSET, "empty": "", "null": None}
#: What is said beside calls: it shows there, or in a message before, or nowhere.
Words: TypeAlias = Literal["beside", "before", "lost"]


class Capabilities(Struct, frozen=True, kw_only=True):
    """What comes through a template. A field is false also where the template refuses it.

    ``system_with_user``: system messages show only when the last message is the user's.
    ``tools_variable``: what tools are called in it, see ``TOOL_VARIABLES``. ``takes_tools``: they
    do no harm, shown or not. ``needs_tools``: the variable must be there, if with none in it.
    ``bare_tools``: a tool needs neither a description nor parameters, and these no description.
    ``thinking_switch``: the variable that switches reasoning, empty
    when none does. ``preserve_switches``: variables and the values with which they show reasoning
    of earlier turns that would not show with other values. ``*_content``: in which form messages
    show. ``*_arguments``: in which form a call's arguments do; ``broken_arguments``: a text that is
    no object is no reason to refuse. ``wordless_call``: what content must be beside calls when
    there is none. ``needs_content``: without calls it must be there, if empty. ``one_thought``:
    beside calls it may not be there together with reasoning. ``words``: where those show that
    are said beside calls.
    """

    system_role: bool
    system_with_user: bool
    developer_role: bool
    tools: bool
    tools_variable: str
    takes_tools: bool
    needs_tools: bool
    bare_tools: bool
    tool_calls: bool
    parallel_tool_calls: bool
    tool_results: bool
    preserve_reasoning: bool
    preserve_switches: tuple[tuple[str, bool], ...]
    thinking_switch: str
    reasoning_effort: bool
    string_content: bool
    typed_content: bool
    object_arguments: bool
    string_arguments: bool
    broken_arguments: bool
    wordless_call: Wordless
    needs_content: bool
    one_thought: bool
    words: Words


#: What families of templates call it: Qwen 3.6 and Laguna, GLM, Nemotron, LFM, DeepSeek, others.
_PRESERVING: Final = (
    *(("preserve_thinking", True), ("clear_thinking", False), ("truncate_history_thinking", False)),
    *(("keep_past_thinking", True), ("drop_thinking", False), ("preserve_reasoning", True)),
)


def analyse(template: ChatTemplate) -> Capabilities:
    """A template's capabilities, by some thirty short renderings."""
    shows = _Probe(template)
    wordless, arguments, called = shows.way_to_call()
    second = _TEXT if arguments == _TEXT else {"probe_key": "probe_second"}
    switches = ("enable_thinking", "thinking")
    switch = next((name for name in switches if shows.depends(name, True, False)), "")
    system = _said("system", "probe_system")
    system_role = "probe_system" in shows.text(system, _USER)
    return Capabilities(
        system_role=system_role,
        system_with_user=system_role and "probe_system" not in shows.text(system, _USER, _ANSWER),
        developer_role="developer" in template.source
        and "probe_system" in shows.text(_said("developer", "probe_system"), _USER),
        tools="probe_about" in shows.told(_TOOL),
        tools_variable=shows.tools_variable,
        takes_tools=bool(shows.told(_TOOL)),
        needs_tools=not shows.is_plain and bool(shows.told()),
        bare_tools=all("bare_tool" in shows.told(tool) for tool in (_BARE_TOOL, _BARE_PARAMETER)),
        tool_calls=bool(called),
        parallel_tool_calls=shows.call(wordless, arguments, second).count("probe_key") > 1,
        tool_results="probe_result" in (called or shows.call("empty", _TEXT)),
        preserve_reasoning=shows.reasoning(wordless, arguments),
        preserve_switches=tuple(s for s in _PRESERVING if shows.earlier_reasoning(switch, *s)),
        thinking_switch=switch,
        reasoning_effort=shows.depends("reasoning_effort", "low", "high"),
        string_content="probe_user" in shows.text(_USER),
        typed_content=shows.parts(),
        object_arguments=_is_object(shows.call(wordless, {"probe_key": "probe_value"})),
        string_arguments=_TEXT in shows.call(wordless, _TEXT),
        broken_arguments=bool(shows.call(wordless, '{"probe_')),
        wordless_call=wordless,
        needs_content=not shows.text(_USER, _said("assistant", UNSET), _USER)
        and bool(shows.text(_USER, _said("assistant", ""), _USER)),
        one_thought=shows.reasoned_call("", arguments) != ""
        and not shows.reasoned_call("probe_answer", arguments),
        words=shows.words(wordless, arguments) if called else "beside",
    )


def _is_object(shown: str) -> bool:
    """Whether arguments are shown, and not as Python shows an object."""
    return "probe_value" in shown and "'probe_value'" not in shown


def _said(role: str, content: Any, **fields: Any) -> Message:
    return Message(role=role, content=content, fields=fields)


def _call(i: int, arguments: Any) -> dict[str, Any]:
    function = {"name": "probe_tool", "arguments": arguments}
    return {"id": f"probe{i:04}", "type": "function", "function": function}


class _Probe:
    """Renderings of one template; a refused one is an empty text."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._always: dict[str, Any] = {}
        self.is_plain = bool(self.text(_USER))
        names = [name for name in TOOL_VARIABLES if name in template.source] or ["tools"]
        shown = {name: self._told(name, _TOOL) for name in names}
        best = [name for name in names if "probe_about" in shown[name]]
        self.tools_variable: str = next(iter(best or names))
        if not self.is_plain:  # templates for conversations with tools may need some
            self._always = {self.tools_variable: TOOL_VARIABLES[self.tools_variable]([_TOOL])}

    def told(self, *tools: Mapping[str, Any]) -> str:
        """A question with these tools."""
        return self._told(self.tools_variable, *tools)

    def _told(self, name: str, *tools: Mapping[str, Any]) -> str:
        return self.text(_USER, **{name: TOOL_VARIABLES[name]([dict(tool) for tool in tools])})

    def text(self, *messages: Message, **variables: Any) -> str:
        try:
            prompt = self._template.render(
                messages,
                add_generation_prompt=True,
                kwargs=self._always | variables,
                trusted=_DATES,
                keep_null=True,
            )
        except Refused:
            return ""
        return prompt.text

    def call(self, wordless: Wordless, *arguments: Any) -> str:
        """A conversation with a message that has a call for each of these arguments."""
        calls = [_call(i, given) for i, given in enumerate(arguments)]
        results = [
            _said("tool", "probe_result", tool_call_id=call["id"], name="probe_tool")
            for call in calls
        ]
        return self.text(_USER, _said("assistant", WORDLESS[wordless], tool_calls=calls), *results)

    def way_to_call(self) -> tuple[Wordless, Any, str]:
        """The forms of content and arguments with which a call shows, best first, and how."""
        for arguments in ({"probe_key": "probe_value"}, _TEXT):
            for wordless in WORDLESS:
                shown = self.call(wordless, arguments)
                if _is_object(shown) and '\\"probe_value' not in shown:
                    return wordless, arguments, shown
        return "absent", _TEXT, ""

    def reasoning(self, wordless: Wordless, arguments: Any) -> bool:
        """Whether earlier reasoning is shown, if only between a call and its result."""
        thought = {"reasoning_content": "probe_thought"}
        plain = self.text(_USER, _said("assistant", "probe_answer", **thought), _USER)
        return "probe_thought" in plain + self.reasoned_call(WORDLESS[wordless], arguments)

    def reasoned_call(self, content: Any, arguments: Any) -> str:
        """A conversation with a message that has content, reasoning and a call."""
        fields = {"reasoning_content": "probe_thought", "tool_calls": [_call(0, arguments)]}
        result = _said("tool", "probe_result", tool_call_id="probe0000", name="probe_tool")
        return self.text(_USER, _said("assistant", content, **fields), result)

    def words(self, wordless: Wordless, arguments: Any) -> Words:
        """Where words beside a call show."""
        calls = [_call(0, arguments)]
        result = _said("tool", "probe_result", tool_call_id="probe0000", name="probe_tool")
        wordless_call = _said("assistant", WORDLESS[wordless], tool_calls=calls)
        ways: dict[Words, tuple[Message, ...]] = {
            "beside": (_said("assistant", "probe_words", tool_calls=calls), result),
            # Some refuse that as two answers in a row, but not before the real one is there.
            "before": (_said("assistant", "probe_words"), wordless_call, result, _ANSWER, _USER),
        }
        for words, turns in ways.items():
            shown = self.text(_USER, *turns)
            if "probe_words" in shown and "probe_value" in shown:
                return words
        return "lost"

    def earlier_reasoning(self, switch: str, name: str, value: bool) -> bool:
        """Whether, with reasoning switched on, that of an earlier turn is shown just because of
        a variable's value."""
        on = {switch: True} if switch else {}
        thought = {"reasoning_content": "probe_thought"}
        turns = _USER, _said("assistant", "probe_answer", **thought), _USER
        shown = (self.text(*turns, **on, **{name: v}) for v in (value, not value))
        return ["probe_thought" in text for text in shown] == [True, False]

    def depends(self, name: str, one: Any, other: Any) -> bool:
        """Whether a variable's value changes the prompt."""
        return self.text(_USER, **{name: one}) != self.text(_USER, **{name: other})

    def parts(self) -> bool:
        """Whether content may be a list of parts: their texts show, and not as Python has them."""
        parts = [{"type": "text", "text": "probe_part"}, {"type": "text", "text": "probe_more"}]
        shown = self.text(_said("user", parts))
        return "probe_part" in shown and "probe_more" in shown and "'probe_part'" not in shown
