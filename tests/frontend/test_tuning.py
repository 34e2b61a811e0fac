"""The settings of a chat: what of them reaches the model, and how the page shows and keeps them."""

import re
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from corral.backend.answer_settings import AnswerSettings
from corral.backend.chat.types import ChatRequest, Params
from corral.backend.presets import BUILT_INS, PresetSettings
from corral.backend.store import Message, Tuned
from corral.frontend import knobs, typed
from corral.frontend.asking import to_request
from corral.frontend.tuning import Own, Tuning

HTMX = {"HX-Request": "true"}


def said(role: Any, content: str) -> Message:
    return Message(id=1, conversation_id="c", parent_id=None, role=role, content=content)


def asked(own: Own, preset: str | None = None, *turns: Message) -> ChatRequest:
    tuning = Tuning(own=own, preset=None if preset is None else BUILT_INS[preset], n_vocab=100)
    return to_request(turns or (said("user", "hi"),), None, tuning)


# --- what reaches the model -----------------------------------------------------------------------


def test_only_what_was_set_is_sent() -> None:
    assert asked(Own()).params == Params()
    assert asked(Own(temperature=0.3, stop=["x"])).params == Params(temperature=0.3, stop=("x",))


def test_what_a_chat_leaves_unsaid_comes_from_its_preset_and_nothing_else() -> None:
    request = asked(Own(temperature=0.9, preset="code"), "code")
    assert request.params == Params(temperature=0.9, top_p=0.95, repeat_penalty=1.0)
    assert [(m.role, m.content) for m in request.messages] == [
        ("system", BUILT_INS["code"].system),
        ("user", "hi"),
    ]


def test_a_system_prompt_of_the_chat_takes_the_presets_place_and_an_empty_one_removes_it() -> None:
    mine = asked(Own(system="Be kind."), "code")
    assert [(m.role, m.content) for m in mine.messages] == [("system", "Be kind."), ("user", "hi")]
    assert [m.role for m in asked(Own(system=""), "code").messages] == ["user"]


def test_a_reply_begins_as_it_was_told_and_goes_on_from_there() -> None:
    request = asked(Own(prefix="Roses are"))
    assert [(m.role, m.content) for m in request.messages][-1] == ("assistant", "Roses are")
    assert request.continue_final is True
    on = asked(Own(prefix="Roses are"), None, said("user", "hi"), said("assistant", "Violets"))
    assert [m.content for m in on.messages] == ["hi", "Violets"]


def test_free_text_in_a_chat_lifts_the_shape_that_its_preset_asks_for() -> None:
    assert asked(Own(), "json").params.constraint is not None
    assert asked(Own(response_format={"type": "text"}), "json").params.constraint is None


def test_thinking_is_switched_and_bounded_where_the_template_looks_for_it() -> None:
    request = asked(Own(enable_thinking=False, thinking_budget=7))
    assert (request.template_kwargs, request.thinking_budget) == ({"enable_thinking": False}, 7)
    assert asked(Own()).template_kwargs == {}
    assert asked(Own()).thinking_budget is None


def test_what_a_chat_comes_to_can_be_kept_as_a_preset() -> None:
    own = Own(temperature=0.9, response_format={"type": "text"}, preset="json")
    merged = Tuning(own=own, preset=BUILT_INS["json"]).merged()
    assert merged == PresetSettings(
        temperature=0.9, response_format={"type": "text"}, system=BUILT_INS["json"].system
    )


# --- fields ---------------------------------------------------------------------------------------


def test_every_setting_of_an_answer_has_a_field() -> None:
    named = {*knobs.KNOBS, "response_format", "json_schema", "grammar", "regex", "lark"}
    named |= {"max_completion_tokens", "n_predict"}
    assert set(PresetSettings.__struct_fields__) - named == set()
    assert set(AnswerSettings.__struct_fields__) < set(PresetSettings.__struct_fields__)


