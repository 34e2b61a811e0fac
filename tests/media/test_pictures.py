"""Pictures of every mode and format, against pixels written by hand, and what is refused."""

import hashlib
import random
import struct
import time
import zlib
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from corral.backend.errors import Refused
from corral.backend.media.headers import jpeg_scans, webp_size
from corral.backend.media.pictures import Picture, PictureLimits, verify

# Pillow warns of oddities that it reads over; so it must here.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")

RED, GREEN, BLUE, WHITE, BLACK = (
    (255, 0, 0),
    (0, 255, 0),
    (0, 0, 255),
    (255, 255, 255),
    (0, 0, 0),
)


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(
    width: int, height: int, bits: int, colour: int, rows: bytes, *extra: tuple[bytes, bytes]
) -> bytes:
    """A PNG from the standard alone; ``rows`` each begin with their filter."""
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    chunks = [(b"IHDR", head), *extra, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(name, body) for name, body in chunks)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def pixels(picture: Picture) -> list[tuple[int, ...]]:
    assert len(picture.rgb) == picture.width * picture.height * 3
    return [tuple(picture.rgb[i : i + 3]) for i in range(0, len(picture.rgb), 3)]


def seen(data: bytes) -> list[tuple[int, ...]]:
    return pixels(verify(data, param="image"))


def refusal(data: bytes, **limits: int) -> str:
    with pytest.raises(Refused) as caught:
        verify(data, param="messages[0].content[1]", limits=PictureLimits(**limits))
    assert caught.value.wire.status == 400
    assert caught.value.param == "messages[0].content[1]"
    return caught.value.message


