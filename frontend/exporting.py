"""Conversations as files: JSONL with everything, Markdown to read. Pure.

The JSONL is that of llama.cpp's web UI, which can read it: a line for the conversation
(``"type": "session"``), then one for each message, with the ids of the one before and of those
after. The first message of a tree is an empty one that is never shown. What that format has no
place for is under ``corral``.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from corral.backend.store import Bundle, Call, Conversation, Message, Outcome
from corral.frontend.words import _

FORMAT = 1


def jsonl(bundle: Bundle, files: Mapping[str, bytes]) -> bytes:
    """A conversation with all its branches, a JSON object a line; ``files`` are its pictures' by
    key. One that is not there is left out, with its name kept."""
    c = bundle.conversation
    below: dict[int | None, list[str]] = {}
    for m in bundle.messages:
        below.setdefault(m.parent_id, []).append(_id(c, m.id))
    session = {
        "type": "session",
        "harness": "corral",
        "id": c.id,
        "name": c.title,
        "lastModified": round(c.updated_s * 1000),
        "currNode": _id(c, c.leaf_id),
        "pinned": bool(c.is_pinned),
        "corral": {
            "format": FORMAT,
            "created_s": c.created_s,
            "updated_s": c.updated_s,
            "settings": msgspec.Raw(bundle.settings),
        },
    }
    root = _node(c, None, below.get(None, []), c.created_s) | {
        "type": "root",
        "role": "system",
        "content": "",
        "parent": None,
    }
    messages = [root, *(_message(c, m, below.get(m.id, []), files) for m in bundle.messages)]
    lines = [session, *({"type": "message", "message": m} for m in messages)]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def _id(c: Conversation, message_id: int | None) -> str:
    """Unlike those of other conversations and servers."""
    return f"{c.id}-{'root' if message_id is None else message_id}"


def _node(
    c: Conversation, message_id: int | None, below: Sequence[str], at_s: float
) -> dict[str, Any]:
    return {
        "id": _id(c, message_id),
        "convId": c.id,
        "timestamp": round(at_s * 1000),
        "children": below,
    }


def _message(
    c: Conversation, m: Message, below: Sequence[str], files: Mapping[str, bytes]
) -> dict[str, Any]:
    f = m.figures
    node = _node(c, m.id, below, m.created_s) | {
        "type": "text",
        "role": m.role,
        "content": m.content,
        "parent": _id(c, m.parent_id),
        "model": m.model,
    }
    if m.pictures:
        node["extra"] = [
            {
                "type": "IMAGE",
                "name": p.name,
                "size": p.n_bytes,
                "base64Url": _url(p.media_type, files[p.key]) if p.key in files else "",
            }
            for p in m.pictures
        ]
    if m.role == "assistant":
        node |= {
            "reasoningContent": m.reasoning,
            "toolCalls": [_call(m, n, call) for n, call in enumerate(m.calls)],
            "timings": {
                "cache_n": f.n_cached,
                "prompt_n": max(0, f.n_prompt - f.n_cached),
                "prompt_ms": f.prompt_ms,
                "predicted_n": f.n_generated,
                "predicted_ms": f.predicted_ms,
            },
        }
    # One that is being written is, in a file, one that was stopped.
    outcome = m.outcome if m.outcome.status != "generating" else Outcome(status="stopped")
    own = {"created_s": m.created_s, "outcome": outcome, "figures": f, "label": m.label}
    return {name: value for name, value in node.items() if value != []} | {
        "children": below,
        "corral": own,
    }


def _call(m: Message, n: int, call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{m.id}_{n}", "type": "function", "function": function}


def _url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def markdown(conversation: Conversation, messages: Sequence[Message]) -> str:
    """The branch that is shown, to read. Pictures are named, not included."""
    parts = [f"# {conversation.title}"]
    for m in messages:
        who = _("You") if m.role == "user" else _("Assistant")
        parts.append(f"## {who}" + (f" ({m.model})" if m.model else ""))
        parts += [f"*[{p.name}]*" for p in m.pictures]
        if m.reasoning:
            summary = _("Reasoning")
            inside = m.reasoning.strip().replace("</details", "&lt;/details")
            parts.append(f"<details><summary>{summary}</summary>\n\n{inside}\n\n</details>")
        parts += [m.content.strip()] if m.content.strip() else []
        parts += [_fenced(f"{call.name}\n{call.arguments}") for call in m.calls]
        if m.outcome.error:
            parts.append(f"> {m.outcome.error}")
    return "\n\n".join(parts) + "\n"


def _fenced(text: str) -> str:
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text) or [""]))
    return f"{fence}\n{text}\n{fence}"


def slug(title: str) -> str:
    """A title as a part of a file's name."""
    return re.sub(r"[\W_]+", "-", title.lower()).strip("-")[:40].strip("-") or "conversation"
