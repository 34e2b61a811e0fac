"""One prompt with several settings: what is asked for, what is refused, what is kept."""

import re
from typing import Any, TypeAlias

from corral.frontend.tuning import Own, read

#: See ``conftest``.
Client: TypeAlias = Any

FORM = {
    "text": "Name a colour",
    "c1.preset": "precise",
    "c2.temperature": "1.5",
    "c2.seed": "7",
    "c3.used": "1",
    "c3.system": "Be brief.",
    "c4.temperature": "0.1",
    "seeds": "same",
}


async def idle(client: Client) -> None:
    for reply in list(client.app.state.site.live._replies.values()):
        await reply.ended.wait()


def listen(client: Client) -> list[Any]:
    """The requests that are made from now on."""
    sent: list[Any] = []
    live = client.app.state.site.live
    start = type(live).start_all

    def noted(messages: Any, request: Any) -> Any:
        sent.append(request)
        return start(live, messages, request)

    live.start_all = noted
    return sent


async def ask(client: Client, **form: Any) -> tuple[str, list[Any]]:
    """Where it leads, and the requests that were made."""
    sent = listen(client)
    answer = await client.post("/compare", data={**FORM, **form}, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    await idle(client)
    return answer.headers["location"], sent


async def test_every_column_is_asked_for_with_its_own_settings(client: Client) -> None:
    where, sent = await ask(client)
    params = [r.params for r in sent]
    assert [p.temperature for p in params] == [0.3, 1.5, None]
    assert [r.messages[0].role for r in sent] == ["user", "user", "system"]
    assert params[0].seed == params[2].seed != 7 and params[1].seed == 7
    page = (await client.get(where)).text
    assert re.findall(r'class="about">([^<]*)<', page) == [
        "precise",
        "Temperature 1.5 · Seed 7",
        "System prompt",
    ]
    assert page.count(">Name a colour</p>") == 3


async def test_seeds_are_drawn_for_each_when_they_are_not_to_be_the_same(client: Client) -> None:
    _, sent = await ask(client, seeds="own")
    assert [r.params.seed for r in sent] == [None, 7, None]


async def test_the_form_comes_back_as_it_was_sent(client: Client) -> None:
    where, _ = await ask(client)
    page = (await client.get(where)).text
    assert "Name a colour</textarea>" in page and "Be brief.</textarea>" in page
    assert 'name="c2.temperature" value="1.5"' in page
    assert 'name="c3.used" value="1" checked' in page
    assert 'name="c4.used" value="1" autocomplete' in page
    assert 'name="c4.temperature" value=""' in page


async def test_the_one_kept_goes_on_with_its_settings_and_the_others_are_branches(
    client: Client,
) -> None:
    where, _ = await ask(client)
    id = where.split("/")[2].split("?")[0]
    kept = await client.post("/m/3/keep", follow_redirects=False)
    assert kept.headers["location"] == f"/c/{id}#m-3"
    store = client.app.state.site.store
    assert read((await store.tuning(id)).body) == Own(temperature=1.5, seed=7)
    assert "Alternative 2 of 3" in (await client.get(f"/c/{id}")).text
    after = await client.get(where, follow_redirects=False)
    assert after.status_code == 303 and after.headers["location"] == f"/c/{id}"


async def test_an_answer_is_asked_for_again_with_the_settings_it_had(client: Client) -> None:
    where, sent = await ask(client)
    del sent[:]
    await client.post("/m/3/retry", follow_redirects=False)
    await idle(client)
    assert [r.params.temperature for r in sent] == [1.5]
    page = (await client.get(where)).text
    assert page.count(">Temperature 1.5 · Seed 7<") == 2


async def test_an_earlier_conversation_is_gone_on_from_in_a_copy(client: Client) -> None:
    path = (await client.post("/c", data={"text": "one"}, follow_redirects=False)).headers[
        "location"
    ]
    await idle(client)
    where, sent = await ask(client, **{"from": path.split("/")[2]})
    assert [m.content for m in sent[1].messages] == ["one", "one", "Name a colour"]
    store = client.app.state.site.store
    assert len((await store.get(path.split("/")[2]))[1]) == 2
    assert where.split("/")[2].split("?")[0] != path.split("/")[2]


async def test_what_cannot_be_used_is_refused_beside_its_field_and_nothing_is_kept(
    client: Client,
) -> None:
    before = len(await client.app.state.site.store.list())
    for form, words in (
        ({"text": "  "}, "Write a prompt first"),
        ({"c2.top_p": "1.5"}, "Some settings cannot be used"),
        ({"c1.preset": "gone"}, "Some settings cannot be used"),
    ):
        answer = await client.post("/compare", data={**FORM, **form})
        assert answer.status_code == 400 and words in answer.text
        assert 'name="c2.seed" value="7"' in answer.text
    assert len(await client.app.state.site.store.list()) == before
