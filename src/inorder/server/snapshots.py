"""The calls of google.pubsub.v1.Subscriber, and one of Publisher, that are about snapshots."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC
from typing import Any

from google.protobuf import empty_pb2
from google.pubsub_v1.types import pubsub

from inorder.broker import MessageQueue
from inorder.errors import AlreadyExists, NotFound
from inorder.metadata import SnapshotMetadata
from inorder.server.admin import Admin, lasting
from inorder.server.names import Names, project_of
from inorder.server.paging import page
from inorder.server.resources import Proto, Snapshot, snapshot_annotations, snapshot_of, updated
from inorder.server.status import (
    Context,
    RawCall,
    absent,
    already_exists,
    invalid,
    snapshot_missing,
    subscription_missing,
    topic_missing,
    unary,
)


class Snapshots:
    """The calls. `forget` is told of each snapshot that is deleted, before and after."""

    def __init__(
        self, broker: MessageQueue, names: Names, admin: Admin, forget: Callable[[str], Awaitable[None]]
    ) -> None:
        self._broker = broker
        self._names = names
        self._admin = admin
        self._forget = forget

    def calls(self) -> Mapping[str, RawCall]:
        """Those of Subscriber, each by its name."""
        return {
            "CreateSnapshot": unary(pubsub.CreateSnapshotRequest.pb(), self.create_snapshot),
            "GetSnapshot": unary(pubsub.GetSnapshotRequest.pb(), self.get_snapshot),
            "UpdateSnapshot": unary(pubsub.UpdateSnapshotRequest.pb(), lasting(self.update_snapshot)),
            "ListSnapshots": unary(pubsub.ListSnapshotsRequest.pb(), self.list_snapshots),
            "DeleteSnapshot": unary(pubsub.DeleteSnapshotRequest.pb(), lasting(self.delete_snapshot)),
        }

    def publisher_calls(self) -> Mapping[str, RawCall]:
        """Those of Publisher."""
        return {"ListTopicSnapshots": unary(pubsub.ListTopicSnapshotsRequest.pb(), self.list_topic_snapshots)}

    async def create_snapshot(self, request: Proto, context: Context) -> Proto:
        subscription = self._names.subscription(request.subscription)
        resource = request.name or self._names.unused("snapshots", request.subscription)
        name = self._names.new("snapshots", resource)
        if request.tags:
            raise absent("Resource tags are not supported: use labels.")
        annotations = snapshot_annotations(Snapshot(labels=dict(request.labels)))
        try:
            await self._admin.run(lambda: self._broker.create_snapshot(name, subscription, annotations))
        except AlreadyExists:
            raise already_exists("Snapshot", resource) from None
        except NotFound:
            raise subscription_missing(request.subscription) from None
        return self._shown(resource)

    async def get_snapshot(self, request: Proto, context: Context) -> Proto:
        return self._shown(request.snapshot)

    async def update_snapshot(self, request: Proto, context: Context) -> Proto:
        resource = request.snapshot.name
        async with self._admin.changing:
            found = self._snapshot(resource)
            shown = snapshot_of(found, self._names)
            wanted = updated(shown, request.snapshot, request.update_mask)
            annotations = snapshot_annotations(wanted, found.annotations)
            expires = None
            if wanted.expire_time != shown.expire_time:
                try:
                    expires = wanted.expire_time.ToDatetime(tzinfo=UTC)
                except ValueError:
                    raise invalid("expire_time: a time from the year 1 to 9999.") from None
            try:
                await self._admin.run(
                    lambda: self._broker.update_snapshot(found.name, annotations=annotations, expires=expires)
                )
            except NotFound:
                raise snapshot_missing(resource) from None
        return self._shown(resource)

    async def list_snapshots(self, request: Proto, context: Context) -> Proto:
        project = project_of(request.project)
        found = {self._names.snapshot_resource(one.name): one for one in self._broker.get_all_snapshots()}
        names, following = page([name for name in found if name.startswith(project)], request)
        response: Any = pubsub.ListSnapshotsResponse.pb()(next_page_token=following)
        response.snapshots.extend(snapshot_of(found[name], self._names) for name in names)
        return response

    async def list_topic_snapshots(self, request: Proto, context: Context) -> Proto:
        topic = self._names.topic(request.topic)
        if not self._broker.topic_exists(topic):
            raise topic_missing(request.topic)
        names, following = page(self.of_topic(topic), request)
        return pubsub.ListTopicSnapshotsResponse.pb()(snapshots=names, next_page_token=following)

    async def delete_snapshot(self, request: Proto, context: Context) -> Proto:
        name = self._snapshot(request.snapshot).name
        await self._forget(request.snapshot)
        try:
            await self._admin.run(lambda: self._broker.delete_snapshot(name))
        except NotFound:
            raise snapshot_missing(request.snapshot) from None
        await self._forget(request.snapshot)  # and what was set of it meanwhile
        return empty_pb2.Empty()

    def of_topic(self, topic: str) -> list[str]:
        """The resources that would go with a topic."""
        return [self._names.snapshot_resource(o.name) for o in self._broker.get_all_snapshots() if o.topic == topic]

    def _shown(self, resource: str) -> Proto:
        return snapshot_of(self._snapshot(resource), self._names)

    def _snapshot(self, resource: str) -> SnapshotMetadata:
        found = self._broker.get_snapshot(self._names.snapshot(resource))
        if found is None:
            raise snapshot_missing(resource)
        return found
