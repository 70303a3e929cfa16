"""Avro: definitions that are none, messages that fit and messages that do not; fastavro writes what must fit."""

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from inorder.errors import InvalidArgument
from inorder.server.schemas.avro_evolution import check_readable
from inorder.server.schemas.avro_types import DEEPEST, read_avro
from inorder.server.schemas.definition import Definition, Encoding, SchemaType, compile_definition
from inorder.server.schemas.mismatch import Mismatch

RECORD = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "count", "type": "int", "default": 0},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "prices", "type": {"type": "map", "values": "double"}},
        {"name": "paid_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "parent", "type": ["null", "Order"]},
    ],
}
VALUE = {
    "id": "a-1",
    "count": 3,
    "note": {"string": "fragile"},
    "state": "PAID",
    "hash": "\x00\xff",
    "tags": ["x", "y"],
    "prices": {"net": 1.5, "gross": 2},
    "paid_at": 2**62,
    "parent": None,
}


def avro(definition: Any) -> Definition:
    return compile_definition(SchemaType.AVRO, json.dumps(definition))


def problem(definition: Definition, encoding: Encoding, data: bytes) -> str | None:
    try:
        definition.check(encoding)(data)
    except Mismatch as mismatch:
        return str(mismatch)
    return None


def problem_of(value: Any) -> str | None:
    return problem(avro(RECORD), Encoding.JSON, json.dumps(value).encode())


NO_DEFINITIONS = {
    "no JSON": ("{", "not JSON"),
    "a number": ("5", "expected a type, not 5"),
    "an unknown type": ('"text"', "unknown type 'text'"),
    "a union at the top": ('["null", "int"]', "exactly one top-level type"),
    "a union in a union": ('{"type": "array", "items": ["int", ["null"]]}', "items: a union directly within a union"),
    "a branch twice": ('{"type": "array", "items": ["int", "int"]}', "two branches of type 'int'"),
    "an array of nothing": ('{"type": "array"}', "array without 'items'"),
    "a record without fields": ('{"type": "record", "name": "R"}', "'fields' must be a list"),
    "a record without a name": ('{"type": "record", "fields": []}', "record name"),
    "a field twice": (
        '{"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}, {"name": "x", "type": "int"}]}',
        "field 'x' is there twice",
    ),
    "a field's name": ('{"type": "record", "name": "R", "fields": [{"name": "x-y", "type": "int"}]}', "'x-y'"),
    "a field without a type": ('{"type": "record", "name": "R", "fields": [{"name": "x"}]}', "x: a field without"),
    "a default of another type": (
        '{"type": "record", "name": "R", "fields": [{"name": "x", "type": "int", "default": "no"}]}',
        "x: the default 'no' is no int",
    ),
    "a type twice": (
        '{"type": "record", "name": "R", "fields": [{"name": "x", "type": {"type": "fixed", "name": "R", "size": 1}}]}',
        "x: 'R' is defined twice",
    ),
    "a name of Avro's": ('{"type": "record", "name": "int", "fields": []}', "a type of Avro's own"),
    "a fixed of a negative size": ('{"type": "fixed", "name": "F", "size": -1}', "size -1 is no number of bytes"),
    "an enum without symbols": ('{"type": "enum", "name": "E", "symbols": []}', "without symbols"),
    "a symbol twice": ('{"type": "enum", "name": "E", "symbols": ["A", "A"]}', "a symbol is there twice"),
    "a symbol with a dash": ('{"type": "enum", "name": "E", "symbols": ["A-B"]}', "symbol 'A-B'"),
    "an enum's default": ('{"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}', "no symbol of it"),
    "a very deep one": ('{"type":"array","items":' * (DEEPEST + 1) + '"int"' + "}" * (DEEPEST + 1), "deeper than"),
    "a deeper one": ('{"type":' * 30_000, "not JSON"),
}


@pytest.mark.parametrize(("text", "reason"), NO_DEFINITIONS.values(), ids=NO_DEFINITIONS.keys())
def test_a_definition_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        compile_definition(SchemaType.AVRO, text)
    assert str(refused.value).startswith("Invalid avro schema definition: ")
    assert reason in str(refused.value)


