"""Constraints that are compiled only to be looked at."""

import json
import queue
import threading
from typing import Any, TypeAlias

import pytest

from corral.backend.engine.constraint import checking, compile_constraint
from corral.backend.engine.constraint.checking import Checks, check
from corral.backend.engine.messages import Constraint, Verdict

#: See ``conftest``.
Kit: TypeAlias = Any


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json_schema", '{"type": "object"}'),
        ("gbnf", 'root ::= "a"+'),
        ("lark", 'start: "a"'),
        ("regex", "[a-z]+"),
    ],
)
def test_what_can_be_enforced_has_no_problem(kit: Kit, kind: Any, source: str) -> None:
    found = check(Constraint(kind, source), kit.vocabulary)
    assert (found.problem, found.path) == ("", "") and found.compile_ms > 0


@pytest.mark.parametrize(
    ("kind", "source", "path"),
    [
        ("json_schema", '{"properties": {"a": {"not": {}}}}', "json_schema.properties.a.not"),
        ("gbnf", 'root ::= "a"\nb ::= c', "grammar"),
        ("lark", "start: nothing", "lark"),
        ("regex", "(", "regex"),
    ],
)
def test_what_cannot_be_enforced_says_where(kit: Kit, kind: Any, source: str, path: str) -> None:
    found = check(Constraint(kind, source), kit.vocabulary)
    assert found.problem and found.path.startswith(path)


def test_each_is_answered_on_a_thread_that_is_not_the_askers(kit: Kit) -> None:
    checks, answers = Checks(kit.vocabulary), queue.SimpleQueue[tuple[str, bool]]()
    me = threading.get_ident()

    def then(found: Verdict) -> None:
        answers.put((found.path, threading.get_ident() == me))

    for source in ("[a-z]", "("):
        checks.ask(Constraint("regex", source), then)
    assert [answers.get(timeout=10) for _ in range(2)] == [("", False), ("regex", False)]


def test_no_more_wait_than_there_is_room_for(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(constraint: Constraint, vocabulary: Any) -> Verdict:
        begun.set()
        assert go_on.wait(20)
        return Verdict()

    monkeypatch.setattr(checking, "check", slow)
    checks, answers = Checks(kit.vocabulary), queue.SimpleQueue[Verdict]()
    checks.ask(Constraint("regex", "a"), answers.put)
    assert begun.wait(20)
    for _ in range(checking.MAX_WAITING):
        checks.ask(Constraint("regex", "a"), answers.put)
    assert answers.empty()
    checks.ask(Constraint("regex", "a"), answers.put)
    assert "too many are being checked" in answers.get(timeout=10).problem
    # Those who waited too long are told so, and cost nothing.
    monkeypatch.setattr(checking, "PATIENCE_S", 0.0)
    go_on.set()
    problems = [answers.get(timeout=10).problem for _ in range(checking.MAX_WAITING + 1)]
    assert problems[0] == "" and all("took too long" in p for p in problems[1:])


def test_two_threads_compile_deep_sources_at_once(kit: Kit) -> None:
    # A stack of the usual size would overflow, which ends the process.
    deep = json.dumps(
        {
            "$ref": "#/$defs/0",
            "$defs": {
                **{str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(3_000)},
                "3000": {"type": "null"},
            },
        }
    )
    problems: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(3):
                compile_constraint(Constraint("json_schema", deep), kit.vocabulary)
        except Exception as error:  # noqa: BLE001 shown below
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems
