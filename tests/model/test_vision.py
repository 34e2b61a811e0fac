"""Pictures through a real projector that names colours (``tests/data/vision``), by real clients."""

import base64
import concurrent.futures
import io
import json
import random
import struct
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from PIL import Image

pytestmark = pytest.mark.model

SAMPLES = Path(__file__).parent.parent / "data" / "vision" / "samples"
QUESTIONS = json.loads((SAMPLES / "samples.json").read_text())
COLOUR = "What colour is the image?"
CHAT = "/v1/chat/completions"
#: A question about a picture: 24 tokens, 25 of the picture, 12.
N_BEFORE, N_PICTURE, N_AFTER = 24, 25, 12


def flat(colour: str, side: int = 60) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(file, "png")
    return file.getvalue()


#: Eight pictures that all differ, and their colours.
PICTURES = [
    *((flat(colour), name) for colour, name in [("#0000ee", "blue"), ("#008800", "green")]),
    *((flat(colour), name) for colour, name in [("#000000", "black"), ("#ffffff", "white")]),
    *((flat(colour), name) for colour, name in [("#dd0000", "red"), ("#ffee00", "yellow")]),
    ((SAMPLES / "red_circle.png").read_bytes(), "red"),
    ((SAMPLES / "yellow_square.png").read_bytes(), "yellow"),
]


def url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def asked(data: bytes, question: str = COLOUR) -> list[Any]:
    picture = {"type": "image_url", "image_url": {"url": url(data)}}
    return [{"role": "user", "content": [picture, {"type": "text", "text": question}]}]


class Redirecting(ThreadingHTTPServer):
    """Leads to a port of this machine that nobody allowed."""

    daemon_threads = True


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", "http://127.0.0.1:9/red.png")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[str]:
    with Redirecting(("127.0.0.1", 0), _Page) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def seeing(
    serve: Any, mmproj: Path, elsewhere: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    flags = ["--mmproj", str(mmproj), "--threads", "1", "--media-url-allow", elsewhere]
    flags += ["--max-body-mb", "100", "--data-dir", str(tmp_path_factory.mktemp("data"))]
    with serve(*flags) as server:
        assert server.url
        yield server


@pytest.fixture
def http(seeing: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=seeing.url, timeout=120) as client:
        yield client


@pytest.fixture
def gpt(seeing: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{seeing.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_start_says_what_the_model_takes(seeing: Any) -> None:
    seeing.wait_for(r"parameters\)\n  takes    text, pictures\n  context ")


def answer(gpt: openai.OpenAI, data: bytes, question: str = COLOUR) -> str:
    reply = gpt.chat.completions.create(
        model="m", messages=asked(data, question), temperature=0, max_tokens=20
    )
    return (reply.choices[0].message.content or "").lower()


@pytest.mark.parametrize("row", QUESTIONS, ids=lambda row: f"{row['file']} {row['expect']}")
def test_openais_client_is_told_what_is_in_a_picture(
    gpt: openai.OpenAI, row: dict[str, str]
) -> None:
    assert row["expect"] in answer(gpt, (SAMPLES / row["file"]).read_bytes(), row["question"])


@pytest.mark.parametrize("row", QUESTIONS, ids=lambda row: f"{row['file']} {row['expect']}")
def test_anthropics_client_is_told_what_is_in_a_picture(seeing: Any, row: dict[str, str]) -> None:
    data = base64.b64encode((SAMPLES / row["file"]).read_bytes()).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    said: Any = [
        {
            "role": "user",
            "content": [
                {"type": "image", "source": source},
                {"type": "text", "text": row["question"]},
            ],
        }
    ]
    with anthropic.Anthropic(base_url=seeing.url, api_key="k", max_retries=0) as client:
        greedy = {"temperature": 0}  # which newer versions of it do not name
        reply = client.messages.create(model="m", max_tokens=20, messages=said, extra_body=greedy)
        counted = client.messages.count_tokens(model="m", messages=said)
    assert row["expect"] in reply.content[0].text.lower()  # type: ignore[union-attr]
    used = reply.usage
    assert counted.input_tokens == used.input_tokens + (used.cache_read_input_tokens or 0)


def test_the_responses_api_and_raw_prompts_see_the_same(
    gpt: openai.OpenAI, http: httpx.Client
) -> None:
    data = (SAMPLES / "blue.png").read_bytes()
    image = {"type": "input_image", "image_url": url(data), "detail": "auto"}
    said: Any = [{"role": "user", "content": [image, {"type": "input_text", "text": COLOUR}]}]
    reply = gpt.responses.create(model="m", input=said, temperature=0, max_output_tokens=20)
    prompt = http.post("/apply-template", json={"messages": asked(data)}).json()["prompt"]
    raw = {"prompt_string": prompt, "multimodal_data": [base64.b64encode(data).decode()]}
    body = {"prompt": raw, "temperature": 0, "n_predict": 20, "return_tokens": True}
    out = http.post("/completion", json=body).json()
    assert "blue" in reply.output_text.lower() and "blue" in out["content"].lower()
    assert out["tokens_evaluated"] == N_BEFORE + N_PICTURE + N_AFTER
    assert reply.usage is not None and reply.usage.input_tokens == out["tokens_evaluated"]


def test_a_picture_seen_before_is_not_computed_again(http: httpx.Client) -> None:
    def cached(data: bytes) -> int:
        body = {"messages": asked(data), "temperature": 0, "max_tokens": 4}
        used = http.post(CHAT, json=body).json()["usage"]
        assert used["prompt_tokens"] == N_BEFORE + N_PICTURE + N_AFTER
        return int(used["prompt_tokens_details"]["cached_tokens"])

    cached(flat("#123456"))
    assert cached(flat("#123456")) >= N_BEFORE + N_PICTURE
    assert cached(flat("#123457")) <= N_BEFORE + 1


def test_several_pictures_in_one_message_are_all_read(http: httpx.Client) -> None:
    parts = [*asked(PICTURES[0][0])[0]["content"][:1], *asked(PICTURES[5][0])[0]["content"]]
    body = {"messages": [{"role": "user", "content": parts}], "temperature": 0, "max_tokens": 20}
    out = http.post(CHAT, json=body).json()
    assert out["usage"]["prompt_tokens"] == N_BEFORE + 2 * N_PICTURE + N_AFTER
    said = out["choices"][0]["message"]["content"].lower()
    assert "blue" in said or "yellow" in said


def test_each_of_many_at_once_sees_its_own_picture_while_others_leave(
    gpt: openai.OpenAI, http: httpx.Client
) -> None:
    rng = random.Random(5)

    def leaving(data: bytes, after_s: float) -> None:
        body = {"messages": asked(data), "max_tokens": 200, "stream": True}
        timeout = httpx.Timeout(60, read=after_s)
        try:
            with http.stream("POST", CHAT, json=body, timeout=timeout) as reply:
                for _ in zip(reply.iter_lines(), range(rng.randrange(12)), strict=False):
                    pass
        except httpx.ReadTimeout:
            pass  # it has left before the first event

    with concurrent.futures.ThreadPoolExecutor(12) as threads:
        for _ in range(5):
            pictures = rng.sample(PICTURES, len(PICTURES))
            left = [
                threads.submit(leaving, rng.choice(PICTURES)[0], rng.uniform(0.02, 1.5))
                for _ in range(4)
            ]
            said = list(threads.map(lambda picture: answer(gpt, picture[0]), pictures))
            for future in left:
                future.result()
            for (_, colour), words in zip(pictures, said, strict=True):
                assert colour in words, (colour, words)
    assert http.get("/health").json() == {"status": "ok"}


def _chunk(name: bytes, data: bytes) -> bytes:
    body = name + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


BOMB = b"\x89PNG\r\n\x1a\n" + b"".join(
    (
        _chunk(b"IHDR", struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)),
        _chunk(b"IDAT", zlib.compress(bytes(100))),
        _chunk(b"IEND", b""),
    )
)
SAMPLE = (SAMPLES / "red_circle.png").read_bytes()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (BOMB, "20000 x 20000"),
        (SAMPLE[: len(SAMPLE) // 2], "damaged or cut off"),
        (b'<svg xmlns="http://www.w3.org/2000/svg" width="9"/>', "SVG"),
        (b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf", "AVIF"),
        (b"<!DOCTYPE html><html><body>red.png</body></html>", "HTML"),
        (b"", "empty"),
        (SAMPLE + bytes(50 << 20), "20971520"),
    ],
    ids=["bomb", "cut", "svg", "avif", "html", "empty", "50 MB"],
)
def test_what_cannot_be_a_picture_is_refused(http: httpx.Client, data: bytes, words: str) -> None:
    error = http.post(CHAT, json={"messages": asked(data)})
    assert error.status_code == 400
    at = "messages[0].content[0].image_url"
    assert error.json()["error"]["param"] == at
    assert error.json()["error"]["message"].startswith(at)
    assert words in error.json()["error"]["message"]
    assert http.get("/health").status_code == 200


def test_a_redirect_to_this_machine_is_refused(http: httpx.Client, elsewhere: str) -> None:
    part = {"type": "image_url", "image_url": {"url": f"http://{elsewhere}/red.png"}}
    reply = http.post(CHAT, json={"messages": [{"role": "user", "content": [part]}]})
    assert reply.status_code == 400
    assert "the URL redirects" in reply.json()["error"]["message"]


def test_text_is_answered_as_without_a_projector(http: httpx.Client, server: Any) -> None:
    body = {"prompt": "The capital of France is", "temperature": 0, "n_predict": 5}
    plain = httpx.post(server.url + "/completion", json=body, timeout=60).json()
    assert http.post("/completion", json=body).json()["content"] == plain["content"]
    props = http.get("/props").json()
    assert props["modalities"] == {"vision": True, "audio": False, "video": False}


def test_sounds_are_refused_by_a_projector_for_pictures(http: httpx.Client) -> None:
    part = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    reply = http.post(CHAT, json={"messages": [{"role": "user", "content": [part]}]})
    assert reply.status_code == 400
    message = "messages[0].content[0].input_audio: this model takes no sounds"
    assert reply.json()["error"]["message"] == message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent.gguf", r"--mmproj \S*absent.gguf: no such file"),
        ("text.gguf", r"--mmproj \S*text.gguf: not a GGUF file"),
        ("model.gguf", r"model.gguf: not a projector for this model"),
    ],
)
def test_what_is_no_projector_stops_the_start_with_a_reason(
    serve: Any, tmp_path: Path, model_path: Path, name: str, words: str
) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "model.gguf").symlink_to(model_path)
    flags = ["--mmproj", str(tmp_path / name), "--data-dir", str(tmp_path / "data")]
    with serve(*flags) as server:
        server.wait_for(words)
        assert server.process.wait(30) in (2, 3)


def test_a_model_for_ranking_takes_no_projector(serve: Any, mmproj: Path, tmp_path: Path) -> None:
    flags = ["--mmproj", str(mmproj), "--reranking", "--data-dir", str(tmp_path)]
    with serve(*flags) as server:
        server.wait_for(r"mmproj.gguf: a model for vectors or ranking takes none")
        assert server.process.wait(30) in (2, 3)