def test_a_definition_has_a_limit_and_a_type() -> None:
    with pytest.raises(InvalidArgument, match="307201 bytes, more than the maximum of 307200"):
        compile_definition(SchemaType.AVRO, '"string"' + " " * (307_201 - 8))
    with pytest.raises(InvalidArgument, match="it is empty"):
        compile_definition(SchemaType.AVRO, "")
    with pytest.raises(InvalidArgument, match="not 0"):
        compile_definition(0, '"string"')


def test_a_message_in_json_fits() -> None:
    assert problem_of(VALUE) is None
    assert problem_of({**VALUE, "parent": {"shop.Order": VALUE}, "note": None}) is None


OTHER_JSON = {
    "a missing field": ({name: value for name, value in VALUE.items() if name != "id"}, "id: the field is missing"),
    "one that has a default": ({**VALUE, "note": 0, "parent": {}}, "note: expected null, or an object"),
    "an unknown field": ({**VALUE, "extra": 1}, "extra: there is no such field"),
    "an unknown field that no answer can name": ({**VALUE, "\ud800": 1}, "?: there is no such field"),
    "text for a number": ({**VALUE, "count": "3"}, 'count: expected an integer (int), not a string "3"'),
    "a fraction for a number": ({**VALUE, "count": 3.0}, "count: expected an integer (int), not a number 3.0"),
    "a boolean for a number": ({**VALUE, "count": True}, "count: expected an integer"),
    "a long for an int": ({**VALUE, "count": 2**31}, "count: 2147483648 does not fit into int"),
    "more than a long": ({**VALUE, "paid_at": 2**63}, "paid_at: 9223372036854775808 does not fit into long"),
    "a union without its branch": ({**VALUE, "note": "fragile"}, "note: expected null, or an object"),
    "a union's other branch": ({**VALUE, "note": {"int": 1}}, "note: 'int' is no branch of: null, string"),
    "a symbol": ({**VALUE, "state": "LOST"}, "state: expected one of: NEW, PAID"),
    "a fixed too long": ({**VALUE, "hash": "abc"}, "hash: expected 2 bytes, not 3"),
    "no bytes": ({**VALUE, "hash": "a€"}, "hash: bytes are characters up to U+00FF"),
    "an item": ({**VALUE, "tags": ["x", None]}, "tags.[1]: expected a string, not null"),
    "a value of a map": ({**VALUE, "prices": {"net": "1"}}, "prices.net: expected a number"),
    "deep within": (
        {**VALUE, "parent": {"shop.Order": {**VALUE, "tags": 5}}},
        "parent.shop.Order.tags: expected an array, not an integer 5",
    ),
    "a list": ([VALUE], "expected an object (shop.Order), not an array"),
}


@pytest.mark.parametrize(("value", "reason"), OTHER_JSON.values(), ids=OTHER_JSON.keys())
def test_a_message_in_json_does_not_fit(value: Any, reason: str) -> None:
    assert reason in (problem_of(value) or "it fits")


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"NaN", b"[" * 100_000, b'{"id": 1' + b"0" * 5_000 + b"}"])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    assert problem(avro(RECORD), Encoding.JSON, data) is not None
    assert problem(avro({"type": "double"}), Encoding.JSON, data) is not None


BINARY = {
    "nothing": ("string", b"", "the data ends too early"),
    "bytes left over": ("boolean", b"\x01\x01", "the value ends at byte 1, and there are 2"),
    "no boolean": ("boolean", b"\x02", "a boolean is 0 or 1, not 2"),
    "a string cut off": ("string", b"\x06ab", "3 bytes are announced, and 2 are left"),
    "no UTF-8": ("string", b"\x02\xff", "not UTF-8 at byte 1"),
    "a negative length": ("bytes", b"\x01", "a length of -1"),
    "a long for an int": ("int", b"\x80\x80\x80\x80\x10", "2147483648 does not fit into int"),
    "an endless number": ("long", b"\x80" * 11, "a number of more than ten bytes"),
    "more than 64 bits": ("long", b"\xff" * 9 + b"\x7f", "a number of more than 64 bits"),
    "half a double": ("double", b"\x00" * 4, "8 bytes are expected, and 4 are left"),
    "a branch too many": ({"type": "array", "items": ["null", "int"]}, b"\x02\x04\x00", "branch 2 of a union"),
    "a symbol too many": ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "symbol 1 of an enum that has 1"),
    "a block of another size": ({"type": "array", "items": "int"}, b"\x01\x04\x02\x00\x00", "a block ends at byte 3"),
}


