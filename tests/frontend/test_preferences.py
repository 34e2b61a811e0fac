"""A browser's language and colours: chosen on a page, kept in its cookies."""

import pytest
from httpx import AsyncClient as Client


async def test_a_chosen_language_goes_before_the_browsers(client: Client) -> None:
    german = {"accept-language": "de-DE"}
    assert '<html lang="de">' in (await client.get("/preferences", headers=german)).text
    answer = await client.post("/preferences", data={"language": "en", "theme": ""})
    assert answer.status_code == 303 and answer.headers["location"] == "/preferences"
    page = (await client.get("/preferences", headers=german)).text
    assert '<html lang="en">' in page
    assert 'value="en" checked' in page


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_chosen_colours_are_on_every_page(client: Client, theme: str) -> None:
    await client.post("/preferences", data={"language": "", "theme": theme})
    for path in ("/", "/status", "/no-such-page"):
        text = (await client.get(path, headers={"accept": "text/html"})).text
        assert f'data-theme="{theme}"' in text and f'name="color-scheme" content="{theme}"' in text


@pytest.mark.parametrize("bad", ["", "xx", "../de", '"><script>', "a" * 5000])
async def test_what_is_unknown_follows_the_browser(client: Client, bad: str) -> None:
    await client.post("/preferences", data={"language": "de", "theme": "dark"})
    await client.post("/preferences", data={"language": bad, "theme": bad})
    text = (await client.get("/")).text
    assert '<html lang="en">' in text and "data-theme" not in text


async def test_cookies_of_others_making_change_nothing(client: Client) -> None:
    cookies = {"cookie": "language=xx; theme=red"}
    text = (await client.get("/", headers=cookies)).text
    assert '<html lang="en">' in text and "data-theme" not in text
