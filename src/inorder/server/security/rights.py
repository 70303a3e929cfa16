"""Which right each call needs, in one table. A call that is not in it is nobody's.

`admin` of a resource includes the other rights to it. Who may use a topic or subscription in any way may look at it;
to list all of a project needs `admin` of `projects/P`. A subscription reads its topic, and writes to that of its dead
letters: whoever makes one needs the right to both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

from google.iam.v1 import iam_policy_pb2
from google.pubsub_v1.types import pubsub, schema

from inorder.protocol import inorder_v1_pb2 as extensions
from inorder.server.schemas.book import DELETED_SCHEMA
from inorder.server.security.tokens import RIGHTS, Right, Token
from inorder.server.status import invalid, parsed

Find: TypeAlias = Callable[[bytes], Iterable[str]]


class Claim(NamedTuple):
    """One of these rights to each of the resources that a request names."""

    rights: tuple[Right, ...]
    field: str  # where it names them
    find: Find


class Needed(NamedTuple):
    """The same for one request."""

    rights: tuple[Right, ...]
    resource: str

    def granted(self, token: Token) -> bool:
        return any(token.may(right, self.resource) for right in self.rights)


Rule: TypeAlias = tuple[Claim, ...] | None
OPEN: Rule = None  # for everybody, without a token
ANY_TOKEN: Rule = ()

PUBLISH: tuple[Right, ...] = ("publish",)
SUBSCRIBE: tuple[Right, ...] = ("subscribe",)
ADMIN: tuple[Right, ...] = ("admin",)
LOOK: tuple[Right, ...] = RIGHTS

# Requests of which only the first field counts are read as one that has no other: the rest of them, which may be a
# thousand messages, is skipped. Of a field that is there twice both this and who serves the call take the last.
_FIRST = pubsub.GetTopicRequest.pb()


def needed(rule: tuple[Claim, ...], raw: bytes) -> list[Needed]:
    """What the sender of this request must be allowed to do."""
    return [Needed(claim.rights, resource) for claim in rule for resource in claim.find(raw)]


def _first(rights: tuple[Right, ...], field: str) -> Claim:
    return Claim(rights, field, lambda raw: [parsed(_FIRST, raw).topic])


def _field(rights: tuple[Right, ...], kind: Any, path: str) -> Claim:
    def find(raw: bytes) -> Iterator[str]:
        yield _at(parsed(kind, raw), path)

    return Claim(rights, path, find)


def _if_set(rights: tuple[Right, ...], kind: Any, path: str) -> Claim:
    """For a field that may be empty, and then claims nothing."""

    def find(raw: bytes) -> Iterator[str]:
        if value := _at(parsed(kind, raw), path):
            yield value

    return Claim(rights, path, find)


def _at(request: Any, path: str) -> str:
    value: str = reduce(getattr, path.split("."), request)
    return value


def _schema(rights: tuple[Right, ...], kind: Any) -> Claim:
    """A schema, whose name may also say which revision. A call that needs the name refuses one that is empty."""

    def find(raw: bytes) -> Iterator[str]:
        if name := parsed(kind, raw).name.partition("@")[0]:
            yield name

    return Claim(rights, "name", find)


def _schema_of_topic(kind: Any, path: str) -> Claim:
    """The schema by which a topic judges its messages, unless it has gone and cannot be told anything of."""

    def find(raw: bytes) -> Iterator[str]:
        name = _at(parsed(kind, raw), path)
        if name and name != DELETED_SCHEMA:
            yield name

    return Claim(LOOK, path, find)


def _new_schema(raw: bytes) -> Iterator[str]:
    request = parsed(schema.CreateSchemaRequest.pb(), raw)
    yield f"{request.parent}/schemas/{request.schema_id}"


def _new_subscription(raw: bytes) -> Iterator[str]:
    request = parsed(pubsub.Subscription.pb(), raw)
    # One that the server names is of the project of its topic.
    yield request.name or f"{_project(request.topic)}/subscriptions/*"


def _new_snapshot(raw: bytes) -> Iterator[str]:
    request = parsed(pubsub.CreateSnapshotRequest.pb(), raw)
    # One that the server names is of the project of its subscription.
    yield request.name or f"{_project(request.subscription)}/snapshots/*"


def _dead_letter_topic(kind: Any, path: str) -> Claim:
    """In options that are JSON, in the words of Python. A plain name is in the project of the subscription."""

    def find(raw: bytes) -> Iterator[str]:
        request = parsed(kind, raw)
        try:
            options = json.loads(_at(request, path) or "{}")
            policy = options.get("dead_letter_policy") or {}
            topic = policy.get("dead_letter_topic")
        except (ValueError, AttributeError, RecursionError):
            raise invalid(f"{path}: expected an object in JSON.") from None
        if topic:
            yield str(topic) if "/" in str(topic) else f"{_project(request.subscription)}/topics/{topic}"

    return Claim(PUBLISH, f"{path}.dead_letter_policy.dead_letter_topic", find)


def _project(resource: str) -> str:
    return "/".join(resource.split("/")[:2])


def _listed_subscriptions(raw: bytes) -> Iterator[str]:
    request = parsed(extensions.ListSubscriptionsRequest, raw)
    if not request.topic:
        yield request.project


_RULES: Mapping[str, Mapping[str, Rule]] = {
    "google.pubsub.v1.Publisher": {
        "CreateTopic": (
            _first(ADMIN, "name"),
            _schema_of_topic(pubsub.Topic.pb(), "schema_settings.schema"),
        ),
        "UpdateTopic": (
            _field(ADMIN, pubsub.UpdateTopicRequest.pb(), "topic.name"),
            _schema_of_topic(pubsub.UpdateTopicRequest.pb(), "topic.schema_settings.schema"),
        ),
        "Publish": (_first(PUBLISH, "topic"),),
        "GetTopic": (_first(LOOK, "topic"),),
        "ListTopics": (_first(ADMIN, "project"),),
        "ListTopicSubscriptions": (_first(LOOK, "topic"),),
        "ListTopicSnapshots": (_first(LOOK, "topic"),),
        "DeleteTopic": (_first(ADMIN, "topic"),),
        "DetachSubscription": (_first(ADMIN, "subscription"),),
    },
    "google.pubsub.v1.Subscriber": {
        "CreateSubscription": (
            Claim(ADMIN, "name", _new_subscription),
            _field(SUBSCRIBE, pubsub.Subscription.pb(), "topic"),
            _if_set(PUBLISH, pubsub.Subscription.pb(), "dead_letter_policy.dead_letter_topic"),
        ),
        "GetSubscription": (_first(LOOK, "subscription"),),
        "UpdateSubscription": (
            _field(ADMIN, pubsub.UpdateSubscriptionRequest.pb(), "subscription.name"),
            _if_set(
                PUBLISH, pubsub.UpdateSubscriptionRequest.pb(), "subscription.dead_letter_policy.dead_letter_topic"
            ),
        ),
        "ListSubscriptions": (_first(ADMIN, "project"),),
        "DeleteSubscription": (_first(ADMIN, "subscription"),),
        "ModifyAckDeadline": (_first(SUBSCRIBE, "subscription"),),
        "Acknowledge": (_first(SUBSCRIBE, "subscription"),),
        "Pull": (_first(SUBSCRIBE, "subscription"),),
        "StreamingPull": (_first(SUBSCRIBE, "subscription"),),
        "ModifyPushConfig": (_first(ADMIN, "subscription"),),
        "GetSnapshot": (_first(LOOK, "snapshot"),),
        "ListSnapshots": (_first(ADMIN, "project"),),
        "CreateSnapshot": (
            Claim(ADMIN, "name", _new_snapshot),
            _field(SUBSCRIBE, pubsub.CreateSnapshotRequest.pb(), "subscription"),
        ),
        "UpdateSnapshot": (_field(ADMIN, pubsub.UpdateSnapshotRequest.pb(), "snapshot.name"),),
        "DeleteSnapshot": (_first(ADMIN, "snapshot"),),
        "Seek": (
            _first(SUBSCRIBE, "subscription"),
            _if_set(SUBSCRIBE, pubsub.SeekRequest.pb(), "snapshot"),
        ),
    },
    "google.pubsub.v1.SchemaService": {
        "CreateSchema": (Claim(ADMIN, "parent, schema_id", _new_schema),),
        "GetSchema": (_schema(LOOK, schema.GetSchemaRequest.pb()),),
        "ListSchemas": (_first(ADMIN, "parent"),),
        "ListSchemaRevisions": (_schema(LOOK, schema.ListSchemaRevisionsRequest.pb()),),
        "CommitSchema": (_schema(ADMIN, schema.CommitSchemaRequest.pb()),),
        "RollbackSchema": (_schema(ADMIN, schema.RollbackSchemaRequest.pb()),),
        "DeleteSchemaRevision": (_schema(ADMIN, schema.DeleteSchemaRevisionRequest.pb()),),
        "DeleteSchema": (_schema(ADMIN, schema.DeleteSchemaRequest.pb()),),
        "ValidateSchema": ANY_TOKEN,
        "ValidateMessage": (_schema(LOOK, schema.ValidateMessageRequest.pb()),),
    },
    "google.iam.v1.IAMPolicy": {
        "SetIamPolicy": (_field(ADMIN, iam_policy_pb2.SetIamPolicyRequest, "resource"),),
        "GetIamPolicy": (_field(ADMIN, iam_policy_pb2.GetIamPolicyRequest, "resource"),),
        "TestIamPermissions": (_field(LOOK, iam_policy_pb2.TestIamPermissionsRequest, "resource"),),
    },
    "inorder.v1.Inorder": {
        "Describe": ANY_TOKEN,
        "CreateTopic": (_first(ADMIN, "topic"),),
        "GetTopic": (_first(LOOK, "topic"),),
        "ListTopics": (_first(ADMIN, "project"),),
        "CreateSubscription": (
            _first(ADMIN, "subscription"),
            _field(SUBSCRIBE, extensions.CreateSubscriptionRequest, "topic"),
            _dead_letter_topic(extensions.CreateSubscriptionRequest, "options"),
        ),
        "UpdateSubscription": (
            _first(ADMIN, "subscription"),
            _dead_letter_topic(extensions.UpdateSubscriptionRequest, "changes"),
        ),
        "GetSubscription": (_first(LOOK, "subscription"),),
        "ListSubscriptions": (
            Claim(ADMIN, "project", _listed_subscriptions),
            _if_set(LOOK, extensions.ListSubscriptionsRequest, "topic"),
        ),
        "Seek": (_first(SUBSCRIBE, "subscription"),),
        "BlockedKeys": (_first(SUBSCRIBE, "subscription"),),
        "WatchKeys": (_first(SUBSCRIBE, "subscription"),),
        "ResumeKey": (_first(SUBSCRIBE, "subscription"),),
        "SkipKey": (_first(SUBSCRIBE, "subscription"),),
        "Unacked": (_first(SUBSCRIBE, "subscription"),),
        "Metrics": (_first(LOOK, "subscription"),),
        "Take": (_first(SUBSCRIBE, "subscription"),),
        "Answer": (_first(SUBSCRIBE, "subscription"),),
        "OpenProducer": (_first(PUBLISH, "topic"),),
        "TopicBounds": (_first(LOOK, "topic"),),
        "PositionAt": (_first(SUBSCRIBE, "topic"),),
        "PositionAfter": (_first(SUBSCRIBE, "topic"),),
        "ReadTopic": (_first(SUBSCRIBE, "topic"),),
        "StagePart": (_first(PUBLISH, "topic"),),
        "CommitEpoch": (_first(PUBLISH, "topic"),),
        "DiscardParts": (_first(PUBLISH, "topic"),),
    },
    "grpc.health.v1.Health": {"Check": OPEN, "Watch": OPEN},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": ANY_TOKEN},
}

RULES: Mapping[str, Rule] = {
    f"/{service}/{call}": rule for service, rules in _RULES.items() for call, rule in rules.items()
}
