"""Conversations as files: out and in again the same, and those of other programs."""

import asyncio
import base64
import hashlib
import io
import json
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from msgspec.structs import asdict, replace
from PIL import Image

from corral.backend.store import Bundle, Call, Figures, Message, Outcome, Picture, Upload
from corral.frontend import exporting, tuning

#: See ``conftest``.
Client: TypeAlias = Any
DATA = Path(__file__).parent.parent / "data" / "transfers"


def png(colour: str = "red") -> bytes:
    out = BytesIO()
    Image.new("RGB", (30, 20), colour).save(out, "PNG")
    return out.getvalue()


def url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def line(**values: Any) -> bytes:
    return json.dumps(values).encode() + b"\n"


def node(id: str, parent: str | None, role: str = "user", **more: Any) -> dict[str, Any]:
    """A message as llama.cpp's web UI writes it."""
    return {
        "id": id,
        "convId": "conv-1",
        "type": "text",
        "timestamp": 1_760_000_000_000 + sum(map(ord, id)),
        "role": role,
        "content": f"content of {id}",
        "parent": parent,
        "children": [],
    } | more


async def bring(client: Client, *files: tuple[str, bytes]) -> Any:
    return await client.post("/import", files=[("files", file) for file in files])


async def brought(client: Client, *files: tuple[str, bytes]) -> list[Any]:
    """The conversations of some files, in the order in which they are listed."""
    answer = await bring(client, *files)
    assert answer.status_code == 200, answer.text
    store = client.app.state.site.store
    return [await store.bundles.take(c.id) for c in await store.list()]


async def refused(client: Client, *files: tuple[str, bytes]) -> str:
    """Why files are not taken; nothing is kept of them."""
    answer = await bring(client, *files)
    assert answer.status_code in (400, 413), answer.text
    assert await client.app.state.site.store.list() == []
    text = answer.text.partition('role="alert">')[2].partition("</p>")[0]
    return text.replace("&#34;", '"').replace("&#39;", "'").replace("&lt;", "<")


async def full(client: Client) -> str:
    """A conversation with everything: branches, pictures, reasoning, calls, an error, settings."""
    store = client.app.state.site.store
    c = await store.create("All of “it” <b>")
    shown = Picture(key="0", name="a b.png", media_type="image/png", n_bytes=1, width=30, height=20)
    data = png()
    shown = replace(shown, key=hashlib.sha256(data).hexdigest(), n_bytes=len(data))
    upload = Upload(picture=shown, data=data, small=b"small")
    _, reply = await store.add_turn(c.id, "look\n  at \u2603 \0 it", model="m", uploads=[upload])
    figures = Figures(
        n_prompt=7, n_cached=3, n_generated=9, prompt_ms=1.5, predicted_ms=2.25, first_ms=3.5
    )
    done = replace(
        reply,
        content="a picture",
        reasoning="let me see </details>",
        calls=(Call(name="f", arguments='{"x": 1}'), Call(name="g", arguments="not JSON")),
        figures=replace(figures, thought_ms=12.0),
        outcome=Outcome(status="done", is_cut=True),
    )
    await store.update_reply(done)
    _, again = await store.branch(1, "look again", model="m")
    await store.update_reply(replace(again, outcome=Outcome(status="error", error="no")))
    await store.choose(1)
    await store.rename(c.id, "All of “it” <b>")
    await store.pin(c.id, True)
    await store.tune(c.id, 0, tuning.encode(tuning.Own(system="Be brief.", temperature=0.5)))
    return str(c.id)


def told(bundle: Bundle) -> Any:
    """What of a bundle does not change on the way: all but ids."""
    place = {m.id: n for n, m in enumerate(bundle.messages)}
    c = bundle.conversation
    messages = [
        asdict(replace(m, id=0, conversation_id="", parent_id=None, siblings=(), version=1))
        | {"parent": place.get(m.parent_id or 0)}
        for m in bundle.messages
    ]
    head = (c.title, c.created_s, c.updated_s, c.is_pinned, place.get(c.leaf_id or 0))
    return head, messages, bundle.settings


