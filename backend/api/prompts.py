"""The forms a raw prompt may have: text, token ids, both mixed, and lists of these."""

from typing import Any, TypeAlias

from corral.backend.api.params import vocabulary_id
from corral.backend.chat.types import Prompt
from corral.backend.errors import Refused

#: Most prompts in one request, and most answers to all of them together.
MAX_PROMPTS, MAX_ANSWERS = 1024, 4096

Prompts: TypeAlias = str | list[int | str | list[int | str] | dict[str, Any]] | dict[str, Any]


def prompts(
    given: Prompts, n_vocab: int, *, n: int = 1, at: str = "prompt", most: int = MAX_PROMPTS
) -> tuple[Prompt, ...]:
    """The prompts of a request that wants ``n`` answers to each, ``most`` prompts at most.

    A list is several prompts when it holds lists, or nothing but texts; else it is one prompt of
    token ids and texts. Raises ``Refused`` for media, ids the model does not have, and too many.
    """
    if not is_several(given):
        return (_prompt(given, n_vocab, at),)
    found = tuple(_prompt(one, n_vocab, f"{at}[{i}]") for i, one in enumerate(given))
    if len(found) > most:
        raise Refused(f"{at}: {len(found)} are too many; at most {most}", param=at)
    if n > 1 and len(found) * n > MAX_ANSWERS:
        message = (
            f"{at}: {len(found)} prompts with {n} answers each are too many; "
            f"at most {MAX_ANSWERS} answers"
        )
        raise Refused(message, param=at)
    return found


def is_several(given: Any) -> bool:
    """Whether it is a list of prompts, and not one."""
    if not isinstance(given, list) or not given:
        return False
    has_lists = any(isinstance(part, list | dict) for part in given)
    return has_lists or all(isinstance(part, str) for part in given)


def _prompt(given: Any, n_vocab: int, at: str) -> Prompt:
    if isinstance(given, str):
        return given
    if isinstance(given, dict):
        raise Refused(f"{at}: media in prompts is not supported yet", kind="unsupported", param=at)
    if isinstance(given, int):
        raise Refused(f"{at}: expected text or tokens beside lists of them", param=at)
    if not given:
        raise Refused(f"{at}: expected text or tokens, got an empty list", param=at)
    return [
        part if isinstance(part, str) else vocabulary_id(part, n_vocab, f"{at}[{i}]")
        for i, part in enumerate(given)
    ]
