"""Pictures over HTTP: taken with a form, refused with a reason, served as they came."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar import Litestar
from PIL import Image

from corral.backend.app import create_app
from corral.backend.chat.types import Source
from corral.backend.pool import Pool
from corral.backend.service import Service
from corral.backend.settings import Settings

HTMX = {"hx-request": "true"}
ANYTHING = {"data": {"text": "Look"}, "follow_redirects": False}


class Client(httpx.AsyncClient):
    app: Litestar


Open = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """Opens the application with a scripted model that takes pictures, in one task."""

    @asynccontextmanager
    async def open_client(**settings: Any) -> AsyncIterator[Client]:
        given = {"mmproj": Path("projector.gguf"), **settings}
        s = Settings(fake=True, data_dir=tmp_path, n_ctx=1024, **given)
        service = Service(s, Pool(s))
        app = create_app(s, service)
        async with app.lifespan():
            await service.until_loaded()
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with Client(transport=transport, base_url="http://127.0.0.1:8080") as client:
                client.app = app
                yield client

    return open_client


def image(format: str = "PNG", size: tuple[int, int] = (30, 20)) -> bytes:
    out = BytesIO()
    Image.new("RGB", size, "red").save(out, format)
    return out.getvalue()


PNG = image()
KEY = hashlib.sha256(PNG).hexdigest()


def plain(text: str) -> str:
    """With spaces that may break and a letter for the sign."""
    return text.replace("\N{NO-BREAK SPACE}", " ").replace("\N{MULTIPLICATION SIGN}", "x")


def sent(*files: tuple[str, bytes]) -> dict[str, Any]:
    return {"files": [("pictures", (name, data, "image/png")) for name, data in files]}


async def test_a_picture_is_looked_at_before_it_is_sent_and_not_kept(opened: Open) -> None:
    async with opened() as client:
        answer = await client.post("/pictures", **sent(("../a/red one.png", PNG)))
        assert answer.status_code == 200
        assert "<b>red one.png</b>" in answer.text
        assert f"<span>{len(PNG)} B · 30 x 20 · 4 tok</span>" in plain(answer.text)
        assert 'src="data:image/webp;base64,' in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert (await client.get(f"/p/{KEY}")).status_code == 404


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "There is no file here"),
        (b"<html><body>", "x.png: this is HTML"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "x.png: this is SVG"),
        (PNG[:40], "x.png: this PNG is damaged or cut off"),
        (b"\0" * 2**21, "x.png: this is of no known format"),
    ],
)
async def test_what_is_no_picture_is_refused_with_the_reason(
    opened: Open, data: bytes, why: str
) -> None:
    async with opened() as client:
        files = sent(("x.png", data)) if data else {}
        answer = await client.post("/pictures", **files)
        assert answer.status_code == 400
        assert f'role="alert">{why}' in answer.text
        if data:
            # The same on the way to the model; a plain form gets its text back.
            form = await client.post("/c", **files, **ANYTHING)
            assert (form.status_code, why in form.text) == (400, True)
            assert ">\nLook</textarea>" in form.text
            assert await client.app.state.site.store.list() == []


async def test_a_picture_over_the_limits_is_refused(opened: Open) -> None:
    async with opened(media_max_mib=1, max_body_mb=2) as client:
        noise = Image.effect_noise((1100, 1100), 90)
        out = BytesIO()
        noise.save(out, "BMP")
        answer = await client.post("/pictures", **sent(("noise.bmp", out.getvalue())))
        assert (answer.status_code, "noise.bmp: this BMP has" in answer.text) == (400, True)
        answer = await client.post("/pictures", **sent(("huge.png", b"\0" * 2**22)))
        assert (answer.status_code, "more than the 2 MiB" in answer.text) == (413, True)
        answer = await client.post("/c", **sent(("huge.png", b"\0" * 2**22)), headers=HTMX)
        assert (answer.status_code, "more than the 2 MiB" in answer.text) == (413, True)
        assert "hx-partial" in answer.text


async def test_a_model_without_eyes_has_a_button_for_texts_and_says_so(opened: Open) -> None:
    async with opened(mmproj=None) as client:
        page = (await client.get("/")).text
        assert page.count('type="file"') == 1 and "Attach texts or PDFs" in page
        answer = await client.post("/c", **sent(("a.png", PNG)), **ANYTHING)
        assert (answer.status_code, "takes no pictures" in answer.text) == (400, True)


async def test_a_plain_form_with_pictures_reaches_the_model_and_the_page(opened: Open) -> None:
    async with opened() as client:
        page = (await client.get("/")).text
        assert 'enctype="multipart/form-data"' in page
        jpeg = image("JPEG", (400, 800))
        files = sent(("a.png", PNG), ("b.jpg", jpeg))
        answer = await client.post("/c", **files, **ANYTHING)
        assert answer.status_code == 303
        path = answer.headers["location"]
        reply = client.app.state.site.live.get(2)
        assert reply.request.messages[0].content == [
            {"type": "media", "index": 0},
            {"type": "media", "index": 1},
            {"type": "text", "text": "Look"},
        ]
        assert reply.request.sources == (
            Source(kind="image", param="a.png", data=PNG),
            Source(kind="image", param="b.jpg", data=jpeg),
        )
        await reply.ended.wait()
        page = (await client.get(path)).text
        found = re.findall(r'<a href="(/p/\w+)".*?<img src="(/p/\w+/small)" alt="(.*?)"', page)
        assert [full for full, _, _ in found] == [
            f"/p/{KEY}",
            f"/p/{hashlib.sha256(jpeg).hexdigest()}",
        ]
        assert plain(found[0][2]) == f"a.png ({len(PNG)} B · 30 x 20)"
        assert 'width="110" height="220"' in page


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
async def test_a_picture_is_served_as_it_came_and_nothing_runs_in_it(
    opened: Open, format: str
) -> None:
    data = image(format)
    key = hashlib.sha256(data).hexdigest()
    async with opened() as client:
        answer = await client.post("/c", **sent(("lies.png", data)), **ANYTHING)
        path = answer.headers["location"]
        for method in ("GET", "HEAD"):
            answer = await client.request(method, f"/p/{key}")
            assert answer.content == (data if method == "GET" else b"")
            assert answer.headers["content-type"] == f"image/{format.lower()}"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "private, max-age=31536000, immutable"
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert "sandbox" in answer.headers["content-security-policy"]
            place = answer.headers["content-disposition"].partition(";")[0]
            assert place == ("attachment" if format == "TIFF" else "inline")
        small = await client.get(f"/p/{key}/small")
        assert small.headers["content-type"] == "image/webp"
        assert Image.open(BytesIO(small.content)).size == (30, 20)
        await client.post(f"{path}/delete", follow_redirects=False)
        await client.app.state.site.store.forget(path.removeprefix("/c/"))
        assert (await client.get(f"/p/{key}")).status_code == 404
        assert (await client.get(f"/p/{key}/small")).status_code == 404


async def test_a_large_picture_is_shown_small(opened: Open) -> None:
    data = image("JPEG", (1600, 1200))
    async with opened() as client:
        await client.post("/c", **sent(("large.jpg", data)), **ANYTHING)
        small = await client.get(f"/p/{hashlib.sha256(data).hexdigest()}/small")
        assert Image.open(BytesIO(small.content)).size == (640, 480)


async def test_a_photo_that_was_held_sideways_is_shown_upright(opened: Open) -> None:
    out, exif = BytesIO(), Image.Exif()
    exif[0x0112] = 6  # turn it to the right
    sideways = Image.new("RGB", (400, 200), "blue")
    sideways.paste("red", (0, 0, 200, 200))
    sideways.save(out, "JPEG", exif=exif)
    async with opened() as client:
        answer = await client.post("/c", **sent(("photo.jpg", out.getvalue())), **ANYTHING)
        page = (await client.get(answer.headers["location"])).text
        assert 'width="110" height="220"' in page
        small = await client.get(f"/p/{hashlib.sha256(out.getvalue()).hexdigest()}/small")
        image = Image.open(BytesIO(small.content)).convert("RGB")
        assert image.size == (200, 400)
        top, bottom = image.getpixel((100, 50)), image.getpixel((100, 350))
        assert isinstance(top, tuple) and isinstance(bottom, tuple)
        assert top[0] > 200 > top[2] and bottom[2] > 200 > bottom[0]


async def test_a_picture_needs_no_words_and_names_the_conversation(opened: Open) -> None:
    async with opened() as client:
        answer = await client.post("/c", **sent(("sunset.png", PNG)), follow_redirects=False)
        assert answer.status_code == 303
        page = (await client.get(answer.headers["location"])).text
        assert ">sunset.png</h1>" in page
        assert '<div class="user"' not in page
        reply = client.app.state.site.live.get(2)
        assert reply is None or reply.request.messages[0].content == [{"type": "media", "index": 0}]


async def test_pictures_stay_in_the_conversation_and_in_another_try(opened: Open) -> None:
    async with opened() as client:
        live = client.app.state.site.live
        await client.app.state.service.control({"hold": "decode", "after": 2})
        answer = await client.post("/c", **sent(("a.png", PNG)), **ANYTHING)
        path = answer.headers["location"]
        await live.end(live.get(2))
        await client.post("/m/2/retry", follow_redirects=False)
        assert len(live.get(3).request.sources) == 1
        await live.end(live.get(3))
        await client.post(f"{path}/messages", **ANYTHING)
        assert [s.data for s in live.get(5).request.sources] == [PNG]
        await live.end(live.get(5))


async def test_a_picture_that_is_gone_from_the_disk_starts_nothing(
    opened: Open, tmp_path: Path
) -> None:
    async with opened() as client:
        answer = await client.post("/c", **sent(("a.png", PNG)), **ANYTHING)
        await client.app.state.site.live.get(2).ended.wait()
        (tmp_path / "pictures" / KEY).unlink()
        path = answer.headers["location"]
        answer = await client.post(f"{path}/messages", **ANYTHING)
        assert (answer.status_code, "is gone from the server" in answer.text) == (404, True)
        assert not client.app.state.site.live.is_any


async def test_without_the_cookie_no_picture_is_shown(opened: Open) -> None:
    async with opened(api_keys=("sesame",)) as client:
        assert (await client.get(f"/p/{KEY}")).status_code == 401
        assert (await client.post("/pictures", **sent(("a.png", PNG)))).status_code == 401


async def test_pictures_are_taken_from_our_own_pages_only(opened: Open) -> None:
    async with opened() as client:
        headers = {"sec-fetch-site": "cross-site"}
        answer = await client.post("/pictures", **sent(("a.png", PNG)), headers=headers)
        assert answer.status_code == 403


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'--x\r\ncontent-disposition: form-data; name="text"\r\n\r\n\xff\xfe\r\n--x--\r\n', 400),
        (b"--x\r\nnonsense", 400),
        (b"", 400),
    ],
)
async def test_a_form_that_cannot_be_read_is_refused(
    opened: Open, body: bytes, status: int
) -> None:
    async with opened() as client:
        headers = {"content-type": "multipart/form-data; boundary=x"}
        for path in ("/c", "/pictures"):
            answer = await client.post(path, content=body, headers=headers)
            assert (answer.status_code, 'role="alert"' in answer.text) == (status, True)


async def test_several_pictures_are_looked_at_while_others_are(opened: Open) -> None:
    async with opened() as client:
        answers = await asyncio.gather(
            *(client.post("/pictures", **sent((f"{n}.png", image(size=(n, n))))) for n in (1, 2, 3))
        )
        for n, answer in zip((1, 2, 3), answers, strict=True):
            assert f"{n} x {n} " in plain(answer.text)
