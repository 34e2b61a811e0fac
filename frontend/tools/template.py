"""The chat template: a conversation to edit, and the prompt that it becomes. A template that was
changed on the page is tried here only."""

import json
from collections.abc import Sequence
from typing import Any

from litestar import Response, post, route
from litestar.datastructures import FormMultiDict
from msgspec import Struct
from msgspec.structs import replace

from corral.backend.chat.capabilities import Capabilities
from corral.backend.chat.types import ChatRequest, Message, Tool
from corral.backend.errors import CorralError, Refused
from corral.backend.service import Service
from corral.frontend.reasons import sentence
from corral.frontend.tools.frame import tool_page
from corral.frontend.tools.segments import Segment, segments
from corral.frontend.wire import LOOK, AnyRequest, form_of, is_htmx, page, site_of
from corral.frontend.words import _

ROLES = ("system", "user", "assistant", "tool", "developer")
MAX_ROWS = 40
#: Characters of everything on the page together.
MAX_CHARS = 400_000


class Row(Struct, frozen=True):
    """A message in the editor."""

    role: str
    text: str


class Fact(Struct, frozen=True):
    """Something the template can say, and how."""

    name: str
    value: str
    is_there: bool = True


class Rendered(Struct, frozen=True, kw_only=True):
    """The prompt."""

    segments: tuple[Segment, ...]
    n_tokens: int
    n_chars: int
    facts: tuple[Fact, ...]


class Template(Struct, frozen=True, kw_only=True):
    """The page. ``own`` is the model's template, ``source`` what is in the editor; ``thinking`` is
    ``on``, ``off`` or empty; ``rendered`` None when there was an ``error``."""

    rows: tuple[Row, ...]
    own: str
    source: str
    tools: str = ""
    kwargs: str = ""
    thinking: str = ""
    adds_prompt: bool = True
    rendered: Rendered | None = None
    error: str = ""
    roles: tuple[str, ...] = ROLES

    @property
    def is_changed(self) -> bool:
        """Whether another template than the model's is tried."""
        return self.source != self.own


@route("/template", http_method=LOOK, status_code=200)
async def template_page(request: AnyRequest) -> Response[str]:
    """The page with an example."""
    own = site_of(request).service.chat_template
    rows = (
        Row("system", _("You are a helpful assistant.")),
        Row("user", _("What is the capital of France?")),
        Row("assistant", _("Paris.")),
        Row("user", _("And of Spain?")),
    )
    view = Template(rows=rows, own=own, source=own)
    return await _shown(request, await _filled(request, view))


@post("/template", status_code=200)
async def preview(request: AnyRequest) -> Response[str]:
    """The prompt of what is in the editor; ``do`` adds or removes a message first, or puts the
    model's template back."""
    form = await form_of(request)
    view, do = of_form(form, site_of(request).service.chat_template), str(form.get("do", ""))
    view = await _filled(request, changed(view, do))
    if not is_htmx(request):
        return await _shown(request, view)
    fragment = "_template_editor.html" if do else "_template_prompt.html"
    return page(request, f"tools/{fragment}", view=view)


async def _shown(request: AnyRequest, view: Template) -> Response[str]:
    return await tool_page(request, "template", _("Chat template"), view)


def of_form(form: FormMultiDict, own: str) -> Template:
    """What is in the editor. Raises Refused when it is too much."""
    texts = [_text(value) for value in form.getall("text", [])]
    roles = [str(value) for value in form.getall("role", [])]
    rows = tuple(Row(r if r in ROLES else "user", t) for r, t in zip(roles, texts, strict=False))
    # The form that could not show a template while the model was loading has none.
    source = _text(form.get("source", "")) or own
    view = Template(
        rows=rows[:MAX_ROWS],
        own=own,
        source=own if _same(source, own) else source,
        tools=_text(form.get("tools", "")).strip(),
        kwargs=_text(form.get("kwargs", "")).strip(),
        thinking=str(form.get("thinking", "")),
        adds_prompt="adds_prompt" in form,
    )
    if len(view.source) + len(view.tools) + len(view.kwargs) + sum(map(len, texts)) > MAX_CHARS:
        words = _("This is too long to be tried here; the page takes {most} characters.")
        raise Refused(words.format(most=MAX_CHARS), kind="too_large")
    return view


def _text(value: object) -> str:
    return value.replace("\r\n", "\n") if isinstance(value, str) else ""


