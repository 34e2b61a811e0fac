"""Sounds through projectors, as llama.cpp computes them and as clients send them.

The models are made up (``tests/data/audio-kinds``). That their answers are right means that they
are those of llama.cpp's own helper, ``mtmd_helper_eval_chunks``.
"""

import base64
import importlib.util
import io
import struct
import subprocess
import sys
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from corral.backend.engine.messages import Media

pytestmark = [pytest.mark.model, pytest.mark.timeout(60)]

DATA = Path(__file__).parents[1] / "data" / "audio-kinds"
#: Of each kind: the tokens of up to 30 seconds, and of the marks around a sound (none of which is
#: one token of the made-up vocabulary).
KINDS = {"ultravox": (187, 0), "qwen2a": (750, 26), "voxtral": (187, 13)}
RATE = 16_000
CHAT = "/v1/chat/completions"
#: How far sums in another order move the log probabilities.
TOLERANCE = 2e-4


def _seeing() -> Any:
    """The test of the kinds that see, whose engines and answers serve here too."""
    path = Path(__file__).with_name("test_media_kinds.py")
    spec = importlib.util.spec_from_file_location("media_kinds", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its named tuples look themselves up
    spec.loader.exec_module(module)
    return module


seeing = _seeing()


def samples(key: int, seconds: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A chord that changes every tenth of a second, and noise."""
    random = np.random.default_rng(key)
    n = max(1, round(seconds * RATE))
    hertz = random.integers(100, 4000, (n // 1600 + 1, 3)).repeat(1600, 0)[:n]
    chord = np.sin(hertz * (np.arange(n)[:, None] * 2 * np.pi / RATE)).mean(1)
    return (0.5 * chord + random.normal(0, 0.01, n)).astype("<f4")


def sound(key: int, seconds: float = 2) -> Media:
    return Media(kind="audio", key=f"{key}-{seconds}", data=samples(key, seconds).tobytes())


def wav(key: int, seconds: float = 2) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, RATE, 0, "NONE", ""))
        out.writeframes((samples(key, seconds) * 32_000).astype("<i2").tobytes())
    return file.getvalue()


def float_wav(values: list[float]) -> bytes:
    data = np.array(values, "<f4").tobytes()
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, 3, 1, RATE, 4 * RATE, 4, 32)
    body = b"WAVE" + head + struct.pack("<4sI", b"data", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


#: Two seconds of silence: frames of 26 ms whose side information says that nothing follows.
MP3 = (b"\xff\xfb\x90\xc4" + bytes(413)) * 77

A, B = sound(1), sound(2, 29)

PROMPTS: list[list[Any]] = [
    ["Listen: ", A, " What is it?"],
    [A, "?"],
    ["Here ", A, " and there ", B, " are what?"],
    ["Both ", A, A, " at once, please."],
    ["A long one ", sound(3, 31), "."],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("kinds")
    subprocess.run([sys.executable, DATA / "make_kinds.py", made], check=True, timeout=60)
    return made


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def bare(folder: Path, kind: str) -> Iterator[Any]:
    model = seeing.Bare(folder, kind, n_ctx=4096)
    yield model
    model.close()


@pytest.fixture
def start(folder: Path, kind: str) -> Iterator[Callable[..., Any]]:
    engines = list[Any]()

    def make(**changes: Any) -> Any:
        engines.append(seeing.Engine(folder, kind, **{"n_ctx": 4096, **changes}))
        return engines[-1]

    yield make
    for engine in engines:
        engine.words.close()


# --- as llama.cpp computes them ------------------------------------------------------------------


def test_answers_are_those_of_llama_cpps_own_helper(bare: Any, start: Callable[..., Any]) -> None:
    for parts in PROMPTS:
        # With an engine for each: cells that were used before are summed in another order.
        assert start().ask(*parts).is_like(bare.answer(*parts), TOLERANCE), parts


def test_an_answer_depends_on_each_sound_and_on_their_order(bare: Any) -> None:
    asked = [(A, B), (B, A), (A, A)]
    answers = [bare.answer("1 ", one, " 2 ", two, " which?") for one, two in asked]
    assert not any(a.is_like(b) for i, a in enumerate(answers) for b in answers[:i])


def test_streams_beside_a_sound_and_the_sound_say_what_they_say_alone(
    bare: Any, start: Callable[..., Any]
) -> None:
    engine = start(budget=50)
    asked: list[list[Any]] = [["Tell me more."], PROMPTS[0], PROMPTS[2], PROMPTS[0]]
    requests = list[int]()
    for parts in asked:
        requests.append(engine.add(*parts))
        engine.step(3)
    engine.run()
    for request, parts in zip(requests, asked, strict=True):
        assert engine.answer(request).is_like(bare.answer(*parts)), parts


def test_a_sound_heard_before_is_not_computed_again(
    kind: str, bare: Any, start: Callable[..., Any]
) -> None:
    engine = start()
    engine.ask("Here ", A, " it is.")
    request = engine.add("Here ", A, " I am.")
    engine.run()
    assert engine.n_cached(request) >= engine.n_tokens("Here ", A)
    assert engine.answer(request).is_like(bare.answer("Here ", A, " I am."))
    request = engine.add("Here ", sound(4), " I am.")
    engine.run()
    assert engine.n_cached(request) < KINDS[kind][0]


def test_sounds_of_odd_lengths_are_answered(folder: Path, kind: str) -> None:
    """A second in a minute may take another 30 seconds: silence follows, and counts."""
    pieces = {1: 1, 2: 1, 1600: 1, 478_400: 1, 480_000: 2, 480_001: 2, 496_000: 2, 1_040_000: 3}
    heard, more = KINDS[kind]
    n_text = len("Hear: . ")
    done = subprocess.run(
        [
            *(sys.executable, DATA / "odd_sounds.py"),
            *(folder / f"{kind}.gguf", folder / f"{kind}-mmproj.gguf", *map(str, pieces)),
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if "answered" in line or "refused" in line]
    assert said == [f"{n} answered {n_text + heard * k + more}" for n, k in pieces.items()]


# --- as clients send them ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hearing(serve: Any, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    flags = ["--model", str(folder / "ultravox.gguf")]
    flags += ["--mmproj", str(folder / "ultravox-mmproj.gguf"), "--chat-template", "chatml"]
    flags += ["--threads", "1", "--ctx-size", "4096"]
    with serve(*flags, "--data-dir", str(tmp_path_factory.mktemp("data"))) as server:
        assert server.url
        yield server


@pytest.fixture
def http(hearing: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=hearing.url, timeout=50) as client:
        yield client


def played(data: bytes, sort: str = "wav", words: str = "What is it?") -> list[Any]:
    given = {"data": base64.b64encode(data).decode(), "format": sort}
    parts = [{"type": "input_audio", "input_audio": given}, {"type": "text", "text": words}]
    return [{"role": "user", "content": parts}]


@pytest.mark.parametrize(("data", "sort"), [(wav(5), "wav"), (MP3, "mp3")], ids=["wav", "mp3"])
def test_openais_client_gets_an_answer_to_a_sound(hearing: Any, data: bytes, sort: str) -> None:
    with openai.OpenAI(base_url=f"{hearing.url}/v1", api_key="k", max_retries=0) as client:
        used = []
        for messages in (played(data, sort), played(data, sort), played(b"", sort)):
            if not messages[0]["content"][0]["input_audio"]["data"]:
                del messages[0]["content"][0]
            reply = client.chat.completions.create(
                model="m", messages=messages, temperature=0, max_tokens=8
            )
            assert reply.choices[0].finish_reason == "length" and reply.usage is not None
            assert reply.usage.completion_tokens == 8 and reply.choices[0].message.content
            details = reply.usage.prompt_tokens_details
            assert details is not None
            used.append((reply.usage.prompt_tokens, details.cached_tokens or 0))
    (first, _), (second, n_cached), (without, _) = used
    assert first == second == without + KINDS["ultravox"][0]
    assert n_cached == first - 1


def test_what_a_server_says_of_itself_says_that_it_hears(hearing: Any, http: httpx.Client) -> None:
    hearing.wait_for(r"\n  takes    text, sounds\n")
    modalities = {"vision": False, "audio": True, "video": False}
    assert http.get("/props").json()["modalities"] == modalities
    models = http.get("/v1/models").json()
    assert models["models"][0]["capabilities"] == ["completion", "multimodal"]


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(99)).decode()


def test_a_picture_is_refused_by_a_projector_for_sounds(http: httpx.Client) -> None:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    reply = http.post(CHAT, json={"messages": [{"role": "user", "content": [part]}]})
    assert reply.status_code == 400
    at = "messages[0].content[0].image_url"
    assert reply.json()["error"]["param"] == at
    assert reply.json()["error"]["message"] == f"{at}: this model takes no pictures"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (wav(6)[:20], "this WAV is damaged or holds no sound"),
        (wav(6)[:44], "this WAV is damaged or holds no sound"),
        (float_wav([0.1, float("nan"), 0.1]), "this WAV is damaged or holds no sound"),
        (float_wav([0.1, 1e30, -1e30]), "this WAV is damaged or holds no sound"),
        (b"OggS" + bytes(40), "this is Ogg, which is not supported"),
        (base64.b64decode(PNG), "this is PNG, a picture and no sound"),
        (wav(6, 0.1) + bytes(21 << 20), "more than the 20971520 bytes allowed"),
        (wav(7, 601), "this WAV is over 600 seconds long"),
    ],
    ids=["cut", "no samples", "no number", "too loud", "ogg", "png", "too large", "too long"],
)
def test_what_cannot_be_a_sound_is_refused(http: httpx.Client, data: bytes, words: str) -> None:
    reply = http.post(CHAT, json={"messages": played(data)})
    at = "messages[0].content[0].input_audio"
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, at)
    assert words in reply.json()["error"]["message"]
    assert http.get("/health").status_code == 200


def test_one_sample_is_answered_and_more_than_the_context_holds_is_refused(
    http: httpx.Client,
) -> None:
    body = {"messages": played(float_wav([0.1])), "max_tokens": 2}
    n = http.post(CHAT, json=body).json()["usage"]["prompt_tokens"]
    assert n > KINDS["ultravox"][0]
    said = played(wav(8, 1), words="x" * 4000)
    reply = http.post(CHAT, json={"messages": said, "max_tokens": 2})
    assert reply.status_code == 400 and "the context holds 4096" in reply.text
    assert http.get("/health").json() == {"status": "ok"}


def test_raw_prompts_and_responses_hear_the_same(http: httpx.Client) -> None:
    data = wav(9, 1)
    text = http.post("/apply-template", json={"messages": played(data)}).json()["prompt"]
    raw = {"prompt_string": text, "multimodal_data": [base64.b64encode(data).decode()]}
    body = {"temperature": 0, "max_tokens": 8, "n_predict": 8}
    chat = http.post(CHAT, json={"messages": played(data), **body}).json()
    out = http.post("/completion", json={"prompt": raw, **body}).json()
    assert out["content"] == chat["choices"][0]["message"]["content"]
    assert out["tokens_evaluated"] == chat["usage"]["prompt_tokens"]
    part, words = played(data)[0]["content"]
    parts = [part, {"type": "input_text", "text": words["text"]}]
    asked = {"input": [{"role": "user", "content": parts}], "temperature": 0}
    reply = http.post("/v1/responses", json={**asked, "max_output_tokens": 8}).json()
    assert reply["output"][0]["content"][0]["text"] == out["content"]
    assert reply["usage"]["input_tokens"] == out["tokens_evaluated"]