@pytest.mark.parametrize(("definition", "data", "reason"), BINARY.values(), ids=BINARY.keys())
def test_binary_data_does_not_fit(definition: Any, data: bytes, reason: str) -> None:
    assert reason in (problem(avro(definition), Encoding.BINARY, data) or "it fits")


@pytest.mark.timeout(10)
def test_a_few_bytes_cannot_announce_more_than_there_is() -> None:
    many = b"\xfe" + b"\xff" * 8 + b"\x01"  # 2⁶³ - 1
    nothing = {"type": "record", "name": "Nothing", "fields": [{"name": "n", "type": "null"}]}
    for items in ("null", nothing):
        assert problem(avro({"type": "array", "items": items}), Encoding.BINARY, many + b"\x00") is None
    assert problem(avro({"type": "array", "items": "int"}), Encoding.BINARY, many + b"\x00") is not None


def test_a_value_within_itself_without_end_is_refused() -> None:
    chain = {"type": "record", "name": "Link", "fields": [{"name": "next", "type": ["null", "Link"]}]}
    assert problem(avro(chain), Encoding.BINARY, b"\x02" * 100 + b"\x00") is None
    assert problem(avro(chain), Encoding.BINARY, b"\x02" * 1_000_000 + b"\x00") == "nested too deeply"


# -- what fastavro writes, fits ------------------------------------------------------------------------

LONGS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": LONGS,
    "float": FLOATS,
    "double": FLOATS,
    "bytes": st.binary(max_size=5),
    "string": st.text(st.characters(codec="utf-8"), max_size=5),
}


@st.composite
def typed(draw: st.DrawFn, depth: int = 3, names: list[int] | None = None) -> tuple[Any, st.SearchStrategy[Any]]:
    """A type, and a strategy of its values as fastavro takes them."""
    names = [] if names is None else names
    kinds = [*PRIMITIVES, "enum", "fixed", *(["record", "array", "map", "union"] if depth else [])]
    kind = draw(st.sampled_from(kinds))
    if kind in PRIMITIVES:
        return kind, PRIMITIVES[kind]
    names.append(len(names))
    name = f"N{len(names)}"
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}, st.sampled_from("ABC")
    if kind == "fixed":
        size = draw(st.integers(0, 3))
        return {"type": "fixed", "name": name, "size": size}, st.binary(min_size=size, max_size=size)
    if kind == "record":
        parts = {f"f{index}": draw(typed(depth - 1, names)) for index in range(draw(st.integers(1, 4)))}
        fields = [{"name": field, "type": part[0]} for field, part in parts.items()]
        return (
            {"type": "record", "name": name, "fields": fields},
            st.fixed_dictionaries({field: part[1] for field, part in parts.items()}),
        )
    inner, values = draw(typed(depth - 1, names))
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=4)
    if kind == "map":
        return {"type": "map", "values": inner}, st.dictionaries(
            st.text("xyzé", min_size=1, max_size=3), values, max_size=4
        )
    assume(inner != "null" and not isinstance(inner, list))
    return ["null", inner], st.none() | values


@st.composite
def messages(draw: st.DrawFn) -> tuple[Any, Any]:
    type_, values = draw(typed())
    # One type must be at the top, and no union.
    return {"type": "record", "name": "Top", "fields": [{"name": "it", "type": type_}]}, {"it": draw(values)}


def written(definition: Any, value: Any) -> tuple[bytes, bytes]:
    """The value in both encodings, by fastavro."""
    schema = fastavro.parse_schema(json.loads(json.dumps(definition)))
    binary, text = io.BytesIO(), io.StringIO()
    fastavro.schemaless_writer(binary, schema, value)
    fastavro.json_writer(text, schema, [value])
    return text.getvalue().encode(), binary.getvalue()


@given(messages(), st.data())
def test_what_fastavro_writes_fits_and_what_is_cut_or_grown_does_not(message: tuple[Any, Any], data: Any) -> None:
    definition = avro(message[0])
    text, binary = written(*message)
    assert problem(definition, Encoding.JSON, text) is None
    assert problem(definition, Encoding.BINARY, binary) is None
    assert problem(definition, Encoding.BINARY, binary + b"\x00") is not None
    if binary:
        cut = data.draw(st.integers(0, len(binary) - 1))
        assert problem(definition, Encoding.BINARY, binary[:cut]) is not None
    if message[0]["fields"][0]["type"] != "string":
        assert problem(definition, Encoding.JSON, '{"it": "€"}'.encode()) is not None


