"""The protocol's module is what protoc makes of its file, and some messages are Google's by other names."""

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
        (v1.Published, pubsub.PublishResponse),
        (v1.GetTopicRequest, pubsub.DeleteTopicRequest),
        (v1.GetSubscriptionRequest, pubsub.DeleteSubscriptionRequest),
    ],
)
def test_what_stands_for_a_message_of_googles_has_its_fields(ours: Any, googles: Any) -> None:
    """A client of ours needs no package of Google's to speak to a server."""

    def fields(descriptor: Any) -> dict[int, tuple[str, int, bool]]:
        return {field.number: (field.name, field.type, field.is_repeated) for field in descriptor.fields}

    assert fields(ours.DESCRIPTOR) == fields(googles.pb().DESCRIPTOR)


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
