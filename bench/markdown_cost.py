"""What showing an answer costs while it is written: Markdown to HTML, twelve times a second."""

import time

from corral.frontend.growing import Document
from corral.frontend.markdown import render
from corral.frontend.tex import mathml

N_CHARS = 16_384
UPDATES_PER_S = 12
#: A fast reader of English; fewer tokens a second mean more updates for the same text.
TOKENS_PER_S = 50
CHARS_PER_TOKEN = 4

_SECTION = r"""
## Section {n}: sorting

Some *words* about **merge sort**, `code`, $O(n \log n)$ and a [link](https://example.test/{n}).

1. Split the list in two halves of ${n} + 1$ elements.
2. Sort each half, then merge: \(T(n) = 2T(n/2) + {n}\).
   - [x] stable

$$
T(n) = \sum_{{i=0}}^{{\log_2 n}} 2^i \cdot \frac{{n}}{{2^i}} + {n}
$$

```python
def merge_{n}(left, right):
    return sorted(left + right)  # {n}
```

| sort | time | stable |
|---|---:|:-:|
| merge {n} | $n \log n$ | yes |

It costs $5 and not $10: https://example.test/{n}
"""


def answer(n_chars: int = N_CHARS) -> str:
    """An answer with everything in it, no two formulas of which are equal."""
    return "".join(_SECTION.format(n=n) for n in range(n_chars // 400))[:n_chars]


def grow(text: str) -> tuple[float, float, int]:
    """Shows a text as it arrives: seconds in all, the longest update, the number of updates."""
    document, step = Document(), TOKENS_PER_S * CHARS_PER_TOKEN // UPDATES_PER_S
    costs = []
    for at in range(0, len(text), step):
        began_s = time.perf_counter()
        document.feed(text[at : at + step])
        document.advance()
        if document.open_code is None:
            document.open_html()
        costs.append(time.perf_counter() - began_s)
    began_s = time.perf_counter()
    document.finish()
    return sum(costs) + time.perf_counter() - began_s, max(costs), len(costs)


def report(rounds: int) -> None:
    """Prints the cost of one answer; formulas are converted anew in each round."""
    text, results = answer(), []
    for _ in range(rounds):
        mathml.cache_clear()
        results.append(grow(text))
    seconds, worst, n_updates = sorted(results)[len(results) // 2]
    render.cache_clear()
    began_s = time.perf_counter()
    render(text)
    whole_s = time.perf_counter() - began_s
    print(
        f"markdown: {len(text) // 1024} KB in {n_updates} updates {seconds:.2f} s,"
        f" worst {worst * 1e3:.1f} ms; once, whole: {whole_s * 1e3:.0f} ms"
    )