def _same(source: str, own: str) -> bool:
    """Whether nothing was changed; a form loses what line ends were."""
    return source.splitlines() == own.splitlines()


def changed(view: Template, do: str) -> Template:
    """The page after a button was pressed."""
    if do == "reset":
        return replace(view, source=view.own)
    if do == "add" and len(view.rows) < MAX_ROWS:
        is_answer = bool(view.rows) and view.rows[-1].role == "user"
        return replace(view, rows=(*view.rows, Row("assistant" if is_answer else "user", "")))
    if do.startswith("remove-") and do[7:].isdecimal():
        at = int(do[7:])
        return replace(view, rows=view.rows[:at] + view.rows[at + 1 :])
    return view


async def _filled(request: AnyRequest, view: Template) -> Template:
    try:
        return replace(view, rendered=await rendered(site_of(request).service, view))
    except CorralError as error:
        return replace(view, error=sentence(error.message))


async def rendered(service: Service, view: Template) -> Rendered:
    """The prompt of what is in the editor. Raises Refused, in the template's words, or Broken."""
    asked = to_request(view)
    if view.is_changed:
        tried = await service.try_template(asked, view.source)
        prompt, can = tried.prompt, tried.can
    else:
        prompt, can = await service.render(asked), service.capabilities
    info = service.info
    return Rendered(
        segments=segments(prompt, () if info is None else info.special_tokens),
        n_tokens=len(await service.prompt_tokens(prompt)),
        n_chars=len(prompt.text),
        facts=() if can is None else facts(can),
    )


def to_request(view: Template) -> ChatRequest:
    """The request that the editor stands for. Raises Refused, naming the field."""
    if not view.rows:
        raise Refused(_("A conversation needs a message."))
    kwargs = _read(view.kwargs, _("Variables")) if view.kwargs else {}
    if not isinstance(kwargs, dict):
        raise Refused(
            _("Variables: expected an object, such as {example}").format(example='{"a": 1}')
        )
    if view.thinking in ("on", "off"):
        kwargs = {"enable_thinking": view.thinking == "on"} | kwargs
    return ChatRequest(
        messages=tuple(Message(role=row.role, content=row.text) for row in view.rows),
        tools=_tools(_read(view.tools, _("Tools"))) if view.tools else (),
        template_kwargs=kwargs,
        add_generation_prompt=view.adds_prompt,
    )


def _read(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        words = _("{name}: no JSON in line {line}, column {column}: {why}")
        raise Refused(
            words.format(name=name, line=error.lineno, column=error.colno, why=error.msg)
        ) from None
    except RecursionError:
        raise Refused(_("{name}: nested too deep").format(name=name)) from None


def _tools(given: Any) -> tuple[Tool, ...]:
    listed = given if isinstance(given, list) else [given]
    return tuple(_tool(tool, i) for i, tool in enumerate(listed, 1))


def _tool(given: Any, at: int) -> Tool:
    """A tool, with or without OpenAI's ``{"type": "function"}`` around it."""
    function = given.get("function", given) if isinstance(given, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not isinstance(function, dict):
        raise Refused(_("Tools: number {at} is no function with a name").format(at=at))
    parameters = function.get("parameters")
    return Tool(
        name=name,
        description=str(function.get("description") or ""),
        parameters=parameters if isinstance(parameters, dict) else {},
        source={"type": "function", "function": function},
    )


def facts(can: Capabilities) -> tuple[Fact, ...]:
    """What a template can say, in words."""
    yes, no = _("yes"), _("no")
    system = _("only before a last message of the user") if can.system_with_user else yes
    said: Sequence[tuple[str, bool, str]] = (
        (_("System messages"), can.system_role, system),
        (_("Developer messages"), can.developer_role, yes),
        (_("Tools"), can.tools, can.tools_variable),
        (_("Tool calls"), can.tool_calls, _("several") if can.parallel_tool_calls else _("one")),
        (_("Results of tools"), can.tool_results, yes),
        (_("Reasoning, switched by"), bool(can.thinking_switch), can.thinking_switch),
        (_("Reasoning effort"), can.reasoning_effort, yes),
        (_("Reasoning of earlier turns"), can.preserve_reasoning, yes),
        (_("Content as text"), can.string_content, yes),
        (_("Content in parts"), can.typed_content, yes),
    )
    return tuple(Fact(name, value if has else no, has) for name, has, value in said)
