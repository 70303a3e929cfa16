"""Which call a method and a path stand for, as in Google's REST reference for Pub/Sub, version 1."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple
from urllib.parse import unquote

WHOLE = "*"  # the body is the request
_SLASH = re.compile("%(2f)", re.IGNORECASE)  # is left as it is in what has segments, by the rules of google.api.http

_TOPIC, _SUBSCRIPTION = "projects/*/topics/*", "projects/*/subscriptions/*"
_SNAPSHOT, _SCHEMA = "projects/*/snapshots/*", "projects/*/schemas/*"

# Method, path behind /v1/ with the fields of the request that are in it, call, and which field the body is.
_ROUTES: Mapping[str, tuple[tuple[str, str, str, str], ...]] = {
    "google.pubsub.v1.Publisher": (
        ("PUT", f"{{name={_TOPIC}}}", "CreateTopic", WHOLE),
        ("PATCH", f"{{topic.name={_TOPIC}}}", "UpdateTopic", WHOLE),
        ("GET", f"{{topic={_TOPIC}}}", "GetTopic", ""),
        ("DELETE", f"{{topic={_TOPIC}}}", "DeleteTopic", ""),
        ("POST", f"{{topic={_TOPIC}}}:publish", "Publish", WHOLE),
        ("GET", f"{{topic={_TOPIC}}}/subscriptions", "ListTopicSubscriptions", ""),
        ("GET", f"{{topic={_TOPIC}}}/snapshots", "ListTopicSnapshots", ""),
        ("GET", "{project=projects/*}/topics", "ListTopics", ""),
        ("POST", f"{{subscription={_SUBSCRIPTION}}}:detach", "DetachSubscription", ""),
    ),
    "google.pubsub.v1.Subscriber": (
        ("PUT", f"{{name={_SUBSCRIPTION}}}", "CreateSubscription", WHOLE),
        ("PATCH", f"{{subscription.name={_SUBSCRIPTION}}}", "UpdateSubscription", WHOLE),
        ("GET", f"{{subscription={_SUBSCRIPTION}}}", "GetSubscription", ""),
        ("DELETE", f"{{subscription={_SUBSCRIPTION}}}", "DeleteSubscription", ""),
        ("GET", "{project=projects/*}/subscriptions", "ListSubscriptions", ""),
        ("POST", f"{{subscription={_SUBSCRIPTION}}}:pull", "Pull", WHOLE),
        ("POST", f"{{subscription={_SUBSCRIPTION}}}:acknowledge", "Acknowledge", WHOLE),
        ("POST", f"{{subscription={_SUBSCRIPTION}}}:modifyAckDeadline", "ModifyAckDeadline", WHOLE),
        ("POST", f"{{subscription={_SUBSCRIPTION}}}:modifyPushConfig", "ModifyPushConfig", WHOLE),
        ("POST", f"{{subscription={_SUBSCRIPTION}}}:seek", "Seek", WHOLE),
        ("PUT", f"{{name={_SNAPSHOT}}}", "CreateSnapshot", WHOLE),
        ("PATCH", f"{{snapshot.name={_SNAPSHOT}}}", "UpdateSnapshot", WHOLE),
        ("GET", f"{{snapshot={_SNAPSHOT}}}", "GetSnapshot", ""),
        ("DELETE", f"{{snapshot={_SNAPSHOT}}}", "DeleteSnapshot", ""),
        ("GET", "{project=projects/*}/snapshots", "ListSnapshots", ""),
    ),
    "google.pubsub.v1.SchemaService": (
        ("POST", "{parent=projects/*}/schemas", "CreateSchema", "schema"),
        ("GET", "{parent=projects/*}/schemas", "ListSchemas", ""),
        ("POST", "{parent=projects/*}/schemas:validate", "ValidateSchema", WHOLE),
        ("POST", "{parent=projects/*}/schemas:validateMessage", "ValidateMessage", WHOLE),
        ("GET", f"{{name={_SCHEMA}}}", "GetSchema", ""),
        ("DELETE", f"{{name={_SCHEMA}}}", "DeleteSchema", ""),
        ("GET", f"{{name={_SCHEMA}}}:listRevisions", "ListSchemaRevisions", ""),
        ("POST", f"{{name={_SCHEMA}}}:commit", "CommitSchema", WHOLE),
        ("POST", f"{{name={_SCHEMA}}}:rollback", "RollbackSchema", WHOLE),
        ("DELETE", f"{{name={_SCHEMA}}}:deleteRevision", "DeleteSchemaRevision", ""),
    ),
    "google.iam.v1.IAMPolicy": tuple(
        (method, f"{{resource={resource}}}:{verb}", call, body)
        for resource in (_TOPIC, _SUBSCRIPTION, _SNAPSHOT, _SCHEMA)
        for method, verb, call, body in (
            ("GET", "getIamPolicy", "GetIamPolicy", ""),
            ("POST", "setIamPolicy", "SetIamPolicy", WHOLE),
            ("POST", "testIamPermissions", "TestIamPermissions", WHOLE),
        )
    ),
}


class Route(NamedTuple):
    service: str
    call: str
    body: str  # the field of the request that it is, or WHOLE; "" if there is none
    field: str  # the one that the path has
    value: str


def route_of(method: str, path: str) -> Route | None:
    """What is meant, if anything is."""
    for pattern, (service, call, body, field) in _patterns().get(method, ()):
        if found := pattern.fullmatch(path):
            return Route(service, call, body, field, unquote(_SLASH.sub(r"%25\1", found[1])))
    return None


def all_calls() -> Iterator[tuple[str, str]]:
    """The service and the name of each call that has a path."""
    return ((service, call) for service, routes in _ROUTES.items() for _, _, call, _ in routes)


@cache
def _patterns() -> Mapping[str, list[tuple[re.Pattern[str], tuple[str, str, str, str]]]]:
    found: dict[str, list[tuple[re.Pattern[str], tuple[str, str, str, str]]]] = {}
    for service, routes in _ROUTES.items():
        for method, path, call, body in routes:
            field, resource, rest = re.fullmatch(r"\{([\w.]+)=([^}]+)\}(.*)", path).groups()  # type: ignore[union-attr]
            # A colon begins a verb, but may also be within a project.
            named = resource.replace("projects/*", "projects/[^/]+").replace("*", "[^/:]+")
            found.setdefault(method, []).append(
                (re.compile(rf"/v1/({named}){re.escape(rest)}"), (service, call, body, field))
            )
    return found