def quarters(mode: str = "RGB") -> Image.Image:
    """32 x 16: red, green over blue, white; in blocks that JPEG keeps apart."""
    image = Image.new("RGB", (32, 16))
    for i, colour in enumerate((RED, GREEN, BLUE, WHITE)):
        image.paste(colour, (i % 2 * 16, i // 2 * 8, i % 2 * 16 + 16, i // 2 * 8 + 8))
    return image.convert(mode)


def middles(picture: Picture) -> list[tuple[int, ...]]:
    """The colours in the middle of the four quarters."""
    every = pixels(picture)
    xs, ys = (
        (picture.width // 4, picture.width * 3 // 4),
        (picture.height // 4, picture.height * 3 // 4),
    )
    return [every[y * picture.width + x] for y in ys for x in xs]


def are_near(found: list[tuple[int, ...]], wanted: list[tuple[int, ...]], by: int = 8) -> bool:
    return len(found) == len(wanted) and all(
        abs(a - b) <= by
        for x, y in zip(found, wanted, strict=True)
        for a, b in zip(x, y, strict=True)
    )


# --- what is in the file is what is seen ------------------------------------------------------

PNGS = {
    "colours": (png(2, 1, 8, 2, b"\0\xff\0\0\1\2\3"), [RED, (1, 2, 3)]),
    "gray": (png(2, 1, 8, 0, b"\0\x00\x81"), [BLACK, (129, 129, 129)]),
    "one bit": (png(4, 1, 1, 0, b"\0\x50"), [BLACK, WHITE, BLACK, WHITE]),
    "two bits": (png(4, 1, 2, 0, b"\0\x1b"), [(v, v, v) for v in (0, 85, 170, 255)]),
    "16-bit gray": (
        png(3, 1, 16, 0, b"\0\x00\x40\x80\xff\xff\x00"),
        [BLACK, (128, 128, 128), WHITE],
    ),
    "16-bit gray, one of it transparent": (
        png(2, 1, 16, 0, b"\0\x12\x34\x12\x35", (b"tRNS", b"\x12\x34")),
        [WHITE, (18, 18, 18)],
    ),
    "16-bit colours": (png(1, 1, 16, 2, b"\0\x10\x99\x20\x99\x30\x99"), [(16, 32, 48)]),
    "16-bit colours, one of them transparent": (
        png(1, 1, 16, 2, b"\0\x10\x99\x20\x99\x30\x99", (b"tRNS", b"\x10\x98\x20\x99\x30\x99")),
        [(16, 32, 48)],
    ),
    "palette": (
        png(2, 1, 8, 3, b"\0\1\0", (b"PLTE", b"\xff\0\0\0\0\xff")),
        [BLUE, RED],
    ),
    "palette with transparency": (
        png(3, 1, 8, 3, b"\0\0\1\2", (b"PLTE", b"\xff\0\0" * 3), (b"tRNS", b"\0\x80")),
        [WHITE, (255, 127, 127), RED],
    ),
    "one transparent colour": (
        png(2, 1, 8, 2, b"\0\1\2\3\4\5\6", (b"tRNS", b"\0\1\0\2\0\3")),
        [WHITE, (4, 5, 6)],
    ),
    "one transparent gray": (
        png(2, 1, 8, 0, b"\0\x07\x08", (b"tRNS", b"\0\x07")),
        [WHITE, (8, 8, 8)],
    ),
    "one transparent of two": (
        png(2, 1, 1, 0, b"\0\x40", (b"tRNS", b"\0\x00")),
        [WHITE, WHITE],
    ),
    "gray with alpha": (
        png(3, 1, 8, 4, b"\0\0\0\0\xff\x00\x80"),
        [WHITE, BLACK, (127, 127, 127)],
    ),
    "colours with alpha": (
        png(3, 1, 8, 6, b"\0\xff\0\0\0\xff\0\0\xff\0\0\xff\x80"),
        [WHITE, RED, (127, 127, 255)],
    ),
}


@pytest.mark.parametrize("name", PNGS)
def test_a_png_of_every_kind_is_seen_as_its_standard_says_on_white(name: str) -> None:
    data, wanted = PNGS[name]
    assert are_near(seen(data), wanted, by=1 if "alpha" in name or "transparency" in name else 0)


def test_the_key_is_the_hash_of_the_file_and_not_of_the_pixels() -> None:
    one, other = PNGS["colours"][0], png(2, 1, 8, 2, b"\0\xff\0\0\1\2\3", (b"tEXt", b"a\0b"))
    assert seen(one) == seen(other)
    assert verify(one, param="").key == hashlib.sha256(one).hexdigest()
    assert verify(other, param="").key != verify(one, param="").key


FORMATS = {
    "jpeg": saved(quarters(), "JPEG", quality=95, subsampling=0),
    "jpeg, progressive": saved(quarters(), "JPEG", quality=95, progressive=True, subsampling=0),
    "jpeg, four inks": saved(quarters("CMYK"), "JPEG", quality=95),
    "webp": saved(quarters(), "WEBP", quality=95),
    "webp, lossless": saved(quarters(), "WEBP", lossless=True),
    "gif": saved(quarters(), "GIF"),
    "bmp": saved(quarters(), "BMP"),
    "bmp, palette": saved(quarters("P"), "BMP"),
    "tiff": saved(quarters(), "TIFF"),
    "tiff, deflate": saved(quarters(), "TIFF", compression="tiff_adobe_deflate"),
    "tiff, lzw": saved(quarters(), "TIFF", compression="tiff_lzw"),
    "tiff, four inks": saved(quarters("CMYK"), "TIFF"),
    "png, interlaced or not": saved(quarters(), "PNG"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_seen(name: str) -> None:
    picture = verify(FORMATS[name], param="")
    assert (picture.width, picture.height) == (32, 16)
    assert picture.format == name.partition(",")[0]
    # Chroma of a lossy WebP has half the size, and bleeds.
    assert are_near(middles(picture), [RED, GREEN, BLUE, WHITE], by=40 if name == "webp" else 8)


def test_a_jpeg_of_four_inks_is_read_as_photoshop_writes_it() -> None:
    """Adobe stores 255 minus the ink: cyan ink alone is then 0, 255, 255, 255."""
    data = saved(Image.new("CMYK", (16, 16), (255, 0, 0, 0)), "JPEG", quality=100)
    assert b"Adobe" in data
    assert are_near(seen(data)[:1], [(0, 255, 255)])


@pytest.mark.parametrize("lossless", [True, False])
def test_a_webp_with_alpha_is_seen_on_white(lossless: bool) -> None:
    image = Image.new("RGBA", (16, 16), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (8, 0, 16, 16))
    data = saved(image, "WEBP", lossless=lossless, exact=True, quality=100)
    row = seen(data)[:16]
    assert are_near([row[1], row[14]], [WHITE, BLUE], by=12)


def test_a_tiff_whose_zero_is_white_is_seen_the_right_way_round() -> None:
    def tiff(bits: int, photometric: int, body: bytes) -> bytes:
        entries = [
            (256, 2), (257, 1), (258, bits), (259, 1), (262, photometric),
            (273, 8), (277, 1), (278, 1), (279, len(body)),
        ]  # fmt: skip
        at = 8 + len(body)
        fields = b"".join(struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in entries)
        head = b"II*\0" + struct.pack("<I", at)
        return head + body + struct.pack("<H", len(entries)) + fields + b"\0\0\0\0"

    assert seen(tiff(8, 1, b"\x00\xfe")) == [BLACK, (254, 254, 254)]
    assert seen(tiff(8, 0, b"\x00\xfe")) == [WHITE, (1, 1, 1)]
    assert seen(tiff(16, 1, b"\x00\x00\x00\xfe")) == [BLACK, (254, 254, 254)]
    assert seen(tiff(16, 0, b"\x00\x00\x00\xfe")) == [WHITE, (1, 1, 1)]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF", "PNG"])
def test_the_first_of_several_frames_is_seen(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert seen(data) == [RED] * 64


def test_a_gif_whose_frame_is_smaller_than_its_screen_is_white_around_it() -> None:
    head = b"GIF89a\x02\0\x01\0\x80\0\0" + b"\xff\0\0\0\0\xff"
    keyed = b"\x21\xf9\x04\x01\0\0\x01\0"  # colour 1 is transparent
    frame = b"\x2c\0\0\0\0\x01\0\x01\0\0" + b"\x02\x02\x44\x01\0" + b"\x3b"
    assert seen(head + keyed + frame) == [RED, WHITE]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_its_exif_says(kind: str, orientation: int) -> None:
    # Where the first row and the first column of what is stored are meant to be seen (EXIF 2.3,
    # 4.6.4): the stored picture is made from the upright one, corner by corner.
    upright = quarters()
    w, h = upright.size
    stored_at = {
        1: lambda x, y: (x, y),
        2: lambda x, y: (w - 1 - x, y),
        3: lambda x, y: (w - 1 - x, h - 1 - y),
        4: lambda x, y: (x, h - 1 - y),
        5: lambda x, y: (y, x),
        6: lambda x, y: (y, w - 1 - x),
        7: lambda x, y: (h - 1 - y, w - 1 - x),
        8: lambda x, y: (h - 1 - y, x),
    }[orientation]
    stored = Image.new("RGB", (w, h) if orientation < 5 else (h, w))
    for x in range(w):
        for y in range(h):
            stored.putpixel(stored_at(x, y), upright.getpixel((x, y)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    picture = verify(saved(stored, kind, exif=exif, **options), param="")
    assert (picture.width, picture.height) == (w, h)
    assert are_near(middles(picture), [RED, GREEN, BLUE, WHITE])


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize(
    "exif",
    [
        b"Exif\0\0neither",
        b"Exif\0\0MM\0*\0",
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff",
    ],
)
def test_damaged_exif_does_not_damage_the_picture(kind: str, exif: bytes) -> None:
    options: dict[str, Any] = {"JPEG": {"quality": 95, "subsampling": 0}}.get(
        kind, {"lossless": True}
    )
    data = saved(quarters(), kind, exif=exif, **options)
    assert are_near(middles(verify(data, param="")), [RED, GREEN, BLUE, WHITE])


# --- size -------------------------------------------------------------------------------------


def test_a_large_picture_is_scaled_down_and_one_at_the_limit_is_not() -> None:
    limits = PictureLimits(max_side=64)
    large = verify(saved(quarters().resize((640, 320), 0), "PNG"), param="", limits=limits)
    assert (large.width, large.height) == (64, 32)
    assert are_near(middles(large), [RED, GREEN, BLUE, WHITE])
    noise = random.Random(1).randbytes(64 * 64 * 3)
    exact = saved(Image.frombytes("RGB", (64, 64), noise), "PNG")
    assert verify(exact, param="", limits=limits).rgb == noise


def test_a_large_jpeg_on_its_side_is_scaled_and_turned() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(quarters().resize((1000, 500), 0), "JPEG", quality=95, exif=exif)
    picture = verify(data, param="", limits=PictureLimits(max_side=100))
    assert (picture.width, picture.height) == (50, 100)
    assert are_near(middles(picture), [BLUE, RED, WHITE, GREEN])


def test_a_thin_picture_keeps_a_row_when_it_is_scaled() -> None:
    picture = verify(
        saved(Image.new("RGB", (150, 1), RED), "PNG"), param="", limits=PictureLimits(max_side=50)
    )
    assert (picture.width, picture.height) == (50, 1)


def test_200_bytes_that_declare_400_million_pixels_are_refused_at_once() -> None:
    data = png(20_000, 20_000, 8, 2, b"")
    data += bytes(200 - len(data))
    began = time.process_time()
    message = refusal(data)
    assert time.process_time() - began < 0.1
    assert "20000 x 20000" in message and "64000000" in message


def bomb(kind: str) -> bytes:
    """A small file of a large picture."""
    if kind == "WEBP":
        canvas = (19_999).to_bytes(3, "little") * 2
        body = b"VP8X" + struct.pack("<I", 10) + b"\0\0\0\0" + canvas
        return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body
    if kind == "GIF":
        frame = b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\0;"
        return b"GIF89a" + struct.pack("<HH", 20_000, 20_000) + b"\0\0\0" + frame
    if kind == "GIF frame":  # the screen is small, the frame on it is not
        frame = b"," + struct.pack("<HHHHB", 0, 0, 20_000, 20_000, 0) + b"\x02\x02\x44\x01\0;"
        return b"GIF89a\1\0\1\0\x80\0\0" + bytes(6) + frame
    if kind == "BMP":
        head = struct.pack("<IiiHHIIiiII", 40, 20_000, -20_000, 1, 24, 0, 0, 0, 0, 0, 0)
        return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + head
    data = bytearray(saved(Image.new("RGB", (8, 8)), kind))
    if kind == "JPEG":
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = struct.pack(">HH", 20_000, 20_000)
    if kind == "TIFF":
        for tag in (256, 257):
            for width in (3, 4):
                field = struct.pack("<HHI", tag, width, 1)
                if field in data:
                    at = data.index(field) + 8
                    data[at : at + 4] = struct.pack("<I", 20_000)
    return bytes(data)


@pytest.mark.parametrize("kind", ["WEBP", "GIF", "GIF frame", "BMP", "JPEG", "TIFF"])
def test_declared_pixels_are_counted_before_any_is_decoded(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", None)
    began = time.process_time()
    message = refusal(bomb(kind))
    assert time.process_time() - began < 0.1
    assert ("too many pixels" if kind == "GIF frame" else "20000 x 20000 pixels") in message


def test_a_picture_without_pixels_or_with_hardly_any_width_is_refused() -> None:
    assert "0 x 5" in refusal(png(0, 5, 8, 2, b"")) or "damaged" in refusal(png(0, 5, 8, 2, b""))
    assert "1000 x 1 " in refusal(saved(Image.new("L", (1000, 1)), "PNG"))


def test_50_megabytes_are_refused_before_they_are_looked_into() -> None:
    data = PNGS["colours"][0] + bytes(50_000_000)
    began = time.process_time()
    assert "at most 20971520" in refusal(data)
    assert time.process_time() - began < 0.1


def test_a_jpeg_of_thousands_of_scans_is_refused() -> None:
    """Each scan is a pass over all pixels and costs a few bytes (CVE-2018-11813 and its kin)."""
    data = saved(quarters(), "JPEG", progressive=True)
    assert jpeg_scans(data) == data.count(b"\xff\xda") > 3
    at = data.rindex(b"\xff\xda")
    again = data[:at] + data[at:-2] * 2000 + data[-2:]
    assert "scans" in refusal(again)
    assert jpeg_scans(data + bytes(2) + again) == jpeg_scans(
        data
    )  # what is behind the picture is not decoded


# --- what is damaged --------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FORMATS, "alpha"])
def test_a_picture_cut_anywhere_in_its_pixels_is_refused_and_never_half_seen(name: str) -> None:
    noise = Image.frombytes("RGB", (40, 40), random.Random(2).randbytes(4800))
    kind, _, rest = name.partition(", ")
    options: dict[str, Any] = {"webp, lossless": {"lossless": True}}.get(name, {})
    options |= {"progressive": True} if rest == "progressive" else {}
    if kind == "alpha":
        noise, kind = noise.convert("RGBA"), "png"
    if rest == "four inks":
        noise = noise.convert("CMYK")
    if kind == "tiff" and rest in ("deflate", "lzw"):
        options["compression"] = {"deflate": "tiff_adobe_deflate", "lzw": "tiff_lzw"}[rest]
    data = saved(noise, kind, **options)
    whole = verify(data, param="").rgb
    assert len(whole) == 4800
    for at in {*range(0, len(data) - 20, max(1, len(data) // 60)), 1, 3, 11, 12, 20, 29}:
        message = refusal(data[:at])
        assert "damaged" in message or "supported" in message or "empty" in message, at
    for at in range(len(data) - 20, len(data)):
        # Of the last bytes some are no pixels; all is seen, or nothing.
        try:
            assert verify(data[:at], param="").rgb == whole
        except Refused:
            continue


def test_a_png_without_its_end_is_cut_off() -> None:
    data = png(1, 1, 8, 2, b"\0\1\2\3")
    for extra in (b"", b"\n", b"anything"):
        assert seen(data + extra) == [(1, 2, 3)]
    for n_cut in range(1, 13):
        assert "cut off" in refusal(data[:-n_cut])


# --- what is no picture -----------------------------------------------------------------------

STRANGERS = {
    "SVG": b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>',
    "SVG ": b'  <svg width="1" height="1"></svg>',
    "HTML": b"\n<!DOCTYPE html><html><img src=a.png></html>",
    "XML": b"<?xml version='1.0'?><a/>",
    "AVIF": b"\0\0\0\x20ftypavif\0\0\0\0avifmif1miafMA1B" + bytes(100),
    "HEIC": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100),
    "MP4": b"\0\0\0\x18ftypisom\0\0\2\0isomiso2" + bytes(100),
    "PDF": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n",
    "JPEG XL": b"\xff\x0a" + bytes(20),
    "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(20),
    "a Photoshop file": b"8BPS\0\1" + bytes(20),
    "an icon (ICO)": b"\0\0\1\0\1\0" + bytes(20),
    "WAV, a sound": b"RIFF\x24\0\0\0WAVEfmt " + bytes(20),
    "MP3, a sound": b"ID3\4\0\0" + bytes(20),
    "MP3, a sound ": b"\xff\xfb\x90\x00" + bytes(20),
    "AAC": b"\xff\xf1\x50\x80" + bytes(20),
    "text": b"BMW is a car \xe2\x82\xac",
    "text ": b"iVBORw0KGgoAAAANSUhEUgAA",  # base64 of base64
    "an address": b"https://example.org/a.png",
    "gzip": b"\x1f\x8b\x08\0" + bytes(20),
    "of no known format": bytes(range(256)),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_anything_else_is_refused_by_what_it_is(name: str) -> None:
    message = refusal(STRANGERS[name])
    assert f"this is {name.strip()}" in message
    assert "send PNG, JPEG, WebP, GIF, BMP or TIFF" in message


def test_an_empty_picture_is_refused() -> None:
    assert "empty" in refusal(b"")


def test_samples_without_a_black_and_a_white_are_refused_with_their_kind() -> None:
    image = Image.new("F", (4, 4), 0.5)
    assert "32-bit floats, which is not supported" in refusal(saved(image, "TIFF"))


STARTS = [*(data[:40] for data in FORMATS.values()), b""]


@given(st.sampled_from(STARTS), st.integers(0, 40), st.binary(max_size=300))
def test_random_bytes_are_refused_whatever_they_begin_like(
    start: bytes, n: int, rest: bytes
) -> None:
    try:
        picture = verify(start[:n] + rest, param="")
    except Refused:
        return
    # A whole uncompressed picture can arise: then it has all its pixels.
    assert picture.format in ("bmp", "tiff", "gif")
    assert len(picture.rgb) == picture.width * picture.height * 3


@given(st.sampled_from(sorted(FORMATS)), st.data())
def test_a_damaged_file_is_decoded_or_refused_and_nothing_else(
    name: str, data: st.DataObject
) -> None:
    damaged = bytearray(FORMATS[name])
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        picture = verify(bytes(damaged), param="", limits=PictureLimits(max_pixels=1_000_000))
    except Refused:
        return
    assert len(picture.rgb) == picture.width * picture.height * 3


@given(st.binary(max_size=60))
def test_sizes_and_scans_are_read_from_anything(data: bytes) -> None:
    assert jpeg_scans(data) <= len(data)
    try:
        width, height = webp_size(b"RIFF    WEBP" + data)
    except ValueError:
        return
    assert 0 <= width <= 2**24 and 0 <= height <= 2**24
