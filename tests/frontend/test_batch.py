"""Many prompts: what is taken, how it is worked off, and that nothing of it is lost."""

import asyncio
import csv
import io
import json
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from corral.backend.errors import Broken, Refused
from corral.backend.settings import Settings
from corral.backend.store import BatchRow, Store
from corral.frontend.tools.batch_files import cell
from corral.frontend.tools.batch_input import MAX_ROWS, prompts

#: See ``conftest``.
Client: TypeAlias = Any


def said(rows: Any) -> list[tuple[str, list[tuple[str, str]]]]:
    return [(r.name, [(m["role"], m["content"]) for m in json.loads(r.messages)]) for r in rows]


def test_each_line_that_says_something_is_a_prompt() -> None:
    assert said(prompts("one\r\n\n  two \n", "auto")) == [
        ("1", [("user", "one")]),
        ("3", [("user", "two")]),
    ]


def test_json_lines_have_prompts_or_messages_and_ids() -> None:
    text = (
        '{"prompt": "one\\u2028and", "id": "a"}\n\n{"messages": [{"role": "system",'
        ' "content": "s"}, {"role": "user", "content": "u"}], "id": 7}\n{"prompt": "three"}'
    )
    assert said(prompts(text, "auto")) == [
        ("a", [("user", "one\u2028and")]),
        ("7", [("system", "s"), ("user", "u")]),
        ("4", [("user", "three")]),
    ]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_table_has_its_prompts_in_a_column(delimiter: str) -> None:
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter)
    writer.writerows([["id", "prompt", "n"], ["x", 'a "b"\nc', 1], ["", "d", 2], ["z", "", 3]])
    rows = said(prompts("\ufeff" + file.getvalue(), "auto", file_name="Some.CSV"))
    assert rows == [("x", [("user", 'a "b"\nc')]), ("2", [("user", "d")])]
    assert [r[0] for r in said(prompts(file.getvalue(), "csv", column="n"))] == ["x", "2", "z"]


def test_a_pasted_table_is_known_by_the_column_it_has() -> None:
    assert said(prompts("id,prompt\nx,two", "auto")) == [("x", [("user", "two")])]
    named = said(prompts("a,b\n1,2\n3,4", "auto", column="b"))
    assert [texts for _, texts in named] == [[("user", "2")], [("user", "4")]]
    lines = said(prompts("Prompt, please\nanother", "auto"))
    assert [texts for _, texts in lines] == [[("user", "Prompt, please")], [("user", "another")]]


@pytest.mark.parametrize(
    ("text", "format", "words"),
    [
        (" \n", "auto", "no prompt"),
        ("{", "auto", "Line 1: this is not JSON"),
        ('{"prompt": "a"}\n[1]', "jsonl", "Line 2: this is not a JSON object"),
        ('{"id": 1}', "auto", "either a prompt or messages"),
        ('{"prompt": "a", "messages": []}', "auto", "either a prompt or messages"),
        ('{"prompt": 3}', "auto", "prompt is a text"),
        ('{"prompt": "a", "id": true}', "auto", "id is"),
        ('{"messages": []}', "auto", "messages is a list"),
        ('{"messages": [{"role": "tool", "content": "a"}]}', "auto", "has a role"),
        ('{"messages": [{"role": "user", "content": ["a"]}]}', "auto", "text as its content"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "auto", "last message is the"),
        ('{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}', "auto", "“x” is there twice"),
        ("a,prompt\n1,2\n3", "auto", "Line 3: it ends before the column"),
        ("a,b\n1,2", "csv", "no column “prompt”; there are: a, b"),
        ("x\n" * (MAX_ROWS + 1), "lines", "5,001 prompts; a batch takes 5,000"),
        ("[" * 100_000, "jsonl", "Line 1: this is not JSON"),
    ],
)
def test_what_is_no_batch_is_refused_with_its_line(text: str, format: Any, words: str) -> None:
    with pytest.raises(Refused, match="(?s)" + words.replace("(", "\\(")):
        prompts(text, format)


# --- over HTTP ------------------------------------------------------------------------------------


