"""Fill in the middle: the prompt that models trained for it expect, from the texts around a gap.

``[BOS] ([REP] project ([SEP] file text)* [SEP] file)? [PRE] prefix [SUF] suffix [MID]``, the part
in parentheses when there are other files. Texts are tokenised by themselves, and what looks like a
special token in them is plain text.
"""

from collections.abc import Sequence

from msgspec import Struct

from corral.backend.chat.types import Prompt
from corral.backend.engine.messages import ModelInfo
from corral.backend.errors import Refused, from_engine
from corral.backend.service import Service

# llama-server's names for what it does not know.
_PROJECT, _FILE = "myproject\n", "filename\n"
#: Tokens that belong to no text: the three marks, and room for one token of the answer.
_MARKS = 4


class Gap(Struct, frozen=True, kw_only=True):
    """What surrounds a gap: texts, and other files as (name, text), the nearest last."""

    prefix: Prompt
    suffix: str
    files: Sequence[tuple[str, str]] = ()


class Parts(Struct, frozen=True, kw_only=True):
    """The same as tokens. ``head`` and ``tail`` enclose the files."""

    prefix: list[int]
    suffix: list[int]
    head: list[int] = []
    files: list[list[int]] = []
    tail: list[int] = []


def trimmed(parts: Parts, room: int) -> Parts:
    """The parts cut down to ``room`` tokens: first the files furthest from the gap, then the text
    furthest from it; the suffix keeps a quarter of the room if it needs that much."""
    head, files, tail = parts.head, list(parts.files), parts.tail
    n_text = len(parts.prefix) + len(parts.suffix)
    while files and len(head) + sum(map(len, files)) + len(tail) + n_text > room:
        del files[0]
    if parts.files and not files:
        head, tail = [], []
    left = room - len(head) - len(tail) - sum(map(len, files))
    n_suffix = min(len(parts.suffix), max(left // 4, left - len(parts.prefix)))
    n_prefix = min(len(parts.prefix), left - n_suffix)
    return Parts(
        prefix=parts.prefix[len(parts.prefix) - n_prefix :],
        suffix=parts.suffix[:n_suffix],
        head=head,
        files=files,
        tail=tail,
    )


async def fill_in(service: Service, gap: Gap, *, max_tokens: int | None, at: str) -> Prompt:
    """The prompt for a gap. Texts that are too long are cut, so that ``max_tokens`` fit, an eighth
    of the context when that is open, half of it at most. Raises ``Refused``, naming ``at``, when
    the model has no tokens for it."""
    info = service.info
    if info is None:
        raise from_engine("loading", "Loading model")
    if min(info.fim_pre, info.fim_suf, info.fim_mid) < 0:
        message = f"{at}: this model has no fill-in-the-middle tokens"
        raise Refused(message, kind="unsupported", param=at)
    n_answer = info.n_ctx // 8 if max_tokens is None or max_tokens < 0 else max_tokens
    bos = await _read(service, info.bos_token, parse_special=True) if info.add_bos else []
    room = info.n_ctx - min(n_answer, info.n_ctx // 2) - len(bos) - _MARKS
    p = trimmed(await _parts(service, info, gap), max(room, 0))
    files = [token for file in p.files for token in file]
    text = [info.fim_pre, *p.prefix, info.fim_suf, *p.suffix, info.fim_mid]
    return list[int | str]([*bos, *p.head, *files, *p.tail, *text])


async def _parts(service: Service, info: ModelInfo, gap: Gap) -> Parts:
    prefix, suffix = await _read(service, gap.prefix), await _read(service, gap.suffix)
    if not gap.files:
        return Parts(prefix=prefix, suffix=suffix)

    async def named(mark: int, name: str) -> list[int]:
        return [*([mark] if mark >= 0 else []), *await _read(service, name)]

    files = [
        [*await named(info.fim_sep, f"{name}\n"), *await _read(service, text)]
        for name, text in gap.files
    ]
    return Parts(
        prefix=prefix,
        suffix=suffix,
        head=await named(info.fim_rep, _PROJECT) if info.fim_rep >= 0 else [],
        files=files,
        tail=await named(info.fim_sep, _FILE),
    )


async def _read(service: Service, text: Prompt, *, parse_special: bool = False) -> list[int]:
    return await service.tokenize(text, add_special=False, parse_special=parse_special)