@pytest.mark.parametrize(
    "own",
    [
        *BUILT_INS.values(),
        PresetSettings(n_predict=4, stop="a\\\n\tb", logit_bias={"a": False}, samplers="kt"),
        PresetSettings(stop=["", "a\n\nb"], dry_sequence_breakers=["\n", '"'], seed=2**32 - 1),
        PresetSettings(lark="start: /a/", ignore_eos=False, t_max_predict_ms=2**40),
        PresetSettings(json_schema=True, temperature=0.123456789),
        PresetSettings(response_format={"type": "json_schema", "schema": {"type": "null"}}),
    ],
)
def test_what_a_form_shows_unchanged_stays_as_it_was_said(own: PresetSettings) -> None:
    old = Own(**{name: getattr(own, name) for name in own.__struct_fields__})
    again = typed.parse(typed.texts(old), typed.nones(old), old)
    assert (again.own, again.errors) == (old, {})


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("temperature", " 0,7 ", 0.7),
        ("top_k", "-1", -1),
        ("stop", "a\\n\n\nb\\\\n", ["a\n", "b\\n"]),
        ("samplers", "min_p; temperature", ["min_p", "temperature"]),
        ("logit_bias", '{"5": -100}', {"5": -100}),
        ("context_shift", "off", False),
        ("thinking_budget", "0", 0),
    ],
)
def test_what_is_typed_becomes_a_value(name: str, given: str, value: Any) -> None:
    found = typed.parse({name: given}, frozenset(), Own())
    assert found.errors == {}
    assert found.own == Own(**{name: value})


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": "nan"}, "temperature"),
        ({"temperature": "101"}, "temperature"),
        ({"top_p": "1.5"}, "top_p"),
        ({"repeat_penalty": "0"}, "repeat_penalty"),
        ({"top_k": "4.5"}, "top_k"),
        ({"seed": "4294967296"}, "seed"),
        ({"max_tokens": "9" * 40}, "max_tokens"),
        ({"samplers": "min_p;luck"}, "samplers"),
        ({"logit_bias": "{"}, "logit_bias"),
        ({"logit_bias": '{"5": 200}'}, "logit_bias"),
        ({"logit_bias": "5"}, "logit_bias"),
        ({"dry_sequence_breakers": '["' + "x" * 50 + '"]'}, "dry_sequence_breakers"),
        ({"form": "json_schema"}, "form"),
        ({"form": "json_schema", "source": "{"}, "form"),
        ({"form": "json_schema", "source": "5"}, "form"),
        ({"stop": "x" * 1025}, "stop"),
        ({"stop": "x\n" * 65}, "stop"),
        ({"prefix": "x" * 20_000}, "prefix"),
    ],
)
def test_what_cannot_be_is_said_beside_its_field(given: dict[str, str], field: str) -> None:
    assert list(typed.parse(given, frozenset(), Own()).errors) == [field]


# --- pages ----------------------------------------------------------------------------------------


async def begin(client: httpx.AsyncClient, **fields: str) -> str:
    answer = await client.post("/c", data={"text": "Hello", **fields})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def request_of(client: Any) -> ChatRequest:
    """What the model was asked last."""
    (reply,) = client.app.state.site.live._replies.values()
    request: ChatRequest = reply.request
    return request


@pytest.fixture
def requests(client: Any, monkeypatch: pytest.MonkeyPatch) -> list[ChatRequest]:
    """What the model is asked."""
    service, seen = client.app.state.service, []
    chat = service.chat

    async def note(request: ChatRequest) -> Any:
        seen.append(request)
        return await chat(request)

    monkeypatch.setattr(service, "chat", note)
    return seen


async def ended(client: Any) -> None:
    for reply in list(client.app.state.site.live._replies.values()):
        await reply.ended.wait()


async def test_settings_go_along_with_the_first_message_and_hold_for_all_that_follow(
    client: Any, requests: list[ChatRequest]
) -> None:
    at = await begin(
        client, **{"s.preset": "code", "s.temperature": "0,9", "s.system": "Be terse."}
    )
    await ended(client)
    await client.post(f"{at}/messages", data={"text": "And?"})
    await ended(client)
    page = (await client.get(at)).text
    last = re.findall(r'id="m-(\d+)"', page)[-1]
    for what in ("retry", "continue", "ways", "branch"):
        if what == "branch":
            last = re.findall(r'id="m-(\d+)"', page)[-2]
        form = {"text": "Or rather this?", "n": "2"}
        assert (await client.post(f"/m/{last}/{what}", data=form)).status_code == 303
        await ended(client)
        last = re.findall(r'id="m-(\d+)"', (await client.get(at)).text)[-1]
    assert len(requests) == 6
    for request in requests:
        assert request.params == Params(temperature=0.9, top_p=0.95, repeat_penalty=1.0)
        assert request.messages[0].content == "Be terse."


