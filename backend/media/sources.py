"""From what a client writes in place of a picture or a sound to its bytes."""

import asyncio
import binascii
import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, unquote_to_bytes

from corral.backend.errors import Refused
from corral.backend.media.policy import MediaPolicy
from corral.backend.media.remote import Network, fetch

#: What RFC 8089 calls this machine; a file's own host may be absent.
_LOCALHOST: Final = re.compile(r"//localhost(?=/)", re.IGNORECASE)
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
#: Shorter texts are decoded at once; a thread for them would take longer.
_SHORT: Final = 64 * 1024


async def load(
    url: str, *, param: str, policy: MediaPolicy, network: Network | None = None
) -> bytes:
    """The bytes behind a URL: ``data:``; ``http:`` and ``https:`` where ``policy.allow`` says so;
    ``file:`` below ``policy.path``; or base64 alone, as llama-server takes it.

    Raises Refused, naming ``param``. At most ``policy.max_bytes`` are read.
    """
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else ""
    if scheme in ("http", "https"):
        if not policy.allow:
            message = (
                "this server fetches nothing (it was started without --media-url-allow); "
                "send a data: URL"
            )
            raise Refused(message, param=param)
        return await fetch(url, param=param, policy=policy, network=network or Network())
    if scheme == "file":
        return await asyncio.to_thread(_file, url[5:], param, policy)
    if scheme not in ("", "data"):
        message = f"{scheme[:20]}: URLs are not supported; send a data: URL"
        raise Refused(message, param=param)
    if len(url) < _SHORT:
        return _inline(url, param, policy.max_bytes)
    return await asyncio.to_thread(_inline, url, param, policy.max_bytes)


def from_base64(text: str, *, param: str, max_bytes: int) -> bytes:
    """Bytes from base64 by the rules that browsers have for ``data:`` URLs: white space is skipped
    and the padding may be absent, but nothing else is. Raises Refused, naming ``param``."""
    bare = "".join(text.split())
    _check_size(len(bare) * 3 // 4 - bare.count("=", -2), max_bytes, param)
    if not bare.endswith("="):
        bare += "=" * (-len(bare) % 4)
    try:
        return binascii.a2b_base64(bare, strict_mode=True)
    except ValueError:
        raise Refused("this is not valid base64", param=param) from None


def _inline(url: str, param: str, max_bytes: int) -> bytes:
    if url[:5].lower() != "data:":
        if not url:
            raise Refused("the URL is empty", param=param)
        return from_base64(url, param=param, max_bytes=max_bytes)
    kind, comma, body = url[5:].partition(",")
    if not comma:
        raise Refused("this data: URL has no comma, and so no data", param=param)
    if kind.lower().rstrip().endswith(";base64"):
        text = unquote(body) if "%" in body else body
        return from_base64(text, param=param, max_bytes=max_bytes)
    _check_size(len(body) - 2 * body.count("%"), max_bytes, param)
    try:
        data = unquote_to_bytes(body)
    except UnicodeEncodeError:  # half a pair of UTF-16
        raise Refused("this data: URL is not valid text", param=param) from None
    _check_size(len(data), max_bytes, param)  # a % may stand for itself, a letter for four bytes
    return data


def _check_size(n_bytes: int, max_bytes: int, param: str) -> None:
    if n_bytes > max_bytes:
        raise Refused(f"this has more than the {max_bytes} bytes allowed", param=param)


def _file(path: str, param: str, policy: MediaPolicy) -> bytes:
    """Reads a file below the folder of media. The path is relative to it, or absolute and inside;
    links may lead anywhere in the folder, and nowhere else."""
    if not policy.path:
        message = (
            "this server reads no files (it was started without --media-path); send a data: URL"
        )
        raise Refused(message, param=param)
    try:
        path = unquote(_LOCALHOST.sub("", path, count=1).removeprefix("//"))
        found = _inside(Path(policy.path).resolve(strict=True), path)
        # Neither a link put there since, nor waiting for someone to write to a pipe.
        flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with open(found, "rb", opener=lambda name, mode: os.open(name, mode | flags)) as file:
            data = file.read(policy.max_bytes + 1)
    except (OSError, ValueError, RuntimeError):  # RuntimeError: links in a circle, to Python 3.12
        raise Refused("there is no such file in the folder of media", param=param) from None
    _check_size(len(data), policy.max_bytes, param)
    return data


def _inside(root: Path, path: str) -> Path:
    """The real path of a regular file below ``root``. Raises OSError, ValueError or RuntimeError if
    there is none."""
    is_under = Path(path).is_absolute() and Path(path).is_relative_to(root)
    real = (Path(path) if is_under else root / path.lstrip("/")).resolve(strict=True)
    if not (real.is_relative_to(root) and real.is_file()):
        raise ValueError("outside, or no file")
    return real
