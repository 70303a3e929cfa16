"""One face on both kinds of definition: check it, check messages by it, follow it by another.

A definition is its text, or descriptors compiled elsewhere (google.pubsub.v1 takes both for protocol buffers).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from inorder.errors import InvalidArgument
from inorder.server.schemas.mismatch import Mismatch

MAX_DEFINITION_BYTES = 300 * 1024  # Pub/Sub's limit


class SchemaType(IntEnum):
    """As google.pubsub.v1 numbers them."""

    PROTOCOL_BUFFER = 1
    AVRO = 2


class Encoding(IntEnum):
    """As google.pubsub.v1 numbers them."""

    JSON = 1
    BINARY = 2


class InvalidSchema(InvalidArgument):
    """The definition is none, or cannot follow the one before it."""

    def __init__(self, type_: SchemaType, reason: str) -> None:
        super().__init__(f"Invalid {type_.name.replace('_', ' ').lower()} schema definition: {reason}")


@dataclass(frozen=True, slots=True)
class Definition:
    """A checked definition. `compile_definition` makes it; storage keeps its fields."""

    type: SchemaType
    text: str
    descriptors: bytes = b""  # of protocol buffers: so that no start of a server has to compile
    root: str = ""  # the full name of the message among them
    precompiled: bool = False  # the descriptors are what was given, and there is no text

    def check(self, encoding: Encoding) -> Callable[[bytes], None]:
        """A function that raises a Mismatch unless its bytes are a message of this definition. Costly to make."""
        if self.type is SchemaType.AVRO:
            from inorder.server.schemas.avro_binary import binary_check
            from inorder.server.schemas.avro_json import json_check
            from inorder.server.schemas.avro_types import read_avro

            avro = read_avro(self.text)
            return json_check(avro) if encoding is Encoding.JSON else binary_check(avro)
        from inorder.server.schemas.protobuf import ProtobufType

        protobuf = ProtobufType(self.descriptors, self.root)
        return protobuf.json_check() if encoding is Encoding.JSON else protobuf.binary_check()

    def check_successor(self, later: Definition) -> None:
        """Whether `later` may be the next revision: messages of either must be readable by both."""
        if later.type is not self.type:
            raise InvalidArgument(
                f"schema type: a revision keeps the type of its schema, {self.type.name}, not {later.type.name}"
            )
        try:
            if self.type is SchemaType.AVRO:
                from inorder.server.schemas.avro_evolution import check_readable
                from inorder.server.schemas.avro_types import read_avro

                before, after = read_avro(self.text), read_avro(later.text)
                check_readable(before, after)
                check_readable(after, before)
            else:
                from inorder.server.schemas.protobuf import ProtobufType

                ProtobufType(self.descriptors, self.root).check_successor(ProtobufType(later.descriptors, later.root))
        except Mismatch as mismatch:
            raise InvalidSchema(later.type, f"incompatible with the revision before it: {mismatch}") from None


def compile_definition(type_: int, text: str) -> Definition:
    """Check a definition. Protocol buffers take a tenth of a second: not on a thread that others wait for."""
    kind = _schema_type(type_)
    if not text:
        raise InvalidArgument("schema definition: it is empty")
    _check_size(len(text.encode()))
    try:
        if kind is SchemaType.AVRO:
            from inorder.server.schemas.avro_types import read_avro

            read_avro(text)
            return Definition(kind, text)
        from inorder.server.schemas.protobuf import ProtobufType, compile_text

        descriptors, root = compile_text(text)
        ProtobufType(descriptors, root)
    except Mismatch as mismatch:
        raise InvalidSchema(kind, str(mismatch)) from None
    return Definition(kind, text, descriptors, root)


def precompiled_definition(type_: int, descriptors: bytes, root: str) -> Definition:
    """Check descriptors that somebody else compiled."""
    kind = _schema_type(type_)
    if kind is not SchemaType.PROTOCOL_BUFFER:
        raise InvalidArgument(f"schema type: compiled descriptors are PROTOCOL_BUFFER, not {kind.name}")
    if not root:
        raise InvalidArgument("compiled_proto_schema.root_message: it is empty")
    _check_size(len(descriptors))
    from inorder.server.schemas.protobuf import ProtobufType

    try:
        ProtobufType(descriptors, root)
    except Mismatch as mismatch:
        raise InvalidSchema(kind, str(mismatch)) from None
    return Definition(kind, "", descriptors, root, precompiled=True)


def checked_encoding(encoding: int) -> Encoding:
    try:
        return Encoding(encoding)
    except ValueError:
        raise InvalidArgument(f"encoding: JSON (1) or BINARY (2), not {encoding}") from None


def _schema_type(type_: int) -> SchemaType:
    try:
        return SchemaType(type_)
    except ValueError:
        raise InvalidArgument(f"schema type: PROTOCOL_BUFFER (1) or AVRO (2), not {type_}") from None


def _check_size(size: int) -> None:
    if size > MAX_DEFINITION_BYTES:
        raise InvalidArgument(f"schema definition: {size} bytes, more than the maximum of {MAX_DEFINITION_BYTES}")
