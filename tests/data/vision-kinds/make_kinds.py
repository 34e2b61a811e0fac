"""Writes tiny vision models of made-up numbers, for each way in which a picture is computed.

    python make_kinds.py FOLDER

Each is a text model and its projector, ``NAME.gguf`` and ``NAME-mmproj.gguf``:

- ``qwen2vl``: a picture takes other positions than tokens (M-RoPE), and any number of both.
- ``gemma3``: the tokens of a picture see each other (not causal); attention slides in one layer.
- ``idefics3``: a large picture is cut into several, with text between.

They say nothing of sense; what they say depends on every pixel, token and position before.
"""

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Tensors = dict[str, NDArray[np.float32]]

N_EMBD, N_FF, N_HEAD, N_LAYER = 64, 128, 4, 2
#: Of the projector.
V_EMBD, V_FF, V_HEAD, PATCH = 32, 64, 2, 4

SPECIAL = (
    "<|endoftext|>",
    "<bos>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<start_of_image>",
    "<end_of_image>",
    "<fake_token_around_image>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
)


class Numbers:
    """Made-up weights, the same each time."""

    def __init__(self, name: str) -> None:
        self._random = np.random.default_rng(list(name.encode()))

    def matrix(self, n_out: int, n_in: int, scale: float = 1.0) -> NDArray[np.float32]:
        """Keeps the size of what it is multiplied with, times ``scale``."""
        return self._random.normal(0, scale / np.sqrt(n_in), (n_out, n_in)).astype(np.float32)

    def vector(self, n: int, mean: float = 0.0) -> NDArray[np.float32]:
        """A bias, or a norm's weight with ``mean`` 1."""
        return self._random.normal(mean, 0.1, n).astype(np.float32)


