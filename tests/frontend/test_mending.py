"""Half-typed Markdown: shown as what it becomes, or not yet."""

import re

import pytest

from corral.frontend.growing import Document
from corral.frontend.mending import mend


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("a **bol", "a **bol**"),
        ("a **bold*", "a **bold**"),
        ("a **", "a"),
        ("a *i", "a *i*"),
        ("a **b *c", "a **b *c***"),
        ("a **b** c *d* e", "a **b** c *d* e"),
        ("***both", "***both***"),
        ("2 * 3, w*h and 2**3 or", "2 * 3, w*h and 2**3 or"),
        ("snake_case and _em", "snake_case and _em_"),
        ("a ~~gone", "a ~~gone~~"),
        ("x `co", "x `co`"),
        ("x ``a ` b`", "x ``a ` b``"),
        ("x `**` y", "x `**` y"),
        ("[words](https://e", "words"),
        ("[wor", "wor"),
        ("![alt](https://e", "alt"),
        ("[a](https://e.test) b", "[a](https://e.test) b"),
        ("Foo\n-", "Foo"),
        ("Foo\n==", "Foo"),
        ("- a\n- >", "- a"),
        ("a\n#", "a"),
        ("- **a", "- **a**"),
        ("- a **b\n- c", "- a **b\n- c"),
        ("- [ ] *a", "- [ ] *a*"),
        ("a\n- [x", "a"),
        ("a\n```py", "a"),
        ("| a | b |", ""),
        ("| a | b |\n| --- | -", ""),
        ("| a |\n|---|\n| **b", "| a |\n|---|\n| **b**"),
        ("costs $5 and", "costs $5 and"),
        ("so $x_1 * y", r"so \$x\_1 \* y"),
        ("$$\na *b*", "\\$\\$\na \\*b\\*"),
        (r"so \(x", r"so \\\(x"),
        ("$x$ and **b", "$x$ and **b**"),
    ],
)
def test_what_is_half_typed_is_mended(typed: str, shown: str) -> None:
    assert mend(typed) == shown


@pytest.mark.parametrize("code", ["- a\n\n  ```py\n  f(**kw", "    a = **kw", "- a\n\n  ~~~\n  `x"])
def test_nothing_is_added_to_code(code: str) -> None:
    document = Document()
    document.feed(code)
    document.advance()
    page = re.sub("<[^>]+>", "", document.open_html())
    assert code.rpartition("\n")[2].strip() in page
    assert not page.rstrip().endswith(("kw**", "x`"))


@pytest.mark.parametrize(
    "text", [r"so \(a_1 * b * c\) holds", "$$\na_1 * b * c\n$$", r"\[ a_1 * b * c \]"]
)
def test_a_formula_stays_text_until_it_closes(text: str) -> None:
    document, seen = Document(), []
    for char in text:
        document.feed(char)
        document.advance()
        seen.append(document.open_html())
    document.finish()
    assert not any("<em>" in page or "<li>" in page for page in seen)
    assert "<math" not in seen[5]
    assert "<math" in "".join(document.done)
