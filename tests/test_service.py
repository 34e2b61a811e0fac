import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from corral.backend import pool as pools
from corral.backend.chat.types import (
    ChatRequest,
    CompletionRequest,
    Event,
    Finished,
    Message,
    Params,
    Reading,
    Text,
)
from corral.backend.choices import Choices, Generation
from corral.backend.errors import Broken, Refused
from corral.backend.pool import Pool
from corral.backend.service import Service
from corral.backend.settings import Settings

#: A prompt that the fake answers with this many letters.
ANSWER = "x" * 1000


def _service(**fields: Any) -> Service:
    settings = Settings(fake=True, n_slots=2, **fields)
    return Service(settings, Pool(settings))


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    monkeypatch.setattr(pools, "BACKOFF_S", 0.01)
    service = _service(drain_timeout_s=20.0)
    await service.start()
    async with asyncio.timeout(20):
        await service.until_loaded()
    yield service
    await service.close()


@contextlib.asynccontextmanager
async def _running(**fields: Any) -> AsyncIterator[Service]:
    settings = Settings(**fields)
    service = Service(settings, Pool(settings))
    await service.start()
    try:
        async with asyncio.timeout(20):
            await service.until_loaded()
        yield service
    finally:
        await service.close()


def _says(text: str, **params: Any) -> ChatRequest:
    return ChatRequest(messages=(Message(role="user", content=text),), params=Params(**params))


async def _events(answer: Choices | Generation) -> list[Event]:
    generation = answer.generations[0] if isinstance(answer, Choices) else answer
    async with asyncio.timeout(20):
        return [event async for event in generation]


def _text(events: list[Event]) -> str:
    return "".join(e.text for e in events if isinstance(e, Text))


def _finish(events: list[Event]) -> Finished:
    (end,) = [e for e in events if isinstance(e, Finished)]
    assert events[-1] is end
    return end


# --- settings in force ------------------------------------------------------------------


def test_what_is_not_asked_for_is_the_servers_default() -> None:
    service = _service(
        temperature=0.1,
        top_k=7,
        top_p=0.5,
        min_p=0.2,
        repeat_last_n=5,
        repeat_penalty=1.5,
        presence_penalty=0.3,
        frequency_penalty=0.4,
        seed=9,
        max_tokens=77,
    )
    defaults, sampling = service.defaults, service.defaults.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (
        0.1,
        7,
        0.5,
        0.2,
    )
    assert (sampling.repeat_last_n, sampling.repeat_penalty) == (5, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.3, 0.4)
    assert (sampling.seed, sampling.ignore_eos, sampling.logit_bias) == (9, False, ())
    assert (defaults.max_tokens, defaults.stop, defaults.cache_prompt) == (77, (), True)


def test_what_is_asked_for_counts_even_when_it_is_nothing() -> None:
    service = _service(temperature=0.5, top_k=7, seed=9, max_tokens=77, repeat_last_n=5)
    asked = Params(
        temperature=0.0,
        top_k=0,
        top_p=0.0,
        min_p=0.0,
        repeat_last_n=0,
        seed=0,
        max_tokens=0,
        stop=(),
        cache_prompt=False,
        ignore_eos=True,
    )
    effective = service.effective(asked)
    for name in ("temperature", "top_k", "top_p", "min_p", "repeat_last_n", "seed", "ignore_eos"):
        assert getattr(effective.sampling, name) == getattr(asked, name), name
    assert (effective.max_tokens, effective.cache_prompt) == (0, False)


@pytest.mark.parametrize(
    ("server", "asked", "expected"), [(-1, None, None), (5, -1, None), (-1, 0, 0)]
)
def test_a_negative_seed_asks_for_a_random_one(
    server: int, asked: int | None, expected: int | None
) -> None:
    assert _service(seed=server).effective(Params(seed=asked)).sampling.seed == expected


# --- events -----------------------------------------------------------------------------


