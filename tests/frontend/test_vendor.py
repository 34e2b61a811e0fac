"""Files of other projects are what they say they are."""

import hashlib
import re
from pathlib import Path

STATIC = Path(__file__).resolve().parents[2] / "static"
VENDOR = STATIC / "vendor"


def listed() -> dict[str, str]:
    text = (VENDOR / "VERSIONS.txt").read_text()
    return {name: digest for digest, name in re.findall(r"^([0-9a-f]{64})  (\S+)  .+$", text, re.M)}


def test_every_vendored_file_has_the_content_that_was_listed() -> None:
    for name, digest in listed().items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


def test_every_vendored_file_is_listed() -> None:
    there = {path.name for path in VENDOR.iterdir()} - {"VERSIONS.txt"}
    assert there == set(listed())


def test_every_vendored_project_keeps_its_licence() -> None:
    assert {name for name in listed() if name.startswith("LICENSE-")} == {
        "LICENSE-htmx.txt",
        "LICENSE-inter.txt",
        "LICENSE-jetbrains-mono.txt",
    }


def test_our_own_style_and_script_stay_small() -> None:
    assert len((STATIC / "app.css").read_text().splitlines()) < 300
    assert len((STATIC / "app.js").read_text().splitlines()) <= 300


def test_templates_hold_nothing_that_the_content_policy_forbids() -> None:
    bad = re.compile(r"hx-on|(javascript|\bjs):|style=|<script(?![^>]*\bsrc=)|\bon\w+=|hx-ext")
    for path in (STATIC.parent / "templates").glob("*.html"):
        assert not bad.search(path.read_text()), path.name
        assert not re.search(r'hx-trigger="[^"]*\[', path.read_text()), path.name
