"""The web UI over HTTP: headers, who may send forms, files, and streams."""

import asyncio
from typing import Any, TypeAlias

import pytest

#: See ``conftest``.
Client: TypeAlias = Any
HTMX = {"hx-request": "true"}
HUGE = (f"/m/{10**26}/retry", f"/g/{10**26}/stop")


async def say(client: Client, text: str) -> str:
    """Sends a first message as a plain form; returns the conversation's path."""
    answer = await client.post("/c", data={"text": text}, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


async def stream(client: Client, gid: int) -> str:
    """Everything a reply's stream brings, to its end."""
    return (await client.get(f"/g/{gid}/events")).text


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {}, 200),
        ("GET", "/login", {}, 303),
        ("GET", "/status", {}, 200),
        ("GET", "/strip", {}, 200),
        ("GET", "/c/none", {}, 404),
        ("POST", "/c", {}, 400),
        ("POST", "/c", HTMX, 400),
        ("POST", "/c/none/delete", {}, 303),
        ("POST", "/g/1/stop", HTMX, 204),
        ("POST", "/c", {"sec-fetch-site": "cross-site"}, 403),
        ("GET", "/", {"host": "evil.test"}, 403),
    ],
)
async def test_every_answer_has_the_strict_headers(
    client: Client, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    answer = await client.request(method, path, headers=headers, follow_redirects=False)
    assert answer.status_code == status
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("headers", "is_welcome"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "http://127.0.0.1:8080"}, False),
        ({"origin": "http://127.0.0.1:8080"}, True),
        ({"origin": "http://127.0.0.1:9090"}, False),
        ({"origin": "null"}, False),
        ({}, True),
    ],
)
async def test_forms_are_taken_from_our_own_pages_only(
    client: Client, headers: dict[str, str], is_welcome: bool
) -> None:
    answer = await client.post("/c", data={"text": "x"}, headers=headers, follow_redirects=False)
    assert answer.status_code == (303 if is_welcome else 403)


@pytest.mark.parametrize(
    ("host", "is_known"),
    [
        ("127.0.0.1:8080", True),
        ("localhost:8080", True),
        ("LOCALHOST", True),
        ("[::1]:8080", True),
        ("corral.localhost", True),
        ("evil.test", False),
        ("127.evil.test", False),
        ("127.0.0.1.evil.test:8080", False),
        ("localhost.evil.test", False),
        ("", False),
        ("[", False),
    ],
)
async def test_a_server_on_loopback_answers_to_loopback_names_only(
    client: Client, host: str, is_known: bool
) -> None:
    answer = await client.get("/", headers={"host": host})
    assert answer.status_code == (200 if is_known else 403)


async def test_a_refused_name_gets_a_page_where_people_look_and_json_where_programs_do(
    client: Client,
) -> None:
    evil = {"host": "evil.test"}
    page = await client.get("/c/1", headers=evil)
    assert (page.status_code, 'role="alert"' in page.text) == (403, True)
    reply = await client.get("/v1/models", headers=evil)
    assert (reply.status_code, reply.json()["error"]["type"]) == (403, "permission_error")


@pytest.mark.parametrize(
    "asked",
    [{"accept": "text/html,*/*;q=0.8"}, {"accept": "*/*", "sec-fetch-mode": "navigate"}, {}],
)
@pytest.mark.parametrize(
    ("path", "for_people"),
    [("/nowhere", True), ("/c", True), ("/v1/nowhere", False), ("/embeddings/x", False)],
)
async def test_a_browser_that_is_lost_gets_a_page_and_a_program_gets_json(
    client: Client, path: str, asked: dict[str, str], for_people: bool
) -> None:
    answer = await client.get(path, headers=asked)
    assert answer.status_code == (405 if path == "/c" else 404)
    assert ("POST" in answer.headers.get("allow", "")) is (path == "/c")
    is_page = for_people and bool(asked)
    assert answer.headers["content-type"].startswith("text/html" if is_page else "application/json")
    assert ("content-security-policy" in answer.headers) is is_page


