"""Sounds of each format, written here by their standards, and what is refused."""

import hashlib
import io
import struct
import time
import wave

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from corral.backend.errors import Refused
from corral.backend.media.sounds import Sound, SoundLimits, verify_sound

RATE = 16_000


def tone(seconds: float, rate: int = RATE, hertz: float = 440.0) -> NDArray[np.int16]:
    return (np.sin(np.arange(int(seconds * rate)) * 2 * np.pi * hertz / rate) * 16_384).astype(
        "<i2"
    )


def wav(samples: NDArray[np.int16], rate: int = RATE, channels: int = 1) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return out.getvalue()


def crc(data: bytes, bits: int, polynomial: int) -> int:
    value = 0
    for byte in data:
        value ^= byte << (bits - 8)
        for _ in range(8):
            value = (value << 1) ^ (polynomial if value >> (bits - 1) & 1 else 0)
        value &= (1 << bits) - 1
    return value


def flac(samples: NDArray[np.int16]) -> bytes:
    """One frame of one channel at 16 kHz, not compressed (RFC 9639)."""
    n = len(samples)
    info = struct.pack(">HH", n, n) + bytes(6)
    info += (RATE << 44 | 0 << 41 | 15 << 36 | n).to_bytes(8, "big") + bytes(16)
    head = b"\xff\xf8\x75\x08\0" + struct.pack(">H", n - 1)  # 16 kHz, size in 16 bits, 16-bit mono
    head += bytes([crc(head, 8, 0x07)])
    frame = head + b"\x02" + samples.astype(">i2").tobytes()
    return b"fLaC\x80\0\0\x22" + info + frame + struct.pack(">H", crc(frame, 16, 0x8005))


def mp3(n_frames: int) -> bytes:
    """Silence: frames of 26 ms whose side information says that nothing follows."""
    return (b"\xff\xfb\x90\xc4" + bytes(413)) * n_frames


def heard(data: bytes) -> NDArray[np.float32]:
    return np.frombuffer(sound(data).samples, "<f4")


def sound(data: bytes, **limits: int) -> Sound:
    return verify_sound(data, param="p", rate=RATE, limits=SoundLimits(**limits))


def refusal(data: bytes, **limits: int) -> str:
    with pytest.raises(Refused) as caught:
        sound(data, **limits)
    assert (caught.value.wire.status, caught.value.param) == (400, "p")
    return caught.value.message


def test_a_wav_at_the_wanted_rate_keeps_its_samples() -> None:
    samples = tone(0.1)
    found = sound(wav(samples))
    assert (found.rate, found.format) == (RATE, "wav")
    assert found.key == hashlib.sha256(wav(samples)).hexdigest()
    np.testing.assert_allclose(heard(wav(samples)), samples / 32_768, atol=1e-6)


def test_a_flac_is_heard_as_it_was_written() -> None:
    samples = tone(0.2)
    assert sound(flac(samples)).format == "flac"
    np.testing.assert_allclose(heard(flac(samples)), samples / 32_768, atol=1e-6)


def test_an_mp3_has_its_length() -> None:
    assert sound(mp3(100)).format == "mp3"
    assert abs(len(heard(mp3(100))) / RATE - 100 * 1152 / 44_100) < 0.1
    assert not heard(mp3(100)).any()


def test_two_channels_are_mixed_into_one() -> None:
    both = np.stack([tone(0.1), np.zeros(1600, "<i2")], axis=1)
    np.testing.assert_allclose(heard(wav(both, channels=2)), tone(0.1) / 65_536, atol=1e-4)


def test_another_rate_is_converted() -> None:
    found = heard(wav(tone(1.0, rate=48_000), rate=48_000))
    assert abs(len(found) - RATE) < 20
    loudest = np.abs(np.fft.rfft(found)).argmax() * RATE / len(found)
    assert abs(loudest - 440) < 2


def test_a_long_sound_is_refused_without_being_decoded_to_its_end() -> None:
    assert "over 1 seconds" in refusal(wav(tone(1.01)), max_s=1)
    assert len(sound(wav(tone(1.0)), max_s=1).samples) == 4 * RATE
    # 20 MB of the lowest rate: 40 minutes of samples at 16 kHz from each minute of them.
    long = wav(np.zeros(10_000_000, "<i2"), rate=100)
    began = time.process_time()
    assert "over 600 seconds" in refusal(long)
    assert time.process_time() - began < 3


def test_a_large_file_is_refused_before_it_is_decoded() -> None:
    assert "at most 1000" in refusal(wav(tone(1.0)), max_bytes=1000)


def floats(*values: float) -> bytes:
    """A WAV of floating-point samples."""
    data = np.array(values, "<f4").tobytes()
    form = struct.pack("<HHIIHH", 3, 1, RATE, 4 * RATE, 4, 32)
    body = b"WAVEfmt " + struct.pack("<I", 16) + form + b"data"
    body += struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def test_a_sound_without_samples_is_refused() -> None:
    assert "no sound" in refusal(wav(np.zeros(0, "<i2")))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**32, -3e38])
def test_samples_that_the_model_could_not_compute_with_are_refused(value: float) -> None:
    assert "damaged" in refusal(floats(0.5, value, 0.5))


def test_samples_far_over_full_scale_are_kept_as_they_are() -> None:
    np.testing.assert_array_equal(heard(floats(0.5, 2.0**31, -7.0)), [0.5, 2.0**31, -7.0])


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"", "the sound is empty"),
        (b"OggS\0\2" + bytes(50), "this is Ogg,"),
        (b"\0\0\0\x1cftypM4A \0\0\0\0" + bytes(50), "this is M4A (AAC)"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "this is PNG, a picture"),
        (b"hello", "this is text"),
    ],
)
def test_anything_else_is_refused_by_what_it_is(data: bytes, name: str) -> None:
    message = refusal(data)
    assert message.startswith(name) and "send WAV, MP3 or FLAC" in message


@given(st.sampled_from([wav(tone(0.01)), flac(tone(0.01)), mp3(3)]), st.data())
def test_a_damaged_sound_is_decoded_or_refused_and_nothing_else(
    whole: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 4)) if damaged else 0):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert np.isfinite(heard(bytes(damaged))).all()
    except Refused:
        return
