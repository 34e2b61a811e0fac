"""Formulas: what is one, what is money, and what browsers are given of it."""

import re
import time
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.frontend.markdown import render
from corral.frontend.tex import MAX_CHARS, TAGS, mathml


@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 and $10.",
        "$148+ → $19",
        "Between $5-$10, or US$5 and US$6.",
        "5$ and 6$ total",
        "$5 million and earned 3$",
        "$5 million$",
        "$20/month or 20$",
        "$5, $6 and $7",
        "($5) or ($6)",
        "I have $money and more$",
        "$HOME/$USER and $PATH:$HOME",
        "${a}/${b}",
        r"\$x\$ and \$5$",
        "$ x $",
        "$$$ is a lot $$$",
        "$",
        "$$",
        "$$ $$",
        "a $x\n\ny$ b",
        "`$x$`",
        "```\n$x$\n$$y$$\n```",
        "    $$x$$",
        r"\\(x\\)",
        r"\\[x\\]",
        r"\[1\] and \[some words\]",
        r"\[words\](https://e.test)",
        "[$5](https://e.test) and [$6](https://e.test)",
        "$5 is `code$`",
    ],
)
def test_this_is_no_formula(text: str) -> None:
    assert "<math" not in render(text)


@pytest.mark.parametrize(
    ("text", "tex"),
    [
        ("$x$", "x"),
        ("the $n$th, $n$-th and $k$s", "n"),
        (r"$\$0.60$", r"\$0.60"),
        ("$100$", "100"),
        (r"$2 \times 3$", r"2 \times 3"),
        ("$3x + 2 = 5y$", "3x + 2 = 5y"),
        ("$10^{-3}$", "10^{-3}"),
        (r"$x \text{ if and only if } y$", r"x \text{ if and only if } y"),
        ("函数$f(x)$是", "f(x)"),
        ("($x$)", "x"),
        ("**$x$**", "x"),
        (r"\(a_1 * b * c\)", "a_1 * b * c"),
        (r"\[ x^2 \]", "x^2"),
        ("$$x$$", "x"),
        ("so $$x$$ holds", "x"),
        ("a\n$$\nx\n$$\nb", "x"),
        ("a $$\nx\n$$ b", "x"),
        ("$$\nx\n$$ where", "x"),
        ("\\[\nx\n\\].", "x"),
        ("> $$\n> x\n> $$", "x"),
        ("1. a\n   \\[\n   x\n   \\]", "x"),
        ("| $a$ |\n|---|", "a"),
        ("$5 each, but $x$", "x"),
    ],
)
def test_this_is_a_formula_and_keeps_its_source(text: str, tex: str) -> None:
    assert f'data-tex="{tex}"' in render(text)


def test_a_formula_on_its_own_lines_is_displayed_and_ends_a_paragraph() -> None:
    page = render("a\n$$\nx\n$$\nb")
    assert page.startswith('<p>a</p>\n<div class="formula"><math display="block"')
    assert page.endswith("<p>b</p>\n")


@pytest.mark.parametrize(
    "tex", [r"\foo", r"\frac{a", r"\frac{a}", "a & b", r"\left( x", "x^", "}{"]
)
def test_what_cannot_be_set_is_shown_as_its_source(tex: str) -> None:
    page = render(f"so $${tex}$$ holds")
    assert "<math" not in page
    assert re.search("<code>(.*)</code>", page)
    assert "tex code" in render(f"$$\n{tex}\n$$")


