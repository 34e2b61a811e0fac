"""Which value counts: a request's, a flag's, the model's own, llama-server's."""

import pytest

from corral.backend.chat.types import Params
from corral.backend.commandline import parse
from corral.backend.defaults import default, effective, settled
from corral.backend.engine.messages import SAMPLERS, Constraint, Sampling
from corral.backend.settings import Settings

RECOMMENDED = {"temperature": 0.3, "top_k": 20}


def sampling(argv: list[str], params: Params | None = None) -> Sampling:
    return effective(params or Params(), parse(argv, {}), RECOMMENDED).sampling


def test_without_a_flag_the_models_own_values_count() -> None:
    found = sampling([])
    assert (found.temperature, found.top_k, found.top_p) == (0.3, 20, 0.95)


@pytest.mark.parametrize("value", [0.8, 0.5])
def test_a_flag_comes_before_the_model_also_where_it_is_the_default(value: float) -> None:
    assert sampling(["--temp", str(value)]).temperature == value
    assert sampling(["--temp", str(value)]).top_k == 20


def test_a_variable_and_a_file_count_as_flags_do() -> None:
    settings = parse([], {"LLAMA_ARG_TEMPERATURE": "0.8"})
    assert effective(Params(), settings, RECOMMENDED).sampling.temperature == 0.8


def test_a_request_comes_before_a_flag() -> None:
    assert sampling(["--temp", "0.5"], Params(temperature=0.9)).temperature == 0.9


def test_every_list_of_a_flag_reaches_requests() -> None:
    flags = [
        *("--samplers", "top_k;temp"),
        *("-l", "7-inf", "-l", "8+1"),
        *("-r", "User:"),
        *("--dry-sequence-breaker", "none"),
        *("--no-cache-prompt", "--keep", "5", "--context-shift"),
    ]
    found = effective(Params(), parse(flags, {}), {})
    assert found.sampling.samplers == ("top_k", "temperature")
    assert found.sampling.logit_bias == ((7, float("-inf")), (8, 1.0))
    assert found.sampling.dry_sequence_breakers == ()
    assert found.stop == ("User:",)
    assert (found.cache_prompt, found.n_keep, found.context_shift) == (False, 5, True)


def test_without_flags_lists_are_llama_servers() -> None:
    found = effective(Params(), Settings(), {})
    assert found.sampling.samplers == SAMPLERS
    assert found.sampling.dry_sequence_breakers == ("\n", ":", '"', "*")
    assert found.stop == () and found.constraint is None


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--grammar", 'root ::= "a"'], Constraint("gbnf", 'root ::= "a"')),
        (["--grammar", "%llguidance {}"], Constraint("lark", "%llguidance {}")),
        (["-j", '{"type":"array"}'], Constraint("json_schema", '{"type":"array"}')),
    ],
)
def test_a_constraint_of_a_flag_holds_where_a_request_brings_none(
    flags: list[str], expected: Constraint
) -> None:
    settings = parse(flags, {})
    assert effective(Params(), settings, {}).constraint == expected
    own = Constraint("regex", "b")
    assert effective(Params(constraint=own), settings, {}).constraint == own


def test_a_presets_value_counts_where_the_request_has_none_and_before_flags() -> None:
    asked = Params(temperature=0.0, stop=())
    preset = Params(temperature=0.9, top_k=3, stop=("x",), max_tokens=5)
    found = effective(settled(asked, preset), parse(["--temp", "0.5", "--top-k", "9"], {}), {})
    assert (found.sampling.temperature, found.sampling.top_k) == (0.0, 3)
    assert (found.stop, found.max_tokens) == ((), 5)


def test_a_preset_comes_before_the_models_own_values() -> None:
    found = effective(settled(Params(), Params(top_k=3)), Settings(), RECOMMENDED)
    assert (found.sampling.top_k, found.sampling.temperature) == (3, 0.3)


def test_the_place_of_a_constraint_goes_with_it() -> None:
    own, other = Constraint("regex", "a"), Constraint("regex", "b")
    asked = Params(constraint=own, constraint_at="regex")
    preset = Params(constraint=other, constraint_at="preset.regex")
    for request, expected in ((asked, asked), (Params(), preset)):
        assert settled(request, preset) == expected
    unplaced = settled(Params(constraint=own), preset)
    assert (unplaced.constraint, unplaced.constraint_at) == (own, None)


def test_a_default_says_where_it_comes_from() -> None:
    assert default("temperature", Settings(), RECOMMENDED) == (0.3, "model")
    assert default("top_p", Settings(), RECOMMENDED) == (0.95, "server")
    given = parse(["--temp", "0.8"], {})
    assert default("temperature", given, RECOMMENDED) == (0.8, "server")
