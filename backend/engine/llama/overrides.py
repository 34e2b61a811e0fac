"""Metadata that the user gives in place of the file's: what may be, and llama.cpp's form of it.

llama.cpp takes an override of the wrong type, or a token that does not exist, for none at all, and
aborts on shapes that the weights do not have. Here those are errors, before it sees them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from corral.backend.engine.llama import ggufile
from corral.backend.engine.llama.native import LoadError, lib
from corral.backend.values_llama import Override

#: What describes the weights themselves, so that another value cannot be true.
_SHAPES = ("block_count", "expert_count")
_KINDS = {
    **dict.fromkeys(ggufile.RANGES, "int"),
    ggufile.FLOAT32: "float",
    ggufile.FLOAT64: "float",
    ggufile.BOOL: "bool",
    ggufile.STRING: "str",
}
_TYPES: dict[type, str] = {bool: "bool", int: "int", float: "float", str: "str"}


def check(file: ggufile.File, overrides: Sequence[Override]) -> None:
    """Raises ``LoadError`` for an override that would not be obeyed or could not work."""
    if not file.is_readable:
        return  # the loader says what is wrong with it
    for key, value in overrides:
        reason = _misfit(file, key, value)
        if reason:
            raise LoadError(f"--override-kv {key}: {reason}")


def _misfit(file: ggufile.File, key: str, value: bool | int | float | str) -> str:
    kind, given = file.kind(key), _TYPES[type(value)]
    if kind is not None and _KINDS.get(kind, "array") != given:
        return f"the file has a value of type {_KINDS.get(kind, 'array')} there, not {given}"
    name = key.rpartition(".")[2]
    if name in _SHAPES:
        return "describes the weights and cannot be another"
    if isinstance(value, int) and not isinstance(value, bool):
        return _wrong_number(file, key, name, value, kind)
    if isinstance(value, float) and name.endswith("epsilon") and value < 0:
        return f"must not be negative: {value}"
    return ""


def _wrong_number(file: ggufile.File, key: str, name: str, value: int, kind: int | None) -> str:
    low, high = ggufile.RANGES.get(ggufile.UINT32 if kind is None else kind, (0, 0))
    if key.startswith("tokenizer.") and name.endswith("_token_id"):
        high = min(high, (file.length("tokenizer.ggml.tokens") or 1) - 1)
    elif name == "expert_used_count":
        low, high = 1, file.number(key.replace("expert_used_count", "expert_count")) or 0
        if high == 0:
            return "the model has no experts"
    elif name == "context_length":
        low, high = 1, 2**31 - 1
    return "" if low <= value <= high else f"must be between {low} and {high}: {value}"


def array(overrides: Sequence[Override]) -> Any:
    """The array that llama.cpp takes, ended by an empty key. To be kept while it loads."""
    rows = (lib.llama_model_kv_override * (len(overrides) + 1))()
    for row, (key, value) in zip(rows, overrides, strict=False):
        row.key = key.encode()
        match value:
            case bool():
                row.tag, row.value.val_bool = lib.LLAMA_KV_OVERRIDE_TYPE_BOOL, value
            case int():
                row.tag, row.value.val_i64 = lib.LLAMA_KV_OVERRIDE_TYPE_INT, value
            case float():
                row.tag, row.value.val_f64 = lib.LLAMA_KV_OVERRIDE_TYPE_FLOAT, value
            case str():
                row.tag, row.value.val_str = lib.LLAMA_KV_OVERRIDE_TYPE_STR, value.encode()
    return ctypes.cast(rows, ctypes.POINTER(lib.llama_model_kv_override))
