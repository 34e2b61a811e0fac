"""Pictures and sounds at every door, on the fake engine: each is four tokens and a line break."""

import base64
import contextlib
import io
import struct
import threading
import wave
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from corral.backend.engine.messages import Add
from corral.backend.media.hosts import parse_allowed

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MARKER = "<__media__>"


def png(colour: str = "red", size: tuple[int, int] = (3, 2)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "png")
    return file.getvalue()


def wav() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16_000)
        sound.writeframes(bytes(3200))
    return file.getvalue()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{b64(data)}"


def shown(colour: str = "red") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(png(colour))}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("media")
    (path / "blue.png").write_bytes(png("blue"))
    return path


@pytest.fixture(scope="module")
def seeing_server(run_server: Callable[..., Any], folder: Path) -> Iterator[Any]:
    with run_server(mmproj=Path("fake"), media_path=folder, media_max_count=9) as server:
        yield server


@pytest.fixture
def seeing(seeing_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=seeing_server.url, timeout=20) as client:
        yield client


@pytest.fixture
def adds(seeing_server: Any, monkeypatch: pytest.MonkeyPatch) -> list[Add]:
    """What the engine is asked, as it is asked."""
    engine = seeing_server.service._pool.engine
    seen: list[Add] = []
    submit = engine.submit

    def listen(add: Add) -> Any:
        seen.append(add)
        return submit(add)

    monkeypatch.setattr(engine, "submit", listen)
    return seen


