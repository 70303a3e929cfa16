"""Protocol buffers: definitions that are none, messages that fit and messages that do not."""

import json

import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from inorder.errors import InvalidArgument
from inorder.server.schemas.definition import (
    Definition,
    Encoding,
    SchemaType,
    compile_definition,
    precompiled_definition,
)
from inorder.server.schemas.mismatch import Mismatch

ORDER = """
syntax = "proto3";
package shop;
message Order {
  enum State { NEW = 0; PAID = 1; }
  message Item { string sku = 1; sint64 count = 2; }
  string id = 1;
  State state = 2;
  repeated Item items = 3;
  map<string, double> prices = 4;
  optional bytes hash = 5;
  Order parent = 6;
}
"""


@pytest.fixture(scope="module")
def order() -> Definition:
    return compile_definition(SchemaType.PROTOCOL_BUFFER, ORDER)


def problem(definition: Definition, encoding: Encoding, data: bytes) -> str | None:
    try:
        definition.check(encoding)(data)
    except Mismatch as mismatch:
        return str(mismatch)
    return None


NO_DEFINITIONS = {
    "nonsense": ("nonsense", '1:1: Expected top-level statement (e.g. "message").'),
    "a type that is missing": ('syntax = "proto3"; message A { B b = 1; }', '"B" is not defined.'),
    "a number twice": ('syntax = "proto3"; message A { string x = 1; string y = 1; }', "Field number 1 has already"),
    "no message": ('syntax = "proto3"; enum E { X = 0; }', "exactly one top-level message is needed, not 0: none"),
    "two messages": ('syntax = "proto3"; message A {} message B {}', "needed, not 2: A, B"),
    "a known import": (
        'syntax = "proto3"; import "google/protobuf/empty.proto"; message A { google.protobuf.Empty e = 1; }',
        "imports are not supported: 'google/protobuf/empty.proto'",
    ),
    "an unknown import": ('syntax = "proto3"; import "other.proto"; message A {}', "imports are not supported"),
    "a service": ('syntax = "proto3"; message A {} service S {}', "a service (S) has no place in a schema"),
}


@pytest.mark.parametrize(("text", "reason"), NO_DEFINITIONS.values(), ids=NO_DEFINITIONS.keys())
def test_a_definition_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        compile_definition(SchemaType.PROTOCOL_BUFFER, text)
    assert str(refused.value).startswith("Invalid protocol buffer schema definition: ")
    assert reason in str(refused.value)


def test_a_definition_remembers_its_message(order: Definition) -> None:
    assert order.root == "shop.Order"
    assert order.text == ORDER


OTHER_JSON = {
    "no object": (b"[]", "expected a JSON object, not '[]'"),
    "no JSON": (b"{", "Failed to load JSON"),
    "no UTF-8": (b"\xff", "not UTF-8 at byte 0"),
    "an unknown field": (b'{"size": 1}', 'no field named "size"'),
    "a number for text": (b'{"id": 1}', "expected string"),
    "a symbol": (b'{"state": "LOST"}', "Invalid enum value LOST"),
    "deep within": (
        b'{"items": [{"sku": "a"}, {"count": "x"}]}',
        "Failed to parse items field: Failed to parse count field",
    ),
}


@pytest.mark.parametrize(("data", "reason"), OTHER_JSON.values(), ids=OTHER_JSON.keys())
def test_a_message_in_json_does_not_fit(order: Definition, data: bytes, reason: str) -> None:
    assert reason in (problem(order, Encoding.JSON, data) or "it fits")


OTHER_BINARY = {
    "noise": (b"hello", "Error parsing message"),
    "cut off": (b"\n\x05ab", "Error parsing message"),
    "no UTF-8": (b"\n\x01\xff", "Error parsing message"),
    "an unknown field": (b"\x98\x06\x01", "fields that the message does not have"),
    "an unknown field within": (b"\x1a\x03\x98\x06\x01", "fields that the message does not have"),
}


@pytest.mark.parametrize(("data", "reason"), OTHER_BINARY.values(), ids=OTHER_BINARY.keys())
def test_binary_data_does_not_fit(order: Definition, data: bytes, reason: str) -> None:
    assert reason in (problem(order, Encoding.BINARY, data) or "it fits")


def test_required_fields_are_required() -> None:
    definition = compile_definition(SchemaType.PROTOCOL_BUFFER, "message A { required int32 x = 1; }")
    assert problem(definition, Encoding.BINARY, b"\x08\x01") is None
    assert "x" in (problem(definition, Encoding.BINARY, b"") or "")
    assert "x" in (problem(definition, Encoding.JSON, b"{}") or "")


TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
ITEMS = st.fixed_dictionaries({}, optional={"sku": TEXT, "count": st.integers(-(2**63), 2**63 - 1)})
ORDERS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "id": TEXT,
            "state": st.sampled_from(["NEW", "PAID"]),
            "items": st.lists(ITEMS, max_size=3),
            "prices": st.dictionaries(TEXT, st.floats(allow_nan=False, allow_infinity=False), max_size=3),
        },
    ),
    lambda parents: st.fixed_dictionaries({"parent": parents}),
    max_leaves=3,
)