COMMON = [
    r"\frac{-b \pm \sqrt{b^2 - 4ac}}{2a}",
    r"\int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2}",
    r"\sum_{i=1}^{n} i = \frac{n(n+1)}{2}",
    r"\lim_{x \to 0} \frac{\sin x}{x} = 1",
    r"\begin{align} a &= b \\ c &= d \end{align}",
    r"\begin{aligned} a &= b \\ c &= d \end{aligned}",
    r"\begin{gather} a \\ b \end{gather}",
    r"\begin{cases} 1 & x > 0 \\ 0 & \text{otherwise} \end{cases}",
    r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}^{-1}",
    r"\begin{bmatrix} 1 & 2 \end{bmatrix}^T",
    r"\operatorname*{arg\,max}_\theta \mathcal{L}(\theta)",
    r"\mathrm{ReLU}(x) = \max(0, x)",
    r"\mathbb{E}_{x \sim p}[f(x)]",
    r"\nabla \cdot \mathbf{E} = \frac{\rho}{\varepsilon_0}",
    r"\left. \frac{df}{dx} \right|_{x=0}",
    r"\hat{y} = \sigma(\mathbf{w}^\top \mathbf{x} + b) \tag{1}",
    r"\underbrace{a + b}_{n} \implies \overline{AB} \iff \vec{v}",
    r"\boxed{x < 1} \quad \forall \epsilon > 0\ \exists \delta",
    r"\text{H}_2\text{O} \xrightarrow{\Delta} \binom{n}{k}",
    r"\bigl\{ x \in \mathbb{R} \mid x \ge 0 \bigr\}",
    r"a \\ b",
]


@pytest.mark.parametrize("tex", COMMON)
def test_what_models_write_is_set(tex: str) -> None:
    found = mathml(tex, display=True)
    assert found is not None
    assert "\\" not in re.sub('data-tex="[^"]*"', "", found)


def test_the_table_of_an_environment_is_one() -> None:
    found = mathml(r"\begin{aligned} a &= b \\ c &= d \end{aligned}", display=True)
    assert found is not None and found.count("<mtr>") == 2


def test_a_power_belongs_to_the_matrix_and_not_to_its_bracket() -> None:
    found = mathml(r"\begin{bmatrix} 1 \end{bmatrix}^T", display=True)
    assert found is not None
    (power,) = ElementTree.fromstring(found).iter("msup")
    assert [child.tag for child in power] == ["mrow", "mi"]


def test_roman_letters_are_upright() -> None:
    assert 'mathvariant="normal">d<' in (mathml(r"\mathrm{d}x", display=False) or "")
    assert "mathvariant" not in (mathml("d", display=False) or "d mathvariant")


def test_macros_and_long_formulas_are_not_converted() -> None:
    bomb = "".join(
        rf"\newcommand{{\{c}}}{{\{d}\{d}}}" for c, d in zip("abcde", "bcdef", strict=True)
    )
    assert mathml(rf"{bomb}\a", display=False) is None
    assert mathml("x" * (MAX_CHARS + 1), display=False) is None


PIECES = [
    *(
        "x",
        "1",
        "{",
        "}",
        "^",
        "_",
        "&",
        r"\\",
        r"\frac",
        r"\sqrt",
        r"\left(",
        r"\right)",
        "[",
        "]",
    ),
    *(r"\begin{pmatrix}", r"\end{pmatrix}", r"\begin{aligned}", r"\end{aligned}", r"\text{", "'"),
    *(
        r"\over",
        r"\limits",
        r"\sum",
        " ",
        "<",
        ">",
        '"',
        r"\href{javascript:x}",
        r"\color{red}",
        "%",
    ),
    *(
        r"\hspace{9em}",
        r"\genfrac",
        r"\mathbf",
        r"\foo",
        r"\def\a",
        "&lt;b&gt;",
        r"\tag{1}",
        r"\middle|",
    ),
]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_any_source_gives_whole_and_known_elements_or_none(tex: str) -> None:
    found = mathml(tex, display=True)
    if found is not None:
        for element in ElementTree.fromstring(found).iter():
            assert element.tag in TAGS
            assert not {"href", "style", "class", "mathcolor"} & set(element.attrib)


@pytest.mark.parametrize(
    "piece", ["{", r"\(", "$$ ", r"\[", "$x ", r"\frac", "x^", r"\left(", "$$\n", r"\\)"]
)
def test_no_repetition_takes_long(piece: str) -> None:
    began_s = time.perf_counter()
    render(piece * (16_000 // len(piece)))
    render(f"${piece * 300}$")
    assert time.perf_counter() - began_s < 3