async def test_what_was_exported_comes_back_as_it_was(client: Client) -> None:
    store = client.app.state.site.store
    id = await full(client)
    file = (await client.get(f"/c/{id}/export.jsonl")).content
    before = told(await store.bundles.take(id))
    await store.delete(id)
    await store.forget(id)
    (again,) = await brought(client, ("x.jsonl", file))
    assert told(again) == before
    assert again.conversation.id != id
    key = again.messages[0].pictures[0].key
    assert (await store.picture(key))[1] == png()
    assert (await store.thumbnail(key))[:4] == b"RIFF"
    # And once more the same file but for the ids.
    second = (await client.get(f"/c/{again.conversation.id}/export.jsonl")).content
    assert len(second.splitlines()) == len(file.splitlines()) == 6


async def test_all_conversations_are_exported_and_come_back(client: Client) -> None:
    store = client.app.state.site.store
    # Those that were begun first are written to last.
    for c in reversed([await store.create(f"Number {n}") for n in range(120)]):
        n = c.title
        _, reply = await store.add_turn(c.id, f"said {n}", model="m")
        await store.update_reply(replace(reply, content="x", outcome=Outcome(status="done")))
    gone = await store.create("gone")
    await store.delete(gone.id)
    answer = await client.get("/export.jsonl")
    assert answer.headers["content-type"].startswith("application/jsonl")
    assert answer.headers["content-disposition"].startswith('attachment; filename="corral-')
    before = [told(await store.bundles.take(c.id)) for c in await store.list(limit=999)]
    for c in await store.list(limit=999):
        await store.delete(c.id)
    assert (await bring(client, ("all.jsonl", answer.content))).status_code == 200
    after = [told(await store.bundles.take(c.id)) for c in await store.list(limit=999)]
    assert sorted(after, key=str) == sorted(before, key=str) and len(after) == 120


async def test_a_reply_that_runs_is_exported_as_stopped(client: Client) -> None:
    store = client.app.state.site.store
    c = await store.create("c")
    _, reply = await store.add_turn(c.id, "x", model="m")
    await store.update_reply(replace(reply, content="half", outcome=Outcome()))
    file = (await client.get(f"/c/{c.id}/export.jsonl")).content
    await store.delete(c.id)
    (again,) = await brought(client, ("x.jsonl", file))
    assert (again.messages[1].content, again.messages[1].outcome.status) == ("half", "stopped")


async def test_the_export_is_what_llama_cpps_web_ui_reads(client: Client) -> None:
    lines = [
        json.loads(x)
        for x in (await client.get(f"/c/{await full(client)}/export.jsonl")).text.splitlines()
    ]
    session, *messages = lines
    assert session["type"] == "session" and {x["type"] for x in messages} == {"message"}
    nodes = {x["message"]["id"]: x["message"] for x in messages}
    roots = [n for n in nodes.values() if n["parent"] is None]
    assert [n["type"] for n in roots] == ["root"]
    for n in nodes.values():
        assert n["convId"] == session["id"] and isinstance(n["timestamp"], int)
        assert all(nodes[child]["parent"] == n["id"] for child in n["children"])
        assert n["parent"] is None or n["id"] in nodes[n["parent"]]["children"]
    leaf = nodes[session["currNode"]]
    assert leaf["content"] == "a picture" and leaf["reasoningContent"].startswith("let me see")
    assert leaf["timings"]["prompt_n"] == 4 and leaf["timings"]["cache_n"] == 3
    assert [c["function"]["name"] for c in leaf["toolCalls"]] == ["f", "g"]
    said = nodes[leaf["parent"]]
    assert said["extra"][0]["type"] == "IMAGE" and said["extra"][0]["base64Url"] == url(png())


