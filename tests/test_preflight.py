"""What is refused before a model is loaded, and what as soon as it is."""

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.backend import __main__ as command
from corral.backend import logs
from corral.backend.errors import Refused
from corral.backend.preflight import check
from corral.backend.settings import Settings


def refusal(folder: Path, **settings: str) -> str:
    with pytest.raises(Refused) as caught:
        check(Settings(fake=True, data_dir=folder, **settings))
    return caught.value.message


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('root ::= "a', "--grammar: grammar line 1: unexpected"),
        ("root ::= foo", "--grammar: grammar line 1: rule foo is not defined"),
        ("(" * 60_000, "--grammar: grammar line 1"),
    ],
    ids=["open", "undefined", "nested"],
)
def test_a_bad_grammar_is_refused_with_its_line(tmp_path: Path, grammar: str, message: str) -> None:
    assert refusal(tmp_path, grammar=grammar).startswith(message)


def test_a_bad_schema_is_refused_with_its_place(tmp_path: Path) -> None:
    schema = json.dumps({"properties": {"a": {"type": "nothing"}}})
    message = refusal(tmp_path, json_schema=schema)
    assert message.startswith("--json-schema: json_schema.properties.a")


def test_two_constraints_are_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, grammar='root ::= "a"', json_schema="{}")
    assert message == "--grammar and --json-schema exclude each other"


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "no such file"), (b"", "not a GGUF file"), (b"\x89PNG", "not a GGUF file")],
)
def test_a_projector_that_is_none_is_refused_before_the_model_loads(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    file = tmp_path / "mmproj.gguf"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Refused) as caught:
        check(Settings(data_dir=tmp_path, mmproj=file))
    assert caught.value.message == f"--mmproj {file}: {problem}"
    check(Settings(data_dir=tmp_path, mmproj=file, mmproj_auto=False))
    file.write_bytes(b"GGUF")
    check(Settings(data_dir=tmp_path, mmproj=file))


def test_other_settings_of_pictures_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="--image-max-tokens is less than --image-min-tokens"):
        check(Settings(data_dir=tmp_path, image_min_tokens=9, image_max_tokens=8))
    check(Settings(data_dir=tmp_path, image_min_tokens=9))
    with pytest.raises(Refused, match=r"--media-path \S+/absent: no such folder"):
        check(Settings(data_dir=tmp_path, media_path=tmp_path / "absent"))


@pytest.mark.parametrize(
    "settings",
    [
        {"grammar": 'root ::= "a" | <|im_end|>'},
        {"grammar": "%llguidance {}\nstart: /a/"},
        {"json_schema": '{"type": "object", "properties": {"a": {"type": "integer"}}}'},
        {},
    ],
    ids=["GBNF", "Lark", "schema", "nothing"],
)
def test_good_constraints_pass(tmp_path: Path, settings: dict[str, str]) -> None:
    check(Settings(fake=True, data_dir=tmp_path, **settings))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-l", "99999999+1"], "token ids must be from 0 to"),
        (["--grammar", "%llguidance {}\nstart: nowhere"], "nowhere"),
        (["--grammar", 'root ::= "a"', "-j", "{}"], "--grammar and --json-schema"),
        (["--samplers", "tfs"], "--samplers must name samplers"),
    ],
    ids=["bias", "Lark", "two", "samplers"],
)
def test_what_the_model_cannot_follow_ends_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["serve", "--fake", "--port", "0", "--data-dir", str(tmp_path), *flags])
    printed = capsys.readouterr()
    assert ended.value.code == command.EXIT_USAGE, printed
    assert message in printed.err and "Traceback" not in printed.err
    assert "Ready" not in printed.out


# --- messages -------------------------------------------------------------------------------------


@contextlib.contextmanager
def configured(settings: Settings) -> Iterator[None]:
    """The log as a server has it. The test runner's own handlers are put aside."""
    root, uvicorn = logging.getLogger(), logging.getLogger("uvicorn.error")
    before = (root.handlers[:], root.level, uvicorn.level)
    root.handlers.clear()
    try:
        logs.configure(settings)
        yield
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        uvicorn.setLevel(before[2])
        logging.disable(logging.NOTSET)


def said(settings: Settings, capsys: pytest.CaptureFixture[str]) -> str:
    with configured(settings):
        logging.getLogger("corral").warning("hello")
    return capsys.readouterr().err


def test_messages_have_a_time_a_level_and_an_origin(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(Settings(), capsys)[4] == "-"
    assert said(Settings(log_timestamps=False), capsys) == "WARNING corral: hello\n"
    assert said(Settings(log_timestamps=False, log_prefix=False), capsys) == "hello\n"


def test_messages_are_coloured_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b[33m" in said(Settings(log_colors=True), capsys)
    assert "\x1b" not in said(Settings(), capsys)  # no terminal


def test_messages_go_to_a_file_as_well(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "log"
    assert "hello" in said(Settings(log_file=file, log_colors=True), capsys)
    assert file.read_text().endswith("WARNING corral: hello\n")


def test_no_messages_are_shown_when_the_log_is_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(Settings(log_level="none"), capsys) == ""


def test_a_log_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    refused = pytest.raises(Refused, match=r"--log-file: .*: Is a directory")
    with refused, configured(Settings(log_file=tmp_path)):
        pass
