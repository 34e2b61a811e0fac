from array import array
from collections.abc import Callable
from typing import Any

import pytest

from corral.backend.engine.fake import FakeLlama
from corral.backend.engine.llama import Choice, DecodeFailed, KvFull, NotFinite, Row
from corral.backend.engine.messages import Add, Delta, Done, Progress, Sampling
from corral.backend.engine.scheduler import MAX_OVERTAKEN, Scheduler
from corral.backend.engine.sequence import Sequence

#: 100 tokens that many requests begin with.
SYSTEM = ("You are a helpful assistant. " * 4)[:100]
Make = Callable[..., Any]


def _sequence(order: int, prompt: str) -> Sequence:
    return Sequence(Add(id=order, prompt=prompt), list(prompt.encode()), order=order)


def _scheduler(**fields: Any) -> Scheduler:
    return Scheduler(**{"n_slots": 4, "n_ctx": 512, "n_seq_max": 8, "n_batch": 64} | fields)


def _commit(scheduler: Scheduler, budget: int) -> dict[int, int]:
    """Plans and computes a step; sequences that read all they have get a token more. Returns how
    many tokens each request got, by its order."""
    plan = scheduler.plan(budget)
    for call in plan.calls:
        for sequence in scheduler.commit(call):
            sequence.tokens.append(0)
    return {chunk.sequence.order: chunk.n for call in plan.calls for chunk in call}


# --- who computes -----------------------------------------------------------------------


def test_every_generating_sequence_gets_its_token_before_any_prompt() -> None:
    scheduler = _scheduler(n_batch=8)
    scheduler.add(_sequence(1, "a"))
    scheduler.add(_sequence(2, "b"))
    _commit(scheduler, 8)
    scheduler.add(_sequence(3, "c" * 300))
    for _ in range(5):
        assert _commit(scheduler, 8) == {1: 1, 2: 1, 3: 8}


def test_decode_rows_go_in_a_call_of_their_own_when_all_do_not_fit_in_one() -> None:
    scheduler = _scheduler(n_batch=8)
    scheduler.add(_sequence(1, "a"))
    _commit(scheduler, 8)
    scheduler.add(_sequence(2, "b" * 300))
    plan = scheduler.plan(8)
    assert [[(c.sequence.order, c.n) for c in call] for call in plan.calls] == [[(1, 1)], [(2, 8)]]


def test_the_shortest_prompt_is_read_first_and_a_quarter_goes_to_the_oldest() -> None:
    scheduler = _scheduler()
    for order, n in ((1, 200), (2, 100), (3, 20)):
        scheduler.add(_sequence(order, chr(96 + order) * n))
    assert _commit(scheduler, 16) == {1: 4, 3: 12}
    assert _commit(scheduler, 16) == {1: 4, 3: 8, 2: 4}


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5])
def test_the_oldest_prompt_is_read_however_small_the_budget_and_many_the_short_ones(
    budget: int,
) -> None:
    scheduler = _scheduler(n_slots=2)
    old = _sequence(1, "o" * 50)
    scheduler.add(old)
    for order in range(2, 70):
        short = _sequence(order, "ab")
        scheduler.add(short)
        before = old.n_computed
        _commit(scheduler, budget)
        assert old.n_computed > before or not old.is_reading
        if short.is_running:
            scheduler.finish(short, keep=False)
    assert not old.is_reading


def test_a_step_never_reads_more_than_the_budget() -> None:
    scheduler = _scheduler()
    for order in range(1, 5):
        scheduler.add(_sequence(order, chr(96 + order) * 30))
    while any(s.is_reading for s in scheduler.running) or scheduler.waiting:
        reading = {s.order for s in [*scheduler.running, *scheduler.waiting] if s.is_reading}
        assert sum(n for order, n in _commit(scheduler, 7).items() if order in reading) <= 7


# --- who shares -------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("n_steps", [0, 1, 3])
def test_requests_with_the_same_beginning_read_it_once(bench: Make, n: int, n_steps: int) -> None:
    b = bench(budget=16)
    b.add(SYSTEM + "question 1", max_tokens=1)
    b.step(n_steps)
    for i in range(2, n + 1):
        b.add(SYSTEM + f"question {i}", max_tokens=1)
    b.run()
    # Each "question N" is 10 tokens, of which the last alone differs.
    assert b.runner.n_computed == 110 + (n - 1)
    for i in range(2, n + 1):
        assert b.answers[i].done.stats.n_cached == 109
    b.check_idle()


def test_a_follower_reads_on_alone_when_its_leader_leaves(bench: Make, alone: Make) -> None:
    b = bench(budget=16)
    first = b.add(SYSTEM + "first", max_tokens=3)
    b.step(2)
    second = b.add(SYSTEM + "second", max_tokens=3)
    b.step(1)
    b.abort(first)
    b.run()
    # 48 tokens are read when the leader goes: none of them again.
    assert b.runner.n_computed == len(SYSTEM + "second") + 2
    assert b.answers[second].text == alone(SYSTEM + "second", max_tokens=3).text
    b.check_idle()


def test_followers_share_the_rest_when_their_leader_leaves(bench: Make) -> None:
    b = bench(budget=16)
    first = b.add(SYSTEM + "first", max_tokens=1)
    b.step(2)
    b.add(SYSTEM + "second", max_tokens=1)
    b.add(SYSTEM + "third", max_tokens=1)
    b.step(1)
    b.abort(first)
    b.run()
    assert b.runner.n_computed == len(SYSTEM) + len("second") + len("third")
    b.check_idle()


def test_followers_go_on_when_their_leader_is_preempted(bench: Make, alone: Make) -> None:
    b = bench(budget=8, n_slots=3)
    b.add("o" * 40, max_tokens=200)
    while not b.scheduler.n_generating:
        b.step()
    leader = b.add(SYSTEM + "leader", max_tokens=4)
    follower = b.add(SYSTEM + "follower", max_tokens=4)
    b.step(3)
    assert b.scheduler.running[2].leader is not None
    # The youngest go first: twice, so that leader and follower both wait.
    b.scheduler._preempt_youngest()
    b.check()
    b.scheduler._preempt_youngest()
    b.check()
    assert [s.id for s in b.scheduler.waiting] == [leader, follower]
    b.run()
    for request_id, name in ((leader, "leader"), (follower, "follower")):
        assert b.answers[request_id].text == alone(SYSTEM + name, max_tokens=4).text
    b.check_idle()


def test_a_follower_is_served_no_later_than_its_leaders_urgency_allows(bench: Make) -> None:
    # A short request that shares with a very long one: the common part is read first.
    b = bench(budget=10, n_ctx=1024)
    b.add(SYSTEM + "x" * 700, max_tokens=1)
    b.step(1)
    b.add("y" * 150, max_tokens=1)
    short = b.add(SYSTEM + "?", max_tokens=1)
    b.step(12)
    assert b.answers[short].ends


def test_a_finished_answer_is_the_next_turns_prefix(bench: Make) -> None:
    b = bench()
    first = b.add(SYSTEM, max_tokens=20)
    b.run()
    turn = SYSTEM + b.answers[first].text
    before = b.runner.n_computed
    second = b.add(turn + " more", max_tokens=1)
    b.run()
    # The last sampled token was never computed; the five of " more" are new.
    assert b.runner.n_computed - before == 6
    assert b.answers[second].done.stats.n_cached == len(turn) - 1
    b.check_idle()


def test_a_prompt_seen_before_is_computed_for_its_last_token_only(bench: Make) -> None:
    b = bench()
    b.add(SYSTEM, max_tokens=1)
    b.run()
    before = b.runner.n_computed
    again = b.add(SYSTEM, max_tokens=1)
    b.run()
    assert b.runner.n_computed - before == 1
    assert b.answers[again].done.stats.n_cached == 99


def test_a_request_that_wants_no_cache_gets_none(bench: Make) -> None:
    b = bench()
    b.add(SYSTEM, max_tokens=1)
    b.step(2)
    b.add(SYSTEM, max_tokens=1, cache_prompt=False)
    b.run()
    b.add(SYSTEM, max_tokens=1, cache_prompt=False)
    b.run()
    assert b.runner.n_computed == 300
    b.check_idle()


def test_memory_that_cannot_be_shared_is_not(bench: Make, alone: Make) -> None:
    b = bench(can_share=False)
    first = b.add(SYSTEM, max_tokens=4)
    second = b.add(SYSTEM, max_tokens=4)
    b.run()
    third = b.add(SYSTEM, max_tokens=4)
    b.run()
    assert b.runner.n_computed == 3 * 103
    for request_id in (first, second, third):
        assert b.answers[request_id].text == alone(SYSTEM, max_tokens=4).text
    assert b.scheduler.cells.n_free == 512
    b.check_idle()


