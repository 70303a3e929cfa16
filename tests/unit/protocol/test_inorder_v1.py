"""The protocol's module is what protoc makes of its file, and its delivery has Google's fields under their numbers."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.pubsub_v1.types import pubsub

from inorder.protocol import inorder_v1_pb2 as v1

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