@pytest.mark.parametrize("path", ["/", "/login", "/status"])
async def test_head_answers_as_get_does(client: Client, locked: Client, path: str) -> None:
    for site, headers in ((client, {}), (locked, {}), (locked, {"accept": "text/html"})):
        get = await site.get(path, headers=headers, follow_redirects=False)
        head = await site.head(path, headers=headers, follow_redirects=False)
        assert (head.status_code, head.content) == (get.status_code, b"")
        assert head.headers.get("location") == get.headers.get("location")


async def test_without_keys_there_is_nothing_to_log_in_to(client: Client) -> None:
    answer = await client.get("/login", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_with_keys_any_name_will_do_because_a_cookie_belongs_to_one(locked: Client) -> None:
    answer = await locked.get("/login", headers={"host": "chat.example.test"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("target", "goes_to"),
    [
        ("/c/1?x=2", "/c/1?x=2"),
        ("https://evil.test", "/"),
        ("//evil.test", "/"),
        ("/\\evil.test", "/"),
        ("", "/"),
    ],
)
async def test_logging_in_never_leads_to_another_site(
    locked: Client, target: str, goes_to: str
) -> None:
    form = {"key": "sesame", "next": target}
    answer = await locked.post("/login", data=form, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, goes_to)
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=lax" in cookie and "sesame" not in cookie


async def test_without_the_cookie_nothing_is_shown(locked: Client) -> None:
    assert (await locked.get("/status")).status_code == 401
    await locked.post("/login", data={"key": "sesame"}, follow_redirects=False)
    assert (await locked.get("/status")).status_code == 200


async def test_files_are_kept_for_good_under_their_own_address(client: Client) -> None:
    page = (await client.get("/")).text
    address = page.split('rel="stylesheet" href="')[1].split('"')[0]
    answer = await client.get(address)
    assert answer.headers["content-type"] == "text/css; charset=utf-8"
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    again = await client.get(address, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    old = await client.get("/static/000000000000/app.css")
    assert (old.status_code, old.headers["cache-control"]) == (200, "no-cache")


@pytest.mark.parametrize(
    "name", ["nothing.css", "../pyproject.toml", "%2e%2e/pyproject.toml", "%00", "vendor"]
)
async def test_no_other_file_is_served(client: Client, name: str) -> None:
    assert (await client.get(f"/static/x/{name}")).status_code == 404


async def test_a_stream_of_a_finished_reply_is_its_end_and_nothing_else(client: Client) -> None:
    path = await say(client, "Line one\n\nLine two")
    await stream(client, 2)
    events = await stream(client, 2)
    first, last = events.strip().split("\n\n")
    assert all(line.startswith("data: ") for line in first.split("\n"))
    assert last == "event: end\ndata:"
    assert '<hx-partial hx-target="#m-2" hx-swap="outerHTML">' in first
    page = (await client.get(path)).text
    assert "<p>Line one</p>" in page and "<p>Line two</p>" in page


async def test_a_stream_begins_with_how_the_reply_stands(client: Client) -> None:
    await client.app.state.service.control({"hold": "decode", "after": 4})
    await say(client, "Hold me here")
    reply = client.app.state.site.live.get(2)
    while reply.timings is None or reply.timings.n_generated < 4:
        await reply.changed(reply.version, 5)
    go_on = client.app.state.service.control({"hold": None})
    answer, _ = await asyncio.gather(client.get("/g/2/events"), go_on)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    assert "Hold" in answer.text.split("\n\n")[0]
    assert answer.text.endswith("event: end\ndata: \n\n")


@pytest.mark.parametrize("path", ["/g/99/events", "/g/x/events", f"/g/{10**26}/events"])
async def test_a_stream_of_nothing_is_not_found(client: Client, path: str) -> None:
    assert (await client.get(path)).status_code == 404


async def test_the_status_page_answers_while_the_engine_is_held_and_has_nobodys_words(
    client: Client,
) -> None:
    service = client.app.state.service
    await service.control({"hold": "prefill"})
    path = await say(client, "Only for the one who wrote it " * 9)
    reply = client.app.state.site.live.get(2)
    while reply.phase != "reading":
        await reply.changed(reply.version, 5)
    now = (await client.get("/status/now")).text
    assert "<!doctype" not in now and "1 of 4 busy" in now and "to read" in now
    assert "Only for" not in now
    listed, _, shown = (await client.get("/status")).text.partition("<main")
    assert "Only for" in listed and "1 of 4 busy" in shown and "Only for" not in shown
    await service.control({"hold": None})
    await client.post(f"{path}/delete", follow_redirects=False)


async def test_a_status_page_that_stands_still_asks_for_nothing(client: Client) -> None:
    moving, still = [(await client.get(f"/status{q}")).text for q in ("", "?still=1")]
    for way in ("/status/now", "http-equiv"):
        assert way in moving and way not in still


async def test_text_arrives_as_it_was_typed(client: Client) -> None:
    path = await say(client, "\r\n  two\r\n\r\n\tlines <&> \u2603\r\n")
    page = (await client.get(path)).text
    assert "  two\n\n\tlines &lt;&amp;&gt; \u2603</div>" in page


async def test_the_whole_conversation_goes_to_the_model(client: Client) -> None:
    path = await say(client, "first")
    await stream(client, 2)
    await client.post(f"{path}/messages", data={"text": "second"}, follow_redirects=False)
    reply = client.app.state.site.live.get(4)
    sent = [(m.role, m.content) for m in reply.request.messages]
    assert sent == [("user", "first"), ("assistant", "first"), ("user", "second")]
    await reply.ended.wait()


async def test_the_same_action_answers_a_script_with_fragments(client: Client) -> None:
    answer = await client.post("/c", data={"text": "hello"}, headers=HTMX)
    assert answer.status_code == 200
    assert answer.headers["hx-push-url"].startswith("/c/")
    assert answer.headers["vary"].split(", ")[0] == "HX-Request"
    assert "<!doctype" not in answer.text
    assert 'hx-sse:connect="/g/2/events"' in answer.text


async def test_a_title_without_a_word_changes_nothing(client: Client) -> None:
    path = await say(client, "A title")
    for title in ("  ", "", "x" * 500):
        await client.post(f"{path}/rename", data={"title": title}, follow_redirects=False)
    page = (await client.get(path)).text
    assert f'">{"x" * 199 + "…"}</h1>' in page


@pytest.mark.parametrize(
    "path", ["/c/none/messages", "/c/none/rename", "/m/9/retry", "/g/9/stop", *HUGE]
)
async def test_acting_on_what_is_gone_is_a_page_that_says_so(client: Client, path: str) -> None:
    answer = await client.post(path, data={"text": "x", "title": "x"}, follow_redirects=False)
    assert answer.status_code == 404
    assert 'role="alert"' in answer.text


async def test_a_fault_of_ours_is_a_page_without_its_insides(client: Client, caplog: Any) -> None:
    client.app.state.site.store.list = None
    answer = await client.get("/")
    assert answer.status_code == 500
    assert "NoneType" not in answer.text
    assert "GET / failed" in caplog.text


async def test_of_two_messages_sent_at_once_one_is_answered_and_the_other_kept_back(
    client: Client,
) -> None:
    started = await client.post("/c", data={"text": "Hello"}, headers=HTMX)
    where = started.headers["hx-push-url"]
    live = client.app.state.site.live
    if (running := live.running_in(where.removeprefix("/c/"))) is not None:
        await running.ended.wait()
    sends = [client.post(f"{where}/messages", data={"text": t}) for t in ("one", "two")]
    replies = await asyncio.gather(*sends)
    assert sorted(reply.status_code for reply in replies) == [303, 409]
    refused = next(reply for reply in replies if reply.status_code == 409)
    assert "still being written" in refused.text
