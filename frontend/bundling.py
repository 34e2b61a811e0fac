"""Conversations from elsewhere as the store keeps them.

What Corral has no place for is left out and counted: sounds, videos, what tools answered. A system
message becomes the conversation's setting, text files a part of their message. CPU-bound and pure.
"""

import base64
import binascii
import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import asdict, replace

from corral.backend.store import Bundle, Call, Conversation, Figures, Message, Outcome, Upload
from corral.frontend import texts, titles, tuning
from corral.frontend.exporting import FORMAT
from corral.frontend.transcripts import (
    Called,
    Chat,
    Extra,
    Node,
    OwnSession,
    Piece,
    Said,
    Session,
    Spot,
)
from corral.frontend.words import _

#: Looks at the file of a picture: what it is called, its bytes, and where it was found. Raises
#: Refused.
Look = Callable[[str, bytes, Spot], Upload]
Nodes = Mapping[str, tuple[Node, Spot]]


class Bundler:
    """Makes bundles. ``now_s`` is the time of what says none."""

    def __init__(self, look: Look, *, now_s: float) -> None:
        self.bundles: list[Bundle] = []
        self.left_out: Counter[str] = Counter()
        self._look = look
        self._now_s = now_s

    def tree(self, session: Session, spot: Spot, nodes: Sequence[tuple[Node, Spot]]) -> None:
        """A conversation of ours, or of llama.cpp's web UI. Raises Refused."""
        own = session.corral
        if own is not None and own.format > FORMAT:
            raise spot.of("corral.format").refused(_("this was written by a newer Corral"))
        by_id = _by_id(nodes)
        above = _above(by_id)
        numbers: dict[str | None, int | None] = {None: None}
        messages, uploads = list[Message](), dict[int, Sequence[Upload]]()
        for n, id in enumerate(_in_order(by_id, above), 1):
            message, uploads[n] = self._message(*by_id[id])
            messages.append(replace(message, id=n, parent_id=numbers[above[id]]))
            numbers[id] = n
        self.left_out[_("answers of tools")] += sum(n.role == "tool" for n, _spot in nodes)
        leaf = str(session.curr_node)
        leaf_id = numbers.get(leaf if leaf in numbers else above.get(leaf))
        at_s = session.last_modified / 1000 or self._now_s
        conversation = Conversation(
            id="",
            title=_title(session.name, messages),
            leaf_id=leaf_id or (messages[-1].id if messages else None),
            created_s=own.created_s if own else min((m.created_s for m in messages), default=at_s),
            updated_s=own.updated_s if own else at_s,
            is_pinned=bool(session.pinned),
        )
        said = [node.content or "" for node, _spot in by_id.values() if node.role == "system"]
        settings = self._system(said) if own is None else _settings(own, spot)
        self.bundles.append(
            Bundle(conversation=conversation, messages=messages, uploads=uploads, settings=settings)
        )

    def chat(self, chat: Chat, spot: Spot) -> None:
        """OpenAI's messages. Raises Refused."""
        messages, uploads, system = list[Message](), dict[int, Sequence[Upload]](), list[str]()
        for n, said in enumerate(chat.messages):
            where = spot.of(f"[{n}]")
            words, pictures = self._pieces(said, where)
            if said.role in ("system", "developer"):
                system.append(words)
            elif said.role in ("tool", "function"):
                self.left_out[_("answers of tools")] += 1
            else:
                id = len(messages) + 1
                message = self._said(said, words, where, chat.model)
                messages.append(replace(message, id=id, parent_id=id - 1 or None))
                uploads[id] = pictures
        if not messages:
            raise spot.refused(_("nobody says anything here"))
        conversation = Conversation(
            id="",
            title=_title(chat.title, messages),
            leaf_id=len(messages),
            created_s=self._now_s,
            updated_s=self._now_s,
        )
        self.bundles.append(
            Bundle(
                conversation=conversation,
                messages=messages,
                uploads=uploads,
                settings=self._system(system),
            )
        )

    def _said(self, said: Said, words: str, spot: Spot, model: str) -> Message:
        is_reply = said.role == "assistant"
        return Message(
            id=0,
            conversation_id="",
            parent_id=None,
            role="assistant" if is_reply else "user",
            content=words or said.refusal or "",
            reasoning=(said.reasoning_content or "") if is_reply else "",
            calls=_calls(said.tool_calls, spot) if is_reply else (),
            model=model if is_reply else "",
            created_s=self._now_s,
        )

    def _message(self, node: Node, spot: Spot) -> tuple[Message, Sequence[Upload]]:
        words, pictures = self._extras(node.content or "", node.extra or [], spot)
        is_reply, own = node.role == "assistant", node.corral
        message = Message(
            id=0,
            conversation_id="",
            parent_id=None,
            role="assistant" if is_reply else "user",
            content=words,
            reasoning=(node.reasoning_content or node.thinking or "") if is_reply else "",
            calls=_calls(node.tool_calls, spot) if is_reply else (),
            model=(node.model or "") if is_reply else "",
            figures=_figures(node),
            created_s=node.timestamp / 1000 or self._now_s,
        )
        if own is not None:
            message = replace(
                message,
                outcome=Outcome(**asdict(own.outcome)),
                figures=Figures(**asdict(own.figures)),
                created_s=own.created_s,
                label=own.label,
            )
        return message, pictures

    def _system(self, said: Sequence[str]) -> bytes:
        """System messages as settings: there is one."""
        there = [text for text in said if text.strip()]
        self.left_out[_("system messages after the first")] += len(there[1:])
        return tuning.encode(tuning.Own(system=there[0])) if there else b"{}"

    def _extras(
        self, words: str, extras: Sequence[Extra], spot: Spot
    ) -> tuple[str, Sequence[Upload]]:
        """The text of a message with the texts attached to it, and its pictures."""
        files, pictures = list[texts.Text](), list[Upload]()
        for n, extra in enumerate(extras):
            name, where = titles.plain(extra.name) or _("file"), spot.of(f"extra[{n}]")
            urls = extra.images if extra.processed_as_images else []
            if extra.type == "IMAGE" and extra.base64_url:
                urls = [extra.base64_url]
            pictures += [self._look(name, _bytes(url, where), where) for url in urls]
            if urls:
                continue
            if extra.type in ("AUDIO", "VIDEO"):
                self.left_out[_("sounds") if extra.type == "AUDIO" else _("videos")] += 1
            elif extra.content:
                files.append(texts.Text(name=name, content=extra.content, n_bytes=0))
            else:
                self.left_out[_("attachments without content")] += 1
        return texts.message(words, files) if files else words, pictures

    def _pieces(self, said: Said, spot: Spot) -> tuple[str, Sequence[Upload]]:
        """The text and the pictures of one of OpenAI's messages."""
        if not isinstance(said.content, list):
            return said.content or "", ()
        words, pictures = list[str](), list[Upload]()
        for n, piece in enumerate(said.content):
            where = spot.of(f"content[{n}]")
            match piece.type:
                case "text" | "input_text" | "output_text":
                    words.append(piece.text)
                case "image_url" | "input_image":
                    pictures.append(self._look(_("picture"), _bytes(_address(piece), where), where))
                case _other:
                    self.left_out[_("parts that are neither text nor picture")] += 1
        return "\n\n".join(words), pictures


