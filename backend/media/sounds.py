"""Uploaded bytes to verified samples, by the decoder that llama.cpp itself uses (miniaudio)."""

import hashlib
from typing import Final, Literal, cast

import miniaudio  # type: ignore[import-untyped]
import numpy as np
from msgspec import Struct

from corral.backend.errors import Refused
from corral.backend.media import magic

_FRAMES: Final = 16384
#: Nothing louder is a sound: the widest whole numbers, as some programs write them into WAVs of
#: floating point. Far above, powers of it are infinite, and what projectors make of them no number.
_LOUDEST: Final = 2.0**31


class SoundLimits(Struct, frozen=True, kw_only=True):
    """What a sound may be: ``max_bytes`` of the file, ``max_s`` seconds of it."""

    max_bytes: int = 20 * 2**20
    max_s: int = 600


class Sound(Struct, frozen=True, kw_only=True):
    """A sound as a projector takes it. ``samples``: little-endian float32 of one channel, ``rate``
    of them a second. ``key``: the SHA-256 of the file as it came, in hex."""

    samples: bytes
    rate: int
    key: str
    format: Literal["wav", "mp3", "flac"]


def verify_sound(data: bytes, *, param: str, rate: int, limits: SoundLimits | None = None) -> Sound:
    """Decodes a sound to one channel at ``rate``. Its format is told by its first bytes. CPU-bound.

    Raises Refused, naming ``param``, for what is no WAV, MP3 or FLAC, is damaged, silent in length,
    or over the limits; it is not decoded further than that.
    """
    limits = limits or SoundLimits()
    found = magic.known(data)
    if found not in magic.SOUNDS:
        raise Refused(_unsupported(found), param=param)
    name = magic.SOUNDS[found]
    if len(data) > limits.max_bytes:
        message = f"this {name} has {len(data)} bytes; at most {limits.max_bytes} are allowed"
        raise Refused(message, param=param)
    samples = _decoded(data, rate, limits.max_s * rate)
    if len(samples) > limits.max_s * rate:
        message = f"this {name} is over {limits.max_s} seconds long"
        raise Refused(message, param=param)
    # Not so for what is no number, either.
    if not len(samples) or not (np.abs(samples) <= _LOUDEST).all():
        raise Refused(f"this {name} is damaged or holds no sound", param=param)
    return Sound(
        samples=samples.astype("<f4").tobytes(),
        rate=rate,
        key=hashlib.sha256(data).hexdigest(),
        format=cast(Literal["wav", "mp3", "flac"], found),
    )


def _decoded(
    data: bytes, rate: int, max_frames: int
) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """The samples, at least one more than ``max_frames`` if there are more; none if damaged."""
    pieces, n = [], 0
    try:
        stream = miniaudio.stream_memory(
            data,
            miniaudio.SampleFormat.FLOAT32,
            nchannels=1,
            sample_rate=rate,
            frames_to_read=_FRAMES,
        )
        for piece in stream:
            pieces.append(np.frombuffer(piece, np.float32))
            n += len(pieces[-1])
            if n > max_frames:
                break
    except miniaudio.MiniaudioError:
        return np.empty(0, np.float32)
    return np.concatenate(pieces) if pieces else np.empty(0, np.float32)


def _unsupported(found: str) -> str:
    others = "send WAV, MP3 or FLAC"
    if found in magic.PICTURES:
        return f"this is {magic.PICTURES[found]}, a picture and no sound; {others}"
    if found == "empty":
        return f"the sound is empty; {others}"
    return f"this is {found}, which is not supported; {others}"