@given(ORDERS)
def test_what_is_made_of_a_definition_fits_and_what_is_cut_does_not(
    order: Definition, value: dict[str, object]
) -> None:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(FileDescriptorSet.FromString(order.descriptors).file[0])
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName(order.root))()
    json_format.ParseDict(value, message)
    binary = message.SerializeToString()
    assert problem(order, Encoding.JSON, json.dumps(value).encode()) is None
    assert problem(order, Encoding.BINARY, binary) is None
    assert problem(order, Encoding.BINARY, binary + b"\x98\x06\x01") is not None
    assert problem(order, Encoding.BINARY, binary + b"\n") is not None
    assert problem(order, Encoding.JSON, json.dumps({**value, "size": 1}).encode()) is not None


@given(
    st.binary(max_size=50)
    | st.recursive(
        st.none() | TEXT | st.integers() | st.floats(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["id", "items", "prices", "hash", "parent"]), inner)
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_bytes_fit_or_are_refused_with_a_reason(order: Definition, noise: bytes) -> None:
    for encoding in Encoding:
        assert problem(order, encoding, noise) != ""


FOLLOWING = {
    "a new field": ("string id = 1;", "string id = 1; int32 n = 9;", None),
    "a field less": ("string id = 1;", "", None),
    "another type": ("string id = 1;", "bytes id = 1;", "field 1 cannot change from string id to bytes id"),
    "another name": ("string id = 1;", "string key = 1;", "field 1 cannot change from string id to string key"),
    "another number": ("string id = 1;", "string id = 9;", "its number cannot change from 1 to 9"),
    "one for many": ("repeated Item items", "Item items", "cannot change from repeated Item items to Item items"),
    "deep within": ("sint64 count", "int64 count", "shop.Order.Item.count: field 2 cannot change"),
}


@pytest.mark.parametrize(("was", "becomes", "reason"), FOLLOWING.values(), ids=FOLLOWING.keys())
def test_a_revision_only_adds_and_removes_optional_fields(
    order: Definition, was: str, becomes: str, reason: str | None
) -> None:
    later = compile_definition(SchemaType.PROTOCOL_BUFFER, ORDER.replace(was, becomes))
    if reason is None:
        order.check_successor(later)
        return
    with pytest.raises(InvalidArgument) as refused:
        order.check_successor(later)
    assert reason in str(refused.value)


def test_a_required_field_stays() -> None:
    before = compile_definition(SchemaType.PROTOCOL_BUFFER, "message A { required int32 x = 1; }")
    after = compile_definition(SchemaType.PROTOCOL_BUFFER, "message A { optional int32 y = 2; }")
    with pytest.raises(InvalidArgument, match="a required field can be neither added nor removed"):
        before.check_successor(after)


def test_descriptors_that_were_compiled_elsewhere_are_a_definition(order: Definition) -> None:
    given = precompiled_definition(SchemaType.PROTOCOL_BUFFER, order.descriptors, ".shop.Order.Item")
    assert problem(given, Encoding.JSON, b'{"sku": "a"}') is None
    assert problem(given, Encoding.JSON, b'{"id": "a"}') is not None


def test_files_of_descriptors_may_come_in_any_order() -> None:
    files = FileDescriptorSet()
    user = files.file.add(name="user.proto", dependency=["used.proto"], syntax="proto3")
    user.message_type.add(name="User").field.add(
        name="used", number=1, type=11, label=1, type_name=".Used", json_name="used"
    )
    files.file.add(name="used.proto", syntax="proto3").message_type.add(name="Used")
    definition = precompiled_definition(SchemaType.PROTOCOL_BUFFER, files.SerializeToString(), "User")
    assert problem(definition, Encoding.JSON, b'{"used": {}}') is None


NO_DESCRIPTORS = {
    "no descriptors": (b"hello", "A", "no FileDescriptorSet"),
    "no such message": (b"", "A", "there is no message 'A'"),
    "no root": (b"", "", "root_message: it is empty"),
    "a circle": (
        FileDescriptorSet(
            file=[{"name": "a", "dependency": ["b"]}, {"name": "b", "dependency": ["a"]}]
        ).SerializeToString(),
        "A",
        "import each other: a, b",
    ),
    "a file that is missing": (
        FileDescriptorSet(file=[{"name": "a", "dependency": ["b"]}]).SerializeToString(),
        "A",
        "cannot be used",
    ),
}


@pytest.mark.parametrize(("descriptors", "root", "reason"), NO_DESCRIPTORS.values(), ids=NO_DESCRIPTORS.keys())
def test_descriptors_are_refused_with_the_reason(descriptors: bytes, root: str, reason: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        precompiled_definition(SchemaType.PROTOCOL_BUFFER, descriptors, root)
    assert reason in str(refused.value)


def test_compiled_descriptors_are_protocol_buffers(order: Definition) -> None:
    with pytest.raises(InvalidArgument, match="compiled descriptors are PROTOCOL_BUFFER, not AVRO"):
        precompiled_definition(SchemaType.AVRO, order.descriptors, order.root)