async def test_a_file_of_llama_cpps_web_ui_becomes_a_tree(client: Client) -> None:
    nodes = [
        node("root", None, "system", type="root", content=""),
        node("sys", "root", "system", type="system", content="Be kind."),
        node("u1", "sys", extra=[{"type": "IMAGE", "name": "p.png", "base64Url": url(png())}]),
        node(
            "a1",
            "u1",
            "assistant",
            toolCalls=[{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
        ),
        node("t1", "a1", "tool", content="42", toolCallId="c"),
        node(
            "a2",
            "t1",
            "assistant",
            reasoningContent="hm",
            model="m.gguf",
            timings={"cache_n": 5, "prompt_n": 6, "predicted_n": 7, "predicted_ms": 8.5},
        ),
        node("u2", "a2", extra=[{"type": "TEXT", "name": "n.md", "content": "a note"}]),
        node(
            "u3", "a2", extra=[{"type": "AUDIO", "name": "s.mp3", "base64Data": "", "mimeType": ""}]
        ),
    ]
    file = line(
        harness="llama.app",
        type="session",
        id="conv-1",
        name="Theirs",
        lastModified=1_760_000_000_000,
        currNode="u2",
        pinned=True,
        mcpServerOverrides=[],
    )
    file += b"".join(line(type="message", message=n) for n in nodes) + b"\n"
    (got,) = await brought(client, ("export", file))
    texts = [m.content for m in got.messages]
    assert texts[:2] == ["content of u1", "content of a1"]
    by_text = {m.content: m for m in got.messages}
    a2 = by_text["content of a2"]
    assert a2.parent_id == by_text["content of a1"].id, "what a tool answered is stepped over"
    assert (a2.reasoning, a2.model, a2.figures.n_prompt, a2.figures.n_cached) == (
        "hm",
        "m.gguf",
        11,
        5,
    )
    note = by_text["content of u2\n\n````file n.md\na note\n````"]
    assert note.parent_id == a2.id == by_text["content of u3"].parent_id
    assert got.conversation.leaf_id == note.id and got.conversation.is_pinned == 1
    assert got.conversation.updated_s == 1_760_000_000
    assert tuning.read(got.settings).system == "Be kind."
    assert [p.name for p in got.messages[0].pictures] == ["p.png"]
    assert got.messages[1].calls == (Call(name="f", arguments="{}"),)
    page = (await bring(client, ("export", file))).text
    assert "Brought in: 1 conversation, 5 messages" in page
    assert (
        "Left out: answers of tools (1), sounds (1)" in page
        or "sounds (1), answers of tools (1)" in page
    )


async def test_a_file_that_llama_cpps_web_ui_wrote_is_read(client: Client) -> None:
    """Written by its ``serializeSessionToJsonl`` (of the build in llama-cpp-python 0.3.36)."""
    (got,) = await brought(client, ("x.jsonl", (DATA / "llama-web-ui.jsonl").read_bytes()))
    place = {m.id: m.content.partition("\n")[0] for m in got.messages}
    assert {place[m.id]: place.get(m.parent_id or 0) for m in got.messages} == {
        "text of u1": None,
        "text of a1": "text of u1",
        "text of a1b": "text of a1",
        "text of u2a": "text of a1b",
        "text of a2a": "text of u2a",
        "text of u2b": "text of a1b",
        "text of a2b": "text of u2b",
    }
    assert place[got.conversation.leaf_id or 0] == "text of a2a"
    reply = got.messages[1]
    assert reply.calls == (Call(name="clock", arguments='{"zone":"UTC"}'),)
    assert (reply.reasoning, reply.model) == ("short", "tiny.gguf")
    assert (reply.figures.n_prompt, reply.figures.predicted_ms) == (12, 40.25)
    assert tuning.read(got.settings).system == "Answer in one line."
    assert got.conversation.title == "What time is it?"


async def test_older_files_and_archives_of_it_are_read_too(client: Client) -> None:
    conv = {"id": "c", "name": "Old", "lastModified": 0, "currNode": ""}
    tree = {
        "conv": conv,
        "messages": [
            node("a", None, toolCalls=""),
            node(
                "b",
                "a",
                "assistant",
                toolCalls='[{"function": {"name": "f", "arguments": {"x": 1}}}]',
                thinking="so",
            ),
        ],
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("one.jsonl", line(type="session", id="z", name="Zipped"))
        archive.writestr("notes.txt", "ignored")
    files = [
        ("a.json", json.dumps([tree], indent=2).encode()),
        ("b.json", json.dumps(tree).encode()),
        ("c", packed.getvalue()),
    ]
    got = await brought(client, *files)
    assert sorted(b.conversation.title for b in got) == ["Old", "Old", "Zipped"]
    reply = next(b for b in got if b.messages).messages[1]
    assert reply.calls == (Call(name="f", arguments='{"x":1}'),) and reply.reasoning == "so"


async def test_openais_messages_become_a_conversation(client: Client) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is it?"},
                {"type": "image_url", "image_url": {"url": url(png())}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "red"},
        {"role": "assistant", "content": "Red."},
    ]
    files = [
        ("list.json", json.dumps(messages).encode()),
        (
            "body.json",
            json.dumps({"model": "gpt", "messages": messages, "title": "Named"}, indent=1).encode(),
        ),
        ("tuned.jsonl", line(messages=messages) + line(messages=messages[4:])),
    ]
    got = await brought(client, *files)
    assert len(got) == 4
    named = next(b for b in got if b.conversation.title == "Named")
    assert [(m.role, m.content, m.model) for m in named.messages] == [
        ("user", "What is it?", ""),
        ("assistant", "", "gpt"),
        ("assistant", "Red.", "gpt"),
    ]
    assert named.messages[1].calls == (Call(name="look", arguments="{}"),)
    assert len(named.messages[0].pictures) == 1
    assert tuning.read(named.settings).system == "Be brief."
    assert {b.conversation.title for b in got} == {"Named", "What is it?", "Red."}


HEAD = line(type="session", id="c", name="t")
U = node("u", None)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "f.jsonl: there is nothing in it"),
        (b"\xff\xfe\x00", "f.jsonl: this is no text in UTF-8"),
        (b"not JSON", "f.jsonl: this is no JSON from byte 4 on"),
        (b"[1]", "f.jsonl, [0]: this is no conversation"),
        (b"{}", "f.jsonl, line 1: this is no conversation"),
        (b"[" * 5000, "f.jsonl: this is nested too deeply"),
        (HEAD + b"{", "f.jsonl, line 2: "),
        (HEAD + b'{"a": ' + b"[" * 5000, "f.jsonl, line 2: this is nested too deeply"),
        (HEAD + line(type="other"), "f.jsonl, line 2: this is no conversation"),
        (line(type="message", message=U), "f.jsonl, line 1, type: a message before any"),
        (HEAD + line(type="message"), "f.jsonl, line 2, message: an object is expected, not null"),
        (
            HEAD + b"\n" + line(type="message", message=U | {"role": "narrator"}),
            "f.jsonl, line 3, message.role: 'narrator' is none of the values",
        ),
        (
            HEAD + line(type="message", message=U | {"content": 7}),
            "f.jsonl, line 2, message.content: a text or null is expected, not a whole number",
        ),
        (
            HEAD + line(type="message", message=U | {"timestamp": 1e300}),
            "line 2, message.timestamp: at most 220,000,000,000,000 is allowed",
        ),
        (
            HEAD + line(type="message", message=U | {"timestamp": -1}),
            "line 2, message.timestamp: at least 0 is expected",
        ),
        (
            HEAD + line(type="message", message=U | {"parent": "x"}),
            "line 2, message.parent: there is no such message",
        ),
        (
            HEAD + line(type="message", message=U) * 2,
            "line 3, message.id: another message has the same",
        ),
        (
            HEAD + line(type="message", message=U | {"parent": "u"}),
            "line 2, message.parent: goes round in a circle",
        ),
        (
            HEAD
            + line(type="message", message=node("a", "b"))
            + line(type="message", message=node("b", "a")),
            "message.parent: goes round in a circle",
        ),
        (
            HEAD
            + line(
                type="message",
                message=U | {"extra": [{"type": "IMAGE", "base64Url": "http://x/y.png"}]},
            ),
            "line 2, message.extra[0]: a picture has to be a data: URL",
        ),
        (
            HEAD
            + line(
                type="message",
                message=U
                | {"extra": [{"type": "IMAGE", "base64Url": "data:image/png;base64,AAAA"}]},
            ),
            "line 2, message.extra[0]: this is of no known format",
        ),
        (
            HEAD
            + line(
                type="message",
                message=U | {"extra": [{"type": "IMAGE", "base64Url": "data:image/png;base64,?"}]},
            ),
            "line 2, message.extra[0]: this is no base64",
        ),
        (
            HEAD + line(type="message", message=U | {"role": "assistant", "toolCalls": "{"}),
            "line 2, message.toolCalls: ",
        ),
        (
            line(type="session", corral={"format": 99, "created_s": 1, "updated_s": 1}),
            "line 1, corral.format: this was written by a newer Corral",
        ),
        (
            line(
                type="session",
                corral={
                    "format": 1,
                    "created_s": 1,
                    "updated_s": 1,
                    "settings": {"temperature": "hot"},
                },
            ),
            "line 1, corral.settings.temperature: ",
        ),
        (
            json.dumps(
                {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}
            ).encode(),
            "messages[0].content[0].text: a text is expected, not a whole number",
        ),
        (
            json.dumps([{"role": "x"}], indent=1).encode(),
            "f.jsonl, [0].role: 'x' is none of the values",
        ),
        (json.dumps({"messages": []}).encode(), "line 1, messages: nobody says anything"),
        (
            json.dumps([{"conv": {}, "messages": [U | {"role": 3}]}], indent=1).encode(),
            "f.jsonl, [0].messages[0].role: ",
        ),
        (b"[]", "f.jsonl: there is no conversation in it"),
        (b"PK\x03\x04 and no more", "f.jsonl: this archive is damaged"),
    ],
)
async def test_what_cannot_be_read_is_refused_with_its_place(
    client: Client, content: bytes, said: str
) -> None:
    good = ("good.jsonl", HEAD + line(type="message", message=U))
    assert said in await refused(client, good, ("f.jsonl", content))