async def begin(client: Client, rows: str, **form: Any) -> str:
    answer = await client.post("/batch", data={"rows": rows, **form}, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def listen(client: Client) -> list[Any]:
    """The requests that are made from now on."""
    asked: list[Any] = []
    service = client.app.state.site.service
    chat = service.chat

    async def noted(request: Any) -> Any:
        asked.append(request)
        return await chat(request)

    service.chat = noted
    return asked


async def over(client: Client, where: str) -> None:
    id = where.split("/")[2]
    batching = client.app.state.site.batching
    if (task := batching._tasks.get(id)) is not None:
        await asyncio.wait_for(asyncio.wait([task]), 15)


async def rows_of(client: Client, where: str) -> list[BatchRow]:
    return list(await client.app.state.site.store.batches.rows(where.split("/")[2], 0, 100))


async def test_all_rows_are_answered_and_can_be_taken_away(client: Client) -> None:
    where = await begin(client, 'one\ntwo, "quoted"\nthree')
    await over(client, where)
    page = (await client.get(where)).text
    assert "Done" in page and "3 of 3" in page and 'hx-trigger="every 1s"' not in page
    lines = (await client.get(f"{where}/download")).text.splitlines()
    found = [json.loads(line) for line in lines]
    assert [(r["id"], r["answer"], r["status"]) for r in found] == [
        ("1", "one", "done"),
        ("2", 'two, "quoted"', "done"),
        ("3", "three", "done"),
    ]
    table = await client.get(f"{where}/download?as=csv")
    assert table.headers["content-disposition"].endswith('.csv"')
    rows = list(csv.DictReader(io.StringIO(table.text, newline="")))
    assert [(r["id"], r["prompt"], r["answer"]) for r in rows][1] == ("2", *['two, "quoted"'] * 2)
    assert "three</p>" in (await client.get(f"{where}/rows/3")).text


async def test_a_row_that_fails_is_said_and_tried_again_alone(client: Client) -> None:
    long = "far too long " * 400
    where = await begin(client, f"one\n{long}\nthree")
    await over(client, where)
    rows = await rows_of(client, where)
    assert [r.status for r in rows] == ["done", "error", "done"]
    assert "tokens; the context holds" in rows[1].error
    page = (await client.get(where)).text
    assert "1 failed" in page and "Retry what failed" in page
    asked = listen(client)
    await client.post(f"{where}/resume", data={"failed": "1"}, follow_redirects=False)
    await over(client, where)
    assert len(asked) == 1


async def test_it_leaves_a_slot_to_everybody_else(client: Client) -> None:
    site = client.app.state.site
    assert site.service.settings.slots == 4
    await site.service.control({"hold": "decode", "after": 1})
    where = await begin(client, "\n".join(f"prompt {n}" for n in range(9)))
    other = await begin(client, "one\ntwo")
    async with asyncio.timeout(10):
        while sum(r.status == "running" for r in await rows_of(client, where)) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    running = [*await rows_of(client, where), *await rows_of(client, other)]
    assert sum(r.status == "running" for r in running) == 3
    page = (await client.get(where)).text
    assert "Running" in page and 'hx-trigger="every 1s"' in page
    await site.service.control({"hold": None})
    await over(client, where)
    await over(client, other)
    assert {r.status for r in await rows_of(client, where)} == {"done"}


async def test_it_is_stopped_and_goes_on_where_it_was(client: Client) -> None:
    site = client.app.state.site
    await site.service.control({"hold": "decode", "after": 4})
    where = await begin(client, "one\nab\nanother one that is long\ncd")
    async with asyncio.timeout(10):
        while sum(r.status == "done" for r in await rows_of(client, where)) < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await client.post(f"{where}/stop", follow_redirects=False)
    await site.service.control({"hold": None})
    rows = await rows_of(client, where)
    assert {r.status for r in rows} <= {"done", "waiting"}
    page = (await client.get(where)).text
    assert "Stopped" in page and "Resume" in page
    await client.post(f"{where}/resume", follow_redirects=False)
    await over(client, where)
    answers = [r.answer for r in await rows_of(client, where)]
    assert answers == ["one", "ab", "another one that is long", "cd"]


async def test_it_survives_a_restart_as_stopped(tmp_path: Path, client_of: Any) -> None:
    settings, where = Settings(fake=True, data_dir=tmp_path, n_ctx=1024), ""
    async for client in client_of(settings):
        await client.app.state.site.service.control({"hold": "decode", "after": 1})
        where = await begin(client, "one\ntwo", **{"c1.temperature": "0.5"})
    async for client in client_of(settings):
        page = (await client.get(where)).text
        assert "Stopped" in page and "0 of 2" in page and "Temperature 0.5" in page
        await client.post(f"{where}/resume", follow_redirects=False)
        await over(client, where)
        assert [r.answer for r in await rows_of(client, where)] == ["one", "two"]


async def test_what_a_crash_left_running_is_stopped_and_waits(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await store.open()
    made = await store.batches.create("t", "", b"{}", [("1", b"[]"), ("2", b"[]")])
    taken = await store.batches.take(made.id)
    assert taken is not None and taken.position == 1
    await store.close()
    await (again := Store(tmp_path)).open()
    batch, counts = await again.batches.get(made.id)
    assert (batch.status, counts.waiting, counts.running) == ("stopped", 2, 0)
    await again.close()


async def test_settings_reach_every_row(client: Client) -> None:
    asked = listen(client)
    form = {"c1.preset": "precise", "c1.max_tokens": "2", "c1.system": "Be brief."}
    where = await begin(client, "one\ntwo", **form)
    await over(client, where)
    assert [(r.params.temperature, r.params.max_tokens) for r in asked] == [(0.3, 2)] * 2
    assert [r.messages[0].content for r in asked] == ["Be brief."] * 2
    assert [r.is_cut for r in await rows_of(client, where)] == [1, 1]


async def test_an_engine_that_keeps_failing_stops_the_batch_and_says_why(client: Client) -> None:
    async def chat(_: Any) -> Any:
        raise Broken("the engine is gone")

    client.app.state.site.service.chat = chat
    where = await begin(client, "\n".join(str(n) for n in range(60)))
    await over(client, where)
    page = (await client.get(where)).text
    assert "The engine is gone" in page and "Stopped" in page and "Resume" in page
    assert 5 <= sum(r.status == "error" for r in await rows_of(client, where)) < 20


async def test_a_file_is_taken_and_nothing_is_kept_of_what_is_refused(client: Client) -> None:
    file = {"file": ("My prompts.csv", b"id,question\na,one\nb,two\n", "text/csv")}
    answer = await client.post("/batch", data={"column": "question"}, files=file)
    assert answer.status_code == 303 or answer.status_code == 200
    assert "My prompts.csv" in (await client.get("/batch")).text
    before = await client.app.state.site.store.batches.list()
    for form, files, words in (
        ({"rows": ""}, None, "no prompt"),
        ({"rows": "a", "c1.top_p": "7"}, None, "Some settings cannot be used"),
        ({"rows": "a", "format": "xml"}, None, "no such form"),
        ({"rows": "a"}, file, "not both"),
        ({}, {"file": ("x.txt", b"\xff\xfe\x00", "text/plain")}, "not text in UTF-8"),
    ):
        refused = await client.post("/batch", data=form, files=files)
        assert refused.status_code == 400 and words in refused.text, refused.text
    assert len(await client.app.state.site.store.batches.list()) == len(before)


async def test_a_batch_that_runs_is_deleted(client: Client) -> None:
    site = client.app.state.site
    await site.service.control({"hold": "decode", "after": 1})
    where = await begin(client, "one\ntwo")
    await client.post(f"{where}/delete", follow_redirects=False)
    assert (await client.get(where)).status_code == 404
    assert not site.batching.is_running(where.split("/")[2])
    assert (await client.get("/batch/none/download")).status_code == 404


@pytest.mark.parametrize(
    ("text", "is_run"),
    [
        *[
            (text, True)
            for text in (
                "=1+1",
                "+A1",
                "-2+3",
                "@SUM(1)",
                "\t=1",
                "\r=1",
                "\n=1",
                "\uff1d1+1",
                "\uff20x",
                "-",
                "- a\n- b",
            )
        ],
        *[(text, False) for text in ("-5", "+1,5", "-1.234,5 ", "a=1", "'=1", "", " =1", "5 - 3")],
    ],
)
def test_no_cell_of_a_table_is_a_formula(text: str, is_run: bool) -> None:
    assert cell(text) == (f"'{text}" if is_run else text)


async def test_the_table_to_take_away_runs_nothing_and_the_lines_are_to_the_letter(
    client: Client,
) -> None:
    where = await begin(client, "=1+1\nplain")
    await over(client, where)
    table = await client.get(f"{where}/download?as=csv")
    assert table.headers["content-type"] == "text/csv; header=present; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(table.text, newline="")))
    assert [(row["prompt"], row["answer"]) for row in rows] == [("'=1+1", "'=1+1"), ("plain",) * 2]
    lines = (await client.get(f"{where}/download")).text.splitlines()
    assert [json.loads(line)["answer"] for line in lines] == ["=1+1", "plain"]
