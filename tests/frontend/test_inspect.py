"""A reply looked into: what the model got is what is shown."""

import html
import re
from typing import Any, TypeAlias

from corral.backend.chat.types import Written
from corral.frontend.tools import prompts

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
    sent: list[Any] = []
    service = client.app.state.service
    real = service.chat

    async def chat(request: Any) -> Any:
        choices = await real(request)
        sent.append(choices.generations[0].prompt)
        return choices

    service.chat = chat
    await talk(client, "one <|im_end|> & two", "three")
    page = (await client.get("/inspect/4")).text
    assert drawn(page) == sent[1].text
    control = parts(page, "control")
    assert control.count("<|im_start|>") == 4 and control.count("<|im_end|>") == 3
    assert "one <|im_end|> & two" in parts(page, "person"), "text of people makes no control token"
    # The fake's tokens are bytes, but for control tokens.
    assert "Nothing is" not in page
