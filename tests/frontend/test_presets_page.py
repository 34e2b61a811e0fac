"""The page of presets: what it lists, and what its forms change and refuse."""

import html
import json
import re
from typing import Any

import pytest

from corral.backend.presets import BUILT_INS

PAGE = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


async def listed(client: Any, query: str = "") -> str:
    answer = await client.get(f"/presets{query}", headers=PAGE)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    return str(answer.text)


async def kept(client: Any, name: str) -> Any:
    answer = await client.get(f"/presets/{name}")
    return answer.json() if answer.status_code == 200 else None


async def test_browsers_get_the_page_and_programs_the_list(client: Any) -> None:
    page = await listed(client)
    for name in BUILT_INS:
        assert f">{name}</h3>" in page
        assert f"/presets?copy={name}" in page
        assert f"/presets?edit={name}" not in page
    assert (await client.get("/presets")).json()["object"] == "list"


async def test_a_preset_is_made_and_changed_by_its_form(client: Any) -> None:
    fields = {"version": "0", "name": " mine ", "s.system": "a\r\nb", "s.top_k": "3"}
    assert (await client.post("/preset", data={**fields, "do": "save"})).status_code == 303
    made = await kept(client, "mine")
    assert (made["system"], made["top_k"], made["version"]) == ("a\nb", 3, 1)
    assert set(made) == {"system", "top_k", "name", "version", "is_builtin", "updated"}
    form = await listed(client, "?edit=mine")
    assert 'name="version" value="1"' in form
    changed = {"version": "1", "was": "mine", "name": "mine", "s.system": "a\nb", "s.min_p": "0,1"}
    assert (await client.post("/preset", data=changed)).status_code == 303
    made = await kept(client, "mine")
    assert (made["system"], made["min_p"], made["version"]) == ("a\nb", 0.1, 2)
    assert "top_k" not in made


async def test_what_the_form_does_not_change_stays_as_it_was_put(client: Any) -> None:
    said = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}}
    await client.put("/presets/mine", json={**said, "n_predict": 9, "stop": "x"})
    form = await listed(client, "?edit=mine")
    fields = {
        name: html.unescape(text)
        for name, text in re.findall(r'name="(s\.\w+)"[^>]*>\n?([^<]*)</textarea>', form)
    } | {"s.max_tokens": "9", "s.form": "json_schema", "s.temperature": "0"}
    assert fields["s.stop"] == "x"
    await client.post("/preset", data={**fields, "version": "1", "was": "mine", "name": "mine"})
    made = await kept(client, "mine")
    assert made["response_format"] == said["response_format"]
    assert (made["n_predict"], made["stop"], made["temperature"]) == (9, "x", 0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "a/b"}, "printable characters without /"),
        ({"name": ""}, "printable characters"),
        ({"name": "code"}, "comes with the server"),
        ({"s.temperature": "hot"}, "Temperature: From 0 to 100"),
        ({"s.form": "json_schema", "s.source": "{"}, "The schema is not JSON"),
        ({"s.form": "grammar", "s.source": "root ::= ("}, "Shape: "),
    ],
)
async def test_what_cannot_be_is_refused_in_words_and_keeps_what_was_typed(
    client: Any, fields: dict[str, str], words: str
) -> None:
    typed = {"version": "0", "name": "mine", "s.system": "Typed <here>", **fields}
    answer = await client.post("/preset", data=typed)
    assert answer.status_code == 400
    page = html.unescape(answer.text)
    assert words in page
    assert "Typed <here>" in page
    assert f'name="name" value="{typed["name"]}"' in page
    assert await kept(client, "mine") is None


async def test_a_form_that_is_behind_is_told_so_and_may_save_all_the_same(client: Any) -> None:
    await client.put("/presets/mine", json={"top_k": 1})
    await client.put("/presets/mine", json={"top_k": 2})
    fields = {"version": "1", "was": "mine", "name": "mine", "s.top_k": "7"}
    answer = await client.post("/preset", data=fields)
    assert answer.status_code == 409
    assert "This preset was changed elsewhere meanwhile" in answer.text
    assert 'value="7"' in answer.text
    assert (await kept(client, "mine"))["top_k"] == 2
    over = re.search(r'name="over" value="(\d+)"', answer.text)
    assert over is not None
    assert (await client.post("/preset", data={**fields, "over": over[1]})).status_code == 303
    assert (await kept(client, "mine"))["top_k"] == 7
    await client.delete("/presets/mine")
    answer = await client.post("/preset", data=fields)
    assert "This preset was deleted or given another name elsewhere meanwhile" in answer.text
    assert (await client.post("/preset", data={**fields, "over": "0"})).status_code == 303


async def test_a_new_preset_takes_no_others_place(client: Any) -> None:
    await client.put("/presets/mine", json={"top_k": 1})
    fields = {"version": "0", "name": "mine", "s.top_k": "7"}
    answer = await client.post("/preset", data=fields)
    assert answer.status_code == 409
    assert "There is a preset mine already" in answer.text
    assert 'name="over"' not in answer.text
    assert (await kept(client, "mine"))["top_k"] == 1


async def test_a_preset_gets_another_name_and_what_uses_it_follows(client: Any) -> None:
    await client.put("/presets/mine", json={"top_k": 1})
    await client.put("/presets/other", json={"top_k": 2})
    begun = await client.post("/c", data={"text": "Hello", "s.preset": "mine", "s.seed": "5"})
    apart = await client.post("/c", data={"text": "Hello", "s.preset": "other"})
    fields = {"version": "1", "was": "mine", "name": "yours “é”", "s.top_k": "3"}
    assert (await client.post("/preset", data=fields)).status_code == 303
    assert await kept(client, "mine") is None
    made = await kept(client, "yours “é”")
    assert (made["top_k"], made["version"]) == (3, 2)
    store = client.app.state.site.store
    tuned = await store.tuning(begun.headers["location"].rpartition("/")[2])
    assert json.loads(tuned.body) == {"seed": 5, "preset": "yours “é”"}
    assert tuned.version == 2
    tuned = await store.tuning(apart.headers["location"].rpartition("/")[2])
    assert (json.loads(tuned.body), tuned.version) == ({"preset": "other"}, 1)


