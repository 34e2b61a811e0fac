"""Parts of an answer put together."""

from collections.abc import Iterable

from msgspec.structs import replace

from corral.backend.chat.types import CallArguments, CallBegin, Part


def joined(parts: Iterable[Part]) -> list[Part]:
    """The same parts, neighbours of one kind as one."""
    out: list[Part] = []
    texts: list[str] = []
    for part in parts:
        last = out[-1] if out else None
        if last is not None and not isinstance(part, CallBegin) and _is_same(last, part):
            texts.append(part.text)
            continue
        _close(out, texts)
        out.append(part)
        texts = [] if isinstance(part, CallBegin) else [part.text]
    _close(out, texts)
    return out


def _is_same(last: Part, part: Part) -> bool:
    if isinstance(last, CallArguments) and isinstance(part, CallArguments):
        return last.index == part.index
    return type(last) is type(part)


def _close(out: list[Part], texts: list[str]) -> None:
    if len(texts) > 1:
        out[-1] = replace(out[-1], text="".join(texts))
