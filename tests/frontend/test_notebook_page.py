"""Notebooks: texts that the model goes on with."""

import asyncio
import re
from typing import Any, TypeAlias

import pytest

from corral.backend.engine.messages import Constraint
from corral.backend.errors import Refused
from corral.frontend.tools.writing import constraint, halves, params, stops

#: See ``conftest``.
Client: TypeAlias = Any
HTMX = {"hx-request": "true"}


# --- settings -------------------------------------------------------------------------------------


def test_a_text_goes_on_at_its_end_or_at_the_marker() -> None:
    assert halves("ab") == ("ab", "")
    assert halves("a{predict}b{predict}") == ("a", "b{predict}")
    for text in ("", "{predict}b"):
        with pytest.raises(Refused, match="Write the beginning first"):
            halves(text)


def test_what_is_empty_is_left_to_the_server() -> None:
    asked = params({"seed": " ", "temperature": ""})
    assert (asked.seed, asked.temperature, asked.top_p, asked.max_tokens) == (None,) * 4
    assert asked.stop is None and asked.constraint is None


def test_settings_are_read_as_people_type_them() -> None:
    asked = params({"max_tokens": " 9", "temperature": "0,5", "seed": "0", "stop": "a\n\\n\\nb\n"})
    assert (asked.max_tokens, asked.temperature, asked.seed) == (9, 0.5, 0)
    assert asked.stop == ("a", "\n\nb")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("max_tokens", "0", "Most tokens: A whole number, 1 to 1000000"),
        ("max_tokens", "1.5", "Most tokens"),
        ("max_tokens", "9" * 40, "Most tokens"),
        ("seed", "-1", "Seed: A whole number from 0 on"),
        ("seed", "²", "Seed"),
        ("temperature", "hot", "Temperature: From 0 to 100"),
        ("temperature", "nan", "Temperature"),
        ("temperature", "inf", "Temperature"),
        ("top_p", "1.1", "Top P: From 0 to 1"),
    ],
)
def test_what_is_no_setting_is_named(field: str, value: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        params({field: value})


def test_there_may_be_only_so_many_stops() -> None:
    with pytest.raises(Refused, match="Stop: at most 16 texts"):
        stops("a\n" * 17)


def test_the_kind_of_a_grammar_is_seen_by_its_beginning() -> None:
    assert constraint(" \n") is None
    assert constraint('\n{"a": 1}') == Constraint("json_schema", '\n{"a": 1}')
    assert constraint("%llguidance {}").kind == "lark"  # type: ignore[union-attr]
    assert constraint('root ::= "a"').kind == "gbnf"  # type: ignore[union-attr]


# --- over HTTP ------------------------------------------------------------------------------------


class Pad:
    """A notebook and a page of it: its form as it was last shown."""

    def __init__(self, client: Client, path: str) -> None:
        self.client = client
        self.path = path
        self.form: dict[str, str] = {}

    def read(self, html: str) -> str:
        """Takes over the form of a page or fragment; returns its text."""
        for name in ("version", "editor", "max_tokens"):
            found = re.search(rf'name="{name}"[^>]* value="([^"]*)"', html)
            assert found is not None, name
            self.form[name] = found[1]
        found = re.search(r'name="text"[^>]*>\n(.*?)</textarea>', html, re.DOTALL)
        assert found is not None
        self.form["text"] = found[1]
        return found[1]

    async def load(self) -> str:
        return self.read((await self.client.get(self.path)).text)

    async def do(self, what: str, **more: str) -> Any:
        data = self.form | more
        return await self.client.post(f"{self.path}/{what}", data=data, headers=HTMX)

    async def stream(self) -> str:
        stream = (await self.client.get(f"{self.path}/events")).text
        return str(stream.replace("\ndata: ", "\n"))

    async def written(self, text: str, **more: str) -> str:
        """What the text is when the model has gone on with it."""
        answer = await self.do("generate", text=text, **more)
        assert answer.status_code == 200 and 'aria-busy="true"' in answer.text, answer.text
        return self.read(await self.stream())


@pytest.fixture
async def pad(client: Client) -> Pad:
    answer = await client.post("/notebook", follow_redirects=False)
    assert answer.status_code == 303
    pad = Pad(client, answer.headers["location"])
    assert await pad.load() == ""
    return pad


async def test_a_text_goes_on_and_is_there_on_every_later_page(pad: Pad) -> None:
    text = await pad.written("Hello", max_tokens="5")
    assert text.startswith("Hello") and len(text) > 5
    assert await pad.load() == text
    assert "Hello" in (await pad.client.get("/notebook")).text


async def test_at_a_marker_it_goes_on_in_the_middle(pad: Pad) -> None:
    text = await pad.written("One {predict} two", max_tokens="3")
    assert re.fullmatch("One .{1,3} two", text) and "{predict}" not in text


async def test_what_the_model_wrote_is_undone_and_done_again(pad: Pad) -> None:
    one = await pad.written("A{predict}Z", max_tokens="3")
    undone = await pad.do("undo")
    assert pad.read(undone.text) == "A{predict}Z"
    assert re.search(r"disabled>Undo<", undone.text)
    assert pad.read((await pad.do("redo")).text) == one


async def test_what_is_typed_is_kept(pad: Pad) -> None:
    answer = await pad.do("save", text="a\r\n<b> ")
    assert answer.text.strip() == "saved"
    assert await pad.load() == "a\n&lt;b&gt; "


async def test_a_page_that_is_behind_is_told_and_changes_nothing(pad: Pad) -> None:
    other = Pad(pad.client, pad.path)
    await other.load()
    await other.do("save", text="theirs")
    for what in ("save", "generate", "undo"):
        answer = await pad.do(what, text="mine")
        assert answer.status_code == 409 and "changed on another page" in answer.text
    # Without script the text comes back with the reason.
    plain = await pad.client.post(f"{pad.path}/save", data=pad.form | {"text": "mine"})
    assert plain.status_code == 409 and "\nmine</textarea>" in plain.text
    assert "changed on another page" in plain.text
    assert await other.load() == "theirs"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"text": ""}, "Write the beginning first."),
        ({"text": "a", "seed": "x"}, "Seed: A whole number"),
    ],
)
async def test_what_cannot_begin_says_why(pad: Pad, more: dict[str, str], words: str) -> None:
    answer = await pad.do("generate", **more)
    assert answer.status_code == 400 and words in answer.text
    assert "aria-busy" not in (await pad.client.get(pad.path)).text


