"""Slots, host memory and disk, on the fake model: a wrong reuse would show in the text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corral.backend.engine.disk import DiskTier
from corral.backend.engine.llama import LoadError
from corral.backend.engine.messages import Call, EngineConfig, Reply
from corral.backend.engine.slots import Threads
from corral.backend.engine.tiers import Tier

Make = Callable[..., Any]
LONG = "A prompt that is long enough to be worth a copy in the memory of the host. " * 2
OTHER = "Something else, as long, about other things that nobody has asked about yet. " * 2


class Asked:
    """Calls of an engine's memory, and their replies."""

    def __init__(self, b: Any) -> None:
        self.memory = b.core.memory
        self.replies: dict[int, Reply] = {}
        self.memory.connect(Threads(reply=self._take))
        self._n = 0

    def _take(self, reply: Reply) -> None:
        assert reply.id not in self.replies
        self.replies[reply.id] = reply

    def call(self, method: str, **args: Any) -> int:
        self._n += 1
        self.memory.call(Call(self._n, method, args))
        return self._n

    def value(self, method: str, **args: Any) -> Any:
        reply = self.replies[self.call(method, **args)]
        assert reply.error is None, reply
        return reply.value

    def error(self, method: str, **args: Any) -> Reply:
        reply = self.replies[self.call(method, **args)]
        assert reply.error is not None, reply
        return reply


def n_cached(b: Any, prompt: str, **fields: Any) -> int:
    request_id = b.add(prompt, **{"max_tokens": 5} | fields)
    b.run()
    n: int = b.answers[request_id].done.stats.n_cached
    return n


# --- host memory ----------------------------------------------------------------------------


def test_what_lost_its_cells_comes_back_from_host_memory(bench: Make, alone: Make) -> None:
    b = bench(n_ctx=256, tier=Tier(10**6), n_slots=1)
    assert n_cached(b, LONG) == 0
    assert n_cached(b, OTHER) == 0  # both do not fit
    computed = b.runner.n_computed
    again = b.add(LONG + "More.", max_tokens=20)
    b.run()
    answer = b.answers[again]
    assert answer.done.stats.n_cached == len(LONG)
    assert answer.text == alone(LONG + "More.", n_ctx=256, max_tokens=20).text
    assert b.runner.n_computed - computed == len("More.") + answer.done.stats.n_generated - 1
    b.check_idle()


def test_nothing_comes_back_when_host_memory_is_off(bench: Make) -> None:
    b = bench(n_ctx=256, n_slots=1)
    n_cached(b, LONG), n_cached(b, OTHER)
    assert n_cached(b, LONG) == 0


def test_host_memory_keeps_to_its_limit_and_lets_the_oldest_go(bench: Make) -> None:
    tier = Tier(2200)  # two prompts of six bytes a token
    b = bench(n_ctx=256, tier=tier, n_slots=1)
    prompts = [f"{i} {LONG}" for i in range(4)]
    for prompt in prompts:
        n_cached(b, prompt)
        assert tier.n_bytes <= 2200
    assert len(tier) == 2
    assert n_cached(b, prompts[0]) == 0
    assert n_cached(b, prompts[3]) > 0


def test_a_prefix_in_host_memory_belongs_to_one_set(bench: Make) -> None:
    b = bench(n_ctx=256, tier=Tier(10**6), n_slots=1)
    n_cached(b, LONG, lora=((0, 1.0),)), n_cached(b, OTHER)
    assert n_cached(b, LONG) == 0
    assert n_cached(b, LONG, lora=((0, 1.0),)) == len(LONG) - 1


def test_what_is_shared_stays_shared_when_the_rest_is_restored(bench: Make) -> None:
    b = bench(n_ctx=1024, tier=Tier(10**6), n_slots=2, n_idle_cells=0)
    n_cached(b, LONG + OTHER)
    n_cached(b, "x")  # parks the first
    assert b.scheduler.n_cached_only < 64
    b.add(LONG + "a long story", max_tokens=300)
    b.step(15)
    before = b.scheduler.cells.n_free
    b.add(LONG + OTHER + "?", max_tokens=300)
    b.step(2)
    # Only what comes after LONG takes cells.
    assert before - b.scheduler.cells.n_free <= len(OTHER) + 10
    assert b.answers[4].outputs[0].n_cached >= len(LONG + OTHER)
    b.check()


def test_idle_prefixes_make_room_for_speed_where_cells_cost_time(bench: Make) -> None:
    b = bench(n_ctx=1024, tier=Tier(10**6), n_idle_cells=100)
    n_cached(b, LONG)
    assert b.scheduler.n_cached_only > 100  # nobody has come since
    n_cached(b, OTHER)
    assert b.scheduler.n_cached_only < 2 * len(OTHER)
    assert n_cached(b, LONG) == len(LONG) - 1


def test_copies_of_a_prefix_that_were_computed_apart_do_not_pile_up(bench: Make) -> None:
    b = bench(n_ctx=1024, tier=Tier(10**6), n_idle_cells=100)
    for i in range(4):  # at the same time, so that each is there when the next request comes
        b.add(f"{LONG}{i}", cache_prompt=False, max_tokens=1)
    b.run()
    assert b.scheduler.n_cached_only > 3 * len(LONG)
    n_cached(b, OTHER)
    assert b.scheduler.n_cached_only < 2 * len(OTHER)
    assert n_cached(b, LONG) == len(LONG) - 1
    b.check_idle()


def test_a_request_set_back_is_not_computed_again(bench: Make, alone: Make) -> None:
    def total(tier: Tier | None) -> int:
        b = bench(n_ctx=230, n_slots=2, tier=tier)
        first, second = b.add("a" * 100, max_tokens=150), b.add("b" * 100, max_tokens=60)
        b.run()
        assert b.scheduler.n_preempted > 0
        assert b.answers[second].text == alone("b" * 100, n_ctx=230, max_tokens=60).text
        assert b.answers[first].text == alone("a" * 100, n_ctx=230, max_tokens=150).text
        n: int = b.runner.n_computed
        return n

    assert total(None) - total(Tier(10**6)) > 90


def test_a_state_that_is_refused_costs_time_and_nothing_else(bench: Make, alone: Make) -> None:
    b = bench(n_ctx=256, tier=Tier(10**6), n_slots=1)
    n_cached(b, LONG), n_cached(b, OTHER)
    b.runner.n_refuse = 1
    again = b.add(LONG, max_tokens=20)
    b.run()
    assert b.answers[again].text == alone(LONG, n_ctx=256, max_tokens=20).text
    b.check_idle()


# --- LoRA sets in force ---------------------------------------------------------------------


def test_requests_that_name_no_set_get_the_one_in_force(bench: Make, alone: Make) -> None:
    b = bench()
    asked = Asked(b)
    assert [row["scale"] for row in asked.value("lora")] == [0.0, 0.0]
    assert asked.value("set_lora", scales=[(1, 0.5)]) is True
    assert [row["scale"] for row in asked.value("lora")] == [0.0, 0.5]
    first = b.add(LONG, max_tokens=20)
    asked.value("set_lora", scales=[])
    second = b.add(LONG, max_tokens=20)
    b.run()
    assert b.answers[first].text == alone(LONG, max_tokens=20, lora=((1, 0.5),)).text
    assert b.answers[second].text == alone(LONG, max_tokens=20).text


@pytest.mark.parametrize(
    "scales",
    [[(2, 1.0)], [(-1, 1.0)], [(0, float("nan"))], [(0, 1e9)], [(0, 1.0), (0, 2.0)]],
    ids=["unknown", "negative", "no number", "huge", "twice"],
)
def test_a_set_that_cannot_be_changes_nothing(bench: Make, scales: Any) -> None:
    asked = Asked(bench())
    reply = asked.error("set_lora", scales=scales)
    assert reply.code == "invalid" and reply.param.startswith("[")
    assert [row["scale"] for row in asked.value("lora")] == [0.0, 0.0]


@pytest.mark.parametrize("lora", [((7, 1.0),), ((0, float("inf")),)])
def test_a_request_with_a_set_that_cannot_be_is_refused(bench: Make, lora: Any) -> None:
    b = bench()
    request_id = b.add("x", lora=lora)
    assert (b.answers[request_id].failed.code, b.answers[request_id].failed.param) == (
        "invalid",
        "lora",
    )


# --- slots ----------------------------------------------------------------------------------


def slots_of(b: Any, folder: Path) -> Asked:
    asked = Asked(b)
    asked.memory.configure(EngineConfig(model="", slot_save_path=str(folder)))
    return asked


def test_a_restored_slot_counts_as_cached(bench: Make, tmp_path: Path, alone: Make) -> None:
    first = bench(n_slots=2)
    n_cached(first, LONG)
    saved = slots_of(first, tmp_path).value("slot_save", slot=0, filename="s")
    # All but the last token of the answer have been computed.
    assert saved["n_saved"] == len(LONG) + 4
    assert saved["n_written"] == (tmp_path / "s").stat().st_size
    second = bench(n_slots=2)
    restored = slots_of(second, tmp_path).value("slot_restore", slot=1, filename="s")
    assert restored["n_restored"] == saved["n_saved"]
    request_id = second.add(LONG + "?", max_tokens=20)
    second.run()
    assert second.answers[request_id].done.stats.n_cached == len(LONG)
    assert second.answers[request_id].text == alone(LONG + "?", max_tokens=20).text
    second.check_idle()


