"""The tokenizer to play with: a text as the model's tokens, and tokens as text."""

import re
from collections.abc import Collection, Sequence
from typing import Literal, TypeAlias

from litestar import Response, post, route
from msgspec import Struct
from msgspec.structs import replace

from corral.backend.errors import CorralError, Refused
from corral.backend.service import Service
from corral.frontend.reasons import sentence
from corral.frontend.tools.frame import tool_page
from corral.frontend.tools.visible import Part, hexed, parts
from corral.frontend.wire import LOOK, AnyRequest, form_of, is_htmx, page, site_of, text_of
from corral.frontend.words import _, number

#: Characters that are taken apart, of a text or of a list of tokens.
MAX_CHARS = 100_000
#: Tokens that are drawn; all are counted.
MAX_SHOWN = 2_000

Kind: TypeAlias = Literal["text", "bytes", "control"]


class Chip(Struct, frozen=True, kw_only=True):
    """One token: number ``at`` of the text. ``bytes``: part of a character, written in hex.
    ``ends_line``: the line ends after it."""

    at: int
    id: int
    kind: Kind
    parts: tuple[Part, ...]
    hex: str
    ends_line: bool


class Found(Struct, frozen=True, kw_only=True):
    """A text as tokens. ``n_hidden`` more are not drawn."""

    chips: tuple[Chip, ...]
    n_tokens: int
    n_chars: int
    n_bytes: int
    n_hidden: int

    @property
    def per_token(self) -> str:
        """Characters for each token."""
        return number(self.n_chars / self.n_tokens, 1) if self.n_tokens else ""


class Tokens(Struct, frozen=True, kw_only=True):
    """The page. ``found`` is None before anything was asked; ``back``: the text of ``ids``."""

    text: str = ""
    adds_special: bool = False
    parses_special: bool = True
    found: Found | None = None
    error: str = ""
    ids: str = ""
    back: tuple[Part, ...] | None = None
    back_error: str = ""
    max_chars: int = MAX_CHARS


@route("/tokens", http_method=LOOK, status_code=200)
async def tokens_page(request: AnyRequest) -> Response[str]:
    """The page, with nothing in it; ``?text=`` fills it in."""
    text = request.query_params.get("text", "")[:MAX_CHARS]
    view = Tokens(text=text)
    return await tool_page(request, "tokens", _("Tokens"), await _filled(request, view))


@post("/tokens", status_code=200)
async def to_tokens(request: AnyRequest) -> Response[str]:
    """A text as tokens: the fragment, or the page."""
    form = await form_of(request)
    view = Tokens(
        text=_text(form.get("text")),
        adds_special="add_special" in form,
        parses_special="parse_special" in form,
    )
    view = await _filled(request, view)
    if is_htmx(request):
        return page(request, "tools/_tokens_sent.html", view=view)
    return await tool_page(request, "tokens", _("Tokens"), view)


@post("/tokens/text", status_code=200)
async def to_text(request: AnyRequest) -> Response[str]:
    """Tokens as text: the fragment, or the page."""
    view = Tokens(ids=await text_of(request, "ids"))
    try:
        ids = numbers(view.ids)
        back = await site_of(request).service.detokenize(ids)
        view = replace(view, back=parts(back))
    except CorralError as error:
        view = replace(view, back_error=sentence(error.message))
    if is_htmx(request):
        return page(request, "tools/_tokens_back.html", view=view)
    return await tool_page(request, "tokens", _("Tokens"), view)


def _text(value: object) -> str:
    """As it was typed, blanks at its ends included: they are tokens too."""
    return value.replace("\r\n", "\n") if isinstance(value, str) else ""


async def _filled(request: AnyRequest, view: Tokens) -> Tokens:
    """The page with the tokens of its text, or why there are none."""
    if not view.text:
        return view
    try:
        return replace(view, found=await _take_apart(site_of(request).service, view))
    except CorralError as error:
        return replace(view, error=sentence(error.message))


async def _take_apart(service: Service, view: Tokens) -> Found:
    if len(view.text) > MAX_CHARS:
        raise too_long(len(view.text))
    ids = await service.tokenize(
        view.text, add_special=view.adds_special, parse_special=view.parses_special
    )
    pieces = await service.pieces(ids[:MAX_SHOWN])
    names = set() if service.info is None else set(service.info.special_tokens)
    return Found(
        chips=chips(ids, pieces, names),
        n_tokens=len(ids),
        n_chars=len(view.text),
        n_bytes=len(view.text.encode("utf-8", "replace")),
        n_hidden=max(0, len(ids) - MAX_SHOWN),
    )


def too_long(n_chars: int) -> Refused:
    """The refusal of a text that is too long to be drawn."""
    words = _("These are {n} characters; the page takes {most} at a time.")
    return Refused(words.format(n=number(n_chars), most=number(MAX_CHARS)), kind="too_large")


def chips(ids: Sequence[int], pieces: Sequence[bytes], names: Collection[str]) -> tuple[Chip, ...]:
    """Tokens with their bytes, as they are drawn. ``names``: the texts of control tokens."""
    return tuple(
        _chip(at, id, piece, names)
        for at, (id, piece) in enumerate(zip(ids, pieces, strict=False), 1)
    )


def _chip(at: int, id: int, piece: bytes, names: Collection[str]) -> Chip:
    code = hexed(piece)
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return Chip(at=at, id=id, kind="bytes", parts=(Part(code),), hex=code, ends_line=False)
    kind: Kind = "control" if text in names else "text"
    ends_line = kind == "text" and text.endswith("\n")
    return Chip(at=at, id=id, kind=kind, parts=parts(text), hex=code, ends_line=ends_line)


def numbers(text: str) -> list[int]:
    """Token ids as people write them: with blanks, commas, line breaks or brackets between.
    Raises Refused, naming what is none."""
    if len(text) > MAX_CHARS:
        raise too_long(len(text))
    words = re.split(r"[\s,;\[\]()]+", text)
    found = []
    for word in words:
        if not word:
            continue
        if not re.fullmatch(r"[0-9]{1,9}", word):
            raise Refused(_("“{word}” is not the number of a token.").format(word=word[:40]))
        found.append(int(word))
    return found
