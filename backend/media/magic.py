"""What some bytes are, told by how they begin. Names and declared types lie; these do not. Pure."""

import re
from typing import Final

#: Names of the pictures that are decoded, as ``known`` returns them, and how people write them.
PICTURES: Final = {
    "png": "PNG",
    "jpeg": "JPEG",
    "webp": "WebP",
    "gif": "GIF",
    "bmp": "BMP",
    "tiff": "TIFF",
}
#: The same of sounds.
SOUNDS: Final = {"wav": "WAV", "mp3": "MP3", "flac": "FLAC"}

_FIRST: Final = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),
    (b"MM\0+", "tiff"),
    (b"fLaC", "flac"),
    (b"ID3", "mp3"),
    (b"OggS", "Ogg"),
    (b"FORM", "AIFF"),
    (b"%PDF-", "PDF"),
    (b"%!PS", "PostScript"),
    (b"8BPS", "a Photoshop file"),
    (b"\0\0\1\0", "an icon (ICO)"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\x1aE\xdf\xa3", "WebM or Matroska"),
    (b"PK\3\4", "a ZIP archive or an office document"),
    (b"\x1f\x8b", "gzip"),
    (b"{\\rtf", "RTF"),
)
_RIFF: Final = {b"WEBP": "webp", b"WAVE": "wav", b"AVI ": "AVI"}
_BRANDS: Final = {
    b"avif": "AVIF",
    b"avis": "AVIF",
    b"heic": "HEIC",
    b"heix": "HEIC",
    b"hevc": "HEIC",
    b"heim": "HEIC",
    b"mif1": "HEIF",
    b"msf1": "HEIF",
    b"M4A ": "M4A (AAC)",
    b"qt  ": "QuickTime",
}
#: Sizes of the second header of a BMP: "BM" alone begins many a text.
_BMP_HEADERS: Final = {12, 16, 40, 52, 56, 64, 108, 124}
_HTML: Final = re.compile(rb"<(!doctype\s+html|html|head|body|script)\b", re.IGNORECASE)
_SVG: Final = re.compile(rb"<svg[\s>]", re.IGNORECASE)


def known(data: bytes) -> str:
    """The format of some bytes: a key of ``PICTURES`` or ``SOUNDS``, else words for it that may
    follow "this is" ("HTML", "empty", "text", "of no known format")."""
    if not data:
        return "empty"
    for start, name in _FIRST:
        if data.startswith(start):
            return name
    return _container(data) or _mpeg(data) or _text(data) or "of no known format"


def _container(data: bytes) -> str:
    """What is known by more than its very first bytes."""
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12], "")
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12], "MP4")
    if data[:2] == b"BM" and int.from_bytes(data[14:18], "little") in _BMP_HEADERS:
        return "bmp"
    return ""


def _mpeg(data: bytes) -> str:
    """MPEG audio without a tag in front: a frame's header, with no field out of its range."""
    if len(data) < 4 or data[0] != 0xFF or data[1] & 0xE0 != 0xE0:
        return ""
    if data[1] & 0xF6 == 0xF0:
        return "AAC"
    is_layer_3 = data[1] & 0x06 == 0x02 and data[1] & 0x18 != 0x08
    return "mp3" if is_layer_3 and data[2] & 0xF0 != 0xF0 and data[2] & 0x0C != 0x0C else ""


def _text(data: bytes) -> str:
    """What is written in letters."""
    start = data[:2048].removeprefix(b"\xef\xbb\xbf").lstrip()
    if _SVG.search(start) and start.startswith(b"<"):
        return "SVG"
    if _HTML.match(start):
        return "HTML"
    if start.startswith(b"<?xml"):
        return "XML"
    if start.startswith((b"data:", b"http://", b"https://")):
        return "an address, not what is there"
    is_text = bool(start) and b"\0" not in start and not re.search(rb"[\x01-\x08\x0e-\x1f]", start)
    return "text" if is_text and _is_utf8(start) else ""


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start > len(data) - 4 and error.start > 0  # a letter cut at the end
    return True