async def test_a_bad_setting_of_a_new_chat_keeps_nothing_and_loses_nothing(client: Any) -> None:
    fields = {"text": "Hello <there>", "s.top_p": "7", "s.system": "Be kind.", "s.preset": "code"}
    answer = await client.post("/c", data=fields)
    assert answer.status_code == 400
    assert "Top-p: From 0 to 1" in answer.text
    assert "Hello &lt;there&gt;" in answer.text
    assert 'value="7"' in answer.text
    assert "Be kind." in answer.text
    assert '<option value="code" selected>' in answer.text
    assert await client.app.state.site.store.list() == []
    quick = await client.post("/c", data=fields, headers=HTMX)
    assert quick.status_code == 400
    assert "Top-p: From 0 to 1" in quick.text


async def test_the_page_says_of_each_field_what_counts_and_where_it_comes_from(
    client: Any,
) -> None:
    at = await begin(client, **{"s.preset": "precise", "s.top_k": "3"})
    page = (await client.get(f"{at}/settings")).text
    fields = re.findall(r'<div class="set [a-z]+" id="set-(\w+)">(.*?)</div>', page, re.DOTALL)
    found = dict(fields)
    assert 'value="3"' in found["top_k"]
    assert "this chat" in found["top_k"]
    assert "Reset Top-k" in found["top_k"]
    assert 'placeholder="0.3"' in found["temperature"]
    assert "preset precise" in found["temperature"]
    assert "Reset" not in found["temperature"]
    assert 'placeholder="1.1"' not in found["temperature"]
    assert 'placeholder="-1"' in found["max_tokens"]
    assert "server default" in found["max_tokens"]


