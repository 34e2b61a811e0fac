"""Pictures and sounds of requests, from where clients say they are to what the engine takes.

Fetched on the event loop, decoded in threads of their own; what was decoded is kept for a while,
since every turn of a conversation shows its pictures again.
"""

import asyncio
import contextlib
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from corral.backend.chat.types import Media, Source
from corral.backend.engine.messages import ModelInfo
from corral.backend.errors import CorralError, Refused
from corral.backend.media import sources as places
from corral.backend.media.pictures import PictureLimits, verify
from corral.backend.media.policy import MediaPolicy
from corral.backend.media.remote import Network
from corral.backend.media.sounds import SoundLimits, verify_sound
from corral.backend.settings import Settings

#: Pictures and sounds fetched, and decoded, at the same time by all requests together.
_N_FETCHED: Final = 8
_N_DECODED: Final = 2
#: Bytes of all pictures and sounds of a request, decoded: 256 million pixels.
_MAX_TOTAL: Final = 3 * 256_000_000


class Attachments:
    """Loads them. Owned by the event loop. ``network`` reaches the world; None: the real one."""

    def __init__(self, settings: Settings, *, network: Network | None = None) -> None:
        max_bytes = settings.media_max_mib << 20
        max_pixels = settings.image_max_megapixels * 1_000_000
        self._network = network
        self._max_count = settings.media_max_count
        self._pictures = PictureLimits(max_bytes=max_bytes, max_pixels=max_pixels)
        self._sounds = SoundLimits(max_bytes=max_bytes)
        self._policy = MediaPolicy(
            allow=settings.media_url_allow,
            private=settings.media_url_private,
            path=str(settings.media_path or ""),
            max_bytes=max_bytes,
            total_s=settings.media_timeout_s,
        )
        self._kept = _Kept(settings.media_cache_mib << 20)
        self._fetching = asyncio.Semaphore(_N_FETCHED)
        # Its own: a client that leaves frees no thread, and shall not get another one.
        self._decoding = ThreadPoolExecutor(_N_DECODED, "media")

    def check(self, sources: Sequence[Source], info: ModelInfo) -> None:
        """Raises Refused for what the model takes none of, and for too many; loads nothing."""
        for source in sources:
            if not (info.audio if source.kind == "audio" else info.vision):
                raise _refused(source, _untaken(source, info), kind="unsupported")
        if len(sources) > self._max_count:
            message = f"this is number {self._max_count + 1} of {len(sources)} pictures and sounds"
            raise _refused(sources[self._max_count], f"{message}; at most {self._max_count} in all")

    async def load(self, sources: Sequence[Source], info: ModelInfo) -> tuple[Media, ...]:
        """What the engine takes, in the same order. Raises Refused naming the source at fault."""
        self.check(sources, info)
        left = _Budget(_MAX_TOTAL)
        tasks = [asyncio.ensure_future(self._one(source, info, left)) for source in sources]
        try:
            return tuple(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    def close(self) -> None:
        """Decodes no more; does not wait."""
        self._decoding.shutdown(wait=False, cancel_futures=True)

    async def _one(self, source: Source, info: ModelInfo, left: "_Budget") -> Media:
        try:
            data = await self._data(source)
            media = await asyncio.get_running_loop().run_in_executor(
                self._decoding, self._decoded, source, data, info.audio_rate
            )
        except CorralError as error:
            raise _refused(source, error.message) from None
        if not left.take(len(media.data)):
            message = "the request's pictures and sounds take over"
            raise _refused(source, f"{message} {_MAX_TOTAL} bytes together, decoded")
        return media

    async def _data(self, source: Source) -> bytes:
        if not source.url:
            return source.data
        # Those who have theirs with them do not wait for other people's slow hosts.
        is_remote = source.url[:4].lower() == "http"
        async with self._fetching if is_remote else contextlib.nullcontext():
            return await places.load(
                source.url, param=source.param, policy=self._policy, network=self._network
            )

    def _decoded(self, source: Source, data: bytes, rate: int) -> Media:
        """In a thread."""
        key = hashlib.sha256(data).hexdigest()
        kept = self._kept.get(source.kind, key)
        if kept is not None:
            return kept
        if source.kind == "image":
            picture = verify(data, param=source.param, limits=self._pictures)
            media = Media(
                kind="image",
                key=key,
                data=picture.rgb,
                width=picture.width,
                height=picture.height,
            )
        else:
            sound = verify_sound(data, param=source.param, rate=rate, limits=self._sounds)
            media = Media(kind="audio", key=key, data=sound.samples)
        self._kept.put(media)
        return media


class _Budget:
    """Bytes that the decoded pictures and sounds of one request may take."""

    def __init__(self, n_bytes: int) -> None:
        self._left = n_bytes

    def take(self, n_bytes: int) -> bool:
        """Whether there were as many."""
        self._left -= n_bytes
        return self._left >= 0


class _Kept:
    """What was decoded lately, up to ``max_bytes``. Shared by threads: each call is atomic."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._media: OrderedDict[tuple[str, str], Media] = OrderedDict()
        self._n_bytes = 0
        self._lock = threading.Lock()

    def get(self, kind: str, key: str) -> Media | None:
        """What was made of the bytes with this hash."""
        with self._lock:
            found = self._media.get((kind, key))
            if found is not None:
                self._media.move_to_end((kind, key))
            return found

    def put(self, media: Media) -> None:
        """Keeps it in place of what was not asked for the longest."""
        size = len(media.data)
        with self._lock:
            if size > self._max_bytes or (media.kind, media.key) in self._media:
                return
            self._media[media.kind, media.key] = media
            self._n_bytes += size
            while self._n_bytes > self._max_bytes:
                _, old = self._media.popitem(last=False)
                self._n_bytes -= len(old.data)


def _untaken(source: Source, info: ModelInfo) -> str:
    what = "sounds" if source.kind == "audio" else "pictures"
    if info.vision or info.audio:
        return f"this model takes no {what}"
    return f"this model takes no {what}; start the server with --mmproj"


def _refused(source: Source, message: str, *, kind: str = "invalid") -> Refused:
    at = source.param
    message = message if message.startswith(at) else f"{at}: {message}"
    return Refused(message, kind=kind, param=at)
