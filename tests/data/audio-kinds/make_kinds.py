"""Writes tiny models of made-up numbers that hear, for the ways in which a sound is computed.

    python make_kinds.py FOLDER

Each is a text model and its projector, ``NAME.gguf`` and ``NAME-mmproj.gguf``. They
hear by Whisper's encoder, 30 seconds at once:

- ``ultravox``: frames are stacked, and nothing stands around a sound.
- ``qwen2a``: frames are averaged, and marks stand around a sound; positions are M-RoPE's.
- ``voxtral``: both, and a mark before a sound.

They say nothing of sense; what they say depends on every sound, token and position before.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Tensors = dict[str, NDArray[Any]]

N_MEL, N_FRAMES = 16, 1500
#: Of the encoder. With a width of 40, as with the real models' 1280, and not with a power of two,
#: llama.cpp stacks as many frames as it expects of itself.
A_EMBD, A_FF, A_HEAD = 40, 64, 2
#: Of the text model that each kind has, by its name among the kinds that see.
TEXT = {"ultravox": "idefics3", "qwen2a": "qwen2vl", "voxtral": "idefics3"}
STACKED = {"ultravox": 8, "voxtral": 4}


def _seeing() -> Any:
    """What makes the kinds that see."""
    path = Path(__file__).parents[1] / "vision-kinds" / "make_kinds.py"
    spec = importlib.util.spec_from_file_location("make_seeing_kinds", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


seeing = _seeing()
N_EMBD: int = seeing.N_EMBD


def encoder(name: str) -> Tensors:
    """Two convolutions over time and one layer; keys have no bias."""
    numbers = seeing.Numbers(f"{name}/audio")
    tensors: Tensors = {"a.position_embd.weight": numbers.matrix(N_FRAMES, A_EMBD, 4)}
    for i, n_in in ((1, N_MEL), (2, A_EMBD)):
        flat = numbers.matrix(A_EMBD, 3 * n_in, 3).reshape(A_EMBD, n_in, 3)
        tensors[f"a.conv1d.{i}.weight"] = flat.astype(np.float16)
        tensors[f"a.conv1d.{i}.bias"] = numbers.vector(A_EMBD)[:, None]
    for part in ("a.blk.0.ln1", "a.blk.0.ln2", "a.post_ln"):
        tensors[f"{part}.weight"] = numbers.vector(A_EMBD, 1)
        tensors[f"{part}.bias"] = numbers.vector(A_EMBD)
    shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (A_EMBD, A_EMBD))
    shapes |= {"ffn_up": (A_FF, A_EMBD), "ffn_down": (A_EMBD, A_FF)}
    for part, (n_out, n_in) in shapes.items():
        tensors[f"a.blk.0.{part}.weight"] = numbers.matrix(n_out, n_in)
        if part != "attn_k":
            tensors[f"a.blk.0.{part}.bias"] = numbers.vector(n_out)
    return tensors


def projection(name: str) -> Tensors:
    """From what is heard to the text model's width."""
    numbers = seeing.Numbers(f"{name}/projection")
    if name == "qwen2a":
        return {
            "mm.a.fc.weight": numbers.matrix(N_EMBD, A_EMBD),
            "mm.a.fc.bias": numbers.vector(N_EMBD),
        }
    n_in = A_EMBD * STACKED[name]
    if name == "voxtral":
        return {
            "mm.a.mlp.1.weight": numbers.matrix(A_FF, n_in),
            "mm.a.mlp.2.weight": numbers.matrix(N_EMBD, A_FF),
        }
    return {
        "mm.a.norm_pre.weight": numbers.vector(n_in, 1),
        "mm.a.mlp.1.weight": numbers.matrix(2 * A_FF, n_in),
        "mm.a.norm_mid.weight": numbers.vector(A_FF, 1),
        "mm.a.mlp.2.weight": numbers.matrix(N_EMBD, A_FF),
    }


def write_projector(path: Path, name: str) -> None:
    """Writes a projector for sounds."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_name(f"made-up {name}")
    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_string("clip.projector_type", name)
    fields = {
        "num_mel_bins": N_MEL,
        "embedding_length": A_EMBD,
        "feed_forward_length": A_FF,
        "block_count": 1,
        "projection_dim": N_EMBD,
        "attention.head_count": A_HEAD,
    }
    if name in STACKED:
        fields["projector.stack_factor"] = STACKED[name]
    for key, value in fields.items():
        writer.add_uint32(f"clip.audio.{key}", value)
    writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
    for tensor, data in (encoder(name) | projection(name)).items():
        writer.add_tensor(tensor, np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(folder: Path) -> None:
    """Writes all of them."""
    for name, text in TEXT.items():
        seeing.write_text(folder / f"{name}.gguf", text)
        write_projector(folder / f"{name}-mmproj.gguf", name)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