# --- when cells run out -----------------------------------------------------------------


def test_cached_prefixes_go_before_anything_running_does(bench: Make) -> None:
    b = bench(n_ctx=128)
    for letter in "abc":
        b.add(letter * 40, max_tokens=1)
        b.run()
    assert b.scheduler.n_cached_only == 120
    b.add("d" * 100, max_tokens=1)
    b.run()
    assert b.scheduler.n_preempted == 0
    b.check_idle()


def test_the_prefix_used_last_is_evicted_last(bench: Make) -> None:
    b = bench(n_ctx=128)
    for letter in "aba":
        b.add(letter * 50, max_tokens=1)
        b.run()
    b.add("c" * 60, max_tokens=1)
    b.run()
    before = b.runner.n_computed
    b.add("a" * 50, max_tokens=1)
    b.run()
    assert b.runner.n_computed - before == 1


def test_one_request_may_use_the_whole_context(bench: Make) -> None:
    b = bench(n_ctx=64)
    request_id = b.add([97] * 63, max_tokens=-1)
    b.run()
    assert b.answers[request_id].done.stats.n_generated == 1
    assert b.answers[request_id].done.stats.truncated
    assert b.answers[request_id].done.finish == "limit"
    b.check_idle()


def test_the_youngest_is_preempted_and_nobody_fails(bench: Make, alone: Make) -> None:
    b = bench(n_ctx=128, n_slots=2)
    prompts = {b.add(letter * 40, max_tokens=60): letter * 40 for letter in "mn"}
    b.run()
    assert b.scheduler.n_preempted > 0
    for request_id, prompt in prompts.items():
        wanted = alone(prompt, n_ctx=128, max_tokens=60)
        assert b.answers[request_id].text == wanted.text
        assert b.answers[request_id].done.finish == wanted.done.finish
    assert b.answers[1].done.stats.n_generated > 40  # or it would not have been needed
    b.check_idle()


def test_progress_never_goes_back_when_a_prompt_is_preempted(bench: Make) -> None:
    b = bench(n_ctx=512, budget=8)
    b.add("o" * 20, max_tokens=30)
    request_id = b.add("p" * 100, max_tokens=1)
    b.step(6)
    b.scheduler._preempt_youngest()
    b.run()
    assert b.scheduler.n_preempted == 1
    seen = [o.processed for o in b.answers[request_id].outputs if isinstance(o, Progress)]
    assert seen == sorted(seen) and seen[-1] == 100


def test_those_behind_a_large_request_are_let_in_when_it_is_cancelled(bench: Make) -> None:
    b = bench(n_ctx=256)
    b.add("r" * 100, max_tokens=-1)
    b.step(10)
    large = b.add("l" * 200, max_tokens=1)
    b.step()
    b.scheduler.waiting[0].n_overtaken = MAX_OVERTAKEN
    small = b.add("s" * 10, max_tokens=1)
    b.step(5)
    assert not b.answers[small].has_started
    b.abort(large)
    b.step(2)
    assert b.answers[small].has_started


def test_requests_that_share_a_long_beginning_run_together_in_a_small_context(bench: Make) -> None:
    # Two of them would not fit if each had to keep its own copy.
    b = bench(n_ctx=256, n_slots=3)
    ids = [b.add("s" * 150 + c * 20, max_tokens=5) for c in "abc"]
    b.step()
    assert all(b.answers[i].has_started for i in ids)
    b.run()
    assert b.scheduler.n_preempted == 0
    assert b.runner.n_computed <= 150 + 3 * 25


def test_a_request_waits_only_while_it_does_not_fit(bench: Make) -> None:
    b = bench(n_ctx=256)
    first = b.add("r" * 150, max_tokens=5)
    second = b.add("s" * 150, max_tokens=5)
    b.step(3)
    assert b.answers[first].has_started and not b.answers[second].has_started
    b.run()
    assert b.answers[second].done.finish == "limit"
    assert b.scheduler.n_preempted == 0


# --- who is let in ----------------------------------------------------------------------


def test_a_full_queue_refuses(bench: Make) -> None:
    b = bench(n_slots=2, max_queue=1)
    for _ in range(3):
        b.add("a", max_tokens=2)
    refused = b.add("a", max_tokens=2)
    assert b.answers[refused].failed.code == "queue_full"
    b.run()
    later = b.add("a", max_tokens=2)
    b.run()
    assert b.answers[later].done.finish == "limit"
    b.check_idle()