def _title(title: str, messages: Sequence[Message]) -> str:
    return titles.short(title) or titles.made(messages[0].content if messages else "")


def _settings(own: OwnSession, spot: Spot) -> bytes:
    return tuning.encode(spot.of("corral.settings").made(own.settings, tuning.Own))


def _by_id(nodes: Sequence[tuple[Node, Spot]]) -> Nodes:
    by_id: dict[str, tuple[Node, Spot]] = {}
    for node, spot in nodes:
        if str(node.id) in by_id:
            raise spot.of("id").refused(_("another message has the same"))
        by_id[str(node.id)] = (node, spot)
    return by_id


def _is_kept(node: Node) -> bool:
    return node.role in ("user", "assistant") and node.type != "root"


def _above(by_id: Nodes) -> dict[str, str | None]:
    """For each message the next one above it that is kept. Raises Refused."""
    above: dict[str, str | None] = {}
    for first in by_id:
        way, id = dict[str, None](), first
        while id not in above:
            if id in way:
                raise by_id[id][1].of("parent").refused(_("goes round in a circle"))
            way[id] = None
            node, spot = by_id[id]
            parent = None if node.parent is None else str(node.parent)
            if parent is not None and parent not in by_id:
                raise spot.of("parent").refused(_("there is no such message"))
            if parent is None:
                above[id] = None
            else:
                id = parent
        for below in reversed(way):
            if below not in above:
                parent = str(by_id[below][0].parent)
                above[below] = parent if _is_kept(by_id[parent][0]) else above[parent]
    return above


def _in_order(by_id: Nodes, above: Mapping[str, str | None]) -> Iterator[str]:
    """Those that are kept, each after the one it answers, else by time."""
    below: dict[str | None, list[str]] = {}
    for id, (node, _spot) in by_id.items():
        if _is_kept(node):
            below.setdefault(above[id], []).append(id)
    place = {id: n for n, id in enumerate(by_id)}
    heap = [(by_id[id][0].timestamp, place[id], id) for id in below.get(None, [])]
    heapq.heapify(heap)
    while heap:
        _at_ms, _place, id = heapq.heappop(heap)
        yield id
        for next_id in below.get(id, []):
            heapq.heappush(heap, (by_id[next_id][0].timestamp, place[next_id], next_id))


def _calls(given: Sequence[Called] | str | None, spot: Spot) -> tuple[Call, ...]:
    """Tool calls; llama.cpp's web UI keeps them as JSON in a string."""
    if isinstance(given, str):
        where = spot.of("toolCalls")
        given = where.made(where.decoded(given), list[Called]) if given.strip() else []
    calls = []
    for call in given or ():
        arguments = call.function.arguments
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        calls.append(Call(name=call.function.name, arguments=arguments))
    return tuple(calls)


def _figures(node: Node) -> Figures:
    t = node.timings
    if t is None or node.role != "assistant":
        return Figures()
    cached = t.cache_n or 0
    return Figures(
        n_prompt=cached + (t.prompt_n or 0),
        n_cached=cached,
        n_generated=t.predicted_n or 0,
        prompt_ms=t.prompt_ms or 0.0,
        predicted_ms=t.predicted_ms or 0.0,
    )


def _address(piece: Piece) -> str:
    return piece.image_url if isinstance(piece.image_url, str) else piece.image_url.url


def _bytes(url: str, spot: Spot) -> bytes:
    """What a ``data:`` URL has in it. Raises Refused."""
    head, _comma, data = url.partition(",")
    if not head.startswith("data:") or not head.endswith(";base64"):
        raise spot.refused(_("a picture has to be a data: URL in base64"))
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise spot.refused(_("this is no base64")) from None