async def test_a_conversation_is_answered_in_events_in_order(service: Service) -> None:
    (generation,) = (await service.chat(_says("hello there"))).generations
    events = await _events(generation)
    assert _text(events) == "hello there"
    kinds = [type(e) for e in events]
    assert kinds == sorted(kinds, key=[Reading, Text, Finished].index)
    readings = [e for e in events if isinstance(e, Reading)]
    assert readings[0].processed == readings[0].cached == 0
    assert readings[-1].processed == readings[-1].total == generation.n_prompt
    assert [r.processed for r in readings] == sorted(r.processed for r in readings)
    end = _finish(events)
    assert (end.finish, end.stopping_word, end.truncated) == ("eos", "", False)
    assert end.timings.n_prompt == generation.n_prompt
    assert end.timings.n_generated == len("hello there") + 1  # and the end of the turn
    assert end.slot == generation.slot in (0, 1)


async def test_texts_count_the_tokens_so_far(service: Service) -> None:
    events = await _events(await service.chat(_says("hello", max_tokens=4)))
    texts = [e for e in events if isinstance(e, Text)]
    assert [t.timings.n_generated for t in texts] == [1, 2, 3, 4]
    assert all(t.timings.n_prompt == _finish(events).timings.n_prompt for t in texts)
    assert _finish(events).finish == "limit"


async def test_the_same_prompt_again_is_cached(service: Service) -> None:
    (first,) = (await service.chat(_says("hello"))).generations
    await _events(first)
    events = await _events(await service.chat(_says("hello")))
    assert _finish(events).timings.n_cached == first.n_prompt - 1
    reading = events[0]
    assert isinstance(reading, Reading) and reading.processed == first.n_prompt - 1


async def test_a_stop_string_ends_the_answer_and_is_named(service: Service) -> None:
    events = await _events(await service.chat(_says("one two three", stop=("two",))))
    assert _text(events) == "one "
    assert (_finish(events).finish, _finish(events).stopping_word) == ("word", "two")


async def test_a_raw_prompt_may_be_text_or_tokens(service: Service) -> None:
    text = await _events(
        await service.complete(CompletionRequest(prompts=("ab",), params=Params(max_tokens=5)))
    )
    tokens = await _events(
        await service.complete(CompletionRequest(prompts=([97, "b"],), params=Params(max_tokens=5)))
    )
    assert _text(text) == _text(tokens) != ""


async def test_the_prompt_is_what_the_template_makes_of_the_messages(service: Service) -> None:
    prompt = await service.render(_says("hi"))
    assert prompt.text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert [prompt.text[a:b] for a, b in prompt.foreign] == ["hi"]


async def test_iteration_ends_and_the_request_is_forgotten(service: Service) -> None:
    (generation,) = (await service.chat(_says("hello"))).generations
    events = aiter(generation)
    async with asyncio.timeout(10):
        while not isinstance(await anext(events), Finished):
            pass
        with pytest.raises(StopAsyncIteration):
            await anext(events)
    assert not service._pool.engine._requests
    generation.abort()  # too late, and no harm


# --- leaving ----------------------------------------------------------------------------


async def test_aborting_any_number_of_times_ends_it_once_as_cancelled(service: Service) -> None:
    await service.control({"step_ms": 20})
    (generation,) = (await service.chat(_says(ANSWER))).generations
    events: list[Event] = []
    async with asyncio.timeout(10):
        async for event in generation:
            events.append(event)
            if isinstance(event, Text):
                generation.abort()
                generation.abort()
    assert _finish(events).finish == "cancelled"
    assert len(_text(events)) < 50
    generation.abort()


