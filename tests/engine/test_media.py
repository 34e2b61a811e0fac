"""Pictures among a prompt's tokens: on the fake model, whose text shows a wrong cache."""

from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corral.backend.engine import scheduler
from corral.backend.engine.fake import FakeLlama
from corral.backend.engine.media import BadMedia, Item, Layout, Placed, item_tokens, position
from corral.backend.engine.messages import Add, Media, Sampling, Written
from corral.backend.engine.tiers import Tier

Make = Callable[..., Any]

#: What an item may be: computed like text, at once, at once with other positions.
KINDS: dict[str, dict[str, Any]] = {
    "rows": {},
    "whole": {"is_whole": True},
    "few positions": {"is_whole": True, "n_pos": 2},
    "many positions": {"is_whole": True, "n_pos": 9},
}


def picture(key: str) -> Media:
    return Media(kind="image", key=key, data=b"rgb", width=1, height=1)


def prompt_of(parts: list[str]) -> tuple[Written, tuple[Media, ...]]:
    """Texts, and pictures as ``*`` and their key."""
    text, places, media = "", list[int](), list[Media]()
    for part in parts:
        if part.startswith("*"):
            places.append(len(text))
            media.append(picture(part[1:]))
        else:
            text += part
    return Written(text, (), tuple(places)), tuple(media)


def ask(bench: Any, *parts: str, **fields: Any) -> int:
    prompt, media = prompt_of(list(parts))
    request: int = bench.add(prompt, media=media, **fields)
    return request


PARTS = st.lists(
    st.sampled_from(["*a", "*b", "*c", "You are helpful. ", "Describe it. ", "x", "y" * 30]),
    min_size=1,
    max_size=5,
).map(lambda parts: [*parts, "?"])


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    asked=st.lists(st.tuples(PARTS, st.integers(0, 6), st.integers(1, 40)), min_size=1, max_size=7),
    budget=st.sampled_from([1, 3, 16]),
    n_ctx=st.sampled_from([160, 175, 190, 400]),
    tier_bytes=st.sampled_from([None, 10**6]),
    headroom=st.sampled_from([0, 16]),
)
def test_answers_do_not_depend_on_what_else_runs_or_is_cached(
    bench: Make,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    asked: list[Any],
    budget: int,
    n_ctx: int,
    tier_bytes: int | None,
    headroom: int,
) -> None:
    monkeypatch.setattr(scheduler, "HEADROOM", headroom)
    alone = []
    for parts, _, max_tokens in asked:
        b = bench(FakeLlama(n_ctx=n_ctx, vision=True, **KINDS[kind]), n_slots=1)
        request = ask(b, *parts, max_tokens=max_tokens)
        b.run()
        alone.append(b.answers[request].text)
    runner = FakeLlama(n_ctx=n_ctx, vision=True, n_batch=16, **KINDS[kind])
    tier = None if tier_bytes is None else Tier(tier_bytes)
    b = bench(runner, n_slots=3, budget=budget, tier=tier)
    together = []
    for parts, wait, max_tokens in asked:
        together.append(ask(b, *parts, max_tokens=max_tokens))
        b.step(wait)
    b.run()
    assert [b.answers[request].text for request in together] == alone
    assert runner.n_encoded <= 3  # each picture once
    b.check_idle()


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_seen_before_is_neither_encoded_nor_computed_again(
    bench: Make, kind: str
) -> None:
    runner = FakeLlama(vision=True, **KINDS[kind])
    b = bench(runner)
    first = ask(b, "Look: ", "*a", "What is it?", max_tokens=3)
    b.run()
    again = ask(b, "Look: ", "*a", "What colour is it?", max_tokens=3)
    b.run()
    other = ask(b, "Look: ", "*b", "What colour is it?", max_tokens=3)
    b.run()
    assert runner.n_encoded == 2
    cached = [b.answers[i].done.stats.n_cached for i in (first, again, other)]
    assert cached == [0, len("Look: ") + 4 + len("\nWhat "), len("Look: ")]
    n_prompt = len("Look: ") + 4 + len("\nWhat is it?")
    assert b.answers[first].done.stats.n_prompt == n_prompt


def test_pictures_encoded_before_a_restart_of_the_books_stay(bench: Make) -> None:
    runner = FakeLlama(vision=True)
    b = bench(runner, n_slots=1)
    ask(b, "*a", "*b", "*c", "What?", max_tokens=1)
    b.run()
    b.core._admission._reading._max_bytes = 0
    ask(b, "*d", "What?", max_tokens=1)
    b.run()
    assert list(b.core._admission._reading._seen) == [("image", "d")]
    ask(b, "*a", "*b", "x", max_tokens=1)  # their cells are still there
    b.run()
    assert runner.n_encoded == 4


def test_a_step_encodes_one_picture_and_running_streams_go_on(bench: Make) -> None:
    runner = FakeLlama(vision=True)
    b = bench(runner)
    stream = b.add("Tell me a long story", max_tokens=40)
    b.step(3)
    for key in "abcd":
        ask(b, f"*{key}", f"*{key}{key}", "What?", max_tokens=1)
    before = runner.n_encoded, len(b.answers[stream].tokens)
    for i in range(1, 9):
        b.step()
        assert runner.n_encoded <= before[0] + i
        assert len(b.answers[stream].tokens) == before[1] + i
    b.run()
    assert runner.n_encoded == 8