async def test_an_archive_that_grows_without_end_is_refused(client: Client) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for n in range(2):  # each below the limit of 32 MiB
            archive.writestr(f"{n}.jsonl", b" " * (20 << 20))
    assert "too large" in await refused(client, ("bomb.zip", packed.getvalue()))
    empty = io.BytesIO()
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("a.txt", "x")
    assert "no conversations in it" in await refused(client, ("e.zip", empty.getvalue()))


async def test_no_file_and_too_much_are_said(client: Client) -> None:
    assert "Choose a file first" in (await client.post("/import", data={"x": "y"})).text
    big = await client.post("/import", files=[("files", ("x", b" " * (33 << 20)))])
    assert big.status_code == 413 and "32 MiB" in big.text


async def test_markdown_is_the_branch_that_is_shown(client: Client) -> None:
    answer = await client.get(f"/c/{await full(client)}/export.md")
    assert answer.headers["content-type"].startswith("text/markdown")
    assert answer.headers["content-disposition"] == (
        "attachment; filename=\"all-of-it-b.md\"; filename*=UTF-8''all-of-it-b.md"
    )
    assert answer.headers["x-content-type-options"] == "nosniff"
    text = answer.text
    assert text.startswith("# All of “it” <b>\n\n## You\n\n*[a b.png]*\n\nlook\n")
    assert "## Assistant (m)" in text and "a picture" in text and "look again" not in text
    assert "let me see &lt;/details>\n\n</details>" in text and '```\nf\n{"x": 1}\n```' in text


