"""A server below a path, and one without its pages."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from corral.backend.app import create_app
from corral.backend.pool import Pool
from corral.backend.service import Service
from corral.backend.settings import Settings

HTML = {"Accept": "text/html"}


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the whole application, pages and all."""
    chosen = Settings(fake=True, n_ctx=1024, **settings)
    service = Service(chosen, Pool(chosen))
    app = create_app(chosen, service)
    up, done = asyncio.Event(), asyncio.Event()

    async def live() -> None:
        # In one task from start to end, as a server does it.
        async with app.lifespan():
            up.set()
            await done.wait()

    task = asyncio.create_task(live())
    await up.wait()
    await service.until_loaded()
    transport = httpx.ASGITransport(app=app)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client
    finally:
        done.set()
        await task


def paths_in(html: str) -> list[str]:
    """Every path of this server that a page leads to."""
    found = re.findall(
        r"(?:href|src|action|hx-(?:post|get|put|delete|sse:connect))=\"([^\"]*)", html
    )
    return [path for path in found if path.startswith("/")]


async def test_every_route_is_below_the_prefix_and_nowhere_else(tmp_path: Path) -> None:
    async with serving(api_prefix="/a/b", data_dir=tmp_path) as http:
        body = {"prompt": "hello", "n_predict": 2}
        assert (await http.post("/a/b/completion", json=body)).json()["tokens_predicted"] == 2
        for path in (
            "/health",
            "/v1/health",
            "/v1/models",
            "/models",
            "/props",
            "/metrics",
            "/slots",
        ):
            assert (await http.get("/a/b" + path)).status_code == 200, path
            refused = await http.get(path, headers=HTML)
            assert refused.status_code == 404
            assert refused.json()["error"]["type"] == "not_found_error"
        for path in ("/", "/a", "/a/bhealth", "/a/b/a/b/health", "//a/b/health"):
            assert (await http.get(path)).status_code == 404, path
        ids = await http.post("/a/b/v1/messages", json={"model": "x", "max_tokens": "many"})
        assert ids.status_code == 400 and ids.headers["request-id"].startswith("req_")
        odd = await http.post("/a/b/completion", json={**body, "oddity": 1})
        assert odd.headers["x-corral-ignored"] == "oddity"
        counted = (await http.get("/a/b/metrics")).text
        assert re.search(r'corral_requests_total\{route="/completion",status="200"\} 2', counted)
        unknown = await http.get("/a/b/v1/modells")
        assert "Did you mean /v1/models?" in unknown.json()["error"]["message"]


async def test_the_pages_lead_to_nothing_outside_the_prefix(tmp_path: Path) -> None:
    async with serving(api_prefix="/corral", data_dir=tmp_path) as http:
        sent = await http.post("/corral/c", data={"text": "hello"})
        where = sent.headers["location"]
        assert sent.status_code == 303 and where.startswith("/corral/c/")
        pages = [await http.get(path) for path in ("/corral", "/corral/", where)]
        reply = re.findall(r'id="m-(\d+)"', pages[-1].text)[-1]
        stream = await http.get(f"/corral/g/{reply}/events")
        pages.append(await http.get(where))
        moved = await http.post("/corral/c", data={"text": "again"}, headers={"HX-Request": "true"})
        assert moved.headers["hx-push-url"].startswith("/corral/c/")
        pages.append(await http.get("/corral/c/none"))
        for answer in (*pages, stream, moved):
            found = paths_in(answer.text)
            assert found or answer is stream
            assert all(path.startswith("/corral/") for path in found), found
        style = next(path for path in paths_in(pages[0].text) if path.endswith("app.css"))
        assert (await http.get(style)).status_code == 200


async def test_the_login_and_its_cookie_stay_below_the_prefix(tmp_path: Path) -> None:
    async with serving(api_prefix="/corral", data_dir=tmp_path, api_keys=("sesame",)) as http:
        asked = await http.get("/corral/c/1", headers=HTML)
        assert asked.headers["location"] == "/corral/login?next=/c/1"
        page = await http.get(asked.headers["location"])
        assert 'action="/corral/login"' in page.text
        form = {"key": "sesame", "next": "/c/1"}
        answer = await http.post("/corral/login", data=form)
        assert answer.headers["location"] == "/corral/c/1"
        assert re.search(r"(?i); path=/corral(;|$)", answer.headers["set-cookie"])
        assert (await http.get("/corral/")).status_code == 200
        # Nothing to log in to outside, and no hint of what there is.
        assert (await http.get("/login")).status_code == 404


async def test_without_its_pages_the_server_is_an_api_only(tmp_path: Path) -> None:
    async with serving(ui=False, data_dir=tmp_path) as http:
        for path in ("/", "/login", "/c/1", "/static/x/app.css"):
            answer = await http.get(path, headers=HTML)
            assert answer.status_code == 404, path
            assert answer.json()["error"]["type"] == "not_found_error"
        assert (await http.get("/v1/models")).status_code == 200
        assert (await http.post("/c", data={"text": "hello"})).status_code == 404
    assert not (tmp_path / "conversations.db").exists()


async def test_without_pages_a_browser_without_a_key_is_not_sent_to_a_login(tmp_path: Path) -> None:
    async with serving(ui=False, data_dir=tmp_path, api_keys=("k",)) as http:
        answer = await http.get("/v1/models", headers=HTML)
        assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"


def test_slots_can_be_switched_off(run_server: Callable[..., Any]) -> None:
    with run_server(slots_endpoint=False) as server:
        answer = httpx.get(server.url + "/slots")
        assert answer.status_code == 501
        assert answer.json()["error"]["type"] == "not_supported_error"
        assert "--no-slots" in answer.json()["error"]["message"]
        assert httpx.get(server.url + "/metrics").status_code == 200


def test_a_model_has_several_names_and_tags(run_server: Callable[..., Any]) -> None:
    with run_server(alias="one,two/b", tags="small,test") as server:
        (model,) = httpx.get(server.url + "/v1/models").json()["data"]
        assert (model["id"], model["aliases"]) == ("one", ["two/b"])
        assert model["tags"] == ["small", "test"]
        assert httpx.get(server.url + "/v1/models/two/b").json()["id"] == "one"
        assert httpx.get(server.url + "/v1/models/three").status_code == 404


def test_keys_of_flag_and_file_are_equal(run_server: Callable[..., Any]) -> None:
    with run_server(api_keys=("a",), api_key_file=("b,c", "d")) as server:
        for key, status in (("a", 200), ("b,c", 200), ("d", 200), ("b", 401)):
            headers = {"Authorization": f"Bearer {key}"}
            assert httpx.get(server.url + "/v1/models", headers=headers).status_code == status
