"""The page on which grammars are written, checked and tried."""

import asyncio
import re
from typing import Any, TypeAlias

import pytest

from corral.backend.engine.messages import Constraint, Verdict
from corral.backend.errors import Refused
from corral.frontend.tools.examples import examples
from corral.frontend.tools.places import Place, fault, json_place

#: See ``conftest``.
Client: TypeAlias = Any
HTMX = {"hx-request": "true"}
SCHEMA = """{"type": "object",
 "properties": {
   "a": {"anyOf": [{"type": "string"},
      {"not": {}}]},
   "b \\"c": [[1, {"d": 2}], 3, 4]
 }}"""


# --- places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("type", Place(1, 2)),
        ("properties.a", Place(3, 4)),
        ("properties.a.anyOf[0]", Place(3, 19)),
        ("properties.a.anyOf[1].not", Place(4, 8)),
        ('properties.b "c', Place(5, 4)),
        ('properties.b "c[0][1].d', Place(5, 19)),
        ('properties.b "c[1]', Place(5, 29)),
        ('properties.b "c[2]', Place(5, 32)),
        ("properties.z", Place()),
    ],
)
def test_a_path_is_found_in_json_text(path: str, place: Place) -> None:
    assert json_place(SCHEMA, path) == place


@pytest.mark.parametrize("source", ["", "{", "]]}}", '{"a": [', '"', '{"a" "b"}', ",,,", "[[[["])
def test_broken_json_is_read_as_far_as_it_goes(source: str) -> None:
    assert json_place(source, "x.y") == Place()


async def verdict(client: Client, kind: Any, source: str) -> Verdict:
    found: Verdict = await client.app.state.service.check_constraint(Constraint(kind, source))
    return found


@pytest.mark.parametrize(
    ("kind", "source", "place", "words"),
    [
        ("json_schema", '{\n "a": 1,\n}', Place(3, 1), "not JSON"),
        ("json_schema", '{\n "not": {}}', Place(2, 2), "cannot be enforced"),
        ("json_schema", '{"type":\n "strin"}', Place(), "Invalid type: strin"),
        ("gbnf", 'root ::= "a"\nb ::= c', Place(2, 0), "rule c is not defined"),
        ("gbnf", "", Place(), "no rule named root"),
        ("lark", "start: a\na: nothing", Place(2, 4), 'unknown name: "nothing"'),
        ("lark", "start: (\n", Place(1, 9), "Expected token"),
        ("regex", "ab(c", Place(1, 3), "unclosed group"),
        ("regex", "\\b", Place(), "lookarounds not supported"),
    ],
)
async def test_the_compilers_words_are_brought_to_their_place(
    client: Client, kind: Any, source: str, place: Place, words: str
) -> None:
    found = fault(kind, source, await verdict(client, kind, source))
    assert found.place == place and words in found.words
    assert not re.search(r"\d+ \| |start:|line \d", found.words)


def test_the_mark_is_below_the_place_also_behind_tabs() -> None:
    found = fault("lark", "\ta: b", Verdict(problem="at 1(5): unknown", path="lark"))
    assert found.text == "\ta: b" and found.caret == "\t   ^"


# --- the engine's check ---------------------------------------------------------------------------


async def test_a_check_waits_for_no_step(client: Client) -> None:
    service = client.app.state.service
    await service.control({"hold": "prefill"})
    answering = asyncio.ensure_future(client.post("/completion", json={"prompt": "abc" * 50}))
    async with asyncio.timeout(20):
        while not any(slot.state == "reading" for slot in service.snapshot.slots):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (await verdict(client, "regex", "[a-z]+")).problem == ""
    await service.control({"hold": None})
    assert (await answering).status_code == 200


