"""Files of conversations, read: ours, those of llama.cpp's web UI, and OpenAI's messages.

What a file is shows in what is in it, not in its name. What cannot be read is refused with the
file, the line and the member. CPU-bound and pure.
"""

import io
import zipfile
from collections.abc import Sequence
from typing import Any

import msgspec

from corral.backend.errors import Refused
from corral.backend.media.magic import known
from corral.frontend.bundling import Bundler
from corral.frontend.transcripts import Chat, Node, Said, Session, Spot, Tree
from corral.frontend.words import _


class Reader:
    """Reads files into conversations, which ``bundler`` has then."""

    def __init__(self, bundler: Bundler, *, max_bytes: int) -> None:
        self._bundler = bundler
        self._max_bytes = max_bytes

    def read(self, name: str, data: bytes) -> None:
        """Reads a file, or the JSONL and JSON in an archive. Raises Refused, and then nothing of
        it may be used."""
        if not known(data).startswith("a ZIP"):
            return self._file(name, data)
        try:
            files = self._unpacked(name, data)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError):
            raise Refused(_("{name}: this archive is damaged").format(name=name)) from None
        for inside, content in files:
            self._file(f"{name}/{inside}", content)
        return None

    def _unpacked(self, name: str, data: bytes) -> list[tuple[str, bytes]]:
        left, files = self._max_bytes, list[tuple[str, bytes]]()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist():
                if not entry.filename.lower().endswith((".jsonl", ".json")):
                    continue
                # What an archive says of its sizes need not be true.
                with archive.open(entry) as file:
                    content = file.read(left + 1)
                left -= len(content)
                if left < 0:
                    message = _("{name}: what is in it is too large").format(name=name)
                    raise Refused(message, kind="too_large")
                files.append((entry.filename, content))
        if not files:
            raise Refused(_("{name}: there are no conversations in it").format(name=name))
        return files

    def _file(self, name: str, data: bytes) -> None:
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise Refused(_("{name}: this is no text in UTF-8").format(name=name)) from None
        lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
        if not lines:
            raise Refused(_("{name}: there is nothing in it").format(name=name))
        if _is_object(lines[0][1]):
            self._lines(name, lines)
        else:
            self._whole(name, text)

    def _lines(self, name: str, lines: Sequence[tuple[int, str]]) -> None:
        """JSONL: conversations with their messages after them, or one on each line."""
        session: tuple[Session, Spot] | None = None
        nodes: list[tuple[Node, Spot]] = []
        for n, line in lines:
            spot = Spot(_("{name}, line {n}").format(name=name, n=n))
            found = spot.decoded(line)
            kind = found.get("type") if isinstance(found, dict) else None
            if kind == "message":
                if session is None:
                    raise spot.of("type").refused(_("a message before any conversation"))
                inside = spot.of("message")
                nodes.append((inside.made(found.get("message"), Node), inside))
                continue
            if session is not None:
                self._bundler.tree(*session, nodes)
                session, nodes = None, []
            if kind == "session":
                session = (spot.made(found, Session), spot)
            else:
                self._one(spot, found)
        if session is not None:
            self._bundler.tree(*session, nodes)

    def _whole(self, name: str, text: str) -> None:
        """One JSON value: a conversation, several, or the messages of one."""
        spot = Spot(name)
        found = spot.decoded(text)
        if not isinstance(found, list):
            return self._one(spot, found)
        if found and all(isinstance(item, dict) and "role" in item for item in found):
            return self._bundler.chat(Chat(messages=spot.made(found, list[Said])), spot)
        if not found:
            raise spot.refused(_("there is no conversation in it"))
        for n, item in enumerate(found):
            self._one(spot.of(f"[{n}]"), item)
        return None

    def _one(self, spot: Spot, found: Any) -> None:
        """A conversation as one JSON object."""
        if isinstance(found, dict) and "conv" in found:
            tree = spot.made(found, Tree)
            nodes = [(node, spot.of(f"messages[{n}]")) for n, node in enumerate(tree.messages)]
            self._bundler.tree(tree.conv, spot.of("conv"), nodes)
        elif isinstance(found, dict) and "messages" in found:
            self._bundler.chat(spot.made(found, Chat), spot.of("messages"))
        else:
            raise spot.refused(_("this is no conversation of a kind that is known"))


def _is_object(line: str) -> bool:
    """Whether a line is a JSON object by itself."""
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except (msgspec.DecodeError, RecursionError):
        return False