def letters() -> list[str]:
    """The characters that stand for the 256 bytes in vocabularies of GPT-2's kind."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def add_vocabulary(writer: gguf.GGUFWriter, *, has_bos: bool) -> int:
    """Bytes, two line breaks as one, and the marks around pictures. Returns how many."""
    single = letters()
    line = single[ord("\n")]
    tokens = [*single, line * 2, *SPECIAL]
    kinds = [gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL] * len(SPECIAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([f"{line} {line}"])
    writer.add_eos_token_id(257)
    writer.add_bos_token_id(258)
    writer.add_add_bos_token(has_bos)
    return len(tokens)


def text_tensors(name: str, n_vocab: int) -> Tensors:
    """The weights of a text model."""
    numbers = Numbers(name)
    tensors = {
        "token_embd.weight": numbers.matrix(n_vocab, N_EMBD),
        "output_norm.weight": numbers.vector(N_EMBD, 1),
        "output.weight": numbers.matrix(n_vocab, N_EMBD, 3),
    }
    tensors["output.weight"][257:] = 0  # no answer ends, or shows a picture
    for i in range(N_LAYER):
        block = f"blk.{i}."
        for part in ("attn_q", "attn_k"):
            tensors[f"{block}{part}.weight"] = numbers.matrix(N_EMBD, N_EMBD, 1.5)
        for part in ("attn_v", "attn_output"):
            tensors[f"{block}{part}.weight"] = numbers.matrix(N_EMBD, N_EMBD)
        for part in ("ffn_gate", "ffn_up"):
            tensors[f"{block}{part}.weight"] = numbers.matrix(N_FF, N_EMBD)
        tensors[f"{block}ffn_down.weight"] = numbers.matrix(N_EMBD, N_FF)
        norms = ["attn_norm", "ffn_norm"]
        if name == "gemma3":
            norms += ["post_attention_norm", "post_ffw_norm"]
            for part in ("attn_q_norm", "attn_k_norm"):
                tensors[f"{block}{part}.weight"] = 1.5 * numbers.vector(N_EMBD // N_HEAD, 1)
        for part in norms:
            tensors[f"{block}{part}.weight"] = numbers.vector(N_EMBD, 1)
        if name == "qwen2vl":
            for part in ("attn_q", "attn_k", "attn_v"):
                tensors[f"{block}{part}.bias"] = numbers.vector(N_EMBD)
    return tensors


def write_text(path: Path, name: str) -> None:
    """Writes a text model of one of the architectures."""
    arch = "llama" if name == "idefics3" else name
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(f"made-up {name}")
    writer.add_context_length(8192)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYER)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    if name == "qwen2vl":
        writer.add_rope_dimension_sections([2, 3, 3, 0])
    elif name == "gemma3":
        writer.add_key_length(N_EMBD // N_HEAD)
        writer.add_value_length(N_EMBD // N_HEAD)
        writer.add_sliding_window(24)
        writer.add_sliding_window_pattern(2)
    n_vocab = add_vocabulary(writer, has_bos=name == "gemma3")
    finish(writer, text_tensors(name, n_vocab))


def vision_blocks(name: str, n_patches: int) -> Tensors:
    """A vision transformer of one layer; positions only where they are not computed."""
    numbers = Numbers(f"{name}/vision")

    def patches() -> NDArray[np.float32]:
        flat = numbers.matrix(V_EMBD, 3 * PATCH * PATCH, 3)
        return flat.reshape(V_EMBD, 3, PATCH, PATCH)

    tensors = {"v.patch_embd.weight": patches()}
    if name == "qwen2vl":
        tensors["v.patch_embd.weight.1"] = patches()
    else:
        tensors["v.patch_embd.bias"] = numbers.vector(V_EMBD)
        tensors["v.position_embd.weight"] = numbers.matrix(n_patches, V_EMBD, 4)
    for part in ("v.blk.0.ln1", "v.blk.0.ln2", "v.post_ln"):
        tensors[f"{part}.weight"] = numbers.vector(V_EMBD, 1)
        tensors[f"{part}.bias"] = numbers.vector(V_EMBD)
    shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (V_EMBD, V_EMBD))
    shapes |= {"ffn_up": (V_FF, V_EMBD), "ffn_down": (V_EMBD, V_FF)}
    for part, (n_out, n_in) in shapes.items():
        tensors[f"v.blk.0.{part}.weight"] = numbers.matrix(n_out, n_in)
        tensors[f"v.blk.0.{part}.bias"] = numbers.vector(n_out)
    return tensors


def projection(name: str) -> Tensors:
    """From what is seen to the text model's width."""
    numbers = Numbers(f"{name}/projection")
    if name == "qwen2vl":  # four patches become one token
        return {
            "mm.0.weight": numbers.matrix(4 * V_EMBD, 4 * V_EMBD),
            "mm.0.bias": numbers.vector(4 * V_EMBD),
            "mm.2.weight": numbers.matrix(N_EMBD, 4 * V_EMBD),
            "mm.2.bias": numbers.vector(N_EMBD),
        }
    if name == "gemma3":  # this one lies the other way round
        flat = numbers.matrix(N_EMBD, V_EMBD).T
        norm = numbers.vector(V_EMBD, 1)
        return {"mm.input_projection.weight": flat, "mm.soft_emb_norm.weight": norm}
    return {"mm.model.fc.weight": numbers.matrix(N_EMBD, 4 * V_EMBD)}


def write_projector(path: Path, name: str, *, size: int, **more: int) -> None:
    """Writes a projector for pictures of ``size`` pixels a side."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_name(f"made-up {name}")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", {"qwen2vl": "qwen2vl_merger"}.get(name, name))
    writer.add_bool("clip.use_gelu", True)
    fields: dict[str, Any] = {
        "image_size": size,
        "patch_size": PATCH,
        "embedding_length": V_EMBD,
        "feed_forward_length": V_FF,
        "block_count": 1,
        "projection_dim": N_EMBD,
        "attention.head_count": V_HEAD,
        **more,
    }
    for key, value in fields.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    finish(writer, vision_blocks(name, (size // PATCH) ** 2) | projection(name))


def finish(writer: gguf.GGUFWriter, tensors: Tensors) -> None:
    """Writes what was added, and the weights."""
    for name, data in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(data, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(folder: Path) -> None:
    """Writes all of them."""
    fields: dict[str, dict[str, int]] = {
        "qwen2vl": {"size": 64},
        "gemma3": {"size": 48, "projector.scale_factor": 2},
        "idefics3": {"size": 16, "projector.scale_factor": 2, "preproc_image_size": 32},
    }
    for name, more in fields.items():
        write_text(folder / f"{name}.gguf", name)
        write_projector(folder / f"{name}-mmproj.gguf", name, **more)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
