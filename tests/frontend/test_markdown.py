"""Markdown: safe whatever the model writes, the same however it arrives, cheap however long."""

import html
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from corral.frontend.growing import Document
from corral.frontend.markdown import normalise, render

WORDS = [
    "a",
    "some *words*",
    "`code`",
    "**bold**",
    "x < y & z",
    "[link](https://e.test)",
    "☃",
    "1.",
]
LINES = [
    *WORDS,
    *("# head", "## head ##", "---", "===", "- item", "* item", "+ item", "  - nested", "1. one"),
    *("2) two", "> quote", ">> deeper", "    indented", "\ttabbed", "```", "```py", "~~~", "````"),
    *(" ```", "  ~~~ sh", "def f(x): return x", "| a | b |", "|---|:-:|", "a | b", "--|--", "", ""),
    *("", "   ", "***", "<b>raw</b>", "![alt](http://e.test/i.png)", "\\", "line  ", "~~gone~~"),
    *("[early]", "-", "\t- x", "    ```", "`` ` ``"),
    *("$x^2$", "$5 and $6", "$$", "$$x$$", "$$x$$ so", "see $$", "> $$", "  $$", "\\(y\\)", "\\["),
    *("\\]", "\\[ z \\].", "- \\[", "  \\]", "\\[1\\]", "x_1 = \\frac{1}{2}", "$\\foo$"),
    *("- [ ] to do", "- [x] **done**", "https://e.test/a_b_c?d=$1", "<https://e.test>"),
]
# A definition counts for text before it too, which only the rendering at the end can know: in
# these documents it comes first.
STARTS = ["", "[early]: https://e.test 'title'\n", "x\n\n[early]: https://e.test\n'title'\n\n"]
documents = st.tuples(
    st.sampled_from(STARTS), st.lists(st.sampled_from(LINES), max_size=25).map("\n".join)
).map("".join)


def grow(text: str, cuts: list[int]) -> Document:
    """The document after ``text`` arrived in pieces, looked at after each."""
    document = Document()
    done: list[str] = []
    at = 0
    for cut in [*cuts, len(text)]:
        document.feed(text[at : at + cut])
        document.advance()
        document.open_html()
        assert document.done[: len(done)] == done, "a finished block changed"
        done = list(document.done)
        at += cut
    document.feed(text[at:])
    document.finish()
    return document


@settings(max_examples=400, deadline=None)
@given(documents, st.lists(st.integers(1, 12), max_size=60))
@example("Foo\n-\nbar", [4, 1, 1])
@example("a | b\n--|--\n1 | 2", [6, 3, 1])
@example("```py\nx = 1\n``\n````\nafter", [3, 4, 1, 2, 2])
@example("- a\n\n  b\n\n    c\n\nd", [2, 3, 5])
@example("x\n\n[early]: https://e.test\n'title'\n\n[early]", [3, 24, 8, 2])
@example("a\n$$\nx\n\n# b\n$$\nc", [4, 3, 4, 3])
@example("\\[\nx\n\\] y\nz\n# h\n", [3, 2, 5, 2])
@example("a $$\nx\n$$\nb", [5, 2, 3])
@example("x\r\ny\r\n\r\nz", [2, 1, 2, 1])
def test_any_split_of_a_text_gives_the_html_of_the_whole(text: str, cuts: list[int]) -> None:
    assert "".join(grow(text, cuts).done) == render(text)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60), st.lists(st.integers(1, 5), max_size=20))
def test_any_characters_survive_any_split(text: str, cuts: list[int]) -> None:
    if re.search(r"\[[^\]]*\]:", text) is None:
        assert "".join(grow(text, cuts).done) == render(text)


def test_open_code_only_grows_and_holds_back_what_may_close_it() -> None:
    document, seen = Document(), [""]
    for char in "```py\nx = '`'\n``\ny\n```":
        document.feed(char)
        document.advance()
        if (code := document.open_code) is not None:
            assert code.startswith(seen[-1])
            seen.append(code)
    assert seen[-1] == "x = '`'\n``\ny\n"


@pytest.mark.parametrize(
    "block",
    ["A paragraph of some words.\n\n", "```py\nx = 1\n```\n\n", "- a\n- b\n\nBetween.\n\n"],
    ids=["paragraphs", "code", "lists"],
)
def test_a_text_ten_times_as_long_costs_ten_times_as_much(block: str) -> None:
    def cost(n: int) -> int:
        document = Document()
        for char in block * n:
            document.feed(char)
            document.advance()
            document.open_html()
        return document.n_parsed_chars

    assert cost(200) <= 10.5 * cost(20)


def test_one_long_block_of_code_is_not_parsed_again_while_it_grows() -> None:
    document = Document()
    document.feed("```py\n")
    for n in range(2000):
        document.feed(f"line_{n} = {n}\n")
        document.advance()
        assert document.open_code is not None
    assert document.n_parsed_chars < 100


def test_open_text_does_not_flicker_through_what_it_is_not() -> None:
    document = Document()
    document.feed("Foo\n-")
    document.advance()
    assert "<h2>" not in document.open_html()
    document.feed(" bar")
    document.advance()
    assert "<li>bar</li>" in document.open_html()


PAYLOADS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java\tscript:alert(1))",
    "[x](data:text/html,<script>alert(1)</script>)",
    "[x](vbscript:msgbox(1))",
    "![x](http://e.test/pixel.png)",
    "![x](javascript:alert(1))",
    "[x](https://e.test \"a' onmouseover='alert(1)\")",
    "<a href='javascript:alert(1)'>x</a>",
    "[x]: javascript:alert(1)\n\n[x]",
    "<javascript:alert(1)>",
    "```html\n<script>alert(1)</script>\n```",
    '```"><script>alert(1)</script>\nx\n```',
    '```" onfocus=alert(1) x="\ncode\n```',
    "`<script>alert(1)</script>`",
    "| <script>alert(1)</script> |\n|---|\n| <img src=x onerror=alert(1)> |",
    "<iframe src=https://e.test></iframe>",
    "<form action=https://e.test><input name=x></form>",
    "<style>*{display:none}</style>",
    "<hx-partial hx-target='body'>gone</hx-partial>",
    "<div hx-get=/logout hx-trigger=load></div>",
    "<base href=https://e.test>",
    "<meta http-equiv=refresh content=0>",
    "&#106;avascript:alert(1)",
    "[x](&#106;avascript:alert(1))",
    "</code></pre><script>alert(1)</script>",
    "# <script>alert(1)</script>",
    "> <script>alert(1)</script>",
    "<a\nhref=javascript:alert(1)>x</a>",
    r"$\href{javascript:alert(1)}{x}$",
    r"$\text{<script>alert(1)</script>}$",
    r"\(\text{<img src=x onerror=alert(1)>}\)",
    "$$\n\\text{</mtext></math><script>alert(1)</script>}\n$$",
    r"\[\text{&lt;svg onload=alert(1)&gt;}\]",
    r'$x" onmouseover="alert(1)$',
    r"$\style{position:fixed}{x}$",
    r"$\class{x}{y} \id{main}{z} \color{red}{q}$",
    r"$\begin{array}{c\" onload=alert(1)} a\end{array}$",
    "https://e.test/'onmouseover='alert(1)",
    'https://e.test/"onmouseover="alert(1)',
    "- [x] <script>alert(1)</script>",
    r"$<math><mtext><style><img src=x onerror=alert(1)></style></mtext></math>$",
]
TAGS = re.compile(r"<\s*/?\s*([a-zA-Z0-9-]+)((?:[^>\"']|\"[^\"]*\"|'[^']*')*)>")
ALLOWED = {
    *("a", "blockquote", "br", "button", "code", "del", "div", "em", "h1", "h2", "h3", "h4"),
    *("h5", "h6", "hr", "li", "ol", "p", "pre", "s", "span", "strong", "table", "tbody", "td"),
    *("th", "thead", "tr", "ul"),
    *("math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "mstyle", "mtable", "mtr", "mtd"),
}


def assert_harmless(page: str) -> None:
    for tag, attributes in TAGS.findall(page):
        assert tag in ALLOWED, page
        for name, value in re.findall(r"([\w:-]+)\s*=\s*\"([^\"]*)\"", attributes):
            assert not name.startswith(("on", "hx-", "style", "src", "id")), page
            if name == "href":
                assert not re.match(
                    r"\s*(javascript|data|vbscript)\s*:", html.unescape(value), re.I
                )


@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_payload_becomes_markup(payload: str) -> None:
    assert_harmless(render(payload))
    document = Document()
    for char in payload:
        document.feed(char)
        document.advance()
        assert_harmless("".join(document.done) + document.open_html())


def test_raw_html_is_shown_as_the_text_it_is() -> None:
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in render("<script>alert(1)</script>")


@pytest.mark.parametrize(
    "target", ["//e.test", "/c/1", "c/1", "#m-1", "?q=x", "http:/c/1", "https:", "ftp://e.test", ""]
)
def test_only_whole_addresses_become_links(target: str) -> None:
    for source in (f"[words]({target})", f"![words]({target})", f"[words]: {target}\n\n[words]"):
        page = render(source)
        assert "href" not in page
        assert "words" in page


@pytest.mark.parametrize("target", ["https://e.test/a", "HTTP://e.test", "mailto:a@e.test"])
def test_a_whole_address_becomes_a_link(target: str) -> None:
    assert f'<a href="{target}"' in render(f"[words]({target})")


def test_an_image_is_a_link_and_fetches_nothing() -> None:
    page = render("![A cat](https://e.test/cat.png)")
    assert "<img" not in page
    assert 'href="https://e.test/cat.png"' in page
    assert ">A cat</a>" in page


def test_code_has_its_language_a_copy_button_and_can_be_scrolled_by_keyboard() -> None:
    page = render("```python\ndef f(): pass\n```")
    assert '<button type="button" class="copy">Copy</button>' in page
    assert 'tabindex="0"' in page
    assert '<span class="k">def</span>' in page
    assert "<span>python</span>" in page


def test_code_keeps_every_character() -> None:
    code = "\n  a\t<b>\n\n\n  c  \n"
    page = render(f"```py\n{code}```")
    inner = re.search(r"<code>(.*)</code>", page, re.DOTALL)
    assert inner is not None
    assert html.unescape(re.sub("<[^>]+>", "", inner[1])) == code


def test_characters_that_reorder_code_are_made_visible() -> None:
    assert "[U+202E]" in render("```py\nx = '\u202e'\n```")
    assert "[U+202E]" in render("`\u202e`")


def test_table_cells_are_aligned_by_class_because_styles_are_forbidden() -> None:
    page = render("| a | b |\n|:-:|--:|\n| 1 | 2 |")
    assert '<th class="center">a</th>' in page
    assert '<td class="right">2</td>' in page
    assert "style" not in page


def test_an_unknown_language_is_plain_code() -> None:
    assert "x &lt; y" in render("```no-such-language\nx < y\n```")


@pytest.mark.parametrize(
    ("source", "box"), [("- [ ] a", "To do"), ("1. [x] *a*", "Done"), ("- a\n  - [X] a", "Done")]
)
def test_tasks_have_boxes_that_are_read_out(source: str, box: str) -> None:
    page = render(source)
    assert f'role="img" aria-label="{box}"' in page
    assert "[" not in page


@pytest.mark.parametrize(
    "source", ["- [x]", "- [x](https://e.test)", "[x] a", "- `[x]` a", "- [y] a"]
)
def test_other_brackets_are_no_tasks(source: str) -> None:
    assert "role=" not in render(source)


def test_a_bare_address_is_a_link_that_tells_nobody_where_it_was() -> None:
    page = render("See https://e.test/a_b_c?d=$1&e=$2.")
    assert ">https://e.test/a_b_c?d=$1&amp;e=$2</a>." in page
    assert 'rel="noopener noreferrer nofollow"' in page


@pytest.mark.parametrize(
    "text",
    ["readme.md", "e.test", "www.e.test", "a@e.test", "ftp://e.test", "//e.test", "file:///a"],
)
def test_what_does_not_say_http_is_no_address(text: str) -> None:
    assert "<a" not in render(text)


def test_line_ends_of_every_kind_are_one() -> None:
    assert normalise("a\r\nb\rc\nd") == "a\nb\nc\nd"


@pytest.mark.parametrize("deep", ["list", "quote", "numbers"])
def test_nothing_is_lost_however_deep_lists_and_quotes_are_nested(deep: str) -> None:
    marks = {"list": "{}- item{}", "numbers": "{}1. item{}", "quote": "{}item{}"}
    indents = {"list": "  ", "numbers": "   ", "quote": "> "}
    lines = [marks[deep].format(indents[deep] * i, i) for i in range(200)]
    html = render("\n".join([*lines, "", "# After", "", "- and `more`"]))
    assert [f"item{i}" for i in range(200)] == re.findall(r"item\d+", html)
    assert "<h1>After</h1>" in html and "<code>more</code>" in html


def test_a_deep_list_comes_out_alike_while_it_is_written() -> None:
    text = "\n".join("  " * i + f"- item{i}" for i in range(80)) + "\n\nAfter.\n\n- more\n"
    document = Document()
    for c in text:
        document.feed(c)
        document.advance()
    document.finish()
    assert "".join(document.done) == render(text)
