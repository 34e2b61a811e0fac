"""What is said of pictures, and how much room they get."""

import pytest

from corral.backend.store import Picture
from corral.frontend.gallery import MIN_SIDE, chip, shown, size


def picture(width: int, height: int) -> Picture:
    return Picture(
        key="k", name="a.png", media_type="image/png", n_bytes=1200, width=width, height=height
    )


@pytest.mark.parametrize(
    ("n_bytes", "words"),
    [
        (0, "0 B"),
        (86, "86 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9949, "9.9 kB"),
        (9950, "10 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (20 * 2**20, "21 MB"),
        (3 * 10**12, "3,000 GB"),
    ],
)
def test_sizes_have_two_or_three_digits(n_bytes: int, words: str) -> None:
    assert size(n_bytes) == words


@pytest.mark.parametrize(
    ("pixels", "room"),
    [
        ((60, 50), (60, 50)),
        ((640, 440), (320, 220)),
        ((4000, 1000), (320, 80)),
        ((1000, 4000), (55, 220)),
        ((1, 1), (MIN_SIDE, MIN_SIDE)),
        ((2000, 10), (320, MIN_SIDE)),
    ],
)
def test_a_picture_gets_a_box_of_its_own_shape(
    pixels: tuple[int, int], room: tuple[int, int]
) -> None:
    found = shown(picture(*pixels))
    assert (found.width, found.height) == room


def test_tokens_are_said_when_they_are_known() -> None:
    assert chip(picture(1, 1), "s", 1234).figures.endswith(" · 1,234\N{NO-BREAK SPACE}tok")
    assert "tok" not in chip(picture(1, 1), "s", 0).figures
