"""The forms a raw prompt may have: text, token ids, both mixed, and lists of these."""

from typing import Annotated, Any, NamedTuple, TypeAlias

from msgspec import Meta

from corral.backend.answer_settings import vocabulary_id
from corral.backend.api.media_parts import raw_prompt
from corral.backend.chat.types import Prompt, Source, Written
from corral.backend.errors import Refused

#: Most prompts in one request, and most answers to all of them together.
MAX_PROMPTS, MAX_ANSWERS = 1024, 4096

_WITH_MEDIA = {
    "required": ["prompt_string"],
    "properties": {
        "prompt_string": {"type": "string"},
        "multimodal_data": {"type": "array", "items": {"type": "string"}},
    },
}
WithMedia: TypeAlias = Annotated[dict[str, Any], Meta(extra_json_schema=_WITH_MEDIA)]
Prompts: TypeAlias = str | list[int | str | list[int | str] | WithMedia] | WithMedia


class Given(NamedTuple):
    """Prompts, and the pictures and sounds of each."""

    prompts: tuple[Prompt | Written, ...]
    sources: tuple[tuple[Source, ...], ...]


def prompts(
    given: Prompts, n_vocab: int, *, n: int = 1, at: str = "prompt", most: int = MAX_PROMPTS
) -> Given:
    """The prompts of a request that wants ``n`` answers to each, ``most`` prompts at most.

    A list is several prompts when it holds lists or objects, or nothing but texts; else it is one
    prompt of token ids and texts. Raises ``Refused`` for ids the model does not have, for markers
    of pictures and sounds that are not as many as these, and for too many.
    """
    if not is_several(given):
        prompt, sources = _prompt(given, n_vocab, at)
        return Given((prompt,), (sources,))
    found = [_prompt(one, n_vocab, f"{at}[{i}]") for i, one in enumerate(given)]
    if len(found) > most:
        raise Refused(f"{at}: {len(found)} are too many; at most {most}", param=at)
    if n > 1 and len(found) * n > MAX_ANSWERS:
        message = (
            f"{at}: {len(found)} prompts with {n} answers each are too many; "
            f"at most {MAX_ANSWERS} answers"
        )
        raise Refused(message, param=at)
    return Given(tuple(prompt for prompt, _ in found), tuple(sources for _, sources in found))


def texts(given: Prompts, n_vocab: int, *, at: str, most: int) -> tuple[Prompt, ...]:
    """As ``prompts``, where there may be no pictures and sounds."""
    several = is_several(given)
    for i, one in enumerate(given if several else [given]):
        if isinstance(one, dict):
            there = f"{at}[{i}]" if several else at
            message = f"{there}: text or tokens are read here, no pictures and sounds"
            raise Refused(message, kind="unsupported", param=there)
    found = prompts(given, n_vocab, at=at, most=most).prompts
    return tuple(prompt for prompt in found if not isinstance(prompt, Written))


def is_several(given: Any) -> bool:
    """Whether it is a list of prompts, and not one."""
    if not isinstance(given, list) or not given:
        return False
    has_lists = any(isinstance(part, list | dict) for part in given)
    return has_lists or all(isinstance(part, str) for part in given)


def _prompt(given: Any, n_vocab: int, at: str) -> tuple[Prompt | Written, tuple[Source, ...]]:
    if isinstance(given, str):
        return given, ()
    if isinstance(given, dict):
        return raw_prompt(given, at)
    if isinstance(given, int):
        raise Refused(f"{at}: expected text or tokens beside lists of them", param=at)
    if not given:
        raise Refused(f"{at}: expected text or tokens, got an empty list", param=at)
    tokens = [
        part if isinstance(part, str) else vocabulary_id(part, n_vocab, f"{at}[{i}]")
        for i, part in enumerate(given)
    ]
    return tokens, ()
