"""Reflection, by gRPC's own protocol: tools find out what is served, and what its messages look like.

The package that has Google's messages has no description of Google's services, so that is made here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2

from inorder.server.services import PUBSUB, SERVICES, STREAMS, message

REFLECTION: str = reflection.SERVICE_NAME

_FILE = "inorder/google_pubsub_v1_services.proto"


def reflecting(services: Iterable[str]) -> Mapping[str, Any]:
    """The calls, for gRPC."""
    _describe()
    servicer = reflection.aio.ReflectionServicer([*services, REFLECTION])
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return {"ServerReflectionInfo": handler}


@cache
def _describe() -> None:
    """A file can be added once, for all servers of a process."""
    descriptor_pool.Default().AddSerializedFile(_described().SerializeToString())


def _described() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=_FILE, package=PUBSUB, syntax="proto3")
    for service, calls in _undescribed():
        described = file.service.add(name=service.removeprefix(f"{PUBSUB}."))
        for call, (request, response) in calls.items():
            described.method.add(
                name=call,
                input_type=f".{_descriptor(request).full_name}",
                output_type=f".{_descriptor(response).full_name}",
                client_streaming=call in STREAMS,
                server_streaming=call in STREAMS,
            )
    file.dependency.extend(sorted({_descriptor(kind).file.name for kind in _kinds()}))
    return file


def _undescribed() -> list[tuple[str, Mapping[str, tuple[Any, Any]]]]:
    """Those that come without a description."""
    return [(service, calls) for service, calls in SERVICES.items() if service.startswith(PUBSUB)]


def _kinds() -> Iterator[Any]:
    for _, calls in _undescribed():
        for pair in calls.values():
            yield from pair


def _descriptor(kind: Any) -> Any:
    return message(kind).DESCRIPTOR