async def test_a_queued_generation_can_be_aborted_and_knows_its_place(service: Service) -> None:
    await service.control({"step_ms": 20})
    running = [(await service.chat(_says(ANSWER))).generations[0] for _ in range(2)]
    for generation in running:
        async for event in generation:
            if isinstance(event, Text):
                break
    queued = [(await service.chat(_says(c))).generations[0] for c in "abc"]
    async with asyncio.timeout(10):
        async for _ in running[0]:  # steps go on, and snapshots come with them
            if service.waiting_ahead(queued[2].id) is not None:
                break
    assert [service.waiting_ahead(g.id) for g in queued] == [0, 1, 2]
    assert service.waiting_ahead(running[0].id) is None
    queued[1].abort()
    assert _finish(await _events(queued[1])).finish == "cancelled"
    for generation in [*running, queued[0], queued[2]]:
        generation.abort()


# --- several answers --------------------------------------------------------------------


async def _all(choices: Choices) -> dict[int, list[Event]]:
    events: dict[int, list[Event]] = {i: [] for i in range(len(choices.generations))}
    async with asyncio.timeout(20):
        async for index, event in choices:
            events[index].append(event)
    return events


async def test_every_answer_of_a_request_ends_once_with_its_own_events(service: Service) -> None:
    request = CompletionRequest(prompts=("ab", [99]), n=3, params=Params(max_tokens=4, seed=1))
    choices = await service.complete(request)
    events = await _all(choices)
    assert len(events) == 6
    for index, generation in enumerate(choices.generations):
        assert generation.prompt_index == index // 3
        alone = await service.complete(
            CompletionRequest(prompts=(request.prompts[index // 3],), params=request.params)
        )
        assert _text(events[index]) == _text(await _events(alone)) != ""
        assert _finish(events[index]).seed == 1 + index % 3
    assert not service._pool.engine._requests


async def test_aborting_ends_all_answers_also_those_that_have_not_begun(service: Service) -> None:
    await service.control({"step_ms": 20})
    choices = await service.chat(replace(_says(ANSWER), n=7))  # two slots
    ends = {}
    async with asyncio.timeout(10):
        async for index, event in choices:
            if isinstance(event, Text):
                choices.abort()
                choices.abort()
            if isinstance(event, Finished):
                ends[index] = event
    assert len(ends) == 7 and {e.finish for e in ends.values()} == {"cancelled"}
    assert [e.timings.n_generated for e in ends.values()].count(0) >= 5
    assert not service._pool.engine._requests


async def test_no_more_answers_of_a_request_than_slots_are_with_the_engine(
    service: Service,
) -> None:
    choices = await service.chat(replace(_says("hello"), n=9))
    most = 0
    async with asyncio.timeout(10):
        async for _ in choices:
            most = max(most, len(service._pool.engine._requests))
    assert most == 2


async def test_the_first_answer_that_fails_ends_the_request(service: Service) -> None:
    await service.control({"step_ms": 20})
    choices = await service.chat(replace(_says(ANSWER), n=5))
    with pytest.raises(Broken) as caught:
        async with asyncio.timeout(10):
            async for _, event in choices:
                if isinstance(event, Text) and service._pool.engine.pid:
                    os.kill(service._pool.engine.pid, signal.SIGKILL)
    assert caught.value.kind == "engine_died"
    choices.abort()
    assert _text(await _events(await service.chat(_says("again")))) == "again"


@pytest.mark.parametrize("n_slots", [1, 2])
async def test_a_draining_service_finishes_all_answers_of_a_request(n_slots: int) -> None:
    async with _running(fake=True, n_slots=n_slots, drain_timeout_s=20.0) as service:
        choices = await service.chat(replace(_says("hello"), n=7))
        drain = asyncio.create_task(service.drain())
        await asyncio.sleep(0)
        assert service.state == "draining"
        events = await _all(choices)
        assert {_text(e) for e in events.values()} == {"hello"}
        async with asyncio.timeout(10):
            await drain


async def test_a_request_needs_one_place_however_many_answers_it_wants() -> None:
    async with _running(fake=True, n_slots=2, max_queue=0) as service:
        await service.control({"step_ms": 5})
        other = await service.chat(_says("x" * 30))
        choices = await service.chat(replace(_says("hello"), n=4))
        with pytest.raises(Broken) as caught:
            await service.chat(_says("no room"))
        assert caught.value.kind == "queue_full"
        assert {_text(e) for e in (await _all(choices)).values()} == {"hello"}
        assert _text(await _events(other)) == "x" * 30


async def test_one_bad_prompt_refuses_all_before_any_is_given_to_the_engine(
    service: Service,
) -> None:
    with pytest.raises(Refused) as caught:
        await service.complete(CompletionRequest(prompts=("good", "x" * 5000), n=2))
    assert (caught.value.kind, caught.value.param) == ("context_length_exceeded", "prompt[1]")
    assert caught.value.extra == {"n_prompt_tokens": 5000, "n_ctx": 4096}
    assert not service._pool.engine._requests


# --- refusals ---------------------------------------------------------------------------


async def test_refusals_name_the_callers_field(service: Service) -> None:
    with pytest.raises(Refused) as chat:
        await service.chat(_says("x" * 5000))
    assert (chat.value.kind, chat.value.param) == ("context_length_exceeded", "messages")
    with pytest.raises(Refused) as complete:
        await service.complete(CompletionRequest(prompts=("x" * 5000,)))
    assert complete.value.param == "prompt"
    assert complete.value.extra == {"n_prompt_tokens": 5000, "n_ctx": 4096}


async def test_nothing_is_answered_before_the_model_is_loaded() -> None:
    service = _service()
    assert service.state == "loading" and service.info is None
    for ask in (service.chat(_says("a")), service.complete(CompletionRequest(prompts=("a",)))):
        with pytest.raises(Broken) as caught:
            await ask
        assert caught.value.kind == "loading"
    await service.close()


async def test_a_dead_engine_fails_what_was_running_and_answers_the_next(service: Service) -> None:
    await service.control({"step_ms": 20})
    (generation,) = (await service.chat(_says(ANSWER))).generations
    with pytest.raises(Broken) as caught:
        async with asyncio.timeout(10):
            async for event in generation:
                if isinstance(event, Text) and service._pool.engine.pid:
                    os.kill(service._pool.engine.pid, signal.SIGKILL)
    assert caught.value.kind == "engine_died" and caught.value.wire.status == 503
    assert _text(await _events(await service.chat(_says("again")))) == "again"


async def test_a_draining_service_finishes_and_refuses(service: Service) -> None:
    await service.control({"step_ms": 5})
    (generation,) = (await service.chat(_says("x" * 30))).generations
    drain = asyncio.create_task(service.drain())
    await asyncio.sleep(0)
    assert service.state == "draining"
    with pytest.raises(Broken) as caught:
        await service.chat(_says("late"))
    assert caught.value.kind == "draining"
    assert _text(await _events(generation)) == "x" * 30
    await drain


# --- the vocabulary ---------------------------------------------------------------------


async def test_text_becomes_tokens_and_tokens_text(service: Service) -> None:
    tokens = await service.tokenize("é<|im_end|>", add_special=False, parse_special=True)
    assert tokens == [0xC3, 0xA9, 257]
    assert await service.tokenize([1, "a"], add_special=False, parse_special=False) == [1, 97]
    assert await service.pieces(tokens) == [b"\xc3", b"\xa9", b"<|im_end|>"]
    assert await service.detokenize(tokens) == "é<|im_end|>"
    assert await service.detokenize([0xC3]) == "\ufffd"


async def test_unknown_tokens_are_refused(service: Service) -> None:
    with pytest.raises(Refused) as caught:
        await service.detokenize([259])
    assert caught.value.param == "tokens"


async def test_what_is_known_of_the_model_can_be_read_without_waiting(service: Service) -> None:
    assert service.model_name == "fake" and service.state == "ready"
    assert service.info is not None and service.info.n_slots == 2
    assert service.load_progress == 1.0 and service.failure == ""
    await service.control({})
    assert service.snapshot is not None and len(service.snapshot.slots) == 2
