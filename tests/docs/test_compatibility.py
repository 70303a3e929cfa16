"""docs/compatibility.md names every call and every field that Google's package knows, and what becomes of it here."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.pubsub_v1.services.publisher.transports.base import PublisherTransport
from google.pubsub_v1.services.schema_service.transports.base import SchemaServiceTransport
from google.pubsub_v1.services.subscriber.transports.base import SubscriberTransport
from google.pubsub_v1.types import pubsub

from inorder.broker import MessageQueue
from inorder.server import resources

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
STATES = {"same", "different", "absent"}
IAM = {"SetIamPolicy", "GetIamPolicy", "TestIamPermissions"}
SERVICES = {"Publisher": PublisherTransport, "Subscriber": SubscriberTransport, "SchemaService": SchemaServiceTransport}

# The messages in which calls and answers are wrapped, of the calls that are there.
WRAPPERS = {
    "CreateTopic": ("Topic",),
    "CreateSubscription": ("Subscription",),
    "GetTopic": ("GetTopicRequest",),
    "UpdateTopic": ("UpdateTopicRequest",),
    "ListTopics": ("ListTopicsRequest", "ListTopicsResponse"),
    "DeleteTopic": ("DeleteTopicRequest",),
    "Publish": ("PublishRequest", "PublishResponse"),
    "ListTopicSubscriptions": ("ListTopicSubscriptionsRequest", "ListTopicSubscriptionsResponse"),
    "DetachSubscription": ("DetachSubscriptionRequest", "DetachSubscriptionResponse"),
    "GetSubscription": ("GetSubscriptionRequest",),
    "UpdateSubscription": ("UpdateSubscriptionRequest",),
    "ListSubscriptions": ("ListSubscriptionsRequest", "ListSubscriptionsResponse"),
    "DeleteSubscription": ("DeleteSubscriptionRequest",),
    "Pull": ("PullRequest", "PullResponse"),
    "StreamingPull": ("StreamingPullRequest", "StreamingPullResponse"),
    "Acknowledge": ("AcknowledgeRequest",),
    "ModifyAckDeadline": ("ModifyAckDeadlineRequest",),
    "Seek": ("SeekRequest", "SeekResponse"),
    "ModifyPushConfig": ("ModifyPushConfigRequest",),
    "CreateSnapshot": ("CreateSnapshotRequest", "Snapshot"),
    "GetSnapshot": ("GetSnapshotRequest",),
    "UpdateSnapshot": ("UpdateSnapshotRequest",),
    "ListSnapshots": ("ListSnapshotsRequest", "ListSnapshotsResponse"),
    "DeleteSnapshot": ("DeleteSnapshotRequest",),
    "ListTopicSnapshots": ("ListTopicSnapshotsRequest", "ListTopicSnapshotsResponse"),
}

Row = dict[str, str]


def rows(*header: str) -> list[Row]:
    """The rows of all tables with this header."""
    found: list[Row] = []
    columns: list[str] = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells or set(cells[0]) <= {"-"}:
            columns = columns if cells else []
        elif not columns:
            columns = cells
        elif tuple(columns) == header:
            found.append(dict(zip(columns, cells, strict=True)))
    assert found, f"no table with the columns {header}"
    return found


def calls() -> dict[tuple[str, str], str]:
    return {
        (row["service"], row["call"].strip("`")): row["here"]
        for row in rows("service", "call", "here", "what is different")
    }


def fields() -> dict[tuple[str, str], str]:
    return {
        (row["message"], row["field"].strip("`")): row["here"]
        for row in rows("message", "field", "here", "what is different")
    }


def known_calls() -> Iterator[tuple[str, str]]:
    for service, transport in SERVICES.items():
        for name, member in vars(transport).items():
            call = "".join(part.capitalize() for part in name.split("_"))
            if isinstance(member, property) and name not in ("host", "kind") and call not in IAM:
                yield service, call
    yield from (("IAMPolicy", call) for call in IAM)


def test_every_call_is_named_and_nothing_else() -> None:
    assert set(calls()) == set(known_calls())
    assert set(calls().values()) <= STATES


async def answered(service: str, call: str) -> bool:
    """Whether a server has the call at all."""
    from inorder.server import Server

    server = Server(MessageQueue())
    port = await server.start()
    package = "google.iam.v1" if service == "IAMPolicy" else "google.pubsub.v1"
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.stream_stream if call == "StreamingPull" else channel.unary_unary
        made: Any = method(f"/{package}.{service}/{call}")(iter(()) if call == "StreamingPull" else b"", timeout=10)
        code = await made.code()
    await server.stop()
    return bool(code != grpc.StatusCode.UNIMPLEMENTED)


@pytest.mark.parametrize(("service", "call"), sorted(known_calls()))
def test_a_call_is_there_unless_it_is_said_to_be_absent(service: str, call: str) -> None:
    import asyncio

    assert asyncio.run(answered(service, call)) == (calls()[service, call] != "absent")


def known_fields() -> set[tuple[str, str]]:
    """Those of every message that a call which is there can carry, down to what is absent."""
    found: set[tuple[str, str]] = set()
    documented = fields()
    elsewhere = ("SchemaService", "IAMPolicy")  # on a page of their own
    there = {call for (service, call), here in calls().items() if here != "absent" and service not in elsewhere}
    waiting = [getattr(pubsub, name).pb().DESCRIPTOR for call in there for name in WRAPPERS[call]]
    seen: set[str] = set()
    while waiting:
        message = waiting.pop()
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        for field in message.fields:
            name = message.full_name.removeprefix("google.pubsub.v1.")
            found.add((name, field.name))
            nested = field.message_type
            ours = nested is not None and nested.full_name.startswith("google.pubsub.v1.")
            if ours and not nested.GetOptions().map_entry and documented.get((name, field.name)) != "absent":
                waiting.append(nested)
    return found


def test_every_field_is_named_and_nothing_else() -> None:
    assert set(fields()) == known_fields()
    assert set(fields().values()) <= STATES


@pytest.mark.parametrize("message", ["Topic", "Subscription", "Snapshot"])
def test_the_server_has_the_same_tables(message: str) -> None:
    descriptor = getattr(resources, message).DESCRIPTOR
    tables = (resources.KEPT, resources.SET_HERE, resources.FIXED, resources.HONOURED, resources.ABSENT)
    known = [field for table in tables for field in table[message]]  # type: ignore[index]
    assert sorted(known) == sorted(field.name for field in descriptor.fields)
    absent = {field for (of, field), here in fields().items() if of == message and here == "absent"}
    assert absent == set(resources.ABSENT[message])
