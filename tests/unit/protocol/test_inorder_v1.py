"""The protocol's module is what protoc makes of its file, and its delivery has Google's fields under their numbers."""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.pubsub_v1.types import pubsub

from inorder.protocol import inorder_v1_pb2 as v1

STABLE = Path(__file__).with_name("inorder_v1.txt")
SRC = Path(__file__).parents[3] / "src"
PROTO = "inorder/protocol/inorder_v1.proto"


def test_the_module_is_made_of_the_file(tmp_path: Path) -> None:
    """`make protocol` was run after the last change."""
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{SRC}", f"--python_out={tmp_path}", PROTO]
    subprocess.run(command, check=True)
    made = (tmp_path / PROTO).with_name("inorder_v1_pb2.py")
    assert _descriptor_line(made) == _descriptor_line(SRC / PROTO.replace(".proto", "_pb2.py"))


def _descriptor_line(module: Path) -> str:
    """What the file says; the rest depends on the version of protoc."""
    return next(line for line in module.read_text().splitlines() if line.startswith("DESCRIPTOR"))


@pytest.mark.parametrize(
    ("ours", "googles"),
    [
        (v1.Delivery, pubsub.StreamingPullResponse),
        (v1.Delivery.Received, pubsub.ReceivedMessage),
        (v1.Delivery.Properties, pubsub.StreamingPullResponse.SubscriptionProperties),
        (v1.Delivery.Confirmation, pubsub.StreamingPullResponse.AcknowledgeConfirmation),
        (v1.Delivery.Confirmation, pubsub.StreamingPullResponse.ModifyAckDeadlineConfirmation),
    ],
)
def test_a_delivery_has_googles_fields(ours: type, googles: type) -> None:
    numbers = {field.number: field for field in ours.DESCRIPTOR.fields if field.number < 1000}
    theirs = {field.number: field for field in googles.pb().DESCRIPTOR.fields}
    assert numbers.keys() <= theirs.keys()
    for number, field in numbers.items():
        assert field.is_repeated == theirs[number].is_repeated
        assert field.type == theirs[number].type or field.name == "message"


def test_what_google_sends_is_read() -> None:
    sent = pubsub.StreamingPullResponse(
        received_messages=[
            {"ack_id": "a", "message": {"data": b"x", "ordering_key": "k"}, "delivery_attempt": 3},
        ],
        acknowledge_confirmation={"ack_ids": ["b"], "invalid_ack_ids": ["c"]},
        subscription_properties={"message_ordering_enabled": True},
    )
    read = v1.Delivery.FromString(pubsub.StreamingPullResponse.serialize(sent))
    received = read.received[0]
    assert (received.ack_id, received.delivery_attempt) == ("a", 3)
    message = pubsub.PubsubMessage.deserialize(received.message)
    assert (message.data, message.ordering_key) == (b"x", "k")
    assert list(read.acknowledge_confirmation.ack_ids) == ["b"]
    assert list(read.acknowledge_confirmation.invalid_ack_ids) == ["c"]
    assert read.subscription_properties.message_ordering_enabled


def test_what_was_in_the_protocol_is_still_in_it() -> None:
    """Calls and fields are only ever added: to the file, and then to the list of what stays."""
    there = {*_calls(), *_fields(v1.DESCRIPTOR.message_types_by_name.values())}
    missing = [line for line in STABLE.read_text().splitlines() if line not in there]
    assert not missing, "\n".join(missing)


def test_all_that_is_in_the_protocol_is_listed() -> None:
    listed = set(STABLE.read_text().splitlines())
    new = [line for line in (*_calls(), *_fields(v1.DESCRIPTOR.message_types_by_name.values())) if line not in listed]
    assert not new, f"add to {STABLE.name}:\n" + "\n".join(new)


def _calls() -> Iterator[str]:
    for method in v1.DESCRIPTOR.services_by_name["Inorder"].methods:
        streams = ["stream " if flag else "" for flag in (method.client_streaming, method.server_streaming)]
        yield f"{method.name}({streams[0]}{method.input_type.name}) {streams[1]}{method.output_type.name}"


def _fields(messages: Iterable[Any]) -> Iterator[str]:
    for message in messages:
        for field in message.fields:
            kind = field.message_type.name if field.message_type else f"type {field.type}"
            many = " repeated" if field.is_repeated else ""
            yield f"{message.full_name.removeprefix('inorder.v1.')}.{field.name} = {field.number} {kind}{many}"
        yield from _fields(message.nested_types)
