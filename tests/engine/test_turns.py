from collections.abc import Callable
from typing import Any

from corral.backend.engine.messages import Add
from corral.backend.engine.scheduler import Scheduler
from corral.backend.engine.sequence import Sequence
from corral.backend.engine.turns import TURN_ROWS, TURN_STEPS, Turns

A, B = ((0, 1.0),), ((1, 1.0),)
Make = Callable[..., Any]


def _sequence(order: int, adapters: Any, prompt: str = "prompt") -> Sequence:
    add = Add(id=order, prompt=prompt)
    return Sequence(add, list(prompt.encode()), order=order, adapters=adapters)


def test_one_set_keeps_the_turn_for_ever() -> None:
    turns, running = Turns(), [_sequence(1, A)]
    for _ in range(100):
        assert turns.choose(running) == A
        turns.count(64)
    assert turns.n_changes == 1


def test_sets_take_turns_of_so_many_steps() -> None:
    turns, running = Turns(), [_sequence(1, A), _sequence(2, B), _sequence(3, ())]
    order = []
    for _ in range(9 * TURN_STEPS):
        order.append(turns.choose(running))
        turns.count(1)
    changes = [a for i, a in enumerate(order) if i == 0 or order[i - 1] != a]
    assert changes == [(), A, B] * 3
    assert all(order.count(a) == 3 * TURN_STEPS for a in (A, B, ()))


def test_a_turn_of_long_steps_ends_by_its_rows() -> None:
    turns, running = Turns(), [_sequence(1, A), _sequence(2, B)]
    assert turns.choose(running) == A
    turns.count(TURN_ROWS)
    assert turns.choose(running) == B


def test_the_turn_passes_on_when_nobody_of_its_set_is_left() -> None:
    turns = Turns()
    assert turns.choose([_sequence(1, A), _sequence(2, B)]) == A
    turns.count(1)
    assert turns.choose([_sequence(2, B)]) == B


def test_a_step_computes_one_set_only() -> None:
    scheduler = Scheduler(n_slots=4, n_ctx=512, n_seq_max=8, n_batch=64)
    for order, adapters in enumerate([A, B, A, ()], 1):
        scheduler.add(_sequence(order, adapters, f"prompt {order}"))
    seen = set()
    for _ in range(4 * TURN_STEPS):
        plan = scheduler.plan(16)
        chunks = [chunk for call in plan.calls for chunk in call]
        assert {c.sequence.adapters for c in chunks} == {plan.adapters}
        seen.add(plan.adapters)
        for call in plan.calls:
            for sequence in scheduler.commit(call):
                sequence.tokens.append(0)
    assert seen == {A, B, ()}


def test_a_short_request_of_another_set_is_not_kept_by_a_long_one(bench: Make) -> None:
    b = bench()
    b.add("a long story", max_tokens=300, lora=A)
    b.step(5)
    short = b.add("a short one", max_tokens=4, lora=B)
    for _ in range(3 * TURN_STEPS):
        b.step()
    assert b.answers[short].ends


def test_sets_interleaved_give_what_each_gives_alone(bench: Make, alone: Make) -> None:
    b = bench(budget=7)
    asked = {
        b.add("the same beginning, " + rest, max_tokens=30, lora=lora): (rest, lora)
        for rest in ("one", "two")
        for lora in (A, B, None, ((0, 0.5), (1, 2.0)))
    }
    b.run()
    for request_id, (rest, lora) in asked.items():
        wanted = alone("the same beginning, " + rest, max_tokens=30, lora=lora)
        assert b.answers[request_id].text == wanted.text
    assert len({b.answers[i].text for i in asked}) == 8
    b.check_idle()


def test_a_prefix_is_never_used_by_another_set(bench: Make) -> None:
    b = bench()
    prompt = "a prompt that several requests have in common"
    first = b.add(prompt, max_tokens=1, lora=A)
    b.run()
    again, other, base, none = (
        b.add(prompt, max_tokens=1, lora=lora) for lora in (A, ((0, 0.5),), None, ((0, 0.0),))
    )
    b.run()
    cached = [b.answers[i].done.stats.n_cached for i in (first, again, other, base, none)]
    # A scale of 0 is no adapter: it may use what the base model computed, here in flight.
    assert cached == [0, len(prompt) - 1, 0, 0, len(prompt) - 1]
