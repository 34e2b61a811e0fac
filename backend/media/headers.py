"""What a file says before any of it is decoded, where the decoder would not look in time. Pure."""

import re
from typing import Final

#: A marker of a JPEG that is none of the two that stand inside a scan (a byte 255, a restart).
_MARKER: Final = re.compile(rb"\xff+([\x01-\xcf\xd8-\xfe])")
_START_OF_SCAN: Final = 0xDA
_END: Final = 0xD9
#: Markers without a length: restarts, the start of the picture and one reserved for coders.
_BARE: Final = frozenset({0x01, 0xD8})


def webp_size(data: bytes) -> tuple[int, int]:
    """Width and height of a WebP's canvas. The decoder sets aside eight bytes a pixel as soon as it
    opens the file. Raises ValueError if none is told."""
    kind, body = data[12:16], data[20:30].ljust(10, b"\0")
    if kind == b"VP8X":
        return 1 + int.from_bytes(body[4:7], "little"), 1 + int.from_bytes(body[7:10], "little")
    if kind == b"VP8L" and body[0] == 0x2F:
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and body[3:6] == b"\x9d\x01\x2a":
        width, height = (int.from_bytes(body[i : i + 2], "little") for i in (6, 8))
        return width & 0x3FFF, height & 0x3FFF
    raise ValueError("no size")


def png_ends(data: bytes) -> bool:
    """Whether a PNG has its last chunk, whole. Decoders stop where the pixels do."""
    at = 8
    while at + 12 <= len(data):
        n_bytes, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        at += 12 + n_bytes
        if kind == b"IEND":
            return at <= len(data)
    return False


def jpeg_scans(data: bytes) -> int:
    """How many scans a JPEG has, up to the end of its first picture. Each is a pass over all pixels
    and may take no more than a hundred bytes of the file."""
    at, n_scans = 0, 0
    while (found := _MARKER.search(data, at)) is not None:
        marker, at = found[1][0], found.end()
        if marker == _END:
            break
        n_scans += marker == _START_OF_SCAN
        if marker not in _BARE:
            at += max(2, int.from_bytes(data[at : at + 2], "big"))
    return n_scans
