"""What Google's clients call: by service each call, what it is sent and what it answers.

The package that has Google's messages has no description of the services.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.iam.v1 import iam_policy_pb2, policy_pb2
from google.protobuf import empty_pb2
from google.pubsub_v1.types import pubsub, schema

_EMPTY = empty_pb2.Empty

PUBSUB = "google.pubsub.v1"
SERVICES: Mapping[str, Mapping[str, tuple[Any, Any]]] = {
    f"{PUBSUB}.Publisher": {
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
    f"{PUBSUB}.Subscriber": {
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
    f"{PUBSUB}.SchemaService": {
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
    "google.iam.v1.IAMPolicy": {
        "SetIamPolicy": (iam_policy_pb2.SetIamPolicyRequest, policy_pb2.Policy),
        "GetIamPolicy": (iam_policy_pb2.GetIamPolicyRequest, policy_pb2.Policy),
        "TestIamPermissions": (
            iam_policy_pb2.TestIamPermissionsRequest,
            iam_policy_pb2.TestIamPermissionsResponse,
        ),
    },
}
STREAMS = {"StreamingPull"}  # both ways


def message(kind: Any) -> Any:
    """The class of protobuf, which Google's types hide."""
    return kind.pb() if hasattr(kind, "pb") else kind