def test_a_prompt_that_can_never_fit_is_refused_with_both_counts(bench: Make) -> None:
    b = bench(n_ctx=64)
    refused = b.answers[b.add("a" * 64)].failed
    assert refused.code == "context_length_exceeded"
    assert refused.extra == {"n_prompt_tokens": 64, "n_ctx": 64}
    assert "64 tokens" in refused.message
    assert not b.core.has_work


@pytest.mark.parametrize("prompt", ["", [], [259], [-1], [2**40], ["a", -3]])
def test_prompts_that_hold_no_known_tokens_are_refused(bench: Make, prompt: Any) -> None:
    b = bench()
    assert b.answers[b.add(prompt)].failed.code == "invalid"
    assert not b.core.has_work


def test_a_refused_request_takes_no_place_in_the_queue(bench: Make) -> None:
    b = bench(n_slots=1, max_queue=0)
    for _ in range(3):
        assert b.answers[b.add("")].failed.code == "invalid"
    b.add("a", max_tokens=1)
    b.run()
    b.check_idle()


# --- how they end -----------------------------------------------------------------------


def test_no_tokens_asked_reads_the_prompt_only(bench: Make) -> None:
    b = bench()
    done = b.answers[b.add("a" * 20, max_tokens=0)]
    b.run()
    assert (done.done.finish, done.done.stats.n_generated, done.text) == ("limit", 0, "")
    assert b.runner.n_computed == 20


def test_an_answer_without_a_limit_ends_with_the_context(bench: Make) -> None:
    class Endless(FakeLlama):
        eog_tokens = frozenset()  # type: ignore[assignment]

    b = bench(Endless(n_ctx=64))
    request_id = b.add("a" * 20, max_tokens=-1)
    b.run()
    done = b.answers[request_id].done
    assert (done.finish, done.stats.truncated, done.stats.n_generated) == ("limit", True, 44)


def test_a_limit_met_is_no_truncation(bench: Make) -> None:
    b = bench()
    request_id = b.add("a" * 20, max_tokens=3)
    b.run()
    done = b.answers[request_id].done
    assert (done.finish, done.stats.truncated, done.stats.n_generated) == ("limit", False, 3)
    assert len(b.answers[request_id].tokens) == 3


def test_an_answer_ends_before_its_stop_string(bench: Make, alone: Make) -> None:
    whole = alone("tell me", max_tokens=30).text
    b = bench()
    request_id = b.add("tell me", max_tokens=30, stop=(whole[8:12],))
    b.run()
    answer = b.answers[request_id]
    assert (answer.done.finish, answer.done.stopping_word) == ("word", whole[8:12])
    assert answer.text == whole[: whole.index(whole[8:12])]


def test_what_was_held_for_a_stop_string_is_given_out_at_the_end(bench: Make, alone: Make) -> None:
    whole = alone("tell me", max_tokens=9)
    b = bench()
    request_id = b.add("tell me", max_tokens=9, stop=(whole.text[5:] + "never",))
    b.run()
    assert b.answers[request_id].text == whole.text
    assert b.answers[request_id].tokens == whole.tokens
    deltas = [o for o in b.answers[request_id].outputs if isinstance(o, Delta)]
    assert len(deltas[-1].text) == 4


@pytest.mark.parametrize("when", ["waiting", "reading", "following", "generating"])
def test_a_cancelled_request_ends_within_the_step(bench: Make, when: str) -> None:
    b = bench(n_slots=1 if when == "waiting" else 2, budget=8)
    other = b.add(SYSTEM + "other", max_tokens=5)
    b.step()
    request_id = b.add(SYSTEM + "this" if when == "following" else "u" * 50, max_tokens=40)
    b.step(16 if when == "generating" else 3)
    (sequence,) = [s for s in [*b.scheduler.waiting, *b.scheduler.running] if s.id == request_id]
    assert {
        "waiting": not sequence.is_running,
        "reading": sequence.is_running and sequence.is_reading and sequence.leader is None,
        "following": sequence.leader is not None,
        "generating": sequence.is_running and not sequence.is_reading,
    }[when]
    b.abort(request_id)
    assert b.answers[request_id].done.finish == "cancelled"
    assert sequence not in b.scheduler.running and sequence not in b.scheduler.waiting
    before = b.runner.n_computed
    b.step()
    assert b.runner.n_computed - before <= 9  # the other's, if anybody's
    b.run()
    assert b.answers[other].done.finish in ("limit", "eos")
    b.abort(request_id)  # unknown by now: nothing happens
    b.check_idle()


