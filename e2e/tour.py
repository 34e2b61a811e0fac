"""Makes the pictures of the documentation from the real application and the embedded model.

``make pictures`` runs it. What the long conversation says was brought in from a file, since a model
of this size does not write so well; all else is as the model gave it.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e_kit import ARGS, CHROMIUM, PHONE, Server, say
from playwright.sync_api import Browser, Page, sync_playwright

from corral.backend.__main__ import embedded_model
from corral.backend.settings import Settings

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
SIZE = {"width": 1280, "height": 800}

ASKED = "How fast is binary search, and how do I write it?"
ANSWER = r"""Each step halves what is left, so a sorted list of $n$ items takes at most
$\lfloor \log_2 n \rfloor + 1$ steps:

| items | steps at most |
|---:|---:|
| 1,000 | 10 |
| 1,000,000 | 20 |
| 1,000,000,000 | 30 |

```python
def find(items: list[int], wanted: int) -> int | None:
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        if items[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low if low < len(items) and items[low] == wanted else None
```

The standard library has it as `bisect.bisect_left`.
"""
TEXT = "Café naïve Ελλάδα ≟ ∑\n\tdef f(x): return x**2  # <|im_end|>"
TALKS = {
    "Binary search": (ASKED, ANSWER),
    "A letter to the council": ("Write to the council about the bridge.", "Dear council, …"),
    "Soup for eight": ("A soup for eight, without cream.", "Take two leeks, …"),
    "Names for a cat": ("Names for a grey cat?", "Ash, Pebble, Mist."),
}


@contextmanager
def application() -> Iterator[Server]:
    """The application with the embedded model and a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(model=embedded_model(), n_ctx=4096, n_slots=4, data_dir=Path(folder))
        server = Server(settings)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def look(page: Page, name: str) -> None:
    """Takes a picture when the fonts are there."""
    page.wait_for_function("() => document.fonts.status === 'loaded'")
    page.screenshot(path=IMAGES / f"{name}.png", animations="disabled", caret="hide")


def bring_in(page: Page, url: str) -> None:
    """Conversations from a file, as a person would do it; the first stays open."""
    talks = [
        {
            "title": title,
            "messages": [
                {"role": "user", "content": asked},
                {"role": "assistant", "content": answer},
            ],
        }
        for title, (asked, answer) in reversed(TALKS.items())
    ]
    lines = "\n".join(map(json.dumps, talks)).encode()
    page.goto(f"{url}/transfer")
    page.locator("input[type=file]").set_input_files(
        {"name": "talks.jsonl", "mimeType": "application/jsonl", "buffer": lines}
    )
    page.get_by_role("button", name="Bring in").click()
    page.get_by_role("link", name="Binary search").first.click()


def tour(browser: Browser, url: str) -> None:
    """Every picture, in the order of the documentation."""
    page = browser.new_page(viewport=SIZE, color_scheme="light", locale="en-GB")
    bring_in(page, url)
    page.locator("#scroll").evaluate("(e) => e.scrollTo(0, -e.scrollHeight)")
    look(page, "chat")

    phone = browser.new_page(
        viewport=PHONE, color_scheme="dark", device_scale_factor=2, locale="en-GB"
    )
    phone.goto(page.url)
    look(phone, "phone")

    page.goto(url)
    page.locator("select[name=n]").select_option("4")
    say(page, "Name a star that sailors used, and say why in one sentence.")
    page.get_by_role("button", name="Keep this one").nth(3).wait_for()
    page.wait_for_function("() => !document.querySelector('#stop')", timeout=120_000)
    look(page, "ways")
    page.get_by_role("button", name="Keep this one").first.click()
    page.locator("select[name=n]").select_option("1")
    say(page, "And one in the south?")
    page.get_by_role("link", name="Inspect").nth(1).click()
    look(page, "inspect")

    page.goto(f"{url}/tokens")
    page.locator("textarea").first.fill(
        "Café naïve Ελλάδα ≟ ∑\n\tdef f(x): return x**2  # <|im_end|>"
    )
    page.get_by_role("list", name="Tokens").get_by_role("listitem").nth(20).wait_for()
    look(page, "tokens")
    page.goto(f"{url}/status")
    look(page, "status")


if __name__ == "__main__":
    with application() as server, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        tour(chromium, server.url)
        chromium.close()
