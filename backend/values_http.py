"""Readers of settings of the HTTP side; see ``values``."""

import re

from corral.backend.media.hosts import Allowed, parse_allowed
from corral.backend.values import file_text

_SEGMENT = re.compile(r"[A-Za-z0-9._~-]+")


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def addresses(text: str) -> str:
    """Addresses or paths of sockets, separated by commas."""
    found = _listed(text)
    if not found or len(set(found)) < len(found):
        raise ValueError("must name addresses, each once")
    return ",".join(found)


def names(text: str) -> str:
    """Names, separated by commas; each once."""
    return ",".join(dict.fromkeys(_listed(text)))


def prefix(text: str) -> str:
    """A path that others follow: none at all, or ``/a/b``."""
    path = text.rstrip("/")
    head, *segments = path.split("/")
    is_plain = all(_SEGMENT.fullmatch(s) and s not in (".", "..") for s in segments)
    if path and (head or not is_plain):
        raise ValueError("must begin with a slash and hold letters, digits and . _ ~ - only")
    return path


def key_file(text: str) -> tuple[str, ...]:
    """The keys in a file, one a line."""
    lines = (line.strip() for line in file_text(text).splitlines())
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ValueError("must be a file with at least one key")
    return keys


def url_hosts(text: str) -> tuple[Allowed, ...]:
    """Places that may be fetched from, separated by commas."""
    try:
        found = tuple(parse_allowed(part) for part in _listed(text))
    except ValueError:
        found = ()
    if not found:
        raise ValueError("must name hosts: [http://|https://]HOST[:PORT]")
    return found