@pytest.fixture
def gpt(seeing_server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{seeing_server.url}/v1", api_key="k", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(seeing_server: Any) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=seeing_server.url, api_key="k", max_retries=0) as client:
        yield client


def colours(add: Add) -> list[bytes]:
    """The first pixel of each of its pictures."""
    return [media.data[:3] for media in add.media]


RED, BLUE, LIME = b"\xff\0\0", b"\0\0\xff", b"\0\xff\0"


def marked(add: Add) -> str:
    """Its prompt with stars for pictures and sounds."""
    prompt: Any = add.prompt
    starts, ends = (0, *prompt.places), (*prompt.places, len(prompt.text))
    return "*".join(prompt.text[a:b] for a, b in zip(starts, ends, strict=True))


def refused(
    http: httpx.Client, path: str, body: dict[str, Any], param: str | None, words: str = ""
) -> None:
    reply = http.post(path, json=body)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error.get("param") == param, error
    assert words in error["message"], error
    if param:
        assert error["message"].startswith(param), error


# --- OpenAI ---------------------------------------------------------------------------------------


def test_openais_sdk_shows_pictures_in_their_order_among_text(
    gpt: openai.OpenAI, adds: list[Add]
) -> None:
    answer = gpt.chat.completions.create(
        model="m",
        messages=[user(text("One: "), shown("red"), text(" two: "), shown("blue"), text("."))],  # type: ignore[list-item]
    )
    assert answer.choices[0].message.content == "One: \n two: \n."
    assert colours(adds[0]) == [RED, BLUE]
    assert "user\nOne: * two: *.<|im_end|>" in marked(adds[0])
    assert adds[0].media[0].width == 3 and adds[0].media[0].height == 2


def test_a_pictures_tokens_count_as_prompt_tokens(gpt: openai.OpenAI) -> None:
    def n_prompt(*parts: dict[str, Any]) -> int:
        answer = gpt.chat.completions.create(model="m", messages=[user(*parts)])  # type: ignore[list-item]
        assert answer.usage is not None
        return answer.usage.prompt_tokens

    assert n_prompt(text("a"), shown()) == n_prompt(text("a")) + 5


@pytest.mark.parametrize(
    "given",
    [
        {"url": url(png())},
        {"url": url(png()), "detail": "high"},
        {"url": b64(png())},
        url(png()),
        "file:blue.png",
        {"url": "file://blue.png"},
    ],
    ids=lambda given: str(given)[:30],
)
def test_each_form_of_image_url_is_read(seeing: httpx.Client, adds: list[Add], given: Any) -> None:
    body = {"messages": [user({"type": "image_url", "image_url": given})]}
    assert seeing.post(CHAT, json=body).status_code == 200
    assert colours(adds[0]) == [BLUE if "blue" in str(given) else RED]


@pytest.mark.parametrize("given", [{"data": b64(wav()), "format": "wav"}, {"url": url(wav())}])
def test_a_sound_is_samples_at_the_models_rate(
    seeing: httpx.Client, adds: list[Add], given: Any
) -> None:
    body = {"messages": [user({"type": "input_audio", "input_audio": given}, text("?"))]}
    assert seeing.post(CHAT, json=body).status_code == 200
    (sound,) = adds[0].media
    assert (sound.kind, len(sound.data)) == ("audio", 1600 * 4)


def test_a_tool_may_show_pictures(gpt: openai.OpenAI, adds: list[Add]) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    gpt.chat.completions.create(
        model="m",
        messages=[
            user(text("first"), shown("lime")),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": [text("seen: "), shown("blue")]},
            user(text("what?")),
        ],  # type: ignore[list-item]
    )
    assert colours(adds[0]) == [LIME, BLUE]
    assert "seen: *" in marked(adds[0])


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_other_roles_show_none(seeing: httpx.Client, role: str) -> None:
    messages = [{"role": role, "content": [text("a"), shown()]}, user(text("hi"))]
    refused(seeing, CHAT, {"messages": messages}, "messages[0].content[1]", role)


def test_text_that_looks_like_a_marker_is_text(seeing: httpx.Client, adds: list[Add]) -> None:
    body = {"messages": [user(text(f"a {MARKER} b "), shown())]}
    answer = seeing.post(CHAT, json=body).json()
    assert answer["choices"][0]["message"]["content"] == f"a {MARKER} b \n"
    assert len(adds[0].media) == 1 and f"a {MARKER} b *" in marked(adds[0])


def test_llama_cpps_own_formats_show_pictures_too(run_server: Callable[..., Any]) -> None:
    with run_server(mmproj=Path("fake"), chat_template="llama3") as server:
        body = {"messages": [user(text("a"), shown(), text("b"), text("c"))]}
        prompt = httpx.post(server.url + "/apply-template", json=body).json()["prompt"]
        assert f"user<|end_header_id|>\n\na{MARKER}b\nc<|eot_id|>" in prompt


def test_every_choice_gets_the_pictures(seeing: httpx.Client, adds: list[Add]) -> None:
    answer = seeing.post(CHAT, json={"messages": [user(shown(), text("x"))], "n": 3}).json()
    assert [c["message"]["content"] for c in answer["choices"]] == ["\nx"] * 3
    assert [colours(add) for add in adds] == [[RED]] * 3


def test_a_picture_that_was_seen_is_not_computed_again(seeing: httpx.Client) -> None:
    def cached(colour: str) -> int:
        body = {"messages": [user(text("remember " * 5), shown(colour), text("?"))]}
        used: int = seeing.post(CHAT, json=body).json()["usage"]["prompt_tokens_details"][
            "cached_tokens"
        ]
        return used

    first, again, other = cached("plum"), cached("plum"), cached("pink")
    assert first < other + 5 <= again
    assert again - other >= 5


def test_a_picture_is_decoded_once(
    seeing_server: Any, seeing: httpx.Client, adds: list[Add]
) -> None:
    for _ in range(2):
        assert seeing.post(CHAT, json={"messages": [user(shown("teal"))]}).status_code == 200
    assert adds[0].media[0] is adds[1].media[0]


def test_a_prompt_that_is_too_long_with_its_pictures_is_refused(seeing: httpx.Client) -> None:
    messages = [user(text("x" * 4070), shown("red"), shown("blue"))]
    for n in (1, 2):
        reply = seeing.post(CHAT, json={"messages": messages, "n": n})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["n_prompt_tokens"] > 4096


# --- bad input ------------------------------------------------------------------------------------


def _chunk(name: bytes, data: bytes) -> bytes:
    body = name + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


#: 20000 by 20000 pixels in some 60 bytes.
BOMB = (
    b"\x89PNG\r\n\x1a\n"
    + _chunk(b"IHDR", struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0))
    + _chunk(b"IDAT", zlib.compress(bytes(50)))
    + _chunk(b"IEND", b"")
)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (BOMB, "20000 x 20000"),
        (png(size=(64, 64))[:-40], "damaged"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
        (b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf", "AVIF"),
        (b"<!doctype html><p>hi", "HTML"),
        (b"", "empty"),
        (wav(), "a sound"),
        (b"\x89PNG\r\n\x1a\n" + bytes(21 << 20), "20971520"),
    ],
    ids=["bomb", "cut", "svg", "avif", "html", "empty", "wav", "large"],
)
def test_what_is_no_good_picture_is_refused_by_its_place(
    seeing: httpx.Client, data: bytes, words: str
) -> None:
    part = {"type": "image_url", "image_url": {"url": url(data)}}
    body = {"messages": [user(text("a"), part)]}
    refused(seeing, CHAT, body, "messages[0].content[1].image_url", words)


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image_url"}, "image_url"),
        ({"type": "image_url", "image_url": 5}, "image_url"),
        ({"type": "image_url", "image_url": ""}, "image_url"),
        ({"type": "image_url", "image_url": {}}, "image_url.url"),
        ({"type": "image_url", "image_url": {"url": None}}, "image_url.url"),
        (
            {"type": "image_url", "image_url": {"url": "x", "detail": "huge"}},
            "image_url.detail",
        ),
        ({"type": "image_url", "image_url": {"url": "not base64!"}}, "image_url"),
        ({"type": "image_url", "image_url": {"url": "ftp://a/b.png"}}, "image_url"),
        ({"type": "image_url", "image_url": {"url": "http://a/b.png"}}, "image_url"),
        ({"type": "image_url", "image_url": {"url": "file:../../etc/passwd"}}, "image_url"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "image_url"),
        ({"type": "input_audio"}, "input_audio"),
        ({"type": "input_audio", "input_audio": {}}, "input_audio.data"),
        ({"type": "input_audio", "input_audio": {"data": "AA==", "format": "ogg"}}, None),
        ({"type": "input_audio", "input_audio": {"data": b64(png())}}, "input_audio"),
        ({"type": "file", "file": {"file_id": "f"}}, ""),
        ({"type": "video_url", "video_url": {"url": "x"}}, ""),
        ({"type": "magic"}, "type"),
    ],
    ids=str,
)
def test_a_bad_part_is_refused_by_its_place(
    seeing: httpx.Client, part: dict[str, Any], param: str | None
) -> None:
    at = "messages[0].content[0]"
    place = f"{at}.{'input_audio.format' if param is None else param}".rstrip(".")
    reply = seeing.post(CHAT, json={"messages": [user(part)]})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, place), reply.text


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=9)
    | st.sampled_from([url(png()), b64(png())]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "url", "data", "detail", "format", "media_type", "base64"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=5,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(odd=ODD)
def test_nothing_that_stands_for_a_picture_breaks_the_server(
    seeing: httpx.Client, odd: Any
) -> None:
    parts = [
        {"type": "image_url", "image_url": odd},
        {"type": "input_audio", "input_audio": odd},
        {"type": "image", "source": odd},
        {"type": "input_image", "image_url": odd, "detail": odd},
    ]
    for part in parts:
        for path, name in ((CHAT, "messages"), ("/v1/messages", "messages"), (RESPONSES, "input")):
            reply = seeing.post(path, json={name: [user(part)], "max_tokens": 1})
            assert reply.status_code in (200, 400), (part, reply.text)
            if reply.status_code == 400:
                assert reply.json()["error"]["param"].startswith(f"{name}[0].content[0]")
    prompt = {"prompt_string": MARKER, "multimodal_data": odd}
    reply = seeing.post("/completion", json={"prompt": prompt, "max_tokens": 1})
    assert reply.status_code == (200 if odd == [b64(png())] else 400), reply.text


def test_a_model_of_text_refuses_pictures_before_they_are_looked_at(http: httpx.Client) -> None:
    words = "this model takes no pictures; start the server with --mmproj"
    part = {"type": "image_url", "image_url": {"url": "http://nowhere.invalid/"}}
    body: dict[str, Any] = {"messages": [user(text("a"), part)]}
    at = "messages[0].content[1].image_url"
    for path in (CHAT, "/apply-template", f"{CHAT}/input_tokens"):
        refused(http, path, body, at, words)
    sound = {"type": "input_audio", "input_audio": {"data": b64(wav()), "format": "wav"}}
    refused(http, CHAT, {"messages": [user(sound)]}, "messages[0].content[0].input_audio", "sounds")
    prompt = {"prompt_string": MARKER, "multimodal_data": [b64(png())]}
    refused(http, "/completion", {"prompt": prompt}, "prompt.multimodal_data[0]", words)
    image = {"type": "input_image", "image_url": url(png())}
    asked = {"input": [{"role": "user", "content": [image]}]}
    refused(http, "/v1/responses", asked, "input[0].content[0].image_url", words)
    block = {"type": "image", "source": {"type": "url", "url": "http://nowhere.invalid/"}}
    asked = {"max_tokens": 5, "messages": [user(block)]}
    refused(http, "/v1/messages", asked, "messages[0].content[0].source", words)


def test_there_may_not_be_too_many(seeing: httpx.Client) -> None:
    body = {"messages": [user(*[shown()] * 9)], "max_tokens": 1}
    assert seeing.post(CHAT, json=body).status_code == 200
    body = {"messages": [user(*[shown()] * 10)]}
    refused(seeing, CHAT, body, "messages[0].content[9].image_url", "at most 9")


def test_a_picture_larger_than_a_body_is_a_413(run_server: Callable[..., Any]) -> None:
    with run_server(mmproj=Path("fake"), max_body_mb=1) as server:
        part = {"type": "image_url", "image_url": {"url": url(bytes(2 << 20))}}
        reply = httpx.post(server.url + CHAT, json={"messages": [user(part)]})
        assert reply.status_code == 413


# --- from elsewhere -------------------------------------------------------------------------------


class Elsewhere(ThreadingHTTPServer):
    """A web server: a picture, what leads on to other places, and what takes its time."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.asked: list[str] = []
        self.was_left = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Page(BaseHTTPRequestHandler):
    server: Elsewhere

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        if self.path == "/slow":
            with contextlib.suppress(OSError):
                self.connection.recv(1)  # returns when the other side goes away
            self.server.was_left.set()
            return
        pages = {"/blue.png": png("blue"), "/zeros": bytes(9)}
        self.wfile.write(pages.get(self.path, bytes(3 << 20)))

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    with Elsewhere() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def fetching(run_server: Callable[..., Any], elsewhere: Elsewhere) -> Iterator[Any]:
    allowed = (parse_allowed(f"127.0.0.1:{elsewhere.server_port}"), parse_allowed("localhost:*"))
    with run_server(mmproj=Path("fake"), media_url_allow=allowed, media_max_mib=2) as server:
        yield server


def linked(address: str) -> dict[str, Any]:
    return {"messages": [user({"type": "image_url", "image_url": {"url": address}}, text("?"))]}


def test_a_picture_is_fetched_from_where_that_is_allowed(
    fetching: Any, elsewhere: Elsewhere
) -> None:
    for path in ("/blue.png", "/to//blue.png"):
        reply = httpx.post(fetching.url + CHAT, json=linked(elsewhere.url + path))
        assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/to/http://127.0.0.1:{other}/blue.png", "redirects"),
        ("/to/http://localhost:{port}/blue.png", "not on the public internet"),
        ("/to/file:///etc/hostname", "redirects"),
        ("/large", "bytes"),
    ],
)
def test_what_leads_elsewhere_is_not_followed(
    fetching: Any, elsewhere: Elsewhere, path: str, words: str
) -> None:
    with Elsewhere() as other:
        names = {"other": other.server_port, "port": elsewhere.server_port}
        address = elsewhere.url + path.format(**names)
        with httpx.Client(base_url=fetching.url) as client:
            refused(client, CHAT, linked(address), "messages[0].content[0].image_url", words)
        assert other.asked == [] and len(elsewhere.asked) == 1


def test_one_bad_picture_ends_the_fetching_of_the_others(
    fetching: Any, elsewhere: Elsewhere
) -> None:
    slow = {"type": "image_url", "image_url": f"{elsewhere.url}/slow"}
    # It is fetched too, so that the other one is on its way when it turns out to be none.
    bad = {"type": "image_url", "image_url": f"{elsewhere.url}/zeros"}
    reply = httpx.post(fetching.url + CHAT, json={"messages": [user(slow, bad)]}, timeout=10)
    assert reply.json()["error"]["param"] == "messages[0].content[1].image_url"
    assert elsewhere.was_left.wait(5)


def test_a_client_that_leaves_ends_the_fetching_for_it(fetching: Any, elsewhere: Elsewhere) -> None:
    for path in (CHAT, f"{CHAT}/input_tokens"):
        elsewhere.was_left.clear()
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(fetching.url + path, json=linked(f"{elsewhere.url}/slow"), timeout=0.5)
        assert elsewhere.was_left.wait(5)


# --- Anthropic ------------------------------------------------------------------------------------


def block(colour: str = "red") -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": b64(png(colour))}
    return {"type": "image", "source": source}


def test_anthropics_sdk_shows_pictures(claude: anthropic.Anthropic, adds: list[Add]) -> None:
    asked: Any = [user(text("a"), block("blue"), text("b"), block("red"))]
    answer = claude.messages.create(model="m", max_tokens=50, messages=asked)
    assert answer.content[0].text == "a\nb\n"  # type: ignore[union-attr]
    assert colours(adds[0]) == [BLUE, RED]
    counted = claude.messages.count_tokens(model="m", messages=asked).input_tokens
    assert counted == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


def test_a_result_of_a_tool_shows_pictures_in_front_of_what_the_user_says(
    claude: anthropic.Anthropic, adds: list[Add]
) -> None:
    asked: Any = [
        user(text("look")),
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t", "name": "camera", "input": {}}],
        },
        user(
            block("red"),
            text("well?"),
            {"type": "tool_result", "tool_use_id": "t", "content": [text("here"), block("blue")]},
        ),
    ]
    claude.messages.create(model="m", max_tokens=5, messages=asked)
    assert colours(adds[0]) == [BLUE, RED]
    assert marked(adds[0]).index("here*") < marked(adds[0]).index("*well?")


@pytest.mark.parametrize(
    ("source", "param"),
    [
        ({"type": "base64", "media_type": "image/png", "data": "!"}, "source"),
        ({"type": "base64", "media_type": "image/png"}, "source.data"),
        ({"type": "base64", "media_type": "text/plain", "data": "AA=="}, "source.media_type"),
        ({"type": "base64", "media_type": "image/png", "data": "http://a/"}, "source"),
        ({"type": "url", "url": "http://a/"}, "source"),
        ({"type": "url"}, "source.url"),
        ({"type": "file", "file_id": "f"}, "source"),
        (None, "source.type"),
    ],
    ids=str,
)
def test_a_bad_source_is_refused_by_its_place(
    seeing: httpx.Client, source: Any, param: str
) -> None:
    body = {"max_tokens": 5, "messages": [user({"type": "image", "source": source})]}
    refused(seeing, "/v1/messages", body, f"messages[0].content[0].{param}")


def test_only_the_user_and_tools_show_pictures_there(seeing: httpx.Client) -> None:
    said = {"role": "assistant", "content": [block()]}
    body = {"max_tokens": 5, "messages": [user(text("a")), said, user(text("b"))]}
    refused(seeing, "/v1/messages", body, "messages[1].content[0]")
    body = {"max_tokens": 5, "system": [block()], "messages": [user(text("a"))]}
    refused(seeing, "/v1/messages", body, "system[0]")


# --- Responses ------------------------------------------------------------------------------------


def test_responses_show_pictures_and_know_them_later(gpt: openai.OpenAI, adds: list[Add]) -> None:
    image = {"type": "input_image", "detail": "auto", "image_url": url(png("blue"))}
    said = [{"role": "user", "content": [{"type": "input_text", "text": "What is "}, image]}]
    first = gpt.responses.create(model="m", input=said)  # type: ignore[call-overload]
    assert first.output_text == "What is \n"
    again = gpt.responses.create(model="m", previous_response_id=first.id, input="And now?")
    assert again.output_text == "And now?"
    assert [colours(add) for add in adds] == [[BLUE], [BLUE]]
    (kept,) = gpt.responses.input_items.list(first.id).data
    assert kept.content[1].image_url == url(png("blue"))  # type: ignore[union-attr]
    counted = gpt.post(
        "/responses/input_tokens",
        body={"input": said},
        cast_to=dict[str, Any],  # type: ignore[type-var]
    )
    assert first.usage is not None and counted["input_tokens"] == first.usage.input_tokens  # type: ignore[index]


def test_a_functions_output_may_be_a_picture(gpt: openai.OpenAI, adds: list[Add]) -> None:
    output = [{"type": "input_image", "image_url": url(png("lime"))}]
    gpt.responses.create(
        model="m",
        input=[
            {"role": "user", "content": "look"},
            {"type": "function_call", "call_id": "c", "name": "camera", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": output},
        ],  # type: ignore[arg-type]
    )
    assert colours(adds[0]) == [LIME]


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "input_image", "file_id": "f"}, "file_id"),
        ({"type": "input_image"}, "image_url"),
        ({"type": "input_image", "image_url": "!"}, "image_url"),
        ({"type": "input_image", "image_url": url(b"")}, "image_url"),
        ({"type": "input_image", "image_url": "x", "detail": 3}, "detail"),
        ({"type": "input_audio", "input_audio": {"data": b64(png())}}, "input_audio"),
        ({"type": "input_file", "file_id": "f"}, ""),
    ],
    ids=str,
)
def test_a_bad_part_of_an_item_is_refused_by_its_place(
    seeing: httpx.Client, part: Any, param: str
) -> None:
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        body = {"input": [{"role": "user", "content": [part]}]}
        refused(seeing, path, body, f"input[0].content[0].{param}".rstrip("."))


# --- llama-server's own ---------------------------------------------------------------------------


def with_media(said: str, *data: bytes) -> dict[str, Any]:
    return {"prompt_string": said, "multimodal_data": [b64(one) for one in data]}


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_raw_prompts_show_pictures_where_the_markers_are(
    seeing: httpx.Client, adds: list[Add], path: str
) -> None:
    prompt = with_media(f"<|im_start|>a{MARKER}{MARKER}b", png("red"), png("blue"))
    reply = seeing.post(path, json={"prompt": prompt, "max_tokens": 3})
    assert reply.status_code == 200, reply.text
    assert marked(adds[0]) == "<|im_start|>a**b" and colours(adds[0]) == [RED, BLUE]
    out = reply.json()
    n_prompt = out["usage"]["prompt_tokens"] if "usage" in out else out["tokens_evaluated"]
    assert n_prompt == 1 + 1 + 5 + 5 + 1  # the special token counts as such
    if path == "/completion":
        assert out["prompt"] == prompt["prompt_string"]


def test_a_list_of_prompts_may_mix_all_forms(seeing: httpx.Client, adds: list[Add]) -> None:
    prompts = [with_media(f"{MARKER} x", png("lime")), "plain", [104, 105], {"prompt_string": "o"}]
    reply = seeing.post("/completion", json={"prompt": prompts, "max_tokens": 2, "n": 2})
    assert len(reply.json()) == 8
    assert sorted(len(add.media) for add in adds) == [0] * 6 + [1] * 2


def test_sounds_are_known_by_their_bytes(seeing: httpx.Client, adds: list[Add]) -> None:
    body = {"prompt": with_media(MARKER, wav()), "max_tokens": 1}
    assert seeing.post("/completion", json=body).status_code == 200
    assert adds[0].media[0].kind == "audio"


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (with_media(f"{MARKER}"), "prompt.multimodal_data"),
        (with_media("none", png()), "prompt.multimodal_data"),
        (with_media(MARKER * 3, png(), png()), "prompt.multimodal_data"),
        ({"prompt_string": MARKER, "multimodal_data": b64(png())}, "prompt.multimodal_data"),
        ({"prompt_string": MARKER, "multimodal_data": [5]}, "prompt.multimodal_data[0]"),
        ({"multimodal_data": []}, "prompt.prompt_string"),
        ({"prompt_string": MARKER, "multimodal_data": ["!"]}, "prompt.multimodal_data[0]"),
        (
            {"prompt_string": MARKER, "multimodal_data": ["http://a/"]},
            "prompt.multimodal_data[0]",
        ),
        (["a", with_media("none", png())], "prompt[1].multimodal_data"),
        (["a", with_media(MARKER, b"x")], "prompt[1].multimodal_data[0]"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_raw_prompt_is_refused_by_its_place(
    seeing: httpx.Client, prompt: Any, param: str
) -> None:
    for path in ("/completion", "/v1/completions"):
        refused(seeing, path, {"prompt": prompt, "max_tokens": 1}, param)


def test_where_only_text_is_read_pictures_are_refused(seeing: httpx.Client) -> None:
    prompt = with_media(MARKER, png())
    refused(seeing, "/v1/completions", {"prompt": prompt, "suffix": "b"}, "suffix")
    body = {"prompt": prompt, "echo": True, "logprobs": 1}
    refused(seeing, "/v1/completions", body, "echo")
    refused(seeing, "/v1/embeddings", {"input": prompt}, "input")
    refused(seeing, "/v1/embeddings", {"input": ["a", prompt]}, "input[1]")
    body = {"input_prefix": "a", "input_suffix": "b", "prompt": prompt}
    refused(seeing, "/infill", body, "prompt")


def test_the_template_is_shown_with_markers_and_tokens_with_runs(seeing: httpx.Client) -> None:
    body = {"messages": [user(text("a"), shown(), text("b"))], "tokens": True}
    out = seeing.post("/apply-template", json=body).json()
    assert f"user\na{MARKER}b<|im_end|>" in out["prompt"]
    rows = out["tokens"]
    (i,) = (i for i, row in enumerate(rows) if row["id"] == -1)
    assert rows[i] == {"id": -1, "piece": MARKER, "foreign": True, "n_tokens": 4}
    assert rows[i - 1]["piece"] == "a" and rows[i - 1]["foreign"] is True
    # The line break is the projector's, and stands for none of the prompt's text.
    assert rows[i + 1]["piece"] == "\n" and rows[i + 2]["piece"] == "b"
    body = {"messages": body["messages"]}
    counted = seeing.post(f"{CHAT}/input_tokens", json=body).json()["input_tokens"]
    assert counted == sum(row.get("n_tokens", 1) for row in rows)


def test_props_and_models_say_what_is_taken(seeing: httpx.Client, http: httpx.Client) -> None:
    for client, can in ((seeing, True), (http, False)):
        props = client.get("/props").json()
        assert props["modalities"] == {"vision": can, "audio": can, "video": False}
        assert props["media_marker"] == MARKER
        (row,) = client.get("/v1/models").json()["models"]
        assert ("multimodal" in row["capabilities"]) is can
        assert row["name"] == row["model"] == client.get("/v1/models").json()["data"][0]["id"]
