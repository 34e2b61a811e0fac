"""The entries of --media-url-allow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.backend.media.hosts import parse_allowed, plain_host


@pytest.mark.parametrize(
    ("entry", "fits", "fits_not"),
    [
        ("*", ["http a.test 80", "https a.test 443"], ["http a.test 8080", "https a.test 80"]),
        ("*:*", ["http a.test 8080", "https a.test 1"], []),
        ("https://*", ["https a.test 443"], ["http a.test 80"]),
        ("example.org", ["https example.org 443"], ["http a.example.org 80"]),
        ("https://Example.ORG.", ["https example.org 443"], ["http example.org 80"]),
        ("*.example.org", ["http a.example.org 80", "http b.a.example.org 80"], []),
        ("*.example.org", [], ["http example.org 80", "http badexample.org 80"]),
        ("http://example.org:8080", ["http example.org 8080"], ["http example.org 80"]),
        ("example.org:*", ["http example.org 8080"], ["http example.com 8080"]),
        ("[::1]:80", ["http ::1 80"], ["https ::1 443"]),
        ("10.0.0.1", ["http 10.0.0.1 80"], ["http 10.0.0.11 80"]),
        ("bücher.example", ["http xn--bcher-kva.example 80"], []),
    ],
)  # fmt: skip
def test_an_entry_fits_what_it_says(entry: str, fits: list[str], fits_not: list[str]) -> None:
    rule = parse_allowed(entry)
    for places, expected in ((fits, True), (fits_not, False)):
        for place in places:
            scheme, host, port = place.split()
            assert rule.fits(scheme, host, int(port)) is expected, place


@pytest.mark.parametrize(
    "entry",
    [
        "", "ftp://a.test", "https://", "a.test/path", "https://a.test/", "user@a.test", "a.*",
        "*a.test", "*.*.test", "a.test:0", "a.test:99999", "a.test:x", "*.10.0.0.1", "10.0.0.0/8",
        "a b.test", "::1", "[::1", "[a.test]", "a..test", "*.", ".test", "[fe80::1%eth0]",
    ],
)  # fmt: skip
def test_what_is_no_entry_is_refused_with_a_reason(entry: str) -> None:
    with pytest.raises(ValueError, match=r"not|no "):
        parse_allowed(entry)


def test_only_an_entry_that_is_an_address_opens_inner_networks() -> None:
    assert parse_allowed("127.0.0.1").is_address
    assert parse_allowed("http://[::1]:8080").is_address
    assert not parse_allowed("*").is_address
    assert not parse_allowed("localhost").is_address


@given(st.text(max_size=40))
def test_a_host_has_one_form(text: str) -> None:
    try:
        host = plain_host(text)
    except ValueError:
        return
    assert plain_host(host) == host
    assert host.isascii() and not set(host) & set("/@?#\\ %[]")
