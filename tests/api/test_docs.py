"""The page for people and the document for machines tell all there is."""

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from corral.backend import ROOT
from corral.backend.api.native_schema import DetokenizeBody, InfillBody, NativeBody, TokenizeBody
from corral.backend.api.openai_schema import ChatBody, CompletionBody

PAGE = Path(ROOT / "docs" / "api.md").read_text()


def test_every_route_is_in_the_page_and_in_the_document(server: Any, http: httpx.Client) -> None:
    document = http.get("/schema").json()
    assert http.get("/schema/openapi.json").json() == document
    for route in server.app.routes:
        path = route.path.replace(":path", "").replace(":str", "")
        assert path in PAGE, f"docs/api.md does not mention {path}"
        canonical = path if path in document["paths"] else f"/v1{path}"
        assert canonical in document["paths"]


@pytest.mark.parametrize(
    "body", [ChatBody, CompletionBody, NativeBody, InfillBody, TokenizeBody, DetokenizeBody]
)
def test_every_field_is_in_the_page(body: Any) -> None:
    for field in msgspec.structs.fields(body):
        assert f"`{field.encode_name}`" in PAGE, f"docs/api.md does not mention {field.name}"


def test_every_metric_is_in_the_page(http: httpx.Client) -> None:
    types = [line for line in http.get("/metrics").text.splitlines() if line.startswith("# TYPE")]
    for line in types:
        name = line.split()[2].removesuffix("_created")
        assert name.removesuffix("_total") in PAGE, f"docs/api.md does not mention {name}"


def test_the_document_holds_the_ranges_that_are_enforced(http: httpx.Client) -> None:
    schemas = http.get("/schema").json()["components"]["schemas"]
    temperature = schemas["ChatBody"]["properties"]["temperature"]["anyOf"][0]
    assert temperature == {"type": "number", "minimum": 0, "maximum": 100}
    assert schemas["ChatBody"]["required"] == ["messages"]