async def test_a_refusal_of_the_engine_is_shown_and_the_text_is_as_it_was(pad: Pad) -> None:
    text = await pad.written("x{predict}", grammar='root ::= "a')
    assert text == "x{predict}"
    page = (await pad.client.get(pad.path)).text
    assert 'role="alert">' in page and "grammar" in page
    assert re.search(r"disabled>Undo<", page)


async def test_a_stopped_text_keeps_what_there_is(pad: Pad) -> None:
    service = pad.client.app.state.service
    await service.control({"hold": "decode", "after": 4})
    await pad.do("generate", text="Hello", max_tokens="9")
    # A page that comes meanwhile follows it.
    page = (await pad.client.get(pad.path)).text
    assert f'hx-sse:connect="{pad.path}/events"' in page and "http-equiv" in page
    run = pad.client.app.state.site.runs.get(pad.path[1:].replace("/", "-"))
    async with asyncio.timeout(20):
        while not run.text:
            await run.changed(run.version, 1)
    late = await pad.do("save", text="late")
    assert late.status_code == 204
    assert (await pad.do("stop")).status_code == 204
    await service.control({"hold": None})
    html = await pad.stream()
    assert "Stopped" in html
    text = pad.read(html)
    assert text.startswith("Hello") and len(text) > 5
    assert await pad.load() == text


async def test_without_script_forms_lead_back_to_the_page(pad: Pad) -> None:
    data = pad.form | {"text": "Hi", "max_tokens": "3"}
    answer = await pad.client.post(f"{pad.path}/generate", data=data, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, pad.path)
    await pad.stream()
    text = await pad.load()
    assert text.startswith("Hi") and len(text) > 2


async def test_it_is_renamed_and_deleted(pad: Pad) -> None:
    await pad.client.post(f"{pad.path}/rename", data={"title": " My <notes> "})
    assert "My &lt;notes&gt;" in (await pad.client.get("/notebook")).text
    await pad.client.post(f"{pad.path}/delete")
    assert (await pad.client.get(pad.path)).status_code == 404
    assert (await pad.client.get(f"{pad.path}/events")).status_code == 404
    assert "There is none yet" in (await pad.client.get("/notebook")).text


async def test_a_notebook_that_is_deleted_while_the_model_writes_ends(pad: Pad) -> None:
    service = pad.client.app.state.service
    await service.control({"hold": "decode", "after": 4})
    await pad.do("generate", text="Hello", max_tokens="9")
    await pad.client.post(f"{pad.path}/delete")
    await service.control({"hold": None})
    assert (await pad.client.get(pad.path)).status_code == 404
    assert pad.client.app.state.site.runs.get(pad.path[1:].replace("/", "-")) is None