async def test_no_other_presets_name_is_taken_by_a_change_of_name(client: Any) -> None:
    for name in ("mine", "other"):
        await client.put(f"/presets/{name}", json={"top_k": 1})
    fields = {"version": "1", "was": "mine", "s.top_k": "7"}
    answer = await client.post("/preset", data={**fields, "name": "other"})
    assert answer.status_code == 409
    assert "There is a preset other already" in answer.text
    assert 'name="was" value="mine"' in answer.text and 'name="name" value="other"' in answer.text
    assert 'name="over"' not in answer.text
    assert (await client.post("/preset", data={**fields, "name": "code"})).status_code == 400
    late = {**fields, "version": "3", "name": "new"}
    answer = await client.post("/preset", data=late)
    assert answer.status_code == 409
    assert "This preset was changed elsewhere meanwhile" in answer.text
    assert (await client.post("/preset", data={**late, "over": "1"})).status_code == 303
    assert (await kept(client, "new"))["top_k"] == 7
    answer = await client.post("/preset", data={**fields, "name": "third"})
    assert "This preset was deleted or given another name elsewhere meanwhile" in answer.text
    again = {**fields, "name": "third", "over": "0"}
    assert (await client.post("/preset", data=again)).status_code == 303
    assert [each for each in ("mine", "third") if await kept(client, each)] == ["third"]


async def test_deletion_is_undone_and_not_done_by_a_page_that_is_behind(client: Any) -> None:
    await client.put("/presets/a b", json={"top_k": 1})
    late = {"do": "delete", "name": "a b", "version": "9"}
    assert (await client.post("/preset", data=late)).status_code == 409
    gone = await client.post("/preset", data={**late, "version": "1"})
    assert gone.headers["location"] == "/presets?deleted=a%20b"
    assert await kept(client, "a b") is None
    page = await listed(client, "?deleted=a%20b")
    assert "Deleted a b" in page
    back = {"do": "restore", "name": "a b"}
    assert (await client.post("/preset", data=back)).status_code == 303
    assert (await kept(client, "a b"))["top_k"] == 1
    assert (await client.post("/preset", data=back)).status_code == 409
    builtin = {"do": "delete", "name": "code", "version": "0"}
    assert (await client.post("/preset", data=builtin)).status_code == 403


async def test_files_come_in_beside_what_is_there(client: Any) -> None:
    await client.put("/presets/mine", json={"top_k": 1})
    mine = (await client.get("/presets/mine")).content
    file = {"file": ("mine.json", mine, "application/json")}
    assert (await client.post("/preset", data={"do": "import"}, files=file)).status_code == 303
    assert (await kept(client, "mine 2"))["top_k"] == 1
    both = json.dumps((await client.get("/presets")).json())
    assert (await client.post("/preset", data={"do": "import", "json": both})).status_code == 303
    assert (await kept(client, "mine 3"))["top_k"] == 1
    assert (await kept(client, "code 2"))["temperature"] == 0.2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Choose a file"),
        ("{", "This is not JSON"),
        ("[" * 100_000, "This is not JSON"),
        ('{"name": "x", "warmth": 1}', "warmth"),
        ('{"name": "x", "temperature": "hot"}', "temperature"),
        ('{"top_k": 1}', "printable characters"),
        ('{"name": "x", "samplers": ["luck"]}', "luck"),
    ],
)
async def test_files_that_hold_no_preset_are_refused_and_shown_again(
    client: Any, text: str, words: str
) -> None:
    answer = await client.post("/preset", data={"do": "import", "json": text})
    assert answer.status_code == 400
    page = html.unescape(answer.text)
    assert words in page
    assert text[:100] in page
    assert [p["name"] for p in (await client.get("/presets")).json()["data"]] == [*BUILT_INS]


async def test_with_keys_the_page_is_behind_the_login(locked: Any) -> None:
    answer = await locked.get("/presets", headers=PAGE)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/presets")
    assert (await locked.post("/preset", data={"do": "delete"})).status_code == 401


# --- what a model has -----------------------------------------------------------------------------


async def test_thinking_is_asked_about_where_the_model_has_it(client: Any, thinking: Any) -> None:
    plain, able = (await client.get("/")).text, (await thinking.get("/")).text
    for name in ("enable_thinking", "thinking_budget"):
        assert f'name="s.{name}"' not in plain
        assert f'name="s.{name}"' in able


async def test_deleted_presets_are_listed_and_brought_back_unless_the_name_is_taken(
    client: Any,
) -> None:
    for name in ("a", "b"):
        await client.put(f"/presets/{name}", json={"top_k": 1})
        await client.post("/preset", data={"do": "delete", "name": name, "version": "1"})
    page = await listed(client)
    assert page.index("Bring b back") < page.index("Bring a back")
    await client.put("/presets/a", json={"top_k": 2})
    taken = await client.post("/preset", data={"do": "restore", "name": "a"})
    assert taken.status_code == 409
    assert "There is a preset a by now" in taken.text and "Bring a back" in taken.text
    assert (await client.post("/preset", data={"do": "restore", "name": "b"})).status_code == 303
    assert "Bring b back" not in await listed(client)
    assert (await kept(client, "a"))["top_k"] == 2 and (await kept(client, "b"))["top_k"] == 1
