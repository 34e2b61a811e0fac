"""Reasoning that is counted and ended, and tags that are told apart from text."""

from collections.abc import Callable
from typing import Any

import pytest

from corral.backend.engine.detokenize import Detokenizer
from corral.backend.engine.fake import START, FakeLlama
from corral.backend.engine.llama import Choice
from corral.backend.engine.messages import Constraint, Delta, Sampling, Thinking
from corral.backend.engine.reasoning import Reasoning, marked

ASK = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
TAGS: dict[str, Any] = {"start": "<t>", "end": "</t>"}
Make = Callable[..., Any]


def _said(bench: Any, text: str, **fields: Any) -> str:
    request_id = bench.add(ASK.format(text), **fields)
    bench.run()
    said: str = bench.answers[request_id].text
    return said


def test_reasoning_within_its_budget_is_left_alone(bench: Make) -> None:
    thinking = Thinking(**TAGS, budget=8)
    assert _said(bench(), "<t>12345</t>so", thinking=thinking) == "<t>12345</t>so"


def test_reasoning_is_ended_when_its_budget_is_spent_and_the_answer_goes_on(bench: Make) -> None:
    thinking = Thinking(**TAGS, budget=3, message="…well")
    # The fake goes on where it would be after so many tokens, which are bytes.
    said = _said(bench(), "<t>1234567890123456789", thinking=thinking)
    assert said == "<t>123…well</t>" + "<t>1234567890123456789"[len("<t>123…well</t>".encode()) :]


@pytest.mark.parametrize("is_open", [True, False])
def test_a_budget_of_nothing_ends_reasoning_as_it_begins(bench: Make, is_open: bool) -> None:
    thinking = Thinking(**TAGS, budget=0, is_open=is_open)
    text = "12345678" if is_open else "<t>12345678"
    before = "" if is_open else "<t>"
    said = _said(bench(), text, thinking=thinking)
    assert said == f"{before}</t>" + text[len(before) + 4 :]


def test_code_points_are_not_cut_by_a_spent_budget(bench: Make) -> None:
    said = _said(bench(), "<t>é€é€é€é€é€é€é€é€é€", thinking=Thinking(**TAGS, budget=4))
    assert said.startswith("<t>é€</t>") and "�" not in said[:9]


def test_reasoning_can_be_ended_from_outside_once(bench: Make) -> None:
    one = bench()
    request_id = one.add(ASK.format("<t>" + "x" * 60), thinking=Thinking(**TAGS))
    assert not one.core.end_thinking(99)
    while len(one.answers[request_id].text) < 10:
        one.step()
    assert one.core.end_thinking(request_id)
    one.run()
    text = one.answers[request_id].text
    assert text.count("</t>") == 1 and text.index("</t>") <= 12
    assert not one.core.end_thinking(request_id)


def test_what_is_written_in_the_model_s_place_has_its_probability(bench: Make) -> None:
    one = bench()
    thinking = Thinking(**TAGS, budget=1)
    request_id = one.add(ASK.format("<t>abc"), thinking=thinking, sampling=Sampling(n_probs=2))
    one.run()
    outputs = one.answers[request_id].outputs
    tokens = [t for o in outputs if isinstance(o, Delta) for t in o.tokens]
    probs = [p for o in outputs if isinstance(o, Delta) for p in o.probs]
    assert [p.token for p in probs] == tokens and bytes(tokens).startswith(b"<t>a</t>")


def test_a_constraint_is_about_the_answer_behind_the_reasoning(bench: Make) -> None:
    fields = {"constraint": Constraint("regex", "[0-9]{3}")}
    # The fake says what it is told, or the first token that it may.
    opened = _said(bench(), "why?</t>12x", thinking=Thinking(**TAGS, is_open=True), **fields)
    assert opened == "why?</t>120"
    begun = _said(bench(), "<t>why?</t>12x", thinking=Thinking(**TAGS), **fields)
    assert begun == "<t>why?</t>120"
    without = _said(bench(), "12x<t>", thinking=Thinking(**TAGS), **fields)
    assert without == "120"
    spent = _said(bench(), "why?120", thinking=Thinking(**TAGS, is_open=True, budget=0), **fields)
    assert spent == "</t>120"