async def test_one_that_takes_too_long_is_given_up(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.backend.service.CHECK_S", 0.0)
    with pytest.raises(Refused, match="takes longer than 0 seconds to compile"):
        await verdict(client, "regex", "a")


# --- over HTTP ------------------------------------------------------------------------------------


def form(kind: str, source: str, **more: str) -> dict[str, str]:
    return {"kind": kind, "source": source, "prompt": "zz", "max_tokens": "20"} | more


async def test_every_example_compiles(client: Client) -> None:
    for example in examples():
        answer = await client.get(f"/grammar?example={example.id}")
        assert "Answers can be held to this" in answer.text, example.id
        assert f'value="{example.kind}" selected' in answer.text


async def test_what_is_typed_is_checked_by_the_engine(client: Client) -> None:
    answer = await client.post("/grammar", data=form("gbnf", 'root ::= "a'), headers=HTMX)
    assert "<html" not in answer.text and "<b>Line 1</b>" in answer.text
    answer = await client.post("/grammar", data=form("regex", "[<b>]+"), headers=HTMX)
    assert "Answers can be held to this" in answer.text
    # Lark may be given as a grammar, as in requests.
    source = '%llguidance {}\nstart: "a"'
    answer = await client.post("/grammar", data=form("gbnf", source), headers=HTMX)
    assert "Answers can be held to this" in answer.text


async def test_what_a_schema_asks_for_and_cannot_have_is_named(client: Client) -> None:
    source = '{"properties": {"a<": {"uniqueItems": true}}}'
    answer = await client.post("/grammar", data=form("json_schema", source), headers=HTMX)
    assert "<code>properties.a&lt;.uniqueItems</code>: cannot be enforced" in answer.text
    assert "Line 1, column 24" in answer.text


async def test_a_trial_is_followed_by_the_page(client: Client) -> None:
    data = form("regex", "[a-y]{9}")
    answer = await client.post("/grammar/try", data=data, headers=HTMX)
    path = re.search(r'hx-sse:connect="(/grammar/[^"]+)/events"', answer.text)
    assert path is not None
    stream = (await client.get(f"{path[1]}/events")).text
    assert stream.endswith("event: end\ndata: \n\n")
    assert re.search(r"<pre class=\"doc\"[^>]*>[a-y]{9}</pre>", stream)
    assert "Done · 9 tokens" in stream
    # Whoever comes later still sees it.
    assert "Done · 9 tokens" in (await client.get(f"{path[1]}/events")).text


async def test_a_trial_is_stopped(client: Client) -> None:
    await client.app.state.service.control({"hold": "decode", "after": 3})
    answer = await client.post("/grammar/try", data=form("regex", "[a-y]{19}"), headers=HTMX)
    path = re.search(r'hx-sse:connect="(/grammar/[^"]+)/events"', answer.text)
    assert path is not None
    stopped = await client.post(f"{path[1]}/stop", headers=HTMX)
    assert stopped.status_code == 204
    assert "Stopped" in (await client.get(f"{path[1]}/events")).text
    assert (await client.post(f"{path[1]}/stop")).status_code == 303


async def test_without_script_the_page_comes_with_the_answer(client: Client) -> None:
    answer = await client.post("/grammar/try", data=form("regex", "[a-y]{9}\r\n"))
    assert "<html" in answer.text and re.search(r">[a-y]{9}</pre>", answer.text)
    assert 'value="20"' in answer.text


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (form("regex", "  "), "Write a grammar first."),
        (form("regex", "a", prompt=" "), "Write a question first."),
    ],
)
async def test_a_trial_needs_both(client: Client, data: dict[str, str], words: str) -> None:
    answer = await client.post("/grammar/try", data=data, headers=HTMX)
    assert words in answer.text and "hx-sse" not in answer.text


async def test_a_trial_that_is_refused_says_why(client: Client) -> None:
    answer = await client.post("/grammar/try", data=form("regex", "("))
    assert 'role="alert">Regex' in answer.text or 'role="alert">regex' in answer.text


NO_LIMITS = ["-3", "abc", "1.5", "0", "2049", "9" * 40, "\u00b2", "1_0"]


@pytest.mark.parametrize("n", NO_LIMITS)
async def test_a_number_of_tokens_that_is_none_is_refused_at_its_field_and_stays(
    client: Client, n: str
) -> None:
    data = form("regex", "[a-y]{9}", max_tokens=n)
    answer = await client.post("/grammar/try", data=data, headers=HTMX)
    said, beside = answer.text.split('<hx-partial hx-target="#limit-error"')
    assert "A whole number, 1 to 2048" in beside and not said.strip()
    answer = await client.post("/grammar/try", data=data)
    assert f'inputmode="numeric" value="{n}"' in answer.text
    assert 'aria-invalid="true"' in answer.text and "A whole number, 1 to 2048" in answer.text
    # The grammar is checked all the same.
    assert "Answers can be held to this" in answer.text


@pytest.mark.parametrize("n", NO_LIMITS)
async def test_a_grammar_is_checked_while_the_number_of_tokens_is_none(
    client: Client, n: str
) -> None:
    data = form("regex", "[a-y]{9}", max_tokens=n)
    answer = await client.post("/grammar", data=data, headers=HTMX)
    assert "Answers can be held to this" in answer.text and "whole number" not in answer.text
    answer = await client.post("/grammar", data=data)
    assert f'inputmode="numeric" value="{n}"' in answer.text


async def test_without_a_number_of_tokens_a_trial_has_the_usual_one(client: Client) -> None:
    answer = await client.post("/grammar/try", data=form("regex", "[a-y]{300}", max_tokens=" "))
    assert "256 tokens" in answer.text and "whole number" not in answer.text
    assert 'value=" " placeholder="256"' in answer.text


async def test_a_refused_number_of_tokens_is_forgotten_with_the_next_trial(client: Client) -> None:
    answer = await client.post("/grammar/try", data=form("regex", "a"), headers=HTMX)
    assert "hx-sse" in answer.text
    assert answer.text.endswith(
        '<hx-partial hx-target="#limit-error" hx-swap="innerHTML"></hx-partial>'
    )


async def test_a_trial_that_nobody_knows_is_not_found(client: Client) -> None:
    assert (await client.get("/grammar/grammar-none/events")).status_code == 404
