"""google.iam.v1 by Google's own clients, for topics, subscriptions, snapshots and schemas."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import Aborted, InvalidArgument, NotFound
from google.iam.v1.policy_pb2 import Policy
from google.pubsub_v1.types import Schema

from inorder.server.documents import MemoryDocuments
from inorder.server.sqlite_documents import SqliteDocuments

from .admin_server import EXISTING, Clients, serving

TOPIC = "projects/shop/topics/orders"
SCHEMA = "projects/shop/schemas/state"
VIEWER = {"role": "roles/pubsub.viewer", "members": ["user:a@example.com", "allUsers"]}


@pytest.fixture(scope="module")
def served() -> Iterator[Clients]:
    with serving(MemoryDocuments()) as clients:
        yield clients


@pytest.fixture
def clients(served: Clients) -> Clients:
    for resource in EXISTING:
        set_policy(served, resource, {})
    return served


def set_policy(clients: Clients, resource: str, policy: Any, **more: Any) -> Policy:
    return clients.publisher.set_iam_policy(request={"resource": resource, "policy": policy, **more})


def get_policy(clients: Clients, resource: str) -> Policy:
    return clients.publisher.get_iam_policy(request={"resource": resource})


@pytest.mark.parametrize("resource", sorted(EXISTING))
def test_a_policy_is_set_and_returned(clients: Clients, resource: str) -> None:
    policy = set_policy(clients, resource, {"version": 1, "bindings": [VIEWER]})
    assert policy.bindings[0].role == "roles/pubsub.viewer"
    assert list(policy.bindings[0].members) == VIEWER["members"]
    assert policy.etag
    assert clients.subscriber.get_iam_policy(request={"resource": resource}) == policy


def test_an_etag_guards_read_modify_write(clients: Clients) -> None:
    first = get_policy(clients, TOPIC)
    second = set_policy(clients, TOPIC, {"bindings": [VIEWER], "etag": first.etag})
    assert second.etag != first.etag
    with pytest.raises(Aborted, match="concurrent policy changes"):
        set_policy(clients, TOPIC, {"etag": first.etag})
    assert get_policy(clients, TOPIC) == second


def test_a_mask_changes_only_what_it_names(clients: Clients) -> None:
    set_policy(clients, TOPIC, {"version": 1, "bindings": [VIEWER]})
    changed = set_policy(clients, TOPIC, {"version": 3}, update_mask={"paths": ["version"]})
    assert changed.version == 3
    assert changed.bindings[0].role == "roles/pubsub.viewer"
    emptied = set_policy(clients, TOPIC, {"etag": changed.etag}, update_mask={"paths": ["bindings", "etag"]})
    assert (emptied.version, list(emptied.bindings)) == (3, [])
    with pytest.raises(Aborted):
        set_policy(clients, TOPIC, {"etag": changed.etag}, update_mask={"paths": ["etag"]})
    with pytest.raises(InvalidArgument, match="update_mask: 'roles'"):
        set_policy(clients, TOPIC, {}, update_mask={"paths": ["roles"]})


def test_without_a_mask_the_bindings_are_set_and_what_is_audited_stays(clients: Clients) -> None:
    audited = {"audit_configs": [{"service": "pubsub.googleapis.com"}]}
    set_policy(clients, TOPIC, audited, update_mask={"paths": ["audit_configs"]})
    changed = set_policy(clients, TOPIC, {"bindings": [VIEWER]})
    assert changed.bindings[0].role == "roles/pubsub.viewer"
    assert [one.service for one in changed.audit_configs] == ["pubsub.googleapis.com"]


CONDITION = {"title": "until noon", "expression": "request.time < timestamp('2030-01-01T12:00:00Z')"}
REFUSED = {
    "a role": ({"bindings": [{"role": "viewer"}]}, "policy.bindings.role: expected roles/NAME"),
    "a member": ({"bindings": [{**VIEWER, "members": ["a@example.com"]}]}, "policy.bindings.members"),
    "a version": ({"version": 2}, "policy.version: 0, 1 or 3, not 2"),
    "a condition": ({"version": 1, "bindings": [{**VIEWER, "condition": CONDITION}]}, "a condition needs version 3"),
}


@pytest.mark.parametrize(("policy", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_policy_is_refused(clients: Clients, policy: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        set_policy(clients, TOPIC, policy)
    assert reason in refused.value.message


def test_a_condition_is_kept(clients: Clients) -> None:
    policy = {"version": 3, "bindings": [{**VIEWER, "condition": CONDITION}]}
    assert set_policy(clients, TOPIC, policy).bindings[0].condition.title == "until noon"
    request = {"resource": TOPIC, "options": {"requested_policy_version": 2}}
    with pytest.raises(InvalidArgument, match="requested_policy_version"):
        clients.publisher.get_iam_policy(request=request)


def test_permissions_that_have_a_meaning_hold(clients: Clients) -> None:
    asked = ["pubsub.topics.publish", "pubsub.topics.get", "pubsub.topics.fly", "storage.buckets.get"]
    answer = clients.publisher.test_iam_permissions(request={"resource": TOPIC, "permissions": asked})
    assert list(answer.permissions) == asked[:2]
    with pytest.raises(InvalidArgument, match="wildcards"):
        clients.publisher.test_iam_permissions(request={"resource": TOPIC, "permissions": ["pubsub.*"]})


def test_of_what_does_not_exist_nothing_is_allowed(clients: Clients) -> None:
    missing = "projects/shop/topics/missing"
    request = {"resource": missing, "permissions": ["pubsub.topics.publish"]}
    assert not clients.publisher.test_iam_permissions(request=request).permissions
    with pytest.raises(NotFound):
        set_policy(clients, missing, {})
    with pytest.raises(NotFound):
        get_policy(clients, missing)
    with pytest.raises(InvalidArgument, match="Invalid resource name"):
        get_policy(clients, "missing")


def test_a_schema_takes_its_policy_with_it(clients: Clients) -> None:
    def create() -> None:
        schema = Schema(type_=Schema.Type.AVRO, definition='"string"')
        clients.schemas.create_schema(parent="projects/shop", schema=schema, schema_id="state")

    create()
    request = {"resource": SCHEMA, "policy": {"bindings": [VIEWER]}}
    policy = clients.schemas.set_iam_policy(request=request)
    assert clients.schemas.get_iam_policy(request={"resource": SCHEMA}) == policy
    clients.schemas.delete_schema(name=SCHEMA)
    with pytest.raises(NotFound):
        clients.schemas.get_iam_policy(request={"resource": SCHEMA})
    create()
    assert not clients.schemas.get_iam_policy(request={"resource": SCHEMA}).bindings
    clients.schemas.delete_schema(name=SCHEMA)


def test_policies_survive_a_restart(tmp_path: Path) -> None:
    with closing(SqliteDocuments(tmp_path)) as documents, serving(documents) as clients:
        policy = set_policy(clients, TOPIC, {"bindings": [VIEWER]})
    with closing(SqliteDocuments(tmp_path)) as documents, serving(documents) as clients:
        assert get_policy(clients, TOPIC) == policy
