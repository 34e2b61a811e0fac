"""What a chat costs beside the model: reading an answer, and rendering a long conversation."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from bench.measure import percentile, table
from corral.backend.chat.capabilities import analyse
from corral.backend.chat.dialects import DIALECTS
from corral.backend.chat.dialects.lark import Wish
from corral.backend.chat.model import ChatModel
from corral.backend.chat.template import CHATML, ChatTemplate
from corral.backend.chat.types import ChatRequest, Message, Tool
from corral.backend.errors import Refused

#: Characters of a token of an answer, as SmolLM2 writes English.
TOKEN_CHARS = 4
N_TOKENS = 1_000
N_MESSAGES = 100
PROSE = 'The <b>river</b> is < 5 km away, as {far} as the "old" mill; [see] the map. '
TOOL = Tool(
    name="get_weather",
    parameters={"type": "object", "properties": {"text": {"type": "string"}}},
    source={"type": "function", "function": {"name": "get_weather", "parameters": {}}},
)
DATA = Path(__file__).parent.parent / "tests" / "data"


def report(rounds: int) -> None:
    """Prints both tables."""
    parser_rows = [_parser_row(dialect, rounds) for dialect in DIALECTS]
    head = ("dialect", "prose, ms", "a call's arguments, ms")
    table(f"reading {N_TOKENS:,} tokens, one by one", head, parser_rows)
    sources = {"chatml": CHATML}
    sources |= {
        path.stem: path.read_text("utf-8")
        for path in sorted((DATA / "chat-templates").glob("*.jinja"))
    }
    rows = [row for name, source in sources.items() if (row := _template_row(name, source, rounds))]
    head = ("template", "p50, ms", "against Jinja alone")
    table(f"rendering {N_MESSAGES} messages of 400 characters", head, rows)


def _parser_row(dialect: Any, rounds: int) -> tuple[str, str, str]:
    prose = (PROSE * (N_TOKENS * TOKEN_CHARS // len(PROSE) + 1))[: N_TOKENS * TOKEN_CHARS]
    call = _call(dialect.name, prose.replace('"', "'"))
    times = [_read_p50(dialect, text, 10 * rounds) for text in (prose, call) if text]
    shown = [f"{seconds * 1e3:.2f}" for seconds in times]
    return dialect.name, shown[0], shown[1] if call else "-"


def _call(name: str, text: str) -> str:
    """A call as this family writes it, with a long text among its arguments; empty: none known."""
    path = DATA / "dialects" / f"{name}.json"
    rows = json.loads(path.read_text("utf-8")) if path.exists() else []
    answers = [row["answer"] for row in rows if "Oslo" in row["answer"] and row["calls"]]
    return answers[0].replace("Oslo", text) if answers else ""


def _read_p50(dialect: Any, text: str, n: int) -> float:
    pieces = [text[at : at + TOKEN_CHARS] for at in range(0, len(text), TOKEN_CHARS)]

    def read() -> None:
        parser = dialect.parser(Wish(tools=(TOOL,)), frozenset())
        for piece in pieces:
            parser.feed(piece)
        parser.finish()

    return _p50(read, n)


def _template_row(name: str, source: str, rounds: int) -> tuple[str, str, str] | None:
    words = (PROSE * 6)[:400]
    messages = [
        Message(role="assistant" if i % 2 else "user", content=f"{i}: {words}")
        for i in range(N_MESSAGES - 1)
    ]
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>", may_queue=True)
    model = ChatModel(template, frozenset())
    request = ChatRequest(messages=tuple(messages))
    try:
        model.prepare(request)
    except Refused:
        return None  # wants a conversation of another kind
    ours = _p50(lambda: model.prepare(request), 5 * rounds)
    peer = _jinja(source, messages)
    plain = _p50(peer, 5 * rounds) if peer is not None else 0.0
    return name, f"{ours * 1e3:.2f}", f"{ours / plain:.1f}" if plain else "-"


def _jinja(source: str, messages: list[Message]) -> Callable[[], object] | None:
    """The same by Jinja alone, as transformers sets it up; None where that needs more."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = str
    environment.globals["raise_exception"] = _fail
    environment.globals["strftime_now"] = time.strftime
    typed = analyse(ChatTemplate(source, bos_token="", eos_token="")).string_content
    given = [
        {
            "role": m.role,
            "content": m.content if typed else [{"type": "text", "text": m.content}],
        }
        for m in messages
    ]
    try:
        compiled = environment.from_string(source)

        def render() -> object:
            return compiled.render(
                messages=given, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
            )

        render()
    except (TemplateError, TypeError):
        return None
    return render


def _fail(message: str) -> None:
    raise TemplateError(message)


def _p50(call: Callable[[], object], n: int) -> float:
    times = []
    for _ in range(n):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return percentile(times, 50)