def test_a_busy_slot_is_waited_for(bench: Make, tmp_path: Path) -> None:
    b = bench(n_slots=1)
    asked = slots_of(b, tmp_path)
    b.add(LONG, max_tokens=5)
    b.step(2)
    call = asked.call("slot_save", slot=0, filename="s")
    assert call not in asked.replies
    b.run()
    assert asked.replies[call].value["n_saved"] == len(LONG) + 4


def test_a_slot_is_saved_from_host_memory_when_it_has_no_cells(bench: Make, tmp_path: Path) -> None:
    b = bench(n_ctx=256, n_slots=2, tier=Tier(10**6))
    asked = slots_of(b, tmp_path)
    n_cached(b, LONG, id_slot=1), n_cached(b, OTHER, id_slot=0)
    assert asked.value("slot_save", slot=1, filename="s")["n_saved"] == len(LONG) + 4


def test_part_of_a_longer_prefix_can_be_saved(bench: Make, tmp_path: Path) -> None:
    b = bench(n_slots=2)
    asked = slots_of(b, tmp_path)
    n_cached(b, LONG, id_slot=1, max_tokens=1)
    n_cached(b, LONG + OTHER, id_slot=0)
    assert asked.value("slot_save", slot=1, filename="s")["n_saved"] == len(LONG)
    b.check_idle()


def test_an_erased_slot_is_forgotten_everywhere(bench: Make, tmp_path: Path) -> None:
    b = bench(n_slots=1, tier=Tier(10**6))
    asked = slots_of(b, tmp_path)
    asked.memory.keep_on_disk(tmp_path / "disk", 10**6)
    n_cached(b, LONG)
    assert asked.memory.save_ahead() and list((tmp_path / "disk").iterdir())
    assert asked.value("slot_erase", slot=0) == {"n_erased": len(LONG) + 4}
    assert asked.value("slot_erase", slot=0) == {"n_erased": 0}
    assert not list((tmp_path / "disk").iterdir())
    assert n_cached(b, LONG) == 0


def test_erasing_needs_no_folder_and_saving_does(bench: Make) -> None:
    asked = Asked(bench())
    assert asked.value("slot_erase", slot=0) == {"n_erased": 0}
    reply = asked.error("slot_save", slot=0, filename="s")
    assert reply.code == "not_supported" and "--slot-save-path" in str(reply.error)


@pytest.mark.parametrize(
    ("method", "args", "param"),
    [
        ("slot_save", {"slot": 4, "filename": "s"}, "id_slot"),
        ("slot_save", {"slot": 0, "filename": "../s"}, "filename"),
        ("slot_save", {"slot": 0, "filename": "s"}, "id_slot"),
        ("slot_restore", {"slot": 0, "filename": "absent"}, "filename"),
        ("slot_restore", {"slot": 0, "filename": "text"}, "filename"),
    ],
)
def test_wrong_slots_and_files_are_refused(
    bench: Make, tmp_path: Path, method: str, args: dict[str, Any], param: str
) -> None:
    (tmp_path / "text").write_text("no state")
    reply = slots_of(bench(), tmp_path).error(method, **args)
    assert (reply.code, reply.param) == ("invalid", param)


def test_a_slot_of_another_context_size_is_refused(bench: Make, tmp_path: Path) -> None:
    b = bench()
    n_cached(b, LONG)
    slots_of(b, tmp_path).value("slot_save", slot=0, filename="s")
    small = slots_of(bench(n_ctx=64), tmp_path)
    assert "the context holds 64" in str(small.error("slot_restore", slot=0, filename="s").error)
    other = slots_of(bench(n_ctx=300), tmp_path)
    assert "another model" in str(other.error("slot_restore", slot=0, filename="s").error)


def test_a_slot_with_an_adapter_that_is_not_loaded_is_refused(bench: Make, tmp_path: Path) -> None:
    b = bench()
    n_cached(b, LONG, lora=((1, 0.5),))
    slots_of(b, tmp_path).value("slot_save", slot=0, filename="s")
    # The same adapters under other numbers are the same set.
    swapped = bench(lora=(("b.gguf", 0.0), ("a.gguf", 0.0)))
    slots_of(swapped, tmp_path).value("slot_restore", slot=0, filename="s")
    assert n_cached(swapped, LONG) == 0
    assert n_cached(swapped, LONG, lora=((0, 0.5),)) == len(LONG) - 1
    without = slots_of(bench(lora=()), tmp_path)
    assert "not loaded" in str(without.error("slot_restore", slot=0, filename="s").error)