async def test_all_as_markdown_is_an_archive(client: Client) -> None:
    await full(client)
    await client.app.state.site.store.create("日本語 / .. ")
    packed = (await client.get("/export.zip")).content
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
        texts = [archive.read(name).decode() for name in names]
    assert len(names) == 2 and not any("/" in name or ".." in name for name in names)
    assert [text.splitlines()[0] for text in texts] == ["# All of “it” <b>", "# 日本語 / .. "]


async def test_of_an_import_that_breaks_off_nothing_is_kept(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from corral.backend.store import bundles

    kept = bundles._insert

    def failing(db: Any, id: str, parent_id: int | None, m: Message) -> int | None:
        if m.content == "third":
            raise OSError("the disk is full")
        return kept(db, id, parent_id, m)

    monkeypatch.setattr(bundles, "_insert", failing)
    texts = [[{"role": "user", "content": text}] for text in ("first", "second", "third")]
    file = b"".join(line(messages=m) for m in texts)
    answer = await bring(client, ("x.jsonl", file))
    assert answer.status_code == 500 and "the disk is full" in answer.text
    assert await client.app.state.site.store.list() == []


@pytest.mark.parametrize("name", ["", "\N{SNOWMAN}", "Über den Fluß!", "a/b\\..c", "x" * 99])
def test_a_title_makes_a_plain_file_name(name: str) -> None:
    slug = exporting.slug(name)
    assert slug and len(slug) <= 40 and not set(slug) & set("/\\. \"'")


async def test_the_page_offers_both_ways(client: Client) -> None:
    page = (await client.get("/transfer")).text
    for way in ("/export.jsonl", "/export.zip", 'action="/import"', "Up to 32 MiB"):
        assert way in page
    assert (await client.get("/c/none/export.jsonl")).status_code == 404


async def test_an_import_does_not_hold_up_the_pages(client: Client) -> None:
    big = b"".join(line(messages=[{"role": "user", "content": "x" * 1000}]) for _ in range(2000))
    slow, quick = await asyncio.gather(bring(client, ("x.jsonl", big)), client.get("/strip"))
    assert (slow.status_code, quick.status_code) == (200, 200)
