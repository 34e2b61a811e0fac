"""Text files and PDFs that are attached: read when they come, and part of the message from then on.

In a message a file is a fenced block, which is also how the model gets it::

    ````file notes.md
    what is in it
    ````

So it is edited, copied, branched, searched and deleted with the message that it is in. The fence is
longer than any in the file.
"""

import asyncio
import codecs
import hashlib
import re
import sys
from collections import OrderedDict
from pathlib import Path

from msgspec import Struct, json

from corral.backend.errors import CorralError, Refused
from corral.backend.media.magic import known
from corral.frontend.gallery import Chip, size
from corral.frontend.site import Site
from corral.frontend.words import _, number

#: The longest text of one file, in characters.
MAX_CHARS = 2_000_000
#: A PDF that takes longer is refused; see also ``pdftext``.
PDF_TIMEOUT_S = 20.0
#: Of longer texts this much is turned into tokens to tell how many the whole would be.
SAMPLE_CHARS = 40_000
#: A longer text is not put back into the message box.
MAX_BOX_CHARS = 100_000
_MIN_FENCE = 4
_OPENING = re.compile(r"^(`{4,})file (\S.*)$")
#: What text has no use for. Escape is in logs of terminals, form feed in old sources.
_CONTROL = re.compile(r"[\0-\x08\x0b\x0e-\x1a\x1c-\x1f]")

_pdfs = asyncio.Semaphore(2)
_recent: OrderedDict[bytes, "Text"] = OrderedDict()


class Text(Struct, frozen=True, kw_only=True):
    """A file as text: its ``name``, and how much of a PDF it is (``300 of 512 pages``)."""

    name: str
    content: str
    n_bytes: int
    part: str = ""
    is_pdf: bool = False


class _Answer(Struct, frozen=True):
    """What ``pdftext`` says."""

    text: str = ""
    pages: int = 0
    n_pages: int = 0
    error: str = ""


class Block(Struct, frozen=True, kw_only=True):
    """A file in a message as it is shown. ``about``: how large it is."""

    name: str
    about: str
    content: str


async def read(name: str, data: bytes) -> Text:
    """A file as text. Raises Refused with the name of one that has none."""
    if known(data) == "PDF":
        return await _pdf(name, data)
    text = _decoded(data)
    if text is None:
        kind = known(data)
        if not kind.startswith("of no "):
            message = _("{name}: this is {kind}, of which the text cannot be read")
            raise Refused(message.format(name=name, kind=kind))
        raise Refused(_("{name}: this is no text in UTF-8 or UTF-16").format(name=name))
    if not text.strip():
        raise Refused(_("{name}: there is nothing in it").format(name=name))
    if len(text) > MAX_CHARS:
        raise _too_long(name)
    return Text(name=name, content=text, n_bytes=len(data))


def _too_long(name: str) -> Refused:
    message = _("{name}: this is more than the {n} characters that can be attached")
    return Refused(message.format(name=name, n=number(MAX_CHARS)), kind="too_large")


def _decoded(data: bytes) -> str | None:
    """Text by what its bytes are; None when they are none."""
    way = "utf-8-sig"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        way = "utf-16"
    else:
        # Without a mark, UTF-16 shows by its plain letters: every second byte of them is 0.
        first, second = data[:4000:2].count(0), data[1:4000:2].count(0)
        few, many = sorted((first, second))
        if many > 4 * few and many > len(data[:4000]) // 8:
            way = "utf-16-be" if first > second else "utf-16-le"
    try:
        text = data.decode(way)
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else text.replace("\r\n", "\n").replace("\r", "\n")


async def _pdf(name: str, data: bytes) -> Text:
    key = hashlib.sha256(name.encode() + b"\0" + data).digest()
    if key in _recent:
        return _recent[key]
    async with _pdfs:
        answer = await _asked(data)
    problems = {
        "encrypted": _("{name}: this PDF is encrypted"),
        "empty": _("{name}: this PDF has no text, only pictures of it"),
        "large": _("{name}: this PDF takes too much memory to read"),
        "slow": _("{name}: this PDF takes too long to read"),
    }
    if answer.error:
        broken = _("{name}: this PDF cannot be read")
        raise Refused(problems.get(answer.error, broken).format(name=name))
    part = ""
    if answer.pages < answer.n_pages:
        numbers = {"n": number(answer.pages), "all": number(answer.n_pages)}
        part = _("{n} of {all} pages").format(**numbers)
    text = Text(name=name, content=answer.text, n_bytes=len(data), part=part, is_pdf=True)
    _recent[key] = text
    if len(_recent) > 8:
        _recent.popitem(last=False)
    return text


async def _asked(data: bytes) -> _Answer:
    script = Path(__file__).with_name("pdftext.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        str(script),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        out, _err = await asyncio.wait_for(process.communicate(data), PDF_TIMEOUT_S)
    except TimeoutError:
        return _Answer(error="slow")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return json.decode(out, type=_Answer) if out else _Answer(error="large")


def fenced(text: Text) -> str:
    """A file as it is in a message."""
    longest = max(map(len, re.findall("`+", text.content)), default=0)
    fence = "`" * max(_MIN_FENCE, longest + 1)
    title = f"{text.name}, {text.part}" if text.part else text.name
    return f"{fence}file {title}\n{text.content.rstrip()}\n{fence}"


def message(words: str, texts: list[Text]) -> str:
    """A message with its files: after the words."""
    return "\n\n".join([words] * bool(words.strip()) + [fenced(text) for text in texts])


def taken_apart(content: str) -> tuple[str, tuple[Block, ...]]:
    """A message's words without its files, and these."""
    if "````file " not in content:
        return content, ()
    words: list[str] = []
    blocks: list[Block] = []
    lines = content.split("\n")
    at = 0
    while at < len(lines):
        opening = _OPENING.match(lines[at])
        if opening and opening[1] in lines[at + 1 :]:
            end = lines.index(opening[1], at + 1)
            inside = "\n".join(lines[at + 1 : end])
            blocks.append(Block(name=opening[2], about=size(len(inside.encode())), content=inside))
            at = end
        else:
            words.append(lines[at])
        at += 1
    return re.sub(r"\n{3,}", "\n\n", "\n".join(words)).strip("\n"), tuple(blocks)


async def n_tokens(site: Site, text: Text) -> int:
    """About how many tokens a file has; 0 when the model does not tell."""
    sample = text.content[:SAMPLE_CHARS]
    if site.service.state != "ready":
        return 0
    try:
        tokens = await site.service.tokenize(sample, add_special=False, parse_special=False)
    except CorralError:
        return 0
    return round(len(tokens) * len(text.content) / len(sample))


def chip(text: Text, n_tokens: int, n_ctx: int) -> Chip:
    """A text that waits to be sent; ``n_tokens`` for a context of ``n_ctx``, 0: not known."""
    warning = ""
    if 0 < n_ctx <= n_tokens:
        words = _("Too long for the model, which holds {n} tokens")
        warning = words.format(n=number(n_ctx))
    tokens = _("about {n} tok").format(n=number(n_tokens)) if n_tokens else ""
    parts = filter(None, (size(text.n_bytes), text.part, tokens))
    return Chip(
        name=text.name,
        source="",
        figures=" · ".join(part.replace(" ", "\N{NO-BREAK SPACE}") for part in parts),
        warning=warning,
        can_unfold=not text.is_pdf and len(text.content) <= MAX_BOX_CHARS,
    )