@given(messages(), st.binary(max_size=50))
def test_any_bytes_fit_or_are_refused_with_a_reason(message: tuple[Any, Any], noise: bytes) -> None:
    definition = avro(message[0])
    for encoding in Encoding:
        assert problem(definition, encoding, noise) != ""


@given(messages())
def test_every_type_can_follow_itself(message: tuple[Any, Any]) -> None:
    avro(message[0]).check_successor(avro(message[0]))


# -- revisions -----------------------------------------------------------------------------------------


def record(*fields: tuple[str, Any] | tuple[str, Any, Any], name: str = "R") -> dict[str, Any]:
    listed = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return {"type": "record", "name": name, "fields": listed}


E1 = {"type": "enum", "name": "E", "symbols": ["A"]}
E2 = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FOLLOWING = {
    "a new field with a default": (record(("a", "int")), record(("a", "int"), ("b", "string", "")), None),
    "a new field without": (record(("a", "int")), record(("a", "int"), ("b", "string")), "b: the field is in one"),
    "a field with a default removed": (record(("a", "int"), ("b", "string", "")), record(("a", "int")), None),
    "a field without removed": (record(("a", "int"), ("b", "string")), record(("a", "int")), "b: the field is in one"),
    "a wider number": (record(("a", "int")), record(("a", "long")), "a: long cannot be read as int"),
    "text as bytes, and back": (record(("a", "string")), record(("a", "bytes")), None),
    "another name": (record(("a", "int")), record(("a", "int"), name="S"), "record R cannot be read as S"),
    "another symbol": (record(("a", E1)), record(("a", E2)), "a: enum E: symbol 'B' is unknown"),
    "with a default for it": (record(("a", {**E1, "default": "A"})), record(("a", E2)), None),
    "an optional value": (record(("a", "int")), record(("a", ["null", "int"])), "a: null cannot be read as int"),
    "the branches turned round": (record(("a", ["null", "int"])), record(("a", ["int", "null"])), None),
    "a fixed of another size": (
        {"type": "fixed", "name": "F", "size": 1},
        {"type": "fixed", "name": "F", "size": 2},
        "1 bytes cannot be read as 2",
    ),
    "items": (
        {"type": "array", "items": "int"},
        {"type": "array", "items": "string"},
        "items: int cannot be read as string",
    ),
    "within itself": (
        record(("next", ["null", "R"]), ("a", "int")),
        record(("next", ["null", "R"]), ("a", "string")),
        "a: int cannot be read as string",
    ),
}


@pytest.mark.parametrize(("before", "after", "reason"), FOLLOWING.values(), ids=FOLLOWING.keys())
def test_a_revision_must_be_readable_both_ways(before: Any, after: Any, reason: str | None) -> None:
    if reason is None:
        avro(before).check_successor(avro(after))
        return
    with pytest.raises(InvalidArgument) as refused:
        avro(before).check_successor(avro(after))
    assert "incompatible with the revision before it" in str(refused.value)
    assert reason in str(refused.value)


def test_a_field_under_an_alias_is_the_same_field() -> None:
    before = read_avro(json.dumps(record(("a", "int"))))
    after = record(("b", "int"))
    after["fields"][0]["aliases"] = ["a"]
    check_readable(before, read_avro(json.dumps(after)))
    with pytest.raises(Mismatch):
        check_readable(read_avro(json.dumps(after)), before)


@pytest.mark.timeout(10)
def test_types_of_one_name_in_many_namespaces_are_compared_once() -> None:
    def nested(depth: int) -> Any:
        inner = nested(depth - 1) if depth else ["null", "int" if tip else "string"]
        return [
            {"type": "record", "namespace": f"n{depth}{side}", "name": "R", "fields": [{"name": "f", "type": inner}]}
            if side == "x"
            else {
                "type": "record",
                "namespace": f"n{depth}{side}",
                "name": "R",
                "fields": [{"name": "f", "type": leaf}],
            }
            for side in "xyz"
        ]

    leaf = "boolean"
    tip = True
    before = avro(record(("top", nested(20))))
    tip = False
    with pytest.raises(InvalidArgument, match="incompatible"):
        before.check_successor(avro(record(("top", nested(20)))))
