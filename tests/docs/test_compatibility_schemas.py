"""The page about schemas and policies judges every call and every field that there is, once."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from google.pubsub_v1.types import Schema, SchemaSettings

from inorder.clock import SYSTEM_CLOCK
from inorder.server.documents import MemoryDocuments
from inorder.server.iam.book import PolicyBook
from inorder.server.iam.service import PolicyService
from inorder.server.schemas.book import LONGEST_PAGE, MAX_REVISIONS, MAX_SCHEMAS, PAGE, SchemaBook, schema_attributes
from inorder.server.schemas.book import SchemaSettings as Settings
from inorder.server.schemas.definition import MAX_DEFINITION_BYTES, Encoding
from inorder.server.schemas.service import SchemaService

PAGE_TEXT = (Path(__file__).parents[2] / "docs" / "compatibility-schemas.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `?(?P<name>\w+)`? \| (?P<verdict>\w+) \| (?P<remarks>.*)\|$", re.MULTILINE)


def verdicts(heading: str) -> dict[str, str]:
    """Of the table below a line that begins so."""
    table = PAGE_TEXT.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0]
    rows = [(row["name"], row["verdict"]) for row in ROW.finditer(table)]
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def test_every_call_is_judged() -> None:
    documents = MemoryDocuments()
    policies = PolicyService(PolicyBook(), documents, SYSTEM_CLOCK, exists=bool)
    schemas = SchemaService(SchemaBook(), documents, SYSTEM_CLOCK, nullcontext)
    assert verdicts("call").keys() == {*schemas.calls(), *policies.calls()}
    assert {*verdicts("call").values()} <= {"same", "different", "absent"}


@pytest.mark.parametrize("kind", [Schema, SchemaSettings])
def test_every_field_is_judged(kind: type) -> None:
    fields = {field.name.rstrip("_") for field in kind.pb().DESCRIPTOR.fields}
    assert verdicts(f"field of {kind.__name__}").keys() - {"compiled_proto_schema"} == fields - {
        "compiled_proto_schema"
    }


def test_limits_and_attributes_are_those_of_the_code() -> None:
    words = " ".join(PAGE_TEXT.split())
    assert f"{PAGE} to a page and at most {LONGEST_PAGE:,}" in words
    assert f"at most {MAX_SCHEMAS:,} on a server" in words
    assert f"{MAX_DEFINITION_BYTES:,} bytes" in words
    assert f"{MAX_REVISIONS} revisions each" in words
    for name in schema_attributes(Settings("", Encoding.JSON), ""):
        assert f"`{name}`" in words
