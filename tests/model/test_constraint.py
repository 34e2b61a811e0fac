"""Constraints over a real vocabulary, and a real model that answers under them."""

import json
from collections.abc import Iterator

import jsonschema
import numpy as np
import pytest

from corral.backend.engine.constraint import Constrained, Vocabulary, compile_constraint
from corral.backend.engine.core import Admitted, EngineCore
from corral.backend.engine.llama import Llama
from corral.backend.engine.messages import Add, Constraint, ConstraintKind, Delta, Done, Sampling
from corral.backend.engine.pace import PromptBudget, Threads

pytestmark = pytest.mark.model

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "größer", "日本"]}, "maxItems": 3},
        "address": {
            "type": "object",
            "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}, "city": {}},
            "required": ["zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags", "address"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def vocabulary(llama: Llama) -> Iterator[Vocabulary]:
    vocabulary = Vocabulary(llama)
    vocabulary.prepare()
    yield vocabulary


def start(vocabulary: Vocabulary, kind: ConstraintKind, source: str) -> Constrained:
    return compile_constraint(Constraint(kind, source), vocabulary)


def tokens_of(llama: Llama, text: str) -> list[int]:
    return llama.tokenize(text, add_special=False, parse_special=False)


def test_forced_text_comes_in_the_tokens_the_model_was_trained_on(
    llama: Llama, vocabulary: Vocabulary
) -> None:
    for text in ("The quick brown fox", "größer als 日本 🐲", '{"name": "x"}', "  \n\n\tx"):
        whole = start(vocabulary, "json_schema", json.dumps({"const": text}))
        spelled = json.dumps(text, ensure_ascii=False)
        forced = whole.forced()
        assert forced == tokens_of(llama, spelled), text
        for token in forced:
            assert whole.allows(token)
            whole.accept(token)
        assert whole.must_stop


def test_random_answers_over_the_real_vocabulary_validate(
    llama: Llama, vocabulary: Vocabulary
) -> None:
    first = start(vocabulary, "json_schema", json.dumps(PERSON))
    closing = [t for t in range(llama.n_vocab) if llama.piece(t) in (b'"', b'",', b"}", b"]")]
    rng = np.random.default_rng(7)
    for _ in range(20):
        state, tokens = first.copy(), list[int]()
        while not state.must_stop:
            logits = rng.random(llama.n_vocab, dtype=np.float32)
            logits[closing] += 0.5
            state.apply(logits)
            for token in state.forced() or [int(logits.argmax())]:
                assert state.allows(token)
                state.accept(token)
                tokens.append(token)
            assert len(tokens) < 300
        text = b"".join(llama.piece(t) for t in tokens).decode()
        jsonschema.validate(json.loads(text), PERSON)
        assert text.endswith("}")


def answer(llama: Llama, prompt: str, constraint: Constraint) -> tuple[str, Done]:
    for seq_id in range(llama.n_seq_max):
        llama.cut(seq_id, 0)
    core = EngineCore(
        llama,
        n_slots=2,
        max_queue=4,
        budget=PromptBudget(n_batch=llama.n_batch),
        threads=Threads(1),
    )
    asked = Add(
        id=1,
        prompt=f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n",
        sampling=Sampling(temperature=0),
        max_tokens=200,
        constraint=constraint,
    )
    admitted = core.admit(asked)
    assert isinstance(admitted, Admitted), admitted
    core.add(admitted)
    outputs = []
    while core.has_work:
        outputs += core.step()
    (done,) = [o for o in outputs if isinstance(o, Done)]
    return "".join(o.text for o in outputs if isinstance(o, Delta)), done


def test_a_model_that_would_rather_talk_writes_what_the_schema_asks(llama: Llama) -> None:
    constraint = Constraint("json_schema", json.dumps(PERSON))
    text, done = answer(llama, "Tell me about Ada Lovelace.", constraint)
    jsonschema.validate(json.loads(text), PERSON)
    assert done.finish == "eos"


def test_a_model_answers_in_the_words_of_a_grammar(llama: Llama) -> None:
    constraint = Constraint("gbnf", 'root ::= ("yes" | "no") ", " [a-z ]{5,30} "."')
    text, done = answer(llama, "Is the sky blue?", constraint)
    assert text.startswith(("yes, ", "no, ")) and text.endswith(".") and done.finish == "eos"
