"""Requests made up from the API's own document: none may crash the server or leave the document."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance]
LIMITS = ("max_tokens", "max_completion_tokens", "n_predict")


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.name.lower())
def test_the_server_keeps_to_its_document(server: Any, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/schema")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 20
    schemas = schema.raw_schema["components"]["schemas"]
    for operation in operations:
        try_out(operation, mode, fields(operation, schemas))


def fields(operation: Any, schemas: dict[str, Any]) -> set[str]:
    """The members of an operation's body."""
    body = operation.definition.raw.get("requestBody")
    if body is None:
        return set()
    name = body["content"]["application/json"]["schema"].get("$ref", "/").rsplit("/", 1)[1]
    return set(schemas[name]["properties"]) if name else set()


def try_out(operation: Any, mode: GenerationMode, names: set[str]) -> None:
    """Some requests to one operation."""
    is_good = mode is GenerationMode.POSITIVE
    if not names and not is_good:
        return  # nothing to do wrong

    @settings(
        max_examples=12,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        if is_good and "max_tokens" in names:
            # An answer without a limit would run to the end of the context.
            case.body = {k: v for k, v in case.body.items() if k not in LIMITS}
            case.body["max_tokens"] = 3
        # The document cannot say that an answer has only the members that were asked for, and
        # this library reads ``prefixItems`` in answers as what they were before JSON Schema 2020.
        is_partial = isinstance(case.body, dict) and case.body.get("response_fields")
        is_beyond = is_partial or case.path.startswith("/presets")
        case.call_and_validate(checks=CHECKS[:-1] if is_beyond else CHECKS)

    check()
