from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from litestar import Response, get

from corral.backend.api.guards import COOKIE, is_key, session_value
from corral.backend.app import create_app
from corral.backend.settings import Settings

KEYS = ("secret-one", "zwei-ä")


@get("/")
async def page() -> Response[str]:
    return Response("page", media_type="text/html")


@get("/login")
async def login() -> Response[str]:
    return Response("login", media_type="text/html")


@get("/static/app.css")
async def css() -> Response[str]:
    return Response("css", media_type="text/css")


@pytest.fixture
async def guarded() -> AsyncIterator[httpx.AsyncClient]:
    stub: Any = SimpleNamespace(state="ready", snapshot=None, info=None, start=None, close=None)
    app = create_app(Settings(api_keys=KEYS), stub, frontend_handlers=[page, login, css])
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        yield client


@pytest.mark.parametrize("path", ["/metrics", "/v1/models", "/schema", "/", "/nowhere"])
async def test_without_a_key_nothing_is_told(guarded: httpx.AsyncClient, path: str) -> None:
    reply = await guarded.get(path)
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/login", "/static/app.css"])
async def test_some_paths_are_open(guarded: httpx.AsyncClient, path: str) -> None:
    assert (await guarded.get(path)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer secret-one"},
        {"Authorization": "bearer   secret-one"},
        {"X-Api-Key": "secret-one"},
        {"Authorization": "Bearer zwei-ä".encode()},
    ],
    ids=str,
)
async def test_any_key_lets_in(guarded: httpx.AsyncClient, headers: Any) -> None:
    assert (await guarded.get("/metrics", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer secret-on"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic secret-one"},
        {"Authorization": "secret-one"},
        {"X-Api-Key": ""},
        {"X-Api-Key": "secret-one, zwei"},
        {"Cookie": f"{COOKIE}=secret-one"},
    ],
    ids=str,
)
async def test_no_other_key_does(guarded: httpx.AsyncClient, headers: Any) -> None:
    assert (await guarded.get("/metrics", headers=headers)).status_code == 401


async def test_a_preflight_passes(guarded: httpx.AsyncClient) -> None:
    assert (await guarded.options("/metrics")).status_code == 204


async def test_a_browser_without_a_session_is_sent_to_the_login_page(
    guarded: httpx.AsyncClient,
) -> None:
    reply = await guarded.get("/", headers={"Accept": "text/html,*/*"})
    assert reply.status_code == 303
    assert reply.headers["location"].startswith("/login")


async def test_a_session_lets_a_browser_in(guarded: httpx.AsyncClient) -> None:
    headers = {"Cookie": f"a=b; {COOKIE}={session_value(KEYS[1])}"}
    assert (await guarded.get("/", headers=headers)).text == "page"


async def test_a_session_is_no_good_from_another_site(guarded: httpx.AsyncClient) -> None:
    headers = {"Cookie": f"{COOKIE}={session_value(KEYS[0])}", "Sec-Fetch-Site": "cross-site"}
    reply = await guarded.post("/completion", headers=headers, json={})
    assert reply.status_code == 403
    assert reply.json()["error"]["type"] == "permission_error"


@pytest.mark.parametrize(
    ("headers", "is_own"),
    [
        ({"Origin": "http://evil.test"}, False),
        ({"Origin": "http://x:81"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://["}, False),
        ({"Origin": "http://x"}, True),
        ({"Origin": "https://x", "Sec-Fetch-Site": "cross-site"}, False),
        ({}, True),
    ],
    ids=str,
)
async def test_a_session_is_no_good_from_another_origin(
    guarded: httpx.AsyncClient, headers: dict[str, str], is_own: bool
) -> None:
    headers |= {"Cookie": f"{COOKIE}={session_value(KEYS[0])}"}
    reply = await guarded.post("/tokenize", headers=headers, content=b"{")
    assert reply.status_code == (400 if is_own else 403)
    assert (await guarded.get("/schema", headers=headers)).status_code == 200


async def test_a_key_is_good_from_anywhere(guarded: httpx.AsyncClient) -> None:
    headers = {"Authorization": f"Bearer {KEYS[0]}", "Origin": "http://evil.test"}
    reply = await guarded.post("/tokenize", headers=headers, content=b"{")
    assert reply.status_code == 400


@pytest.mark.parametrize(
    ("bound", "keys", "named", "path", "status"),
    [
        ("127.0.0.1", (), "evil.test", "/schema", 403),
        ("localhost", (), "evil.test:80", "/schema", 403),
        ("::1", (), "127.0.0.1.evil.test", "/schema", 403),
        ("127.0.0.1", (), "evil.test", "/nowhere", 403),
        ("127.0.0.1", (), "[", "/schema", 403),
        ("127.0.0.1", (), "evil.test", "/health", 200),
        ("127.0.0.1", (), "evil.test", "/v1/health", 200),
        ("127.0.0.1", (), "localhost:8080", "/schema", 200),
        ("127.0.0.1", (), "[::1]:8080", "/schema", 200),
        ("0.0.0.0", (), "chat.test", "/schema", 200),
        ("192.0.2.1", (), "chat.test", "/schema", 200),
        ("127.0.0.1", ("k",), "chat.test", "/schema", 200),
    ],
)
async def test_an_open_server_on_loopback_answers_to_loopback_names_only(
    bound: str, keys: tuple[str, ...], named: str, path: str, status: int
) -> None:
    stub: Any = SimpleNamespace(state="ready", snapshot=None, info=None, start=None, close=None)
    app = create_app(Settings(host=bound, api_keys=keys), stub, frontend_handlers=[])
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        reply = await client.get(path, headers={"Host": named, "X-Api-Key": "k"})
    assert reply.status_code == status
    if status == 403:
        assert reply.json()["error"]["type"] == "permission_error"


def test_the_session_is_not_the_key_and_differs_by_key() -> None:
    assert KEYS[0] not in session_value(KEYS[0])
    assert session_value(KEYS[0]) != session_value(KEYS[1])
    assert is_key("zwei-ä", KEYS) and not is_key("", KEYS) and not is_key("x", ())


async def test_every_reply_has_an_id_and_keeps_a_plain_one_it_is_given(
    guarded: httpx.AsyncClient,
) -> None:
    ids = {(await guarded.get(path)).headers["x-request-id"] for path in ("/health", "/x", "/")}
    assert len(ids) == 3
    reply = await guarded.get("/health", headers={"X-Request-Id": "mine-1"})
    assert reply.headers["x-request-id"] == "mine-1"
    reply = await guarded.get("/health", headers={"X-Request-Id": "has spaces" * 20})
    assert "spaces" not in reply.headers["x-request-id"]
