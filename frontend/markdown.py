"""Markdown to HTML that is safe in a page. Pure.

Raw HTML is shown as text; what is left passes an allow-list. Images become links: a reply must not
make the reader's browser call another machine.
"""

import functools
import re
from collections.abc import Sequence

import nh3
from linkify_it import LinkifyIt  # type: ignore[import-untyped]
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from pygments import highlight as colour
from pygments.formatters.html import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from corral.frontend import formulas, tex, words

#: Longer code is shown without colours: a lexer's time must not depend on who wrote the reply.
MAX_COLOURED_CHARS = 50_000

_ATTRIBUTES = tex.ATTRIBUTES | {
    "a": {"href", "title"},
    "button": {"type", "class"},
    "code": {"class"},
    "div": {"class", "tabindex", "role", "aria-label"},
    "li": {"class"},
    "ol": {"start"},
    "pre": {"tabindex", "role", "aria-label"},
    "span": {"class", "tabindex", "role", "aria-label"},
    "td": {"class"},
    "th": {"class"},
}
_TAGS = tex.TAGS | {
    *("a", "blockquote", "br", "button", "code", "del", "div", "em", "h1", "h2", "h3", "h4"),
    *("h5", "h6", "hr", "li", "ol", "p", "pre", "s", "span", "strong", "table", "tbody", "td"),
    *("th", "thead", "tr", "ul"),
}
# "http:/x" is relative where the page itself came by http.
_ABSOLUTE = re.compile(r"https?://[^/\\]|mailto:.", re.IGNORECASE)
_COLOURS = HtmlFormatter(nowrap=True)
# Characters that reorder text, so that code reads differently from what it does.
_BIDI = {
    n: f"[U+{n:04X}]"
    for n in (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


class _Renderer(RendererHTML):
    """HTML with classes where the standard one has styles. ``env["plain"]``: no colours."""

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        info = tokens[idx].info.split()
        return _code_box(tokens[idx].content, info[0] if info else "", plain="plain" in env)

    def code_block(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType
    ) -> str:
        return _code_box(tokens[idx].content, "", plain=True)

    def code_inline(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType
    ) -> str:
        return f"<code>{escape_code(tokens[idx].content)}</code>"

    def formula(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return (
            formulas.inline_html(tokens[idx]) or f"<code>{escape_code(tokens[idx].markup)}</code>"
        )

    def formula_block(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType
    ) -> str:
        token = tokens[idx]
        return formulas.block_html(token) or _code_box(f"{token.markup}\n", "tex", plain=True)

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        text = self.renderInlineAsText(token.children, options, env) or "image"
        source = escapeHtml(str(token.attrGet("src") or ""))
        return f'<a href="{source}">{escapeHtml(text)}</a>' if source else escapeHtml(text)

    def link_open(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType
    ) -> str:
        # "[words]()" would lead to the page it is on.
        if not tokens[idx].attrGet("href"):
            return "<a>"
        return self.renderToken(tokens, idx, options, env)

    def table_open(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType
    ) -> str:
        label = words._("Table")
        return f'<div class="table" tabindex="0" role="group" aria-label="{label}"><table>\n'

    def table_close(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType
    ) -> str:
        return "</table></div>\n"


#: Blocks in blocks: a list is two levels.
_MAX_LEVEL = 60
_TASK = re.compile(r"\[([ xX])\][ \t]+(?=\S)")


def _tasks(state: StateCore) -> None:
    """Boxes where the text of list items begins with ``[ ]`` or ``[x]``."""
    for item, _inline, said in zip(state.tokens, state.tokens[1:], state.tokens[2:], strict=False):
        if item.type != "list_item_open" or said.type != "inline" or not said.children:
            continue
        first, found = said.children[0], _TASK.match(said.content)
        if found and first.type == "text":
            first.content = first.content[found.end() :]
            item.attrSet("class", "task")
            box = Token("task", "span", 0, content="" if found[1] == " " else "done")
            said.children.insert(0, box)


def _task(
    self: RendererHTML, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType
) -> str:
    if tokens[idx].content:
        label = words._("Done")
        return f'<span class="box done" role="img" aria-label="{label}"></span>'
    label = words._("To do")
    return f'<span class="box" role="img" aria-label="{label}"></span>'


def _align_by_class(
    self: RendererHTML, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType
) -> str:
    style = str(tokens[idx].attrGet("style") or "")
    side = style.removeprefix("text-align:")
    return f'<{tokens[idx].tag} class="{side}">' if side else f"<{tokens[idx].tag}>"


class _Parser(MarkdownIt):
    """Reads as a link only what leads to an address of its own."""

    def validateLink(self, url: str) -> bool:
        """Relative addresses would lead to this server's pages, ``//host`` to anywhere unseen."""
        return _ABSOLUTE.match(url) is not None


def _too_deep(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """What is nested further than ``_MAX_LEVEL`` is a paragraph, as it is written."""
    if state.level < _MAX_LEVEL:
        return False
    if silent:
        return True
    line = start + 1
    while line < end and not state.isEmpty(line) and state.sCount[line] >= state.blkIndent:
        line += 1
    state.push("paragraph_open", "p", 1).map = [start, line]
    inline = state.push("inline", "", 0)
    inline.content = state.getLines(start, line, state.blkIndent, False).strip()
    inline.map, inline.children = [start, line], []
    state.push("paragraph_close", "p", -1)
    state.line = line
    return True


def _parser() -> MarkdownIt:
    md = _Parser("commonmark", {"html": False}, renderer_cls=_Renderer)
    md.enable(["table", "strikethrough"]).disable(["html_block", "html_inline"])
    # Bare addresses are links where they say what they are: "readme.md" is no web site.
    md.linkify = LinkifyIt(options={"fuzzy_link": False, "fuzzy_email": False})
    for schema in ("ftp:", "//", "mailto:"):
        md.linkify.add(schema, None)
    md.options["linkify"] = True
    md.enable("linkify")
    formulas.add_rules(md)
    md.options["maxNesting"] = _MAX_LEVEL + 10  # there the parser would drop what is left
    md.block.ruler.before("table", "too_deep", _too_deep)
    md.core.ruler.after("inline", "tasks", _tasks)
    md.add_render_rule("task", _task)
    md.add_render_rule("th_open", _align_by_class)
    md.add_render_rule("td_open", _align_by_class)
    return md


#: The parser; ``env["plain"]`` makes its renderer leave code uncoloured.
MD = _parser()


def escape_code(text: str) -> str:
    """Code as HTML text, invisible direction marks made visible."""
    return escapeHtml(text.translate(_BIDI))


def _code_box(code: str, language: str, *, plain: bool) -> str:
    """A block of code with its language and a copy button."""
    head, tail = code_frame(language)
    return head + (escape_code(code) if plain else _coloured(code, language)) + tail


def code_frame(language: str) -> tuple[str, str]:
    """The HTML before and after the text of a code block."""
    name = escapeHtml(language[:40])
    label = words._("{language} code").format(language=name) if name else words._("Code")
    copy = words._("Copy")
    head = (
        f'<div class="code"><div class="bar"><span>{name}</span>'
        f'<button type="button" class="copy">{copy}</button></div>'
        f'<pre tabindex="0" role="group" aria-label="{label}"><code>'
    )
    return head, "</code></pre></div>\n"


def _coloured(code: str, language: str) -> str:
    if not language or len(code) > MAX_COLOURED_CHARS:
        return escape_code(code)
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return escape_code(code)
    return str(colour(code.translate(_BIDI), lexer, _COLOURS))


def clean(html: str) -> str:
    """What of ``html`` may stand in a page."""
    return nh3.clean(
        html,
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
        set_tag_attribute_values={"a": {"target": "_blank"}},
        strip_comments=True,
    )


def normalise(text: str) -> str:
    """Text with one kind of line end and no NUL, as the parser counts its lines."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def render(text: str) -> str:
    """The HTML of a whole text: the canonical form, its labels in the reader's language."""
    return _rendered(text, words.language())


@functools.lru_cache(maxsize=1024)
def _rendered(text: str, _language: str) -> str:
    return clean(MD.render(normalise(text)))
