"""LoRA adapters and slots over HTTP, on the fake engine."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from corral.backend import pool

PROMPT = "a prompt of some length, which a slot shall hold " * 2


@pytest.fixture
def saving(
    run_server: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[httpx.Client]:
    """A server with two adapters and a folder for slots."""
    made = pool.engine_config

    def config(settings: Any) -> Any:
        lora = (("a.gguf", 1.0), ("b.gguf", 0.0))
        return pool.msgspec.structs.replace(made(settings), lora=lora, slot_save_path=str(tmp_path))

    monkeypatch.setattr(pool, "engine_config", config)
    with (
        run_server(n_slots=2) as server,
        httpx.Client(base_url=server.url, timeout=20) as client,
    ):
        yield client


def complete(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"prompt": PROMPT, "n_predict": 5, "temperature": 0} | fields
    reply = http.post("/completion", json=body)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def error(reply: httpx.Response) -> tuple[int, Any, Any]:
    found = reply.json()["error"]
    return reply.status_code, found["type"], found["param"]


def test_adapters_are_listed_and_their_scales_set(saving: httpx.Client) -> None:
    row = {"task_name": "", "prompt_prefix": ""}
    assert saving.get("/lora-adapters").json() == [
        {"id": 0, "path": "a.gguf", "scale": 1.0} | row,
        {"id": 1, "path": "b.gguf", "scale": 0.0} | row,
    ]
    reply = saving.post("/lora-adapters", json=[{"id": 1, "scale": 0.5}])
    assert reply.json() == {"success": True}
    assert [a["scale"] for a in saving.get("/lora-adapters").json()] == [0.0, 0.5]


def test_a_request_may_name_its_own_set(saving: httpx.Client) -> None:
    default = complete(saving, id_slot=0)
    same = complete(saving, lora=[{"id": 0, "scale": 1.0}])
    other = complete(saving, lora=[{"id": 1, "scale": 1.0}])
    none = complete(saving, lora=[])
    assert same["content"] == default["content"]
    assert len({a["content"] for a in (default, other, none)}) == 3
    assert [a["timings"]["cache_n"] > 0 for a in (default, same, other, none)] == [
        *(False, True, False, False)
    ]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ([{"id": 5, "scale": 1.0}], "[0]"),
        ([{"id": 0, "scale": 1.0}, {"id": 0, "scale": 0.5}], "[1].id"),
        ([{"id": -1, "scale": 1.0}], "[0].id"),
        ([{"id": 0, "scale": 1e300}], "[0].scale"),
        ([{"id": 0, "scale": "1"}], "[0].scale"),
        ([{"id": 0}], "[0].scale"),
        ({"id": 0, "scale": 1.0}, None),
    ],
)
def test_wrong_scales_are_refused(saving: httpx.Client, body: Any, param: str | None) -> None:
    reply = saving.post("/lora-adapters", json=body)
    assert error(reply) == (400, "invalid_request_error", param)
    assert [a["scale"] for a in saving.get("/lora-adapters").json()] == [1.0, 0.0]


def test_a_request_for_an_adapter_that_is_not_there_is_refused(saving: httpx.Client) -> None:
    body = {"prompt": "x", "lora": [{"id": 2, "scale": 1.0}]}
    assert error(saving.post("/completion", json=body)) == (400, "invalid_request_error", "lora")


def test_a_slot_is_saved_erased_and_restored(saving: httpx.Client, tmp_path: Path) -> None:
    complete(saving, id_slot=1)
    saved = saving.post("/slots/1?action=save", json={"filename": "one.bin"}).json()
    assert saved.pop("timings")["save_ms"] >= 0
    n = len(PROMPT) + 4
    size = (tmp_path / "one.bin").stat().st_size
    assert saved == {"id_slot": 1, "filename": "one.bin", "n_saved": n, "n_written": size}
    assert saving.post("/slots/1?action=erase").json() == {"id_slot": 1, "n_erased": n}
    assert complete(saving, cache_prompt=False)["timings"]["cache_n"] == 0
    saving.post("/slots/0?action=erase")
    saving.post("/slots/1?action=erase")
    restored = saving.post("/slots/0?action=restore", json={"filename": "one.bin"}).json()
    assert restored.pop("timings")["restore_ms"] >= 0
    n_read = restored.pop("n_read")
    assert 0 < n_read <= size
    assert restored == {"id_slot": 0, "filename": "one.bin", "n_restored": n}
    assert complete(saving)["timings"]["cache_n"] == len(PROMPT) - 1


@pytest.mark.parametrize(
    ("url", "body", "param"),
    [
        ("/slots/0?action=eat", {"filename": "s"}, "action"),
        ("/slots/0", {"filename": "s"}, "action"),
        ("/slots/9?action=save", {"filename": "s"}, "id_slot"),
        ("/slots/-1?action=erase", {}, "id_slot"),
        ("/slots/x?action=erase", {}, "id_slot"),
        ("/slots/99999999999999999999?action=erase", {}, "id_slot"),
        ("/slots/0?action=save", {}, "filename"),
        ("/slots/0?action=save", {"filename": None}, "filename"),
        ("/slots/0?action=save", {"filename": "../s"}, "filename"),
        ("/slots/0?action=restore", {"filename": "/etc/passwd"}, "filename"),
        ("/slots/0?action=restore", {"filename": "absent"}, "filename"),
        ("/slots/0?action=restore", {"filename": 5}, "filename"),
        ("/slots/0?action=save", {"filename": "s"}, "id_slot"),  # it holds nothing
    ],
)
def test_wrong_slot_actions_are_refused(
    saving: httpx.Client, url: str, body: Any, param: str
) -> None:
    assert error(saving.post(url, json=body)) == (400, "invalid_request_error", param)


def test_saving_without_a_folder_is_not_supported(http: httpx.Client) -> None:
    reply = http.post("/slots/0?action=save", json={"filename": "s"})
    assert error(reply)[:2] == (501, "not_supported_error")
    assert "--slot-save-path" in reply.json()["error"]["message"]


def test_the_metrics_count_what_is_in_memory(http: httpx.Client) -> None:
    text = http.get("/metrics").text
    for name in ("corral_states_saved_total", "corral_ram_cache_bytes", "corral_disk_cache_bytes"):
        assert f"\n{name} " in text
