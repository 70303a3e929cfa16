"""What docs/spark.md says about the file of a pipeline is so, and its example is the one that runs."""

import inspect
import re
import tomllib
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from inorder.spark.pipelines.checking import OPERATORS, SOURCE, TOP, TRANSFORM, TRIGGER
from inorder.spark.pipelines.definition import DEFAULT_INTERVAL
from inorder.spark.sinks import SINKS, sink_class

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("## A pipeline as a file") :]

Row = dict[str, str]


def tables(text: str) -> Iterator[list[Row]]:
    rows: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.split("|")[1:-1]])
        elif rows:
            header, _, *body = rows
            yield [dict(zip(header, row, strict=True)) for row in body]
            rows = []


def table_behind(words: str, *columns: str) -> list[Row]:
    found = next(table for table in tables(SECTION[SECTION.index(words) :]) if set(columns) <= set(table[0]))
    return found


def in_code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ("An address", TOP),
        ("**`[source]`**", SOURCE),
        ("**`[[transform]]`**", TRANSFORM),
        ("**`[trigger]`**", TRIGGER),
    ],
)
def test_every_field_of_a_section_is_explained(words: str, known: dict[str, object]) -> None:
    assert [row["field"].strip("`") for row in table_behind(words, "field", "default")] == [*known]


def test_every_field_of_every_operator_is_explained() -> None:
    documented: dict[str, set[str]] = {operator: set() for operator in OPERATORS}
    for row in table_behind("**`[order]`**", "field", "of"):
        for operator in OPERATORS if row["of"] == "all" else in_code(row["of"]):
            documented[operator].add(row["field"].strip("`"))
    assert documented == {operator: {"operator", *known} for operator, known in OPERATORS.items()}


def test_the_defaults_of_operators_are_those_that_are_documented() -> None:
    spark = tuple(
        pytest.importorskip(f"inorder.spark.{room}", reason="pyspark is not installed: make setup")
        for room in ("operators", "winners")
    )
    functions = {name: getattr(room, name) for name in OPERATORS for room in spark if hasattr(room, name)}
    for row in table_behind("**`[order]`**", "field", "of"):
        name, default = row["field"].strip("`"), row["default"]
        operators = [*OPERATORS] if row["of"] == "all" else in_code(row["of"])
        for operator in operators if name != "operator" else ():
            given = inspect.signature(functions[operator]).parameters[name].default
            if OPERATORS[operator][name].required:
                assert default.startswith("required"), name
            elif given is None:
                assert not default.startswith("`"), name
            else:
                assert tomllib.loads(f"x = {default.strip('`')}")["x"] == given, name


def test_every_field_of_every_sink_is_explained() -> None:
    documented = [(format, row["field"].strip("`")) for row in _sinks() for format in in_code(row["format"])]
    known = [(format, field.name) for format in SINKS for field in fields(sink_class(format))]
    assert sorted(documented) == sorted(known)
    for row in _sinks():
        for format in in_code(row["format"]):
            [field] = [one for one in fields(sink_class(format)) if one.name == row["field"].strip("`")]
            required = field.default is MISSING and field.default_factory is MISSING
            assert row["default"].startswith("required") is required, row


def _sinks() -> list[Row]:
    return table_behind("**`[sink]`**", "format", "field")


def test_the_default_trigger_is_the_one_that_is_documented() -> None:
    [row] = [row for row in table_behind("**`[trigger]`**", "field") if row["field"] == "`processing_time`"]
    assert row["default"] == f'`"{DEFAULT_INTERVAL}"`'


def test_the_page_shows_the_example_that_runs() -> None:
    example = (ROOT / "examples" / "pipeline" / "pipeline.toml").read_text(encoding="utf-8")
    assert f"```toml\n{example}```" in PAGE