def test_a_request_dropped_while_waiting_is_never_computed(bench: Make) -> None:
    b = bench(n_slots=1)
    b.add("a" * 20, max_tokens=2)
    b.step()
    dropped = b.add("b" * 20, max_tokens=2)
    b.abort(dropped)
    b.run()
    assert b.runner.n_computed == 21
    assert not b.answers[dropped].has_started


# --- when the model misbehaves ----------------------------------------------------------


class Failing(FakeLlama):
    """Raises ``error`` when ``when`` says so of a call's rows."""

    def __init__(self, error: Exception, when: Callable[[list[Row]], bool], **fields: Any) -> None:
        super().__init__(**{"n_ctx": 512, "n_slots": 4, "n_seq_max": 8} | fields)
        self.error, self.when = error, when

    def decode(self, rows: list[Row]) -> list[int]:
        if self.when(rows):
            raise self.error
        return super().decode(rows)


def _times(n: int) -> Callable[[list[Row]], bool]:
    left = iter([False, False, *[True] * n])
    return lambda rows: next(left, False)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_cache_full_against_all_accounts_ends_nobody(bench: Make, alone: Make, n: int) -> None:
    b = bench(Failing(KvFull(), _times(n)))
    b.add(SYSTEM, max_tokens=1)
    b.step(1)
    prompts = {b.add(c * 30, max_tokens=5): c * 30 for c in "abc"}
    while b.core.has_work:
        b.step()
        b.check()
    for request_id, prompt in prompts.items():
        assert b.answers[request_id].text == alone(prompt, max_tokens=5).text
    b.check_idle()


def test_a_full_cache_in_the_first_call_of_a_step_leaves_the_second_undone(
    bench: Make, alone: Make
) -> None:
    armed: list[bool] = []
    b = bench(Failing(KvFull(), lambda _: bool(armed) and armed.pop(), n_batch=8), budget=8)
    b.add("z" * 30, max_tokens=1)
    b.run()  # something to let go of
    prompts = {b.add(c, max_tokens=20): c for c in "uv"}
    b.step()
    b.add("c" * 40, max_tokens=1)
    b.step()
    armed.append(True)
    b.step()
    b.check()
    assert not armed and not any(b.answers[i].ends for i in prompts)
    b.run()
    for request_id, prompt in prompts.items():
        assert b.answers[request_id].text == alone(prompt, max_tokens=20).text
    b.check_idle()


def test_a_cache_that_stays_full_fails_those_it_has_no_room_for(bench: Make) -> None:
    b = bench(Failing(KvFull(), lambda rows: any(len(r.tokens) > 5 for r in rows)))
    short = b.add("a", max_tokens=10)
    b.step()
    long = b.add("b" * 40, max_tokens=10)
    b.run(limit=200)
    assert b.answers[long].failed.code == "engine_error"
    assert b.answers[short].done.finish == "limit"
    b.check_idle()


def test_a_refused_batch_fails_only_the_request_at_fault(bench: Make, alone: Make) -> None:
    bad = ord("b")
    b = bench(Failing(DecodeFailed(-1), lambda rows: any(bad in r.tokens for r in rows)))
    good = [b.add(c * 30, max_tokens=5) for c in "zy"]
    b.step(1)
    wrong = b.add("b" * 30, max_tokens=5)
    last = b.add("q", max_tokens=5)
    while b.core.has_work:
        b.step()
        b.check()
    assert b.answers[wrong].failed.code == "engine_error"
    for request_id, prompt in zip([*good, last], ["z" * 30, "y" * 30, "q"], strict=True):
        if "b" not in alone(prompt, max_tokens=5).text:
            assert b.answers[request_id].text == alone(prompt, max_tokens=5).text
    b.check_idle()


def test_a_broken_context_ends_the_process(bench: Make) -> None:
    b = bench(Failing(DecodeFailed(-3), lambda _: True))
    b.add("a")
    with pytest.raises(DecodeFailed):
        b.step()


