"""A request of the page as a program would send it: JSON, curl, Python. Pure."""

import base64
import json
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from corral.backend.chat.types import ChatRequest, Params, Source
from corral.backend.engine.messages import Constraint

#: A command line holds no more; longer requests are read from a file.
MAX_ARGUMENT = 100_000
#: Where such a request is.
FILE_NAME = "request.json"
PATH = "/v1/chat/completions"

# What the SDK has arguments for; it sends the others as they are.
_ARGUMENTS = (
    *("model", "messages", "temperature", "top_p", "max_tokens", "seed", "stop", "logprobs"),
    *("top_logprobs", "presence_penalty", "frequency_penalty", "response_format"),
)
_NOT_SENT = ("n_probs", "constraint", "constraint_at", "lora", "logit_bias", "prompt_probs")


def body(
    request: ChatRequest, model: str, pictures: Mapping[bytes, tuple[str, bytes]] | None = None
) -> dict[str, Any]:
    """The body of ``POST /v1/chat/completions`` that asks for the same. ``pictures``: media type
    and bytes by what a source has as ``data``; one that is not there is left as a name."""
    sources = [_picture(source, pictures or {}) for source in request.sources]
    made: dict[str, Any] = {
        "model": model,
        "messages": [
            {"role": m.role, "content": _content(m.content, sources), **m.fields}
            for m in request.messages
        ],
        **_settings(request.params),
    }
    if request.template_kwargs:
        made["chat_template_kwargs"] = request.template_kwargs
    if request.thinking_budget is not None:
        made["reasoning_budget_tokens"] = request.thinking_budget
    if request.continue_final:
        made |= {"continue_final_message": True, "add_generation_prompt": False}
    return made


def _settings(params: Params) -> dict[str, Any]:
    """What was asked for, and no more."""
    given = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in msgspec.structs.asdict(params).items()
        if value is not None and name not in _NOT_SENT
    }
    if params.n_probs:
        given |= {"logprobs": True, "top_logprobs": params.n_probs}
    if params.logit_bias:
        given["logit_bias"] = [
            [t, False if b == float("-inf") else b] for t, b in params.logit_bias
        ]
    if params.lora is not None:
        given["lora"] = [{"id": id, "scale": scale} for id, scale in params.lora]
    return given | (_form(params.constraint) if params.constraint is not None else {})


def _form(constraint: Constraint) -> dict[str, Any]:
    if constraint.kind == "json_schema":
        return {"json_schema": json.loads(constraint.source)}
    return {{"gbnf": "grammar"}.get(constraint.kind, constraint.kind): constraint.source}


def _content(content: Any, sources: list[dict[str, Any]]) -> Any:
    if not isinstance(content, list):
        return "" if content is msgspec.UNSET else content
    return [sources[part["index"]] if part.get("type") == "media" else part for part in content]


def _picture(source: Source, pictures: Mapping[bytes, tuple[str, bytes]]) -> dict[str, Any]:
    media_type, data = pictures.get(source.data, ("", b""))
    url = f"data:{media_type};base64,{base64.b64encode(data).decode()}" if data else source.param
    return {"type": "image_url", "image_url": {"url": url}}


def written(made: Mapping[str, Any]) -> str:
    """A body as JSON."""
    return json.dumps(made, ensure_ascii=False, indent=2)


def is_long(made: Mapping[str, Any], request: ChatRequest) -> bool:
    """Whether the request is better read from a file than from the command line."""
    return bool(request.sources) or len(_quoted(written(made)).encode()) > MAX_ARGUMENT


def curl(made: Mapping[str, Any], base: str, *, has_keys: bool, from_file: bool) -> str:
    """A command for POSIX shells. ``base``: the address that ``/v1`` is under."""
    lines = [f"curl {shlex.quote(base + PATH)}", "-H 'Content-Type: application/json'"]
    if has_keys:
        lines.append('-H "Authorization: Bearer $CORRAL_API_KEY"')
    lines.append(f"--data-binary @{FILE_NAME}" if from_file else f"-d {_quoted(written(made))}")
    return " \\\n  ".join(lines)


def _quoted(text: str) -> str:
    """JSON as one word of a shell. Nothing in it means anything there, and nothing in it shows
    otherwise than it is: what is no printable character is an escape of JSON's."""
    shown = "".join(c if c == "\n" or c.isprintable() else _escape(c) for c in text)
    # In JSON this stands only in texts, so that it may be an escape of JSON's as well.
    return "'" + shown.replace("'", _escape("'")) + "'"


def _escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def python(made: Mapping[str, Any], base: str, *, has_keys: bool, from_file: bool) -> str:
    """A program with OpenAI's SDK."""
    key = 'os.environ["CORRAL_API_KEY"]' if has_keys else '"none"'
    imports = ["import json"] * from_file + ["import os"] * has_keys
    head = [*imports, *[""] * bool(imports), "from openai import OpenAI", ""]
    head.append(f"client = OpenAI(base_url={base + '/v1'!r}, api_key={key})")
    if from_file:
        head += [
            f'with open("{FILE_NAME}") as file:',
            "    request = json.load(file)",
            'model, messages = request.pop("model"), request.pop("messages")',
            "completion = client.chat.completions.create(",
            "    model=model, messages=messages, extra_body=request",
            ")",
        ]
    else:
        head += ["completion = client.chat.completions.create(", *_arguments(made), ")"]
    return "\n".join([*head, "print(completion.choices[0].message.content)", ""])


def _arguments(made: Mapping[str, Any]) -> list[str]:
    own = {name: value for name, value in made.items() if name in _ARGUMENTS}
    rest = {name: value for name, value in made.items() if name not in own}
    if rest:
        own["extra_body"] = rest
    return [f"    {name}={_literal(value)}," for name, value in own.items()]


def _literal(value: Any, indent: str = "    ") -> str:
    """A value as Python writes it, a line for each part."""
    inside = indent + "    "
    if isinstance(value, dict) and value:
        parts = [f"{inside}{k!r}: {_literal(v, inside)},\n" for k, v in value.items()]
        return "{\n" + "".join(parts) + indent + "}"
    if isinstance(value, list) and any(isinstance(v, dict | list) for v in value):
        parts = [f"{inside}{_literal(v, inside)},\n" for v in value]
        return "[\n" + "".join(parts) + indent + "]"
    return repr(value)
