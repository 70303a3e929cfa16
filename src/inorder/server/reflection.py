"""Reflection, by gRPC's own protocol: tools find out what is served, and what its messages look like.

The package that has Google's messages has no description of Google's services, so that is made here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2
from google.pubsub_v1.types import pubsub, schema
from grpc_reflection.v1alpha import reflection, reflection_pb2

REFLECTION: str = reflection.SERVICE_NAME

_FILE = "inorder/google_pubsub_v1_services.proto"
_PACKAGE = "google.pubsub.v1"
_EMPTY = empty_pb2.Empty

# Each call, what it is sent and what it answers.
_SERVICES: Mapping[str, Mapping[str, tuple[Any, Any]]] = {
    "Publisher": {
        "CreateTopic": (pubsub.Topic, pubsub.Topic),
        "UpdateTopic": (pubsub.UpdateTopicRequest, pubsub.Topic),
        "Publish": (pubsub.PublishRequest, pubsub.PublishResponse),
        "GetTopic": (pubsub.GetTopicRequest, pubsub.Topic),
        "ListTopics": (pubsub.ListTopicsRequest, pubsub.ListTopicsResponse),
        "ListTopicSubscriptions": (pubsub.ListTopicSubscriptionsRequest, pubsub.ListTopicSubscriptionsResponse),
        "ListTopicSnapshots": (pubsub.ListTopicSnapshotsRequest, pubsub.ListTopicSnapshotsResponse),
        "DeleteTopic": (pubsub.DeleteTopicRequest, _EMPTY),
        "DetachSubscription": (pubsub.DetachSubscriptionRequest, pubsub.DetachSubscriptionResponse),
    },
    "Subscriber": {
        "CreateSubscription": (pubsub.Subscription, pubsub.Subscription),
        "GetSubscription": (pubsub.GetSubscriptionRequest, pubsub.Subscription),
        "UpdateSubscription": (pubsub.UpdateSubscriptionRequest, pubsub.Subscription),
        "ListSubscriptions": (pubsub.ListSubscriptionsRequest, pubsub.ListSubscriptionsResponse),
        "DeleteSubscription": (pubsub.DeleteSubscriptionRequest, _EMPTY),
        "ModifyAckDeadline": (pubsub.ModifyAckDeadlineRequest, _EMPTY),
        "Acknowledge": (pubsub.AcknowledgeRequest, _EMPTY),
        "Pull": (pubsub.PullRequest, pubsub.PullResponse),
        "StreamingPull": (pubsub.StreamingPullRequest, pubsub.StreamingPullResponse),
        "ModifyPushConfig": (pubsub.ModifyPushConfigRequest, _EMPTY),
        "GetSnapshot": (pubsub.GetSnapshotRequest, pubsub.Snapshot),
        "ListSnapshots": (pubsub.ListSnapshotsRequest, pubsub.ListSnapshotsResponse),
        "CreateSnapshot": (pubsub.CreateSnapshotRequest, pubsub.Snapshot),
        "UpdateSnapshot": (pubsub.UpdateSnapshotRequest, pubsub.Snapshot),
        "DeleteSnapshot": (pubsub.DeleteSnapshotRequest, _EMPTY),
        "Seek": (pubsub.SeekRequest, pubsub.SeekResponse),
    },
    "SchemaService": {
        "CreateSchema": (schema.CreateSchemaRequest, schema.Schema),
        "GetSchema": (schema.GetSchemaRequest, schema.Schema),
        "ListSchemas": (schema.ListSchemasRequest, schema.ListSchemasResponse),
        "ListSchemaRevisions": (schema.ListSchemaRevisionsRequest, schema.ListSchemaRevisionsResponse),
        "CommitSchema": (schema.CommitSchemaRequest, schema.Schema),
        "RollbackSchema": (schema.RollbackSchemaRequest, schema.Schema),
        "DeleteSchemaRevision": (schema.DeleteSchemaRevisionRequest, schema.Schema),
        "DeleteSchema": (schema.DeleteSchemaRequest, _EMPTY),
        "ValidateSchema": (schema.ValidateSchemaRequest, schema.ValidateSchemaResponse),
        "ValidateMessage": (schema.ValidateMessageRequest, schema.ValidateMessageResponse),
    },
}
_STREAMS = {"StreamingPull"}  # both ways


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
    file = descriptor_pb2.FileDescriptorProto(name=_FILE, package=_PACKAGE, syntax="proto3")
    for service, calls in _SERVICES.items():
        described = file.service.add(name=service)
        for call, (request, response) in calls.items():
            described.method.add(
                name=call,
                input_type=f".{_descriptor(request).full_name}",
                output_type=f".{_descriptor(response).full_name}",
                client_streaming=call in _STREAMS,
                server_streaming=call in _STREAMS,
            )
    file.dependency.extend(sorted({_descriptor(kind).file.name for kind in _kinds()}))
    return file


def _kinds() -> Iterator[Any]:
    for calls in _SERVICES.values():
        for pair in calls.values():
            yield from pair


def _descriptor(kind: Any) -> Any:
    """Google's types hide that of protobuf."""
    return (kind.pb() if hasattr(kind, "pb") else kind).DESCRIPTOR
