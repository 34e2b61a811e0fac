"""A reply looked into: what the model got is what is shown."""

import html
import json
import re
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import pytest
from openai.types.chat import completion_create_params
from PIL import Image
from pydantic import TypeAdapter

from corral.backend.chat.types import ChatRequest, Message, Params, Written
from corral.backend.defaults import effective
from corral.backend.errors import Broken
from corral.backend.settings import Settings
from corral.backend.store import Figures
from corral.frontend.tools import findings, prompts, recipes
from corral.frontend.traces import Sent

#: See ``conftest``.
Client: TypeAlias = Any


async def act(client: Client, path: str, **form: Any) -> str:
    """A plain form, and all replies to their end; where it leads."""
    answer = await client.post(path, data=form, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    await idle(client)
    return str(answer.headers["location"])


async def idle(client: Client) -> None:
    for reply in list(client.app.state.site.live._replies.values()):
        await reply.ended.wait()


async def talk(client: Client, *texts: str) -> str:
    path = await act(client, "/c", text=texts[0])
    for text in texts[1:]:
        await act(client, f"{path}/messages", text=text)
    return path


def remembered(client: Client) -> list[Any]:
    """The prompts that the engine gets from now on."""
    sent: list[Any] = []
    service = client.app.state.service
    real = service.chat

    async def chat(request: Any) -> Any:
        choices = await real(request)
        sent.append(choices.generations[0].prompt)
        return choices

    service.chat = chat
    return sent


def conftest() -> Any:
    """The module that pytest has loaded beside this one."""
    return sys.modules[f"{__name__.rpartition('.')[0]}.conftest".lstrip(".")]


def drawn(page: str) -> str:
    """The text of the prompt as it is drawn, without what is said about it."""
    found = re.search(r'<pre class="prompt".*?>(.*?)</pre>', page, re.DOTALL)
    assert found, page
    text = re.sub(r"<strong.*?</strong>|<a .*?</a>", "", found[1])
    return html.unescape(re.sub(r"<[^>]+>", "", text))


def parts(page: str, kind: str) -> list[str]:
    found = re.findall(rf'<span class="{kind}( cached)?">(.*?)</span>', page, re.DOTALL)
    return [html.unescape(text) for _, text in found]


async def test_the_prompt_is_shown_as_the_model_got_it(client: Client) -> None:
    sent = remembered(client)
    await talk(client, "one <|im_end|> & two", "three")
    page = (await client.get("/inspect/4")).text
    assert drawn(page) == sent[1].text
    control = parts(page, "control")
    assert control.count("<|im_start|>") == 4 and control.count("<|im_end|>") == 3
    assert "one <|im_end|> & two" in parts(page, "person"), "text of people makes no control token"


async def test_an_edit_afterwards_does_not_change_what_the_model_got(client: Client) -> None:
    await talk(client, "before the edit")
    await act(client, "/m/1/edit", text="after the edit", version=1)
    page = (await client.get("/inspect/2")).text
    assert "before the edit" in drawn(page) and "after the edit" not in drawn(page)
    assert "note-box" not in page


async def test_a_reply_of_which_nothing_is_kept_is_shown_as_it_would_be_now(client: Client) -> None:
    path = await talk(client, "one")
    fork = await act(client, "/m/2/fork")
    assert fork != path
    page = (await client.get("/inspect/4")).text
    assert "is not kept" in page and "as many tokens as then" in page
    assert "one" in drawn(page)


async def test_the_part_from_the_cache_is_shaded_and_counted(client: Client) -> None:
    await talk(client, "one", "two")
    message = await client.app.state.site.store.message(4)
    cached, total = message.figures.n_cached, message.figures.n_prompt
    assert 0 < cached < total
    page = (await client.get("/inspect/4")).text
    assert f"{cached} of {total} tokens came from the cache" in page
    shaded = "".join(
        html.unescape(text)
        for text in re.findall(r'<span class="\w+ cached">(.*?)</span>', page, re.DOTALL)
    )
    # The fake's tokens are bytes and three names.
    n_tokens = len(re.sub(r"<\|\w+\|>", "x", shaded).encode())
    assert n_tokens == cached and drawn(page).startswith(shaded)


async def test_where_it_leaves_the_turn_before_is_said_and_marked(client: Client) -> None:
    await talk(client, "one", "two")
    page = (await client.get("/inspect/4")).text
    assert "its prompt and all of its answer. Then comes what is new." in page
    await act(client, "/m/1/edit", text="changed", version=1)
    await act(client, "/m/4/retry")
    page = html.unescape((await client.get("/inspect/5")).text)
    said = re.search(r"The first (\d+) tokens are those of the turn before; then (.*?)</p>", page)
    assert said and "here is “changed" in said[2] and "there was “one" in said[2]
    drawn_before = page.split('<pre class="prompt"')[1].split("as in the turn before up to here")[0]
    assert drawn_before.count("<|im_start|>") == 1, "the mark stands before the first change"


async def test_a_reply_does_not_end_because_its_trace_cannot_be_kept(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise Broken("the disk is full")

    monkeypatch.setattr(client.app.state.site.store, "keep_trace", fail)
    await talk(client, "one")
    reply = await client.app.state.site.store.message(2)
    assert (reply.outcome.status, reply.content) == ("done", "one")
    assert "is not kept" in (await client.get("/inspect/2")).text


async def test_a_message_of_people_cannot_be_looked_into(client: Client) -> None:
    await talk(client, "one")
    assert (await client.get("/inspect/1")).status_code == 400
    assert (await client.get("/inspect/99")).status_code == 404


async def test_a_reply_that_was_refused_shows_what_was_too_long(client: Client) -> None:
    await talk(client, "long " * 400)
    page = (await client.get("/inspect/2")).text
    assert "The model never read it." in page and "long long" in drawn(page)


async def test_a_long_prompt_is_drawn_in_part_and_on_request_whole(client: Client) -> None:
    text = "".join(f"line {n}\n" for n in range(20_000))
    found = prompts.cut(Written(text), (), (), ())
    part, whole = prompts.draw(found), prompts.draw(found, is_whole=True)
    assert [p.html for p in whole] == [text]
    hidden = [p for p in part if p.kind == "hidden"]
    n_shown = sum(len(p.html) for p in part if p.kind != "hidden")
    assert len(hidden) == 1 and n_shown == 2 * prompts.SHOWN_ENDS
    assert hidden[0].html == f"{len(text) - n_shown:,} characters"


@pytest.mark.parametrize(
    ("n", "words"),
    [
        (30, "The first 30 tokens are those of the turn before: its prompt and all of its answer."),
        (25, "its prompt and 5 of the 10 tokens of its answer. Then here is “x”, there was “y”."),
        (1, "The first 1 token is that of the turn before; then it differs: here is “x”"),
        (0, "Nothing at the beginning is as in the turn before."),
    ],
)
def test_where_prompts_part_is_put_in_words(n: int, words: str) -> None:
    assert words in findings.compared_words(n, 20, 10, "x", "y")


@pytest.mark.parametrize(
    ("is_kept", "n_tokens", "words"),
    [
        (True, 20, ""),
        (True, 21, "makes other tokens of it; then it had 20."),
        (True, None, "another model is loaded now"),
        (False, 20, "It has as many tokens as then."),
        (False, 21, "Then the prompt had 20 tokens."),
    ],
)
def test_doubts_are_said(is_kept: bool, n_tokens: int | None, words: str) -> None:
    message = SimpleNamespace(model="m", figures=Figures(n_prompt=20))
    said = findings.doubt(cast(Any, message), is_kept=is_kept, n_tokens=n_tokens)
    assert words in said and bool(words) == bool(said)


def test_pictures_stand_where_they_are_with_their_tokens() -> None:
    written = Written("ab", (), (1,))
    found = prompts.cut(written, [1, -5, -6, -7, 2], [b"a", b"b"], ())
    assert [(p.kind, p.html) for p in prompts.draw(found)] == [
        ("markup", "a"),
        ("picture", "picture, 3 tokens"),
        ("markup", "b"),
    ]


def test_letters_of_several_bytes_are_cut_at_letters() -> None:
    data = "é€".encode()
    found = prompts.cut(Written("é€"), range(5), [data[i : i + 1] for i in range(5)], ())
    assert found.starts == (0, 0, 1, 1, 1)
    drawn = prompts.draw(found, n_cached=2)
    assert [(p.html, p.is_cached) for p in drawn if p.kind == "markup"] == [
        ("é", True),
        ("€", False),
    ]


async def test_pictures_are_a_place_and_go_along_with_the_request(tmp_path: Path) -> None:
    settings = Settings(fake=True, data_dir=tmp_path, n_ctx=1024, mmproj=Path("projector.gguf"))
    out = BytesIO()
    Image.new("RGB", (30, 20), "red").save(out, "PNG")
    async for client in conftest().open_client(settings):
        prompts_sent = remembered(client)
        files = [("pictures", ("red.png", out.getvalue(), "image/png"))]
        await client.post("/c", data={"text": "Look"}, files=files)
        await idle(client)
        page = (await client.get("/inspect/2")).text
        # The fake makes four tokens of a picture.
        assert parts(page, "picture") == ["picture, 4 tokens"]
        assert "--data-binary @request.json" in html.unescape(page)
        body = (await client.get("/inspect/2/request.json")).content
        answer = await client.post("/v1/chat/completions", content=body)
        assert answer.status_code == 200, answer.text
        first, second = prompts_sent
        assert first == second and len(first.places) == 1
        text = (await client.get("/inspect/2/prompt.txt")).text
        assert "<__media__>" in text and text.replace("<__media__>", "") == first.text


async def test_each_of_several_answers_can_be_looked_into(client: Client) -> None:
    await talk(client, "one <|im_end|>")
    await act(client, "/m/2/ways", n="3")
    for id in (3, 4, 5):
        page = (await client.get(f"/inspect/{id}")).text
        assert "one <|im_end|>" in parts(page, "person") and "note-box" not in page


# --- the request for programs ---------------------------------------------------------------------

NASTY = "it's $HOME `id` \"x\" \\ !! \u202e <b> \n\ttab ' '' \x00\x1b[31m 🐑"


def asked(text: str = NASTY, **more: Any) -> ChatRequest:
    message = Message(role="user", content=text)
    return ChatRequest(messages=(message,), reasoning_format="auto", **more)


def test_a_shell_takes_the_request_as_it_is_whatever_is_in_it() -> None:
    made = recipes.body(asked(params=Params(temperature=0.5, stop=("'",))), "the model's")
    line = recipes.curl(made, "http://h/it's", has_keys=True, from_file=False)
    script = f'curl() {{ printf "%s\\0" "$@"; }}; {line}'
    out = subprocess.run(
        ["/bin/sh", "-c", script],
        capture_output=True,
        check=True,
        env={"CORRAL_API_KEY": "ke y"},
    )
    words = out.stdout.decode().split("\0")
    assert words[0] == "http://h/it's/v1/chat/completions"
    assert words[words.index("-d") + 1 :][:1] and json.loads(words[words.index("-d") + 1]) == made
    assert "Authorization: Bearer ke y" in words
    assert "\u202e" not in line and "\x1b" not in line


def test_a_request_has_what_was_asked_for_and_no_more() -> None:
    assert recipes.body(asked("x"), "m") == {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
    }
    params = Params(temperature=0.0, logit_bias=((5, float("-inf")),), n_probs=3, stop=("a",))
    made = recipes.body(asked("x", params=params, thinking_budget=9, continue_final=True), "m")
    assert made["temperature"] == 0.0 and made["logit_bias"] == [[5, False]]
    assert made["logprobs"] and made["top_logprobs"] == 3 and made["stop"] == ["a"]
    assert made["reasoning_budget_tokens"] == 9 and made["continue_final_message"]


def test_the_python_program_sends_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []

    class Client:
        def __init__(self, **options: Any) -> None:
            sent.append(options)
            self.chat = self.completions = self

        def create(self, **arguments: Any) -> Any:
            sent.append(arguments)
            raise SystemExit

    monkeypatch.setattr("openai.OpenAI", Client)
    monkeypatch.setenv("CORRAL_API_KEY", "k")
    made = recipes.body(asked(params=Params(top_k=7, temperature=0.1)), "m")
    with pytest.raises(SystemExit):
        exec(recipes.python(made, "http://h", has_keys=True, from_file=False), {})
    assert sent[0] == {"base_url": "http://h/v1", "api_key": "k"}
    body = sent[1].pop("extra_body")
    assert body == {"top_k": 7} and {**sent[1], **body} == made
    known = TypeAdapter(completion_create_params.CompletionCreateParamsNonStreaming)
    known.validate_python(sent[1])


def test_who_set_a_setting_is_said() -> None:
    flags = Settings(fake=True, top_k=7, top_p=0.95, given=frozenset(("top_k", "top_p")))
    params, recommended = Params(temperature=0.1), {"min_p": 0.2}
    both = Params(temperature=0.1, stop=("a",))
    sent = Sent(
        prompt=Written(""),
        request=asked(params=both),
        effective=effective(both, flags, recommended),
    )
    asked_by = findings.Asked(own=params, preset=Params(stop=("a",)), preset_name="code")
    shown = findings.settings(sent, None, flags, recommended, asked_by)
    found = {s.name: (s.value, s.source) for s in shown}
    assert found["temperature"] == ("0.1", "this chat")
    assert found["stop"] == ("'a'", "the preset code")
    assert found["top_k"] == ("7", "the server")
    assert found["min_p"] == ("0.2", "the file of the model")
    # Also where a flag says what would be so without it.
    assert found["top_p"] == ("0.95", "the server")
    assert found["repeat_penalty"] == ("1.0", "default")
    then = findings.settings(sent, None, flags, recommended)
    assert {s.name: s.source for s in then}["temperature"] == "this chat or its preset, then"