def test_what_stands_between_reasoning_and_answer_is_written_and_not_constrained(
    bench: Make,
) -> None:
    # As GPT-OSS: reasoning and answer are messages of their own, and tags are several tokens.
    ends = {"thinking": Thinking(**TAGS, then="<f>"), "constraint": Constraint("regex", "[0-9]{3}")}
    assert _said(bench(), "<t>why?</t>...12x", **ends) == "<t>why?</t><f>120"
    stopped = Thinking(**TAGS, then="<f>", budget=2)
    assert _said(bench(), "<t>why?......answer", thinking=stopped) == "<t>wh</t><f>.answer"
    assert _said(bench(), "12x<t>", **ends) == "120"


def test_reasoning_does_not_begin_where_the_answer_may_begin_alike(bench: Make) -> None:
    fields = {"thinking": Thinking(**TAGS), "constraint": Constraint("regex", "<[a-z]{3}>")}
    assert _said(bench(), "<tag>", **fields) == "<tag>"


def test_a_tag_of_one_token_is_no_text_that_looks_like_it() -> None:
    class Words:
        def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
            return {"<t>": [300], "</t>": [301]}.get(text, list(text.encode()))

        def piece(self, token: int, *, special: bool = False) -> bytes:
            return {300: b"<t>", 301: b"</t>"}.get(token, bytes([token & 255]))

    reasoning = Reasoning(Thinking(**TAGS, budget=2), Words())
    for token in b"<t>abc":
        reasoning.take(token)
    assert not reasoning.is_open
    for token in (300, *b"</t>"):
        reasoning.take(token)
    assert reasoning.is_open and reasoning.next() == 301
    reasoning.take(301)
    assert not reasoning.is_open and reasoning.next() is None
    assert marked(Words(), ("<t>", "<u>", "a")) == {300: "<t>", 97: "a"}


# --- marks --------------------------------------------------------------------------------------


class Scripted(FakeLlama):
    """Says these tokens."""

    script: tuple[int, ...] = ()

    def sample(self, sampler: Any, index: int, mask: Any = None) -> Choice:
        token, self.script = self.script[0], self.script[1:]
        return Choice(token)


def _deltas(bench: Make, script: tuple[int, ...], **fields: Any) -> list[Delta]:
    runner = Scripted(n_ctx=512, n_seq_max=12)
    runner.script = script
    one = bench(runner)
    request_id = one.add("x", max_tokens=len(script), **fields)
    one.run()
    return [o for o in one.answers[request_id].outputs if isinstance(o, Delta)]


def test_a_tag_that_is_a_token_is_reported_with_its_place_and_is_not_text(bench: Make) -> None:
    deltas = _deltas(bench, (97, START, 98), marks=("<|im_start|>",))
    assert [(d.text, d.marks) for d in deltas] == [
        ("a", []),
        ("", [(0, "<|im_start|>")]),
        ("b", []),
    ]
    assert [t for d in deltas for t in d.tokens] == [97, START, 98]


def test_text_held_for_a_stop_string_stands_before_the_tag(bench: Make) -> None:
    script = (97, 98, START, 99, 100, 101)
    deltas = _deltas(bench, script, marks=("<|im_start|>",), stop=("abcd",))
    assert [(d.text, d.marks) for d in deltas] == [
        ("ab", [(2, "<|im_start|>")]),
        ("c", []),
        ("d", []),
        ("e", []),
    ]


def test_a_stop_string_does_not_reach_across_a_tag() -> None:
    text = Detokenizer(["abcd"])
    assert text.feed(b"ab") == "" and text.flush() == "ab"
    assert text.feed(b"cd") == "cd" and text.stop is None


def test_a_tag_nobody_asked_for_shows_nothing(bench: Make) -> None:
    assert [d.text for d in _deltas(bench, (97, START, 98))] == ["a", "b"]
