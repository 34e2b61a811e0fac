from pathlib import Path

import pytest

from corral.backend.commandline import parse
from corral.backend.errors import Refused


def test_keys_of_a_file_are_its_lines_without_comments(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nfirst\n\n  spaced \r\nwith,comma\n#last\nünï")
    found = parse(["--api-key", "a", "--api-key-file", str(path)], {})
    assert found.keys == ("a", "first", "spaced", "with,comma", "ünï")
    assert parse([], {"LLAMA_ARG_API_KEY_FILE": str(path)}).keys == found.keys[1:]


def test_a_file_without_keys_does_not_open_the_server_to_all(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# none\n\n")
    with pytest.raises(Refused, match=r"^--api-key-file must be a file with at least one key"):
        parse(["--api-key-file", str(path)], {})
    with pytest.raises(Refused, match=r"^--api-key-file must be a file that can be read"):
        parse(["--api-key-file", str(tmp_path / "absent")], {})


@pytest.mark.parametrize(
    ("text", "path"),
    [("", ""), ("/", ""), ("/a", "/a"), ("/a/", "/a"), ("/a/b-c.d_e~1", "/a/b-c.d_e~1")],
)
def test_a_prefix_begins_with_a_slash_and_ends_without(text: str, path: str) -> None:
    assert parse([f"--api-prefix={text}"], {}).api_prefix == path


@pytest.mark.parametrize(
    "text", ["a", "//a", "/a//b", "/a/../b", "/.", "/a b", "/ä", "/a?b", '/"x', "/{x}", "/a%2f"]
)
def test_a_prefix_that_is_no_plain_path_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=r"^--api-prefix must begin with a slash"):
        parse([f"--api-prefix={text}"], {})


def test_hosts_are_separated_by_commas() -> None:
    assert parse(["--host", "::1, 127.0.0.1 ,/run/x.sock"], {}).hosts == (
        *("::1", "127.0.0.1", "/run/x.sock"),
    )
    for text in ("", " , ", "a,a"):
        with pytest.raises(Refused, match=r"^--host must name addresses, each once"):
            parse([f"--host={text}"], {})


def test_the_first_alias_is_the_models_name() -> None:
    assert parse(["-a", " one , two,one"], {}).alias == "one,two"


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon"])
def test_a_timeout_is_a_time(text: str) -> None:
    with pytest.raises(Refused, match=r"^-to "):
        parse(["-to", text], {})


def test_hosts_of_pictures_are_listed_and_added_up() -> None:
    words = ["--media-url-allow", "example.org, https://*.example.net:8443", "--media-url-allow=*"]
    found = parse(words, {}).media_url_allow
    assert [(a.scheme, a.host, a.port) for a in found] == [
        (None, "example.org", None),
        ("https", "*.example.net", 8443),
        (None, "*", None),
    ]
    assert parse([], {"CORRAL_MEDIA_URL_ALLOW": "a.b"}).media_url_allow[0].host == "a.b"


@pytest.mark.parametrize("text", ["", "ftp://a", "https://a/path", "user@a", "a b", "a:x", "a,b:0"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=r"^--media-url-allow must name hosts: "):
        parse(["--media-url-allow", text], {})
