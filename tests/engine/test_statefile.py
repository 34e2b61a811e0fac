import os
from array import array
from pathlib import Path
from typing import Any

import pytest

from corral.backend.engine import statefile
from corral.backend.engine.statefile import BadState, check_name

TOKENS, STATE = array("i", [1, 2, 3, 40_000]), bytes(range(256)) * 20


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    n = statefile.write(
        tmp_path, "s", TOKENS, STATE, fingerprint="model", adapters=(("digest", 0.5),)
    )
    assert n == (tmp_path / "s").stat().st_size
    return tmp_path / "s"


def read(path: Path, fingerprint: str = "model") -> Any:
    return statefile.read(path.parent, path.name, fingerprint=fingerprint)


def test_what_was_written_comes_back(saved: Path) -> None:
    header, tokens, state = read(saved)
    assert (tokens, state, header.adapters) == (TOKENS, STATE, (("digest", 0.5),))
    assert statefile.read_head(saved.parent, "s")[1] == TOKENS
    assert [p.name for p in saved.parent.iterdir()] == ["s"]


def test_a_file_of_another_model_is_refused(saved: Path) -> None:
    with pytest.raises(BadState, match="another model"):
        read(saved, "other")


def test_no_flipped_bit_gets_through(saved: Path) -> None:
    whole = saved.read_bytes()
    for at in [*range(200), *range(200, len(whole), 97), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        saved.write_bytes(damaged)
        with pytest.raises(BadState):
            read(saved)


@pytest.mark.parametrize("change", [-1, -17, -5000, 1, 100])
def test_a_file_that_is_too_short_or_long_is_refused(saved: Path, change: int) -> None:
    whole = saved.read_bytes()
    saved.write_bytes(whole[:change] if change < 0 else whole + bytes(change))
    with pytest.raises(BadState):
        read(saved)


@pytest.mark.parametrize("content", [b"", b"x", b"GGUF" * 100, b"CORRALKV" + b"\xff" * 100])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(BadState):
        read(tmp_path / "f")


def test_links_pipes_and_folders_are_not_read(saved: Path) -> None:
    folder = saved.parent
    (folder / "link").symlink_to(saved)
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    for name in ("link", "folder", "pipe", "absent"):
        with pytest.raises(BadState):
            read(folder / name)


def test_writing_over_a_link_leaves_what_it_points_to_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "s").symlink_to(outside)
    statefile.write(folder, "s", TOKENS, STATE, fingerprint="model", adapters=())
    assert outside.read_text() == "precious"
    assert not (folder / "s").is_symlink()


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../x", "a/b", "/etc/passwd", "a\\b", ".hidden", "a\0b", "a\nb", "a:b"),
        *("x" * 256, "é" * 128, "a ", " a", "a.", 'a"', "a*", "a?", "<a>", "a|b", "a\u202eb"),
    ],
)
def test_only_bare_names_are_names(name: str) -> None:
    with pytest.raises(BadState):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "chat-1.bin", "x" * 255, "naïve", "two words"])
def test_ordinary_names_are_taken(name: str) -> None:
    assert check_name(name) == name