def test_a_slot_is_not_restored_over_running_requests(bench: Make, tmp_path: Path) -> None:
    b = bench(n_ctx=256)
    asked = slots_of(b, tmp_path)
    n_cached(b, LONG)
    asked.value("slot_save", slot=0, filename="s")
    asked.value("slot_erase", slot=0)
    b.add(OTHER, max_tokens=50)
    b.step(12)
    reply = asked.error("slot_restore", slot=3, filename="s")
    assert "no room" in str(reply.error)
    b.run()
    assert asked.value("slot_restore", slot=3, filename="s")["n_restored"] == len(LONG) + 4


def test_at_rest_prefixes_that_do_not_fit_together_are_copied_once_each(bench: Make) -> None:
    b = bench(n_ctx=512, n_slots=1, tier=Tier(1100, wants_all=True))  # one of two prompts
    n_cached(b, LONG), n_cached(b, OTHER)
    n_copied = 0
    while b.core.memory.save_ahead():
        n_copied += 1
        assert n_copied <= 2
    assert n_copied == 2 and len(b.scheduler.room.tier) == 1


# --- disk -----------------------------------------------------------------------------------


def on_disk(bench: Make, folder: Path, max_bytes: int = 10**6, **fields: Any) -> tuple[Any, Asked]:
    b = bench(tier=Tier(10**6), **fields)
    asked = Asked(b)
    asked.memory.keep_on_disk(folder, max_bytes)
    return b, asked


def test_what_was_computed_survives_a_restart(bench: Make, tmp_path: Path, alone: Make) -> None:
    b, asked = on_disk(bench, tmp_path)
    n_cached(b, LONG)
    while asked.memory.save_ahead():
        pass
    b, asked = on_disk(bench, tmp_path)
    started = []
    tokens = list(LONG.encode())
    assert asked.memory.fetch(tokens, None, lambda: started.append(1)) and started
    request_id = b.add(LONG, max_tokens=20)
    b.run()
    assert b.answers[request_id].done.stats.n_cached == len(LONG) - 1
    assert b.answers[request_id].text == alone(LONG, max_tokens=20).text
    # It is in memory now, and not read again; nor for another set.
    assert not asked.memory.fetch(tokens, None, lambda: None)
    assert not asked.memory.fetch(tokens, ((0, 1.0),), lambda: None)
    assert asked.memory.counts[3] == 1


def test_a_damaged_file_is_ignored_and_deleted(bench: Make, tmp_path: Path) -> None:
    b, asked = on_disk(bench, tmp_path)
    n_cached(b, LONG)
    assert asked.memory.save_ahead()
    (path,) = tmp_path.iterdir()
    damaged = bytearray(path.read_bytes())
    damaged[-40] ^= 1
    path.write_bytes(damaged)
    b, asked = on_disk(bench, tmp_path)
    started = []
    assert asked.memory.fetch(list(LONG.encode()), None, lambda: started.append(1))
    assert started and not path.exists()
    assert n_cached(b, LONG) == 0
    path.write_bytes(b"garbage")
    on_disk(bench, tmp_path)
    assert not path.exists()


def test_the_disk_keeps_to_its_limit_and_forgets_what_longer_ones_hold(
    bench: Make, tmp_path: Path
) -> None:
    b, asked = on_disk(bench, tmp_path, 3000, n_ctx=2048)
    for i in range(4):
        n_cached(b, f"{i} {LONG}")
        asked.memory.save_ahead()
        assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 3000
    assert len(list(tmp_path.iterdir())) == 1  # of about 1,900 bytes each
    (before,) = tmp_path.iterdir()
    n_cached(b, f"3 {LONG}" + b.answers[4].text + "?")
    asked.memory.save_ahead()
    assert before.exists() == (len(list(tmp_path.iterdir())) == 0)


def test_files_of_other_models_are_left_alone(bench: Make, tmp_path: Path) -> None:
    b, asked = on_disk(bench, tmp_path)
    n_cached(b, LONG)
    asked.memory.save_ahead()
    disk = DiskTier(tmp_path, 10**6, fingerprint="another".ljust(16, "-"), digests=[])
    assert len(disk) == 1 and disk.n_bytes > 0
    assert list(tmp_path.iterdir())


def test_folders_that_cannot_be_used_are_told_at_the_start(bench: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    memory = bench(tier=Tier(1)).core.memory
    with pytest.raises(LoadError, match="--cache-disk"):
        memory.keep_on_disk(tmp_path / "file" / "x", 1)
    with pytest.raises(LoadError, match="--slot-save-path"):
        memory.configure(EngineConfig(model="", slot_save_path=str(tmp_path / "absent")))
    with pytest.raises(LoadError, match="--cache-ram"):
        bench().core.memory.keep_on_disk(tmp_path, 1)