def test_rows_of_a_picture_are_computed_in_slices_like_text(bench: Make) -> None:
    runner = FakeLlama(vision=True)
    b = bench(runner, budget=1)
    b.add("Tell me a long story", max_tokens=90)
    b.step(25)
    ask(b, "*a", "?", max_tokens=1)
    b.step(1)  # encoded
    counts = []
    for _ in range(5):
        before = runner.n_computed
        b.step()
        counts.append(runner.n_computed - before)
    assert counts == [2] * 5  # a token of the story, and one row


def test_an_abort_while_pictures_wait_leaves_nothing_behind(bench: Make) -> None:
    runner = FakeLlama(vision=True)
    b = bench(runner)
    request = ask(b, "*a", "*b", "*c", "?", max_tokens=5)
    b.step(2)
    b.abort(request)
    b.run()
    assert b.answers[request].done.finish == "cancelled"
    assert runner.n_encoded < 3
    assert not b.scheduler.running


def test_an_encoding_that_fails_fails_its_request_alone(
    bench: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = FakeLlama(vision=True)
    b = bench(runner)

    def fail(item: Item) -> None:
        raise BadMedia("no luck")

    monkeypatch.setattr(runner, "encode", fail)
    other = b.add("Tell me", max_tokens=5)
    request = ask(b, "*a", "?", max_tokens=5)
    b.run()
    assert b.answers[request].failed.message == "a picture or sound failed: no luck"
    assert b.answers[other].done.finish == "limit"


@pytest.mark.parametrize(
    ("add", "message"),
    [
        ({"prompt": "no place", "media": (picture("a"),)}, "no place for each of 1"),
        ({"prompt": Written("x", (), (0,)), "media": ()}, "there are none"),
        ({"prompt": [-5, "x"], "media": ()}, "token ids must be from 0"),
        (
            {"prompt": Written("x", (), (0,)), "media": (picture("a"),), "prompt_probs": True},
            "cannot be had",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(bench: Make, add: dict[str, Any], message: str) -> None:
    b = bench(FakeLlama(vision=True))
    request = b.add(**add)
    assert message in b.answers[request].failed.message


def test_a_model_without_a_projector_says_so(bench: Make) -> None:
    b = bench()
    request = ask(b, "*a", "?")
    assert "takes no pictures" in b.answers[request].failed.message


def test_a_picture_computed_at_once_needs_text_behind_it(bench: Make) -> None:
    class Bare(FakeLlama):
        def see(self, media: Media) -> Any:
            return super().see(media)[:1]

    for is_whole in (False, True):
        b = bench(Bare(vision=True, is_whole=is_whole))
        request = ask(b, "x", "*a", max_tokens=2)
        b.run()
        (end,) = b.answers[request].ends
        assert ("must follow" in getattr(end, "message", "")) == is_whole


@pytest.mark.parametrize("n_text", range(10, 26))
def test_a_picture_computed_at_once_waits_until_there_are_cells_for_all_of_it(
    bench: Make, monkeypatch: pytest.MonkeyPatch, n_text: int
) -> None:
    monkeypatch.setattr(scheduler, "HEADROOM", 0)
    b = bench(FakeLlama(n_ctx=100, vision=True, is_whole=True), n_slots=2, budget=1)
    b.add("q" * 60, max_tokens=38)
    b.step(60)
    request = ask(b, "t" * n_text, "*a", "????", max_tokens=2)
    b.run()
    assert b.answers[request].done.stats.n_generated == 2


def test_a_full_context_is_not_shifted_under_a_picture(bench: Make) -> None:
    b = bench(FakeLlama(vision=True, n_ctx=40))
    request = ask(b, "*a", "?", context_shift=True)
    b.run()
    done = b.answers[request].done
    assert done.stats.n_discarded == 0
    assert done.finish == "eos" or done.stats.truncated


def test_tokens_of_items_are_negative_and_told_by_their_content() -> None:
    a, again, b = item_tokens("a", 500), item_tokens("a", 500), item_tokens("b", 500)
    assert a == again and len(a) == 500 and max(a) < 0 and max(b) < 0
    assert not set(a) & set(b)
    assert len(set(a)) == 500


def test_a_layout_knows_what_a_token_belongs_to_and_where_it_stands() -> None:
    def item(n: int, n_pos: int) -> Item:
        return Item(array("i", [-1] * n), n_pos=n_pos, is_whole=True, chunk=None)

    layout = Layout([Placed(2, item(4, 2)), Placed(6, item(3, 3)), Placed(10, item(2, 5))])
    found = [layout.at(i) for i in range(14)]
    assert [p and p.start for p in found] == [
        None,
        None,
        *[2] * 4,
        *[6] * 3,
        None,
        10,
        10,
        None,
        None,
    ]
    assert [layout.n_alike(i) for i in (0, 1, 2, 5, 6, 9, 10)] == [2, 1, 4, 1, 3, 1, 2]
    assert layout.n_alike(12) > 10**6
    assert [position(layout.shifts, i) for i in (0, 2, 6, 9, 10, 12, 13)] == [0, 2, 4, 7, 8, 13, 14]


def test_the_sampler_never_sees_tokens_that_are_none(bench: Make) -> None:
    seen = list[Any]()

    class Watched(FakeLlama):
        def sampler(self, stages: Any, prompt: Any, *args: Any, **fields: Any) -> Any:
            seen.append(list(prompt))
            return super().sampler(stages, prompt, *args, **fields)

    b = bench(Watched(vision=True))
    prompt, media = prompt_of(["a", "*a", "b"])
    b.core.admit(Add(id=1, prompt=prompt, media=media, sampling=Sampling(repeat_penalty=1.1)))
    assert seen == [list(b"a\nb")]
