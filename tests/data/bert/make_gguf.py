"""Writes the GGUF file of a BERT model from its weights as Hugging Face has them.

    python make_gguf.py FOLDER OUT.gguf [--type f16|f32|q8_0] [--rank] [--template TEXT]

FOLDER holds ``config.json``, ``vocab.txt``, ``model.safetensors``. ``--rank`` adds a classification
head with made-up numbers: enough to compute with, not to rank by. ``--template`` is the model's
template for a query and a document.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

#: Names of tensors outside the layers, and within one.
OUTER = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
INNER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def name_of(tensor: str) -> str | None:
    """llama.cpp's name of a tensor; None for those it has no use for."""
    stem, _, kind = tensor.removeprefix("bert.").rpartition(".")
    if stem in OUTER:
        return f"{OUTER[stem]}.{kind}"
    match = re.fullmatch(r"encoder\.layer\.(\d+)\.(.+)", stem)
    return f"blk.{match[1]}.{INNER[match[2]]}.{kind}" if match and match[2] in INNER else None


def head(n: int) -> dict[str, NDArray[np.float32]]:
    """A classification head, the same each time."""
    numbers = np.random.default_rng(0)
    return {
        "cls.weight": numbers.normal(0, 0.05, (n, n)).astype(np.float32),
        "cls.bias": numbers.normal(0, 0.05, n).astype(np.float32),
        "cls.output.weight": numbers.normal(0, 0.5, (1, n)).astype(np.float32),
        "cls.output.bias": np.full(1, 0.25, np.float32),
    }


def add_vocabulary(writer: gguf.GGUFWriter, words: list[str]) -> None:
    """llama.cpp marks the beginnings of words where BERT marks their continuations."""
    pieces = [
        word if word in SPECIAL else word[2:] if word.startswith("##") else "\u2581" + word
        for word in words
    ]
    kinds = [gguf.TokenType.CONTROL if w in SPECIAL else gguf.TokenType.NORMAL for w in words]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("bert-bge")
    writer.add_token_list(pieces)
    writer.add_token_types(kinds)
    ids = {word: i for i, word in enumerate(words)}
    writer.add_bos_token_id(ids["[CLS]"])
    writer.add_eos_token_id(ids["[SEP]"])
    writer.add_sep_token_id(ids["[SEP]"])
    writer.add_unk_token_id(ids["[UNK]"])
    writer.add_pad_token_id(ids["[PAD]"])
    writer.add_mask_token_id(ids["[MASK]"])


def add_config(writer: gguf.GGUFWriter, config: dict[str, Any], *, rank: bool) -> None:
    """The shape of the model."""
    writer.add_name("bert")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.RANK if rank else gguf.PoolingType.MEAN)


def add_tensor(writer: gguf.GGUFWriter, name: str, data: NDArray[np.float32], kind: str) -> None:
    """A tensor; only matrices are made smaller."""
    data = np.ascontiguousarray(data, np.float32)
    if data.ndim < 2 or kind == "f32" or name.startswith(("position_embd", "token_types")):
        writer.add_tensor(name, data)
    elif kind == "f16":
        writer.add_tensor(name, data.astype(np.float16))
    else:
        q8 = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(data, q8), raw_dtype=q8)


def write(folder: Path, out: Path, *, kind: str, rank: bool, template: str | None) -> None:
    """Writes the file."""
    config = json.loads((folder / "config.json").read_text())
    tensors = {name_of(k): v for k, v in load_file(folder / "model.safetensors").items()}
    if rank:
        tensors |= head(config["hidden_size"])
    words = (folder / "vocab.txt").read_text().split("\n")[: config["vocab_size"]]
    writer = gguf.GGUFWriter(out, "bert")
    add_config(writer, config, rank=rank)
    add_vocabulary(writer, words)
    if template is not None:
        writer.add_string("tokenizer.chat_template.rerank", template)
    for name, data in tensors.items():
        if name is not None:
            add_tensor(writer, name, data, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=("f32", "f16", "q8_0"), default="f16")
    parser.add_argument("--rank", action="store_true")
    parser.add_argument("--template")
    given = parser.parse_args()
    write(given.folder, given.out, kind=given.type, rank=given.rank, template=given.template)
