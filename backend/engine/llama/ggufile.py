"""What is in a GGUF file, read through llama.cpp's own reader before the model is loaded."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import NamedTuple, cast

from corral.backend.engine.llama.native import LoadError, lib

#: Files are little-endian and begin with these bytes (GGUF specification).
GGUF_MAGIC = b"GGUF"

# gguf.h: the types of values.
UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = range(10)
UINT64, INT64, FLOAT64 = 10, 11, 12
#: The smallest and the largest value of each type of whole numbers.
RANGES = {
    kind: (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
    for kind, bits, is_signed in (
        *((UINT8, 8, False), (UINT16, 16, False), (UINT32, 32, False), (UINT64, 64, False)),
        *((INT8, 8, True), (INT16, 16, True), (INT32, 32, True), (INT64, 64, True)),
    )
}


def check_file(path: Path) -> None:
    """Raises ``LoadError`` for what can be told without llama.cpp, in plainer words."""
    if not path.exists():
        raise LoadError(f"{path}: no such file")
    if not path.is_file():
        raise LoadError(f"{path}: not a file")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror}") from None
    if magic != GGUF_MAGIC:
        raise LoadError(f"{path}: not a GGUF file")


class _Params(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


class _Found(NamedTuple):
    place: int
    kind: int


class File:
    """A file's header in llama.cpp's memory; everything is absent from one that it cannot read.
    A getter of the wrong type would abort, so each asks for the type first."""

    def __init__(self, path: Path) -> None:
        library = lib._lib
        self._library = library
        for name, result, *arguments in (
            ("gguf_init_from_file", ctypes.c_void_p, ctypes.c_char_p, _Params),
            ("gguf_free", None, ctypes.c_void_p),
            ("gguf_find_key", ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p),
            ("gguf_find_tensor", ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p),
            ("gguf_get_kv_type", ctypes.c_int, ctypes.c_void_p, ctypes.c_int64),
            ("gguf_get_arr_n", ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int64),
            ("gguf_get_val_u32", ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int64),
            ("gguf_get_val_i32", ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64),
            ("gguf_get_val_bool", ctypes.c_bool, ctypes.c_void_p, ctypes.c_int64),
            ("gguf_get_val_str", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._file = library.gguf_init_from_file(os.fsencode(path), _Params(True, None))

    @property
    def is_readable(self) -> bool:
        """Whether llama.cpp makes sense of the file."""
        return bool(self._file)

    def kind(self, key: str) -> int | None:
        """The type of a value, or None where there is none."""
        found = self._find(key)
        return None if found is None else found.kind

    def _find(self, key: str, *kinds: int) -> _Found | None:
        if not self._file:
            return None
        index = self._library.gguf_find_key(self._file, key.encode())
        if index < 0:
            return None
        found = _Found(index, self._library.gguf_get_kv_type(self._file, index))
        return found if not kinds or found.kind in kinds else None

    def text(self, key: str) -> str | None:
        """A string."""
        found = self._find(key, STRING)
        if found is None:
            return None
        return cast(bytes, self._library.gguf_get_val_str(self._file, found.place)).decode(
            "utf-8", "replace"
        )

    def number(self, key: str) -> int | None:
        """A whole number of 32 bits."""
        found = self._find(key, UINT32, INT32)
        if found is None:
            return None
        read = "gguf_get_val_u32" if found.kind == UINT32 else "gguf_get_val_i32"
        return int(getattr(self._library, read)(self._file, found.place))

    def flag(self, key: str) -> bool | None:
        """A truth value."""
        found = self._find(key, BOOL)
        if found is None:
            return None
        return bool(self._library.gguf_get_val_bool(self._file, found.place))

    def length(self, key: str) -> int | None:
        """How many values an array has."""
        found = self._find(key, ARRAY)
        return None if found is None else int(self._library.gguf_get_arr_n(self._file, found.place))

    def has_tensor(self, name: bytes) -> bool:
        """Whether there are weights of this name."""
        return bool(self._file) and self._library.gguf_find_tensor(self._file, name) >= 0

    def close(self) -> None:
        """Frees the header."""
        if self._file:
            self._library.gguf_free(self._file)
            self._file = None
