"""The names of samplers, as flags and requests use them: letters and llama.cpp's spellings."""

from collections.abc import Sequence

from corral.backend.errors import Refused

# A sampler's letter in llama-server's ``--sampling-seq``.
_BY_LETTER = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "i": "infill",
    "a": "adaptive_p",
}
# Names without their dashes and underscores, in which llama.cpp's several spellings differ.
_BY_NAME = {name.replace("_", ""): name for name in _BY_LETTER.values()} | {
    "temp": "temperature",
    "nucleus": "top_p",
    "typical": "typ_p",
    "typicalp": "typ_p",
    "typ": "typ_p",
}


def samplers(given: str | Sequence[str]) -> tuple[str, ...]:
    """Samplers in their order, from a text of letters or a list of names in any of llama.cpp's
    spellings. Raises ``Refused`` for one that is unknown or named twice."""
    if isinstance(given, str):
        found = [(f"samplers: {letter!r}", _BY_LETTER.get(letter)) for letter in given]
    else:
        found = [(f"samplers[{i}]: {name!r}", _by_name(name)) for i, name in enumerate(given)]
    names: list[str] = []
    for shown, known in found:
        at = shown.split(":")[0]
        if known is None:
            letters = ", ".join(f"{name} ({letter})" for letter, name in _BY_LETTER.items())
            raise Refused(f"{shown} is no sampler; there are {letters}", param=at)
        if known in names:
            raise Refused(f"{shown} is named twice", param=at)
        names.append(known)
    return tuple(names)


def _by_name(name: str) -> str | None:
    return _BY_NAME.get(name.lower().replace("-", "").replace("_", ""))
