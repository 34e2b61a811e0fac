"""Tags in text that arrives in pieces."""

import functools
import re


@functools.cache
def finder(tags: tuple[str, ...]) -> re.Pattern[str]:
    """Finds the first tag, as the group ``tag``, or the beginning of one at the end of the text."""
    assert not any(a != b and a.startswith(b) for a in tags for b in tags), tags
    if not tags:
        return re.compile(r"(?!)(?P<tag>)")
    whole = "|".join(map(re.escape, tags))
    begun = "|".join(_begun(tag) for tag in tags)
    return re.compile(f"(?P<tag>{whole})|(?:{begun})\\Z")


def _begun(tag: str) -> str:
    first, *others = map(re.escape, tag)
    return first + "".join(f"(?:{letter}" for letter in others) + ")?" * len(others)
