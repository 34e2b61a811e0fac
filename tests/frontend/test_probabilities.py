"""How likely the tokens of a reply were, and replies that go on from another one."""

import html
import math
import re
import sys
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from corral.backend.__main__ import embedded_model
from corral.backend.engine.messages import TokenProbs
from corral.backend.settings import Settings
from corral.frontend import likely, traces
from corral.frontend.traces import Said

#: See ``conftest``.
Client: TypeAlias = Any


async def act(client: Client, path: str, **form: Any) -> str:
    """A plain form, and all replies to their end; where it leads."""
    answer = await client.post(path, data=form, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    for reply in list(client.app.state.site.live._replies.values()):
        await reply.ended.wait()
    return str(answer.headers["location"])


async def shown(client: Client, path: str) -> list[str]:
    id = path.split("/")[2].split("#")[0]
    return [m.content for m in (await client.app.state.site.store.get(id))[1]]


def entry(text: str | bytes, *others: str | bytes, logprob: float = -0.1) -> TokenProbs:
    """A token and those in its place, itself the first of them."""
    pieces = [t.encode() if isinstance(t, str) else t for t in (text, *others)]
    top = [(i, piece, logprob - i) for i, piece in enumerate(pieces)]
    return TokenProbs(0, pieces[0], logprob, top)


def said(*probs: TokenProbs, content: str | None = None, before: str = "") -> Said:
    text = b"".join(p.piece for p in probs).decode() if content is None else content
    return Said(tokens=[0] * len(probs), probs=list(probs), seed=1, content=text, before=before)


def test_the_text_is_that_up_to_the_token_and_the_other_one() -> None:
    answer = said(entry("The"), entry(" cat", " dog"), entry(" sat"), before="So: ")
    assert likely.picked(answer, "1.1", ()) == "So: The dog"
    assert likely.picked(answer, "0.0", ()) == "So: The"


@pytest.mark.parametrize(
    "pick", ["", "1", "1.2", "9.0", "-1.0", "1.-1", "x.y", "1.1.1", "²" + ".0"]
)
def test_a_place_that_is_not_there_has_no_text(pick: str) -> None:
    assert likely.picked(said(entry("a"), entry("b", "c")), pick, ()) is None


def test_nothing_goes_on_within_a_character_from_reasoning_or_from_a_control_token() -> None:
    euro = "€".encode()
    answer = said(entry(euro[:1]), entry(euro[1:], b"\x81\xac"), entry("x", "<|end|>"))
    assert likely.picked(answer, "1.1", ()) == b"\xe2\x81\xac".decode()
    assert likely.picked(answer, "1.0", ()) == "€"
    assert likely.picked(said(entry("a"), entry("b", euro[:2])), "1.1", ()) is None
    assert likely.picked(answer, "2.1", {"<|end|>"}) is None
    thought = said(
        entry("<think>"), entry("so"), entry("</think>"), entry("Yes", "No"), content="Yes"
    )
    assert likely.picked(thought, "1.0", ()) is None
    assert likely.picked(thought, "3.1", ()) == "No"


def test_a_blank_that_begins_an_answer_is_no_part_of_it() -> None:
    answer = said(entry(" Yes", " No"), entry("!"), content="Yes!")
    assert likely.picked(answer, "0.1", ()) == "No"
    assert likely.picked(answer, "1.0", ()) == "Yes!"


@pytest.mark.parametrize(
    ("chance", "level"), [(1.0, 1), (0.9, 1), (0.89, 2), (0.5, 3), (0.1, 4), (0.09, 5), (0.0, 5)]
)
def test_there_are_five_classes(chance: float, level: int) -> None:
    assert likely.level(chance) == level


def test_perplexity_of_a_coin_is_two() -> None:
    assert likely.perplexity([entry("a", logprob=math.log(0.5))] * 3) == pytest.approx(2)


async def test_probabilities_are_kept_only_when_they_are_asked_for(client: Client) -> None:
    await act(client, "/c", text="one")
    page = (await client.get("/probabilities/2")).text
    assert "No probabilities are kept of this reply." in page and "Keep them from now on" in page
    where = await act(client, "/probabilities", keep="on", message="2")
    assert where == "/probabilities/2" and client.cookies["probabilities"] == "on"
    assert "Stop keeping them" in (await client.get(where)).text
    await act(client, "/m/2/retry")
    page = (await client.get("/probabilities/3")).text
    # The fake says what was said to it, a byte at a time.
    assert re.findall(r'id="t-(\d+)"', page) == ["0", "1", "2"]
    assert "perplexity" in page
    await act(client, "/probabilities", keep="off", message="3")
    await act(client, "/m/3/retry")
    assert "No probabilities are kept" in (await client.get("/probabilities/4")).text


async def test_a_reply_goes_on_from_another_token(client: Client) -> None:
    client.cookies.set("probabilities", "on")
    path = await act(client, "/c", text="one")
    fragment = (await client.get("/probabilities/2/2")).text
    pick = re.search(r'name="pick" value="(2\.\d+)"', fragment)
    assert pick and 'name="version" value="1"' in fragment
    where = await act(client, "/m/2/alternative", pick=pick[1], version=1)
    assert where.startswith(path)
    content = (await shown(client, path))[-1]
    other = re.search(r'aria-label="Continue from this alternative: (.)"', fragment)
    assert other and content.startswith("on" + other[1]) and content != "one"
    # The first reply is still there.
    assert (await client.app.state.site.store.message(2)).content == "one"
    kept = await traces.kept(client.app.state.site.store, 3)
    assert kept is not None and kept.said is not None and kept.said.before == "on" + other[1]
    assert kept.sent.prompt.text.endswith("on" + other[1]), "the model goes on from there"


async def test_a_page_that_is_behind_starts_nothing(client: Client) -> None:
    client.cookies.set("probabilities", "on")
    path = await act(client, "/c", text="one")
    await act(client, "/m/2/edit", text="two", version=1)
    late = await client.post("/m/2/alternative", data={"pick": "2.1", "version": "1"})
    assert late.status_code == 409
    wrong = await client.post("/m/2/alternative", data={"pick": "0.9", "version": "2"})
    assert wrong.status_code == 400
    assert len(await shown(client, path)) == 2
    assert len(await client.app.state.site.store.tree(path.split("/")[2])) == 2


async def test_a_long_answer_has_pages(client: Client) -> None:
    client.cookies.set("probabilities", "on")
    await act(client, "/c", text="x" * (likely.PAGE + 5))
    first = (await client.get("/probabilities/2")).text
    assert first.count('id="t-') == likely.PAGE and f"?from={likely.PAGE}" in first
    second = (await client.get(f"/probabilities/2?from={likely.PAGE}")).text
    assert second.count('id="t-') == 5 and f'id="t-{likely.PAGE}"' in second
    far = (await client.get("/probabilities/2?from=99999")).text
    assert far.count('id="t-') == 5
    assert (await client.get("/probabilities/2/99999")).status_code == 404
    assert (await client.get("/probabilities/1")).status_code == 400


#: A template that shows the reasoning of the last reply only.
THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


async def test_what_goes_on_behind_reasoning_keeps_it(tmp_path: Path) -> None:
    settings = Settings(fake=True, data_dir=tmp_path, n_ctx=1024, chat_template=THINKS)
    async for client in conftest().open_client(settings):
        client.cookies.set("probabilities", "on")
        # The fake says what it is told.
        await act(client, "/c", text="<think>why</think>yes")
        store = client.app.state.site.store
        first = await store.message(2)
        assert (first.reasoning, first.content) == ("why", "yes")
        within = await client.get("/probabilities/2/8")
        assert "not in the text" in within.text and 'name="pick"' not in within.text
        pick = re.search(r'value="(\d+\.\d+)"', (await client.get("/probabilities/2/19")).text)
        assert pick
        await act(client, "/m/2/alternative", pick=pick[1], version=1)
        made, kept = await store.message(3), await traces.kept(store, 3)
        assert made.reasoning == "why" and made.content[0] == "y" and made.content != "yes"
        assert kept is not None
        assert kept.sent.prompt.text.endswith(f"<think>why</think>{made.content[:2]}")


async def test_reasoning_that_is_left_out_later_is_where_prompts_part(tmp_path: Path) -> None:
    settings = Settings(fake=True, data_dir=tmp_path, n_ctx=1024, chat_template=THINKS)
    async for client in conftest().open_client(settings):
        path = await act(client, "/c", text="<think>why</think>yes")
        await act(client, f"{path}/messages", text="two")
        page = html.unescape((await client.get("/inspect/4")).text)
        assert re.search(r"its prompt and 0 of the \d+ tokens of its answer\. Then here", page)
        assert "Then here is “yes<|im_end|>" in page and "there was “<think>why" in page


def conftest() -> Any:
    """The module that pytest has loaded beside this one."""
    return sys.modules[f"{__name__.rpartition('.')[0]}.conftest".lstrip(".")]


@pytest.mark.model
async def test_the_real_model_goes_on_from_exactly_that_text(tmp_path: Path) -> None:
    model = embedded_model()
    assert model is not None, "make setup installs the embedded model"
    settings = Settings(
        model=model, n_ctx=1024, n_threads=1, data_dir=tmp_path, temperature=0, max_tokens=16
    )
    async for client in conftest().open_client(settings):
        client.cookies.set("probabilities", "on")
        await act(client, "/c", text="Name the capital of France in one short sentence.")
        store = client.app.state.site.store
        first = await traces.kept(store, 2)
        assert first is not None and first.said is not None
        answer = first.said
        assert (await store.message(2)).content == b"".join(p.piece for p in answer.probs).decode()
        # The third token, and the second likeliest in its place.
        k = next(k for k, (id, _, _) in enumerate(answer.probs[2].top) if id != answer.tokens[2])
        other = answer.probs[2].top[k][1]
        wanted = (b"".join(p.piece for p in answer.probs[:2]) + other).decode()
        await act(client, "/m/2/alternative", pick=f"2.{k}", version=1)
        made = await store.message(3)
        second = await traces.kept(store, 3)
        assert second is not None and second.sent.prompt.text.endswith(wanted)
        assert made.content.startswith(wanted) and len(made.content) > len(wanted)
        assert made.parent_id == 1
