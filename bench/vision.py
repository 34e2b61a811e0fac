"""What a picture costs: its encoding as a share of the answer, and a picture that was seen before
against a new one. With the projector of the tests, whose encoder is tiny: the shares of a real one
are larger, the ratio of a cached picture too."""

import base64
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from bench import servers
from bench.measure import embedded_model, median, table
from corral.backend.engine.llama import Llama
from corral.backend.engine.llama.media import Projector
from corral.backend.engine.media import Item
from corral.backend.engine.messages import Media

SCRIPT = Path(__file__).parent.parent / "tests" / "data" / "vision" / "make_mmproj.py"
N_PICTURES = 12
SIDE = 512
ASK = "What colour is the image?"


def report(threads: int, rounds: int) -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mmproj.gguf"
        made = [sys.executable, str(SCRIPT), str(embedded_model()), str(path)]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        see_s, encode_s = _encoding(path, threads)
        with servers.corral("--threads", str(threads), "--mmproj", str(path)) as url:
            first = [_first_s(url, _png(folder, i)) for i in range(N_PICTURES * rounds)]
            again = [_first_s(url, _png(folder, i)) for i in range(N_PICTURES * rounds)]
            text = [_first_s(url, "") for _ in range(N_PICTURES)]
    cold, cached = median(first), median(again)
    rows = [
        ("preparing, ms", f"{see_s * 1e3:.1f}", f"{see_s / cold:.1%}"),
        ("encoding, ms", f"{encode_s * 1e3:.1f}", f"{encode_s / cold:.1%}"),
        ("first token, new picture, ms", f"{cold * 1e3:.0f}", "100%"),
        ("first token, seen before, ms", f"{cached * 1e3:.0f}", f"{cached / cold:.0%}"),
        ("first token, no picture, ms", f"{median(text) * 1e3:.0f}", f"{median(text) / cold:.0%}"),
    ]
    head = ("what", "median", "of a new picture")
    table(f"pictures of {SIDE} x {SIDE} pixels, {threads} threads", head, rows)


def _encoding(path: Path, threads: int) -> tuple[float, float]:
    """Seconds to prepare a picture and to encode it."""

    def load(model: Any) -> Projector:
        return Projector(path, model, n_batch=512, n_threads=threads)

    model = Llama(
        *(embedded_model(),),
        n_ctx=512,
        n_slots=1,
        n_seq_max=4,
        n_batch=512,
        n_threads=threads,
        mmproj=load,
    )
    see, encode = [], []
    for i in range(N_PICTURES):
        data = Image.new("RGB", (SIDE, SIDE), _colour(i)).tobytes()
        media = Media(kind="image", key=str(i), data=data, width=SIDE, height=SIDE)
        began = time.perf_counter()
        items = [part for part in model.see(media) if isinstance(part, Item)]
        see.append(time.perf_counter() - began)
        began = time.perf_counter()
        for item in items:
            model.encode(item)
        encode.append(time.perf_counter() - began)
    model.close()
    return median(see), median(encode)


def _colour(i: int) -> tuple[int, int, int]:
    return (i * 37 % 256, i * 91 % 256, i * 53 % 256)


def _png(folder: str, i: int) -> str:
    path = Path(folder) / f"{i}.png"
    if not path.exists():
        Image.new("RGB", (SIDE, SIDE), _colour(i)).save(path)
    return base64.b64encode(path.read_bytes()).decode()


def _first_s(url: str, picture: str) -> float:
    """Seconds to the first token of an answer about a picture, or about none."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": ASK}]
    if picture:
        source = {"url": f"data:image/png;base64,{picture}"}
        parts.insert(0, {"type": "image_url", "image_url": source})
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1, "temperature": 0}
    if not picture:
        body["cache_prompt"] = False
    began = time.perf_counter()
    httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).raise_for_status()
    return time.perf_counter() - began
