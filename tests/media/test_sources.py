"""What a client writes in place of a picture: data: URLs, base64, files."""

import base64
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.backend.errors import Refused
from corral.backend.media.policy import MediaPolicy
from corral.backend.media.sources import from_base64, load

LIMIT = 1000


async def loaded(url: str, path: str = "") -> bytes:
    return await load(url, param="p", policy=MediaPolicy(path=path, max_bytes=LIMIT))


async def refusal(url: str, path: str = "") -> str:
    with pytest.raises(Refused) as caught:
        await loaded(url, path)
    assert (caught.value.wire.status, caught.value.param) == (400, "p")
    return caught.value.message


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64,UElYRUxT",
        "DATA:image/png;charset=utf-8;BASE64,UElYRUxT",
        "data:text/html;base64,UElYRUxT",
        "data:;base64,UElYRUxT",
        "data:image/png;base64, UElY\r\n\tRUxT ",
        "data:image/png;base64,UElY%52UxT",
        "data:,PIXELS",
        "data:image/svg+xml,%50I%58ELS",
        "UElYRUxT",
        "UElY\nRUxT",
    ],
)
async def test_inline_data_is_read_whatever_type_it_declares(url: str) -> None:
    assert await loaded(url) == b"PIXELS"


@pytest.mark.parametrize("text", ["QQ==", "QQ", " Q Q = =", "QQ%3D%3D", "QQ%3d="])
async def test_padding_may_be_absent_or_escaped(text: str) -> None:
    assert await loaded(f"data:;base64,{text}") == b"A"


@pytest.mark.parametrize(
    "text", ["Q", "QQ=", "QQ===", "QQ==QQ==", "Q-Q_", "QQQ!", "QQQQ\0", "=", "QQQ\xe4", "QQ=Q"]
)
async def test_anything_but_base64_is_refused(text: str) -> None:
    assert "not valid base64" in await refusal(f"data:image/png;base64,{text}")


async def test_a_url_without_data_is_refused() -> None:
    assert "no comma" in await refusal("data:image/png;base64")
    assert "empty" in await refusal("")
    assert await loaded("data:,") == b""  # said to be empty where it is decoded


@pytest.mark.parametrize("scheme", ["ftp", "gs", "blob", "javascript", "content", "C"])
async def test_other_schemes_are_named(scheme: str) -> None:
    assert f"{scheme.lower()}: URLs are not supported" in await refusal(f"{scheme}://a/b.png")


async def test_the_limit_is_on_bytes_and_checked_before_they_are_decoded() -> None:
    whole = base64.b64encode(bytes(LIMIT)).decode()
    assert await loaded(f"data:;base64,{whole}") == bytes(LIMIT)
    await refusal("data:;base64," + base64.b64encode(bytes(LIMIT + 3)).decode())
    assert await loaded("data:," + "%00" * LIMIT) == bytes(LIMIT)
    await refusal("data:," + "%00" * (LIMIT + 1))
    huge = "data:;base64," + "A" * 50_000_000
    tracemalloc.start()
    try:
        assert "more than the 1000 bytes" in await refusal(huge)
        assert tracemalloc.get_traced_memory()[1] < 120_000_000
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200))
def test_base64_comes_back(data: bytes) -> None:
    assert from_base64(base64.b64encode(data).decode(), param="", max_bytes=LIMIT) == data
    assert from_base64(base64.encodebytes(data).decode(), param="", max_bytes=LIMIT) == data


@given(st.text(st.characters(), max_size=100))
async def test_any_text_is_loaded_or_refused(text: str) -> None:
    for url in (text, f"data:{text}", f"data:;base64,{text}", f"file:{text}", f"http:{text}"):
        try:
            await loaded(url)
        except Refused:
            continue


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "media"
    (inside / "sub").mkdir(parents=True)
    (inside / "a.png").write_bytes(b"pixels")
    (inside / "sub" / "b c.png").write_bytes(b"more")
    (inside / "large.png").write_bytes(bytes(LIMIT + 1))
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "media-not").mkdir()
    (tmp_path / "media-not" / "secret").write_bytes(b"secret")
    (inside / "link-in").symlink_to("sub/b c.png")
    (inside / "link-out").symlink_to("../secret")
    (inside / "folder-out").symlink_to("..")
    (inside / "circle").symlink_to("circle")
    os.mkfifo(inside / "pipe")
    return inside


@pytest.mark.parametrize(
    ("url", "data"),
    [
        ("file://a.png", b"pixels"),
        ("file:a.png", b"pixels"),
        ("file:///a.png", b"pixels"),
        ("file://{folder}/a.png", b"pixels"),
        ("file://localhost{folder}/a.png", b"pixels"),
        ("file://LocalHost/a.png", b"pixels"),
        ("file://localhost/sub/b%20c.png", b"more"),
        ("FILE://sub/b%20c.png", b"more"),
        ("file://sub/../a.png", b"pixels"),
        ("file://link-in", b"more"),
    ],
)
async def test_a_file_below_the_folder_is_read(folder: Path, url: str, data: bytes) -> None:
    assert await loaded(url.format(folder=folder), str(folder)) == data


@pytest.mark.parametrize(
    "url",
    [
        "file://../secret", "file://%2e%2e/secret", "file://sub/../../secret",
        "file://{folder}/../secret", "file://{folder}-not/secret", "file://../media-not/secret",
        "file://link-out", "file://folder-out/secret", "file://circle", "file://pipe",
        "file://sub", "file://", "file:", "file:///", "file://a.png%00", "file:///etc/passwd",
        "file://localhost/etc/passwd", "file://localhost/../secret", "file://localhost",
        "file://absent.png", "file://" + "a" * 5000, "file://a.png/b",
    ],
)  # fmt: skip
async def test_anything_outside_is_as_if_it_were_not_there(folder: Path, url: str) -> None:
    message = await refusal(url.format(folder=folder), str(folder))
    assert message == "there is no such file in the folder of media"


async def test_a_folder_that_is_a_link_is_where_it_leads(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert await loaded("file://a.png", str(tmp_path / "link")) == b"pixels"


async def test_a_file_over_the_limit_is_refused(folder: Path) -> None:
    assert "more than the 1000 bytes" in await refusal("file://large.png", str(folder))


async def test_files_are_not_read_without_a_folder() -> None:
    assert "--media-path" in await refusal("file:///etc/passwd")
