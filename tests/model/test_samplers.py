"""Choosing on few candidates is choosing on all: against llama.cpp's own chains and formulas."""

from array import array
from typing import Any

import numpy as np
import pytest

from corral.backend.engine import sampling
from corral.backend.engine.llama import Llama, NotFinite, Row
from corral.backend.engine.llama.native import lib
from corral.backend.engine.llama.samplers import Candidates, Sampler, log_probs
from corral.backend.engine.messages import Sampling

PROMPT = "The three most important things about the sea are red, blue, red and"


def native_chain(*stages: Any) -> Any:
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    for stage in stages:
        lib.llama_sampler_chain_add(chain, stage)
    return chain


def both(llama: Llama, ours: list[sampling.Stage], theirs: Any, n: int = 60) -> tuple[Any, Any]:
    """What our sampler and llama.cpp's own loop choose, from the same rows of logits."""
    prompt = array("i", llama.tokenize_prompt(PROMPT))
    for token in prompt:
        lib.llama_sampler_accept(theirs, token)
    sampler = llama.sampler(ours, prompt)
    llama.cut(0, 0)
    tokens, chosen, expected = prompt, list[int](), list[int]()
    start = 0
    for _ in range(n):
        index = llama.decode([Row(0, start, tokens[start:], True)])[0]
        start = len(tokens)
        expected.append(int(lib.llama_sampler_sample(theirs, llama._ctx, index)))
        chosen.append(llama.sample(sampler, index).token)
        tokens.append(expected[-1])
    sampler.close()
    lib.llama_sampler_free(theirs)
    return chosen, expected


@pytest.mark.parametrize("k", [1, 7, 40, 200])
def test_the_same_seed_chooses_as_llama_cpps_chain_over_the_whole_vocabulary(
    llama: Llama, k: int
) -> None:
    ours: list[sampling.Stage] = [
        sampling.TopK(k),
        sampling.TopP(0.95, 1),
        sampling.MinP(0.02, 1),
        sampling.Temperature(1.3, 0.0, 1.0),
        sampling.Draw(11),
    ]
    theirs = native_chain(
        lib.llama_sampler_init_top_k(k),
        lib.llama_sampler_init_top_p(0.95, 1),
        lib.llama_sampler_init_min_p(0.02, 1),
        lib.llama_sampler_init_temp(1.3),
        lib.llama_sampler_init_dist(11),
    )
    chosen, expected = both(llama, ours, theirs)
    assert chosen == expected
    assert k == 1 or len(set(chosen)) > 5


@pytest.mark.parametrize(("repeat", "frequency", "presence"), [(1.3, 0.0, 0.0), (1.1, 0.4, -0.3)])
def test_penalties_choose_as_llama_cpps_own(
    llama: Llama, repeat: float, frequency: float, presence: float
) -> None:
    ours: list[sampling.Stage] = [
        sampling.Penalties(20, repeat, frequency, presence),
        sampling.TopK(40),
        sampling.Draw(5),
    ]
    theirs = native_chain(
        lib.llama_sampler_init_penalties(llama.n_vocab, 20, repeat, frequency, presence),
        lib.llama_sampler_init_top_k(40),
        lib.llama_sampler_init_dist(5),
    )
    chosen, expected = both(llama, ours, theirs)
    assert chosen == expected


@pytest.mark.parametrize("n_vocab", [100, 256, 300, 49152, 151_936])
@pytest.mark.parametrize("k", [1, 40, 256, 5000])
def test_the_candidates_hold_the_largest_logits(n_vocab: int, k: int) -> None:
    random = np.random.default_rng(n_vocab + k)
    logits = random.normal(size=n_vocab).astype(np.float32)
    candidates = Candidates(n_vocab)
    candidates.take_top(logits, k)
    kept = candidates.left()
    wanted = set(np.argsort(-logits)[:k].tolist())
    assert wanted <= set(kept["id"].tolist())
    assert (kept["logit"] == logits[kept["id"]]).all()
    if n_vocab > 256 and k <= 40:
        assert len(kept) < max(4 * k, n_vocab % 256 + 4 * k)


