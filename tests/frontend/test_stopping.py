"""Ending what runs: the reasoning of a reply, and a reply from anywhere."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from corral.backend.settings import Settings

#: See ``conftest``.
Client: TypeAlias = Any
HTMX = {"hx-request": "true"}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BUTTON = "End thinking now"


@pytest.fixture
async def thinking(client_of: Any, tmp_path: Path) -> AsyncIterator[Client]:
    settings = Settings(fake=True, data_dir=tmp_path, n_ctx=1024, chat_template=TEMPLATE)
    async for client in client_of(settings):
        yield client


async def held(client: Client, text: str, n_generated: int) -> tuple[str, Any]:
    """A conversation whose reply stands still after so many tokens, and that reply."""
    await client.app.state.service.control({"hold": "decode", "after": n_generated})
    answer = await client.post("/c", data={"text": text}, follow_redirects=False)
    reply = client.app.state.site.live.get(2)
    while reply.timings is None or reply.timings.n_generated < n_generated:
        await reply.changed(reply.version, 5)
    return answer.headers["location"], reply


async def test_reasoning_has_a_button_that_ends_it_while_it_lasts(
    thinking: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "<think>Let me see what this is.</think>So it is."
    path, reply = await held(thinking, text, 20)
    service = thinking.app.state.service
    asked: list[int] = []

    async def end(generation_id: int) -> bool:
        asked.append(generation_id)
        return True

    assert BUTTON in (await thinking.get(path)).text
    monkeypatch.setattr(service, "end_thinking", end)
    assert (await thinking.post("/g/2/end-thinking", headers=HTMX)).status_code == 204
    assert asked == [reply.generation.id]
    await service.control({"hold": "decode", "after": len(text) - 2})
    while reply.answer.is_thinking:
        await reply.changed(reply.version, 5)
    assert BUTTON not in (await thinking.get(path)).text
    await service.control({"hold": None})
    await reply.ended.wait()
    # One that has ended is no error, and a form without script leads back.
    late = await thinking.post("/g/2/end-thinking", follow_redirects=False)
    assert (late.status_code, late.headers["location"], len(asked)) == (303, path, 1)
    assert (await thinking.post("/g/9/end-thinking")).status_code == 404


async def test_a_reply_can_be_stopped_from_the_status_page_and_from_the_list(
    client: Client,
) -> None:
    path, reply = await held(client, "Stopped from elsewhere", 4)
    status = (await client.get("/status/now")).text
    assert f'href="{path}"' in status and 'action="/g/2/stop"' in status
    assert "Stopped from" not in status
    label = "Stop the reply in Stopped from elsewhere"
    assert label in (await client.get("/")).text and label not in (await client.get(path)).text
    answer = await client.post("/g/2/stop", data={"row": "1"}, headers=HTMX)
    assert (answer.status_code, answer.text) == (200, "")
    await client.app.state.service.control({"hold": None})
    await reply.ended.wait()
    assert 'action="/g/2/stop"' not in (await client.get("/status/now")).text
    assert label not in (await client.get("/")).text