def test_logits_without_a_number_fail_only_their_request(bench: Make) -> None:
    class Blind(FakeLlama):
        def sample(self, sampler: Any, index: int, mask: Any = None) -> Choice:
            if self._next[index] == ord("x"):
                raise NotFinite
            return super().sample(sampler, index, mask)

        def _choose(self, cells: Any) -> int:
            return ord("x") if cells[0].token == ord("b") else ord("a")

    b = bench(Blind(n_ctx=512, n_seq_max=8))
    good, wrong = b.add("a", max_tokens=4), b.add("b", max_tokens=4)
    b.run()
    assert b.answers[good].text == "aaaa"
    assert b.answers[wrong].failed.code == "engine_error"
    b.check_idle()


# --- what is reported -------------------------------------------------------------------


def test_the_snapshot_tells_slots_queue_and_cells(bench: Make) -> None:
    b = bench(n_slots=2, budget=8)
    first = b.add("a" * 4, max_tokens=40)
    b.step(2)
    second = b.add("b" * 40, max_tokens=1)
    third = b.add("c" * 10)
    b.step(2)
    snapshot = b.core.snapshot()
    one, two = snapshot.slots
    assert (one.task, one.state, one.n_prompt, one.n_generated) == (first, "generating", 4, 4)
    assert (two.task, two.state, two.n_prompt, two.n_processed) == (second, "reading", 40, 16)
    assert snapshot.waiting == [third]
    assert snapshot.cells_total == 512
    assert snapshot.cells_used == 4 + 3 + 16
    assert snapshot.cells_cached == 0
    b.run()
    assert {slot.state for slot in b.core.snapshot().slots} == {"idle"}
    assert b.core.snapshot().cells_cached == b.core.snapshot().cells_used > 0


def test_the_counters_add_up(bench: Make) -> None:
    b = bench()
    ids = [b.add(SYSTEM + c, max_tokens=5) for c in "abc"]
    b.run()
    stats = [b.answers[i].done.stats for i in ids]
    counters = b.core.snapshot().counters
    assert counters.prompt_tokens + counters.prompt_tokens_cached == 303
    assert counters.prompt_tokens_cached == sum(s.n_cached for s in stats) == 200
    assert counters.predicted_tokens == sum(s.n_generated for s in stats)
    assert counters.prompt_seconds > 0 and counters.predicted_seconds > 0


def test_outputs_come_in_order_and_name_all_tokens(bench: Make) -> None:
    b = bench(budget=16)
    request_id = b.add("a" * 40, max_tokens=6)
    b.run()
    kinds = [type(o).__name__ for o in b.answers[request_id].outputs]
    assert kinds[:2] == ["Started", "Progress"]
    assert kinds == sorted(kinds, key=["Started", "Progress", "Delta", "Done"].index)
    progress = [o for o in b.answers[request_id].outputs if isinstance(o, Progress)]
    assert [p.processed for p in progress] == [0, 16, 32, 40]
    assert {(p.total, p.cached) for p in progress} == {(40, 0)}
    done = b.answers[request_id].outputs[-1]
    assert isinstance(done, Done)
    assert bytes(b.answers[request_id].tokens).decode() == b.answers[request_id].text


def test_a_seed_drawn_is_reported_and_a_given_one_kept(bench: Make) -> None:
    b = bench()
    drawn = b.add("a", max_tokens=1)
    given = b.add("a", max_tokens=1, sampling=Sampling(seed=7))
    b.run()
    assert b.answers[given].done.stats.seed == 7
    assert b.answers[drawn].done.stats.seed >= 0


def test_tokens_are_kept_as_32_bit_integers() -> None:
    assert isinstance(_sequence(1, "ab").tokens, array)
    assert _sequence(1, "ab").tokens.itemsize == 4


def test_a_small_request_passes_one_that_does_not_fit_yet_but_only_so_often() -> None:
    scheduler = Scheduler(n_slots=4, n_ctx=100, n_seq_max=12, n_batch=64)

    def new(order: int, n: int) -> Sequence:
        tokens = [1000 * order + i for i in range(n)]
        sequence = Sequence(Add(id=order, prompt=""), tokens, order=order)
        scheduler.add(sequence)
        return sequence

    def step() -> None:
        for chunks in scheduler.plan(64).calls:
            for sequence in scheduler.commit(chunks):
                sequence.tokens.append(7)

    running = new(1, 40)
    step()
    big = new(2, 60)
    assert running.is_running
    for order in range(3, 3 + MAX_OVERTAKEN):
        small = new(order, 4)
        step()
        assert small.is_running and not big.is_running
        scheduler.finish(small)
    late = new(100, 4)
    step()
    assert not late.is_running and not big.is_running
    scheduler.finish(running)
    step()
    assert big.is_running