def test_few_finite_logits_are_all_candidates() -> None:
    logits = np.full(1000, -np.inf, np.float32)
    logits[[3, 700, 999]] = 1.0
    candidates = Candidates(1000)
    candidates.take_top(logits, 40)
    assert {3, 700, 999} <= set(candidates.left()["id"].tolist())


EVERY = {
    "dry": Sampling(dry_multiplier=0.8, dry_penalty_last_n=-1),
    "top_n_sigma": Sampling(top_n_sigma=1.0),
    "typical": Sampling(typical_p=0.9),
    "xtc": Sampling(xtc_probability=0.5, xtc_threshold=0.05),
    "dynatemp": Sampling(dynatemp_range=0.5, dynatemp_exponent=1.2),
    "mirostat": Sampling(mirostat=1),
    "mirostat_v2": Sampling(mirostat=2),
    "adaptive_p": Sampling(adaptive_target=0.3, samplers=("top_k", "adaptive_p")),
    "infill": Sampling(samplers=("infill", "top_k")),
    "no_samplers": Sampling(samplers=()),
    "late_penalties": Sampling(samplers=("top_k", "penalties"), repeat_penalty=1.3),
    "greedy_typical": Sampling(temperature=0, typical_p=0.5),
    "min_keep": Sampling(top_p=0.01, min_keep=5),
    "post": Sampling(n_probs=4, post_sampling_probs=True),
    "pre": Sampling(n_probs=4),
}


@pytest.mark.parametrize("name", EVERY)
def test_every_sampler_runs_and_its_choices_depend_on_the_seed_alone(
    llama: Llama, name: str
) -> None:
    asked = EVERY[name]
    prompt = array("i", llama.tokenize_prompt(PROMPT))
    llama.cut(0, 0)
    index = llama.decode([Row(0, 0, prompt, True)])[0]
    row = llama.logits(index).copy()

    def run() -> list[Any]:
        stages = sampling.chain(asked, [(7, -1.0)], seed=9, n_ctx=512)
        sampler = llama.sampler(stages, prompt, asked.n_probs, asked.post_sampling_probs)
        choices = [sampler.choose(row.copy(), llama._candidates) for _ in range(20)]
        sampler.close()
        return choices

    first = run()
    assert first == run()
    assert all(0 <= c.token < llama.n_vocab for c in first)
    if asked.n_probs:
        assert all(0 < len(c.top) <= 4 for c in first)


def test_probabilities_before_sampling_are_the_softmax_of_the_models_logits(llama: Llama) -> None:
    logits = np.random.default_rng(1).normal(size=1000).astype(np.float32) * 4
    choice = log_probs(logits, 5, 3)
    exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    assert choice.value == pytest.approx(exact[5], abs=1e-5)
    assert [t for t, _ in choice.top] == np.argsort(-exact)[:3].tolist()
    assert [v for _, v in choice.top] == pytest.approx(sorted(exact)[-3:][::-1], abs=1e-5)


def test_a_mask_is_obeyed_and_banning_everything_is_an_error(llama: Llama) -> None:
    stages: list[sampling.Stage] = [sampling.TopK(40), sampling.Draw(1)]
    sampler = Sampler(stages, array("i"), vocab=None, n_vocab=1000)
    candidates = Candidates(1000)
    logits = np.linspace(0, 30, 1000, dtype=np.float32)

    def only_three(row: Any) -> None:
        kept = row[3]
        row[:] = -np.inf
        row[3] = kept

    assert sampler.choose(logits.copy(), candidates, only_three).token == 3
    with pytest.raises(NotFinite):
        sampler.choose(logits.copy(), candidates, lambda row: row.fill(-np.inf))
    with pytest.raises(NotFinite):
        sampler.choose(np.full(1000, np.nan, np.float32), candidates)
    sampler.close()