async def test_what_the_models_file_recommends_is_said_to_be_the_models(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = client.app.state.service
    info = replace(service.info, sampling={"temperature": 0.6})
    monkeypatch.setattr(type(service), "info", property(lambda _: info))
    page = (await client.get("/")).text
    found = re.search(r'id="set-temperature">(.*?)</div>', page, re.DOTALL)
    assert found is not None
    assert 'placeholder="0.6"' in found[1]
    assert '<span class="origin">model</span>' in found[1]


async def test_a_field_is_reset_alone(client: Any) -> None:
    at = await begin(client, **{"s.top_k": "3", "s.min_p": "0.2"})
    page = (await client.get(f"{at}/settings")).text
    version = re.search(r'name="version" value="(\d+)"', page)
    assert version is not None
    fields = {"version": version[1], "s.top_k": "3", "s.min_p": "0.2", "reset": "top_k"}
    assert (await client.post(f"{at}/settings", data=fields)).status_code == 303
    tuned = await client.app.state.site.store.tuning(at.removeprefix("/c/"))
    assert tuned.body == b'{"min_p":0.2}'


async def test_a_page_that_is_behind_changes_no_settings_and_keeps_what_was_typed(
    client: Any,
) -> None:
    at = await begin(client)
    ours = {"version": "0", "s.temperature": "0.1", "was": ""}
    assert (await client.post(f"{at}/settings", data=ours)).status_code == 303
    late = {"version": "0", "s.temperature": "0.9", "s.system": "Mine <all> mine", "was": ""}
    answer = await client.post(f"{at}/settings", data=late)
    assert answer.status_code == 409
    assert "These settings were changed elsewhere meanwhile" in answer.text
    assert "Mine &lt;all&gt; mine" in answer.text
    assert 'value="0.9"' in answer.text
    assert answer.text.count("not kept yet") == 2 and ">this chat<" not in answer.text
    store = client.app.state.site.store
    assert (await store.tuning(at[3:])).body == b'{"temperature":0.1}'
    over = re.search(r'name="over" value="(\d+)"', answer.text)
    assert over is not None
    again = await client.post(f"{at}/settings", data={**late, "over": over[1]})
    assert again.status_code == 303
    assert b'"temperature":0.9' in (await store.tuning(at[3:])).body


async def test_beside_a_field_that_is_refused_no_other_claims_to_be_kept(client: Any) -> None:
    at = await begin(client)
    kept = {"version": "0", "s.top_k": "7", "was": ""}
    assert (await client.post(f"{at}/settings", data=kept)).status_code == 303
    bad = {**kept, "version": "1", "s.temperature": "warm", "s.top_p": "0.5"}
    text = (await client.post(f"{at}/settings", data=bad)).text
    said = dict(re.findall(r'id="from-(\w+)">.*?<span class="origin">(.*?)</span>', text))
    assert (said["top_k"], said["top_p"]) == ("this chat", "not kept yet")
    text = (await client.get(f"{at}/settings")).text
    assert "not kept yet" not in text


async def test_a_shape_that_was_only_chosen_asks_for_its_text_and_keeps_the_other_fields(
    client: Any,
) -> None:
    store, words = client.app.state.site.store, "Write what the reply must fit"

    def of_form(html: str) -> str:
        found = re.search(r'id="from-form">(.*?)</p>', html, re.S)
        assert found is not None
        return found[1]

    fresh = {"s.form": "json_schema", "s.source": "", "was": ""}
    answer = await client.post("/settings", data=fresh, headers=HTMX)
    assert answer.status_code == 200 and words in of_form(answer.text)
    assert "bad" not in of_form(answer.text) and 'role="alert"' not in answer.text
    assert (await client.post("/c", data={"text": "Hi", **fresh}, headers=HTMX)).status_code == 400

    at = await begin(client)
    fields = {**fresh, "version": "0", "s.top_k": "7"}
    answer = await client.post(f"{at}/settings", data=fields, headers=HTMX)
    assert answer.status_code == 200 and words in of_form(answer.text)
    assert "bad" not in of_form(answer.text) and 'role="alert"' not in answer.text
    assert await store.tuning(at[3:]) == Tuned(version=1, body=b'{"top_k":7}')
    # A form that is sent as a whole is meant: without script, and by its buttons.
    for more, headers in (({}, {}), ({"do": "keep", "keep_as": "x"}, HTMX)):
        whole = {**fields, "version": "1", **more}
        answer = await client.post(f"{at}/settings", data=whole, headers=headers)
        assert answer.status_code == 400 and f'<span class="bad">{words}' in answer.text
    # From one shape to another the text is the old one's at first; one that was kept and is gone
    # is a mistake.
    kept = {"version": "1", "was": "", "s.form": "regex", "s.source": "[a-z]+"}
    assert (await client.post(f"{at}/settings", data=kept, headers=HTMX)).status_code == 200
    other = {**kept, "version": "2", "s.form": "json_schema"}
    answer = await client.post(f"{at}/settings", data=other, headers=HTMX)
    assert answer.status_code == 200 and words in of_form(answer.text)
    assert (await store.tuning(at[3:])).body == b'{"regex":"[a-z]+"}'
    gone = {**kept, "version": "2", "s.source": " "}
    answer = await client.post(f"{at}/settings", data=gone, headers=HTMX)
    assert answer.status_code == 400 and "bad" in of_form(answer.text)


async def test_a_preset_that_is_gone_is_said_before_anything_is_sent(client: Any) -> None:
    await client.put("/presets/mine", json={"top_k": 1})
    at = await begin(client, **{"s.preset": "mine"})
    await ended(client)
    await client.delete("/presets/mine")
    answer = await client.post(f"{at}/messages", data={"text": "Still here?"})
    assert answer.status_code == 400
    assert "There is no preset “mine” any more" in answer.text
    assert "Still here?" in answer.text
    _, messages = await client.app.state.site.store.get(at[3:])
    assert len(messages) == 2
    assert "mine (deleted)" in (await client.get(f"{at}/settings")).text


async def test_a_fork_has_the_settings_of_what_it_was_made_from(client: Any) -> None:
    at = await begin(client, **{"s.top_k": "3"})
    await ended(client)
    last = re.findall(r'id="m-(\d+)"', (await client.get(at)).text)[-1]
    fork = (await client.post(f"/m/{last}/fork")).headers["location"]
    assert fork != at
    assert (await client.app.state.site.store.tuning(fork[3:])).body == b'{"top_k":3}'


async def test_what_a_chat_sets_can_be_kept_under_a_name(client: Any) -> None:
    at = await begin(client, **{"s.preset": "precise", "s.top_k": "3"})
    fields = {"version": "1", "s.preset": "precise", "s.top_k": "3", "do": "keep"}
    for name, status in (("", 400), ("precise", 400), ("mine", 303)):
        answer = await client.post(f"{at}/settings", data={**fields, "keep_as": name})
        assert answer.status_code == status, name
    mine = (await client.get("/presets/mine")).json()
    assert (mine["temperature"], mine["top_k"]) == (0.3, 3)
    assert (await client.app.state.site.store.tuning(at[3:])).body == b'{"preset":"mine"}'
    again = {**fields, "version": "2", "s.top_k": "4", "keep_as": "mine"}
    answer = await client.post(f"{at}/settings", data=again)
    assert answer.status_code == 400
    assert "There is a preset mine already" in answer.text
    assert (await client.get("/presets/mine")).json() == mine


async def test_what_a_chat_changed_can_be_put_into_its_preset_unless_that_was_changed_too(
    client: Any,
) -> None:
    await client.put("/presets/mine", json={"top_k": 1, "min_p": 0.1})
    at = await begin(client, **{"s.preset": "mine", "s.top_k": "3"})
    page = (await client.get(f"{at}/settings")).text
    assert 'name="of" value="1"' in page
    assert "Put these into mine" in page
    fields = {"s.preset": "mine", "s.top_k": "3", "do": "update", "of": "1", "version": "1"}
    assert (await client.post(f"{at}/settings", data=fields)).status_code == 303
    mine = (await client.get("/presets/mine")).json()
    assert (mine["top_k"], mine["min_p"], mine["version"]) == (3, 0.1, 2)
    assert (await client.app.state.site.store.tuning(at[3:])).body == b'{"preset":"mine"}'
    late = {**fields, "s.top_k": "4", "version": "2"}
    answer = await client.post(f"{at}/settings", data=late)
    assert answer.status_code == 400
    assert "The preset mine was changed elsewhere meanwhile" in answer.text
    assert 'value="4"' in answer.text
    # What was typed is this chat's by then, and the form goes on from there.
    again = re.search(r'name="version" value="(\d+)"', answer.text)
    assert again is not None
    more = {**late, "version": again[1], "do": "keep", "keep_as": "mine 2"}
    assert (await client.post(f"{at}/settings", data=more)).status_code == 303
    assert (await client.get("/presets/mine 2")).json()["top_k"] == 4


async def test_a_reply_shows_how_it_was_told_to_begin(client: Any) -> None:
    at = await begin(client, **{"s.prefix": "Roses are"})
    await ended(client)
    _, messages = await client.app.state.site.store.get(at[3:])
    assert messages[-1].content.startswith("Roses are")


async def test_a_page_that_is_behind_says_so_beside_a_field_that_is_wrong(client: Any) -> None:
    at = await begin(client)
    ours = {"version": "0", "s.temperature": "0.1", "was": ""}
    assert (await client.post(f"{at}/settings", data=ours)).status_code == 303
    late = {"version": "0", "s.top_k": "9", "s.top_p": "x", "was": ""}
    answer = await client.post(f"{at}/settings", data=late, headers=HTMX)
    assert answer.status_code == 409
    assert "changed elsewhere meanwhile" in answer.text and 'name="over" value="1"' in answer.text
    assert '<span class="bad">' in answer.text
    over = await client.post(f"{at}/settings", data={**late, "over": "1"}, headers=HTMX)
    assert over.status_code == 400 and 'name="over"' not in over.text
